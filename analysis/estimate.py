"""How much faster the forward gets if a boundary is fused, with an interval, before the kernel is merged.

Amdahl is the first row. The estimate re-times the schedule with each site replaced by one launch and carries the
saving from the traced to the untraced step: tracing adds time per launch, and a launch that goes takes its part along.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from fusionscope.analysis import amdahl, noise
from fusionscope.analysis.attribution import Attribution
from fusionscope.analysis.forwards import Forward
from fusionscope.analysis.schedule import Schedule
from fusionscope.analysis.sites import Site
from fusionscope.analysis.tables import number
from fusionscope.analysis.verdict import MARGIN, Verdict, judge, us
from fusionscope.profiler.errors import FusionScopeError

Floats = NDArray[np.float64]

#: Where the fused kernel's time comes from -> how far the time in place may lie from it, as factors.
#: candidate: the same kernel in a traced graph of the same program; 3 % covers the drift between two captures.
#: in-context: producer, boundary and consumer in one graph; neighbours further off still differ.
#: isolated: alone in a loop, where its data is in cache: 2.81 us alone was 4.03 us in place (1.43 x) on an H200.
#: guess: a wish. Published operator speed-ups of one fusion range from 1.77 to 2.49 x on one machine, and cold caches
#: come on top.
INPUTS: dict[str, tuple[float, float]] = {
    "candidate": (0.97, 1.03),
    "in-context": (0.92, 1.10),
    "isolated": (0.95, 1.60),
    "guess": (0.60, 1.80),
}
#: Part of the mean tracing cost of a launch that a launch of the boundary takes along when it goes. It lies between
#: none and all of it; two graphs of one program on an H200 (225 and 180 launches) showed 0.45. Half is used, and the
#: other half is the error.
TRACER_PART, TRACER_ERROR = 0.5, 0.5
#: A traced step that takes so many times the untraced one is told of: 1.02 was seen under Nsight on an
#: H200, 1.8 under the torch profiler on a busy CPU.
INFLATED = 1.2


@dataclass(frozen=True)
class Fused:
    """What is claimed of the fused kernel: a speed-up of the boundary, or its time at a site in ns."""

    speedup: float | None = None
    time_ns: float | None = None
    launches: int = 1
    source: str = "guess"

    def times(self, duration: Floats, sites: list[Site], wait: Floats | None) -> Floats:
        """[sites, R] ns that each site takes once fused; a speed-up shortens the work and leaves the wait [R, n]."""
        if self.time_ns is not None:
            return np.full((len(sites), duration.shape[0]), self.time_ns)
        assert self.speedup is not None
        waiting = np.zeros_like(duration) if wait is None else wait
        idle = np.stack([waiting[:, list(s.columns)].sum(axis=1) for s in sites])
        whole = np.stack([duration[:, list(s.columns)].sum(axis=1) for s in sites])
        fused: Floats = (whole - idle) / self.speedup + idle
        return fused


@dataclass(frozen=True)
class Estimate:
    """The saving of one boundary of one forward; all times in ns."""

    boundary: str
    subtype: str
    sites: int
    share: float
    speedup: float
    amdahl_gain: float
    span_ns: float
    saving_ns: float
    interval_ns: tuple[float, float]
    basis: str
    traced_span_ns: float
    traced_saving_ns: float
    ceiling_ns: float
    inflation_ns_per_launch: float
    mde_ns: float | None
    real_edges: bool
    #: Median over replays of the wait for other ranks in the sites, ns; None where it is not known.
    wait_ns: float | None
    verdict: Verdict

    def document(self) -> dict[str, object]:
        """The estimate as the JSON of `fusionscope estimate`."""
        return {
            "boundary": self.boundary,
            "subtype": self.subtype,
            "sites": self.sites,
            "amdahl": {"share": self.share, "speedup": self.speedup, "gain": self.amdahl_gain},
            "schedule": {
                "span_ns": number(self.span_ns),
                "saving_ns": number(self.saving_ns),
                "interval_ns": [number(self.interval_ns[0]), number(self.interval_ns[1])],
                "basis": self.basis,
                "traced_span_ns": number(self.traced_span_ns),
                "traced_saving_ns": number(self.traced_saving_ns),
                "inflation_ns_per_launch": number(self.inflation_ns_per_launch),
                "wait_ns": None if self.wait_ns is None else number(self.wait_ns),
                "edges": "graph" if self.real_edges else "inferred",
                "self_check": True,
            },
            "ceiling_ns": number(self.ceiling_ns),
            "ceiling_source": "schedule",
            "noise": {"mde_ns": None if self.mde_ns is None else number(self.mde_ns)},
            "verdict": self.verdict.document(),
        }


def estimate(
    attribution: Attribution,
    schedule: Schedule,
    boundary: str,
    subtype: str,
    fused: Fused,
    untraced: noise.Baseline | None,
    margin: float = MARGIN,
    wait: Floats | None = None,
) -> Estimate:
    """Estimate the saving when the sites of a boundary (and subtype) are fused.

    `wait` [R, n] ns is the part of each launch that waits for other ranks, where it is known (`waiting.wait_ns`).

    Raises FusionScopeError where there is no such site, or the re-timed schedule does not reproduce the trace.
    """
    forward = attribution.forward
    sites = _sites(attribution, boundary, subtype)
    if not schedule.self_check():
        raise FusionScopeError(
            "The re-timed schedule does not give the measured span back, so no estimate is made: please report this "
            "trace as a bug."
        )
    duration = forward.duration.astype(np.float64)
    per_site = fused.times(duration, sites, wait)
    span = float(np.median(forward.span))
    placed = per_site + _gaps(forward, sites, fused.launches)
    savings = _savings(schedule, sites, placed)
    gone = sum(max(len(s.columns) - fused.launches, 0) for s in sites)
    per_launch = max((span - untraced.median_ns) / forward.launches, 0.0) if untraced else 0.0
    tracer = per_launch * gone
    saving = float(np.median(savings)) - TRACER_PART * tracer
    interval = _interval(schedule, sites, placed, fused.source, savings, TRACER_ERROR * tracer, saving)
    step = untraced.median_ns if untraced else span
    removed = sum(len(s.columns) for s in sites)
    gone_span = float(np.median(forward.span - schedule.retimed_span(sites)))
    time = float(np.median(duration[:, [c for s in sites for c in s.columns]].sum(axis=1)))
    speedup = time / float(np.median(per_site.sum(axis=0))) if per_site.sum() else float("inf")
    share = min(time / span, 1.0)
    verdict = judge(
        saving, interval, step, untraced.mde_ns if untraced else None,
        kind="predicted", margin=margin, missing=_missing(fused, untraced),
        caution=_caution(fused, forward, span / step),
    )  # fmt: skip
    return Estimate(
        boundary=boundary,
        subtype=subtype,
        sites=len(sites),
        share=share,
        speedup=speedup,
        amdahl_gain=amdahl.gain(share, speedup),
        span_ns=step,
        saving_ns=saving,
        interval_ns=interval,
        basis=untraced.source if untraced else "traced",
        traced_span_ns=span,
        traced_saving_ns=float(np.median(savings)),
        ceiling_ns=gone_span - TRACER_PART * per_launch * removed,
        inflation_ns_per_launch=per_launch,
        mde_ns=untraced.mde_ns if untraced else None,
        real_edges=schedule.real_edges,
        wait_ns=None if wait is None else float(np.median(wait[:, [c for s in sites for c in s.columns]].sum(axis=1))),
        verdict=verdict,
    )


def _sites(attribution: Attribution, boundary: str, subtype: str) -> list[Site]:
    if boundary not in attribution.sites:
        kinds = ", ".join(attribution.sites)
        raise FusionScopeError(f"There is no boundary kind {boundary}: choose {kinds}, or define it in --rules FILE.")
    sites = [s for s in attribution.sites[boundary] if not subtype or s.subtype == subtype]
    if not sites:
        there = sorted({s.subtype for s in attribution.sites[boundary] if s.subtype})
        what = f"{boundary}:{subtype}" if subtype else boundary
        known = f" (subtypes here: {', '.join(there)})" if there else ""
        raise FusionScopeError(
            f"This forward has 0 sites of {what}{known}: `fusionscope attribute` lists the boundaries it has."
        )
    return sites


def _gaps(forward: Forward, sites: list[Site], launches: int) -> Floats:
    """[sites, R] ns between the launches of a fused site: as much from one to the next as in the site that it replaces.

    A site of one launch shows no such gap, and none is added then.
    """
    gaps = np.zeros((len(sites), forward.duration.shape[0]))
    for place, site in enumerate(sites):
        columns = list(site.columns)
        if launches > 1 and len(columns) > 1:
            end = forward.start[:, columns] + forward.duration[:, columns]
            between = forward.start[:, columns[1:]] - end[:, :-1]
            gaps[place] = (launches - 1) * between.mean(axis=1)
    return gaps


def _savings(schedule: Schedule, sites: list[Site], per_site: Floats) -> Floats:
    return schedule.forward.span - schedule.retimed_span(sites, per_site)


def _interval(
    schedule: Schedule, sites: list[Site], per_site: Floats, source: str, savings: Floats, tracer: float, saving: float
) -> tuple[float, float]:
    """95 % interval: replays, the class of the input and the tracer's cost, as independent errors."""
    quick, slow = INPUTS[source]
    middle = float(np.median(savings))
    best = float(np.median(_savings(schedule, sites, per_site * quick)))
    worst = float(np.median(_savings(schedule, sites, per_site * slow)))
    low, high = noise.bootstrap(savings)
    replays = (middle - low, high - middle) if np.isfinite(low) else (0.0, 0.0)
    down = float(np.sqrt((middle - worst) ** 2 + replays[0] ** 2 + tracer**2))
    up = float(np.sqrt((best - middle) ** 2 + replays[1] ** 2 + tracer**2))
    return saving - down, saving + up


def _missing(fused: Fused, untraced: noise.Baseline | None) -> str:
    needs = []
    if untraced is None:
        needs.append("replay times without a profiler (import with --timings FILE)")
    elif untraced.mde_ns is None:
        needs.append(f"more untraced replays ({untraced.blocks} blocks say nothing of the noise, 3 are the least)")
    if fused.source == "guess":
        needs.append("a measured time of the fused kernel in place (--fused-us T --fused-from candidate)")
    elif fused.source == "isolated":
        needs.append("the fused kernel's time in place (--fused-from in-context or candidate)")
    return f"What would settle it: {'; '.join(needs)}." if needs else ""


def _caution(fused: Fused, forward: Forward, inflation: float) -> str:
    said = []
    if inflation > INFLATED:
        said.append(
            f"The traced step took {inflation:.2f} times as long as the untraced one, so durations are the tracer's as "
            "much as the kernels': the saving may be much smaller untraced."
        )
    if forward.graph_launches == 0:
        said.append(
            "No graph was replayed: the gaps between launches are the host's time to issue them, and the saving counts "
            "those that go."
        )
    if fused.source == "isolated":
        said.append(
            "The interval is wide because the kernel was timed alone in a loop, where its data is in cache: in place a "
            "kernel took 1.43 times as long as alone (measured), so up to 1.6 times is allowed for."
        )
    if fused.source == "guess":
        said.append(
            "The interval is wide because the fused time is a guess; its time in a traced graph (--fused-us T "
            "--fused-from candidate) would narrow it most."
        )
    return " ".join(said)


def headline(found: Estimate) -> str:
    """The estimate in one line, for a person."""
    what = f"{found.boundary}:{found.subtype}" if found.subtype else found.boundary
    return (
        f"{what}, {found.sites} sites: Amdahl {found.amdahl_gain:.2%} of the step, schedule {us(found.saving_ns)} "
        f"[{us(found.interval_ns[0])}, {us(found.interval_ns[1])}] ({found.basis})"
    )
