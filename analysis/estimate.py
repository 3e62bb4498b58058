"""How much faster the forward gets if a boundary is fused, with an interval, before the kernel is merged.

Amdahl is the first row. The estimate re-times the schedule with each site replaced by one launch (or as many as the
fused form has) and carries the saving from the traced to the untraced step.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from fusionscope.analysis import amdahl, noise
from fusionscope.analysis.attribution import Attribution
from fusionscope.analysis.schedule import Schedule
from fusionscope.analysis.tables import number
from fusionscope.analysis.target import INFLATED, Target, target
from fusionscope.analysis.verdict import MARGIN, Verdict, judge, us

Floats = NDArray[np.float64]

#: Where the fused kernel's time comes from -> how far the time in place may lie from it, as factors.
#: candidate: the same kernel in a traced graph of the same program; 3 % covers the drift between two captures.
#: in-context: producer, boundary and consumer in one graph; neighbours further off still differ.
#: isolated: alone in a loop, where its data is in cache: 2.81 us alone was 4.03 us in place (1.43 x) on an H200.
#: isolated-corrected: the same, times what the split kernels take in place over what they take alone.
#: guess: a wish. Published operator speed-ups of one fusion range from 1.77 to 2.49 x on one machine, and cold caches
#: come on top.
INPUTS: dict[str, tuple[float, float]] = {
    "candidate": (0.97, 1.03),
    "in-context": (0.92, 1.10),
    "isolated-corrected": (0.85, 1.30),
    "isolated": (0.95, 1.60),
    "guess": (0.60, 1.80),
}


#: A bench in context whose split kernels take that many times longer or shorter than the run's is of another program,
#: of another version or GPU say: in 279 lab cases on an H200 the two lay within 0.93 to 1.15 of each other.
SPLIT_APART = 1.2

#: What a fusion does to the launches around its sites, ns times the root of the number of sites, either way. 800 was
#: chosen on the lab's tuning cases and held 74 % of 70 held-out ones; 1400 held 71 of 74 new ones (docs/accuracy.md).
NEIGHBOURS_NS = 1400.0
#: With several streams, so many times that comes on top: of 18 chains on an H200 two were off by 1.5 and 2.2 times it.
STREAMS = 2.0
#: With other ranks over real links, so many ns that come on top: of 28 fusions over two H200s 15 lay in the interval
#: without it and 22 with it, on which it was chosen (docs/paths.md).
MEETING_NS = 8000.0
#: How far what tracing adds at an early launch may lie from EARLY_NS, ns: 12 chains on an H200 differ by 118 (root mean
#: square, a site), and all sites of one alike.
EARLY_ERROR_NS = 240.0
#: Half of a 95 % interval in standard deviations.
REACH = 1.96


@dataclass(frozen=True)
class Fused:
    """What is claimed of the fused kernel: how many times faster a site gets, or its time at a site in ns."""

    speedup: float | None = None
    time_ns: float | None = None
    launches: int = 1
    source: str = "guess"
    #: Time of the split kernels of a site, taken the same way as the fused time.
    split_ns: float | None = None
    #: Whether those are other kernels than the run's, so that a time in context says no more than one alone.
    other_program: bool = False
    #: Whether the time of a traced candidate is without its wait for other ranks.
    net_of_wait: bool = False
    #: Whether a site begins with NCCL's collective still, which takes long to begin.
    begins_late: bool = False
    #: What the candidate's traced step gained beyond what its fused time explains, ns, and the standard error of that;
    #: None where only the time is known (`beside.with_step`).
    beside_ns: float = 0.0
    beside_error_ns: float | None = None

    def times(self, found: Target, factor: float = 1.0) -> Floats:
        """[sites, R] ns that each site takes once fused, with the gaps in it and what tracing adds to its launches.

        `factor` stretches the kernel's own time.
        A speed-up shortens the work of a site and the gaps in it, and leaves the wait for other ranks. A time from
        anywhere but a traced candidate is the kernel's alone, and the wait comes on top.
        """
        if self.time_ns is None:
            assert self.speedup is not None
            work = np.maximum(found.extent - found.idle, 0.0)
            # What tracing alone shows of a fused site of several launches.
            traced = found.kept(self.launches) + (1 - found.early_part(self.launches)) * found.early_gaps
            made: Floats = factor * work / self.speedup + np.minimum(found.idle, found.extent) + traced
            return made
        time = factor * self.time_ns * self._in_place(found)
        each = np.full((len(found.sites), len(found.duration)), time) + found.gaps(self.launches)
        return each if self.source == "candidate" and not self.net_of_wait else each + found.idle

    def placed(self, found: Target, factor: float = 1.0) -> Floats:
        """The same as re-timing places it: earlier by what NCCL's collective took to begin, where that is gone.

        Of several launches it is not known, but for a candidate's, that none of them is such a collective.
        """
        stays = self.begins_late or (self.launches > 1 and self.source != "candidate")
        gone = 0.0 if stays else 1.0 if self.speedup is None else 1 - 1 / self.speedup
        made: Floats = self.times(found, factor) - gone * found.late
        return made

    def trust(self) -> str:
        """The class of the input, a key of INPUTS."""
        alone = self.source == "isolated" or self.other_program
        return "isolated-corrected" if alone and self.split_ns else self.source

    def compared_with(self, found: Target) -> Fused:
        """The same claim, marked where its bench was of other split kernels than the target's."""
        if self.source != "in-context" or self.split_ns is None:
            return self
        apart = float(np.median(found.extent - found.idle)) / self.split_ns
        return self if 1 / SPLIT_APART <= apart <= SPLIT_APART else replace(self, other_program=True)

    def _in_place(self, found: Target) -> float:
        if self.trust() != "isolated-corrected":
            return 1.0
        assert self.split_ns is not None
        return max(float(np.median(found.extent - found.idle)) / self.split_ns, 1.0)


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
    return of_target(target(attribution, schedule, boundary, subtype, untraced, wait), fused, margin)


def of_target(found: Target, fused: Fused, margin: float = MARGIN) -> Estimate:
    """The same for sites that are known already."""
    savings = found.traced_savings(fused.placed(found))
    ceiling = found.ceiling_ns
    saving = min(found.carried(float(np.median(savings)), fused.launches), ceiling) + found.shrink * fused.beside_ns
    low, high = _interval(found, fused, savings, saving)
    # No kernel saves more than the boundary costs, whatever the input allows for, but its neighbours may gain too.
    interval = (low, max(min(high, ceiling + around(found) + _overlapping(found)), saving))
    step, span, untraced = found.step_ns, found.span_ns, found.untraced
    speedup = fused.speedup or _speedup(found, fused.times(found))
    share = min(found.kernel_time_ns / span, 1.0) if span else 0.0
    verdict = judge(
        saving, interval, step, untraced.mde_ns if untraced else None,
        kind="predicted", margin=margin, missing=_missing(fused, untraced), caution=cautions(found, fused),
        subject=f"fusing {found.name} at {len(found.sites)} sites", change=_change(found, fused, margin),
    )  # fmt: skip
    return Estimate(
        boundary=found.boundary,
        subtype=found.subtype,
        sites=len(found.sites),
        share=share,
        speedup=speedup,
        amdahl_gain=amdahl.gain(share, speedup),
        span_ns=step,
        saving_ns=saving,
        interval_ns=interval,
        basis=found.basis,
        traced_span_ns=span,
        traced_saving_ns=float(np.median(savings)),
        ceiling_ns=ceiling,
        inflation_ns_per_launch=found.tracer_ns,
        mde_ns=untraced.mde_ns if untraced else None,
        real_edges=found.schedule.real_edges,
        wait_ns=None if found.wait is None else float(np.median(found.idle.sum(axis=0))),
        verdict=verdict,
    )


def _change(found: Target, fused: Fused, margin: float) -> str:
    """Up to which time of a fused site the step gains the margin, and the noise floor; "" where the time is a guess."""
    if fused.source == "guess" or fused.time_ns is None:
        return ""
    mde = found.untraced.mde_ns if found.untraced else None
    wanted = max(margin * found.step_ns, mde or 0.0)
    most = found.time_for(wanted, fused.launches)
    what = "the margin" if wanted > (mde or 0.0) else "more than the noise"
    if most is None:
        return f"no time of a fused kernel saves {what}"
    return f"it saves {what} while a fused site takes at most {most / 1000:.2f} us ({fused.time_ns / 1000:.2f} given)"


def _speedup(found: Target, placed: Floats) -> float:
    fused = float(np.median(placed.sum(axis=0)))
    return found.kernel_time_ns / fused if fused else float("inf")


def _interval(found: Target, fused: Fused, savings: Floats, saving: float) -> tuple[float, float]:
    """95 % interval: replays, the class of the input and the tracer's cost, as independent errors."""
    if fused.beside_error_ns is not None:
        # Captures stand for replays and neighbours there.
        both = found.shrink * float(np.hypot(REACH * fused.beside_error_ns, _overlapping(found)))
        return saving - both, saving + both
    quick, slow = INPUTS[fused.trust()]
    middle = float(np.median(savings))
    best = float(np.median(found.traced_savings(fused.placed(found, quick))))
    worst = float(np.median(found.traced_savings(fused.placed(found, slow) + _dispatch(found, fused))))
    low, high = noise.bootstrap(savings)
    replays = (middle - low, high - middle) if np.isfinite(low) else (0.0, 0.0)
    beside, tracer = around(found), found.taken_error_ns * found.gone(fused.launches)
    met = 0.0 if found.wait is None else MEETING_NS
    both = beside**2 + tracer**2 + _overlapping(found) ** 2 + met**2
    down = float(np.sqrt(both + (middle - worst) ** 2 + replays[0] ** 2))
    up = float(np.sqrt(both + (best - middle) ** 2 + replays[1] ** 2))
    return saving - found.shrink * down, saving + found.shrink * up


def _overlapping(found: Target) -> float:
    """What streams that overlap otherwise when they are traced may do, ns."""
    return STREAMS * around(found) if found.several_streams else 0.0


def around(found: Target) -> float:
    """What the neighbours of all sites may gain or lose, ns."""
    return NEIGHBOURS_NS * float(np.sqrt(len(found.sites)))


def _dispatch(found: Target, fused: Fused) -> float:
    """What a launch of an abutting trace contains besides the kernel: at most its shortest launch, ns.

    A time alone in a loop does not contain it, and neither does a guess.
    """
    if not found.forward.abutting or fused.time_ns is None or fused.source in ("candidate", "in-context"):
        return 0.0
    return float(np.median(found.forward.duration.min(axis=1)))


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


def cautions(found: Target, fused: Fused | None) -> str:
    """What must be said with every number of this target: tracing, host gaps, abutting launches, the input's class."""
    said = []
    forward = found.forward
    if found.inflation > INFLATED:
        said.append(
            f"The traced step took {found.inflation:.2f} times as long as the untraced one, so durations are the "
            "tracer's as much as the kernels': the saving may be much smaller untraced."
        )
    if forward.graph_launches == 0:
        said.append(
            "No graph was replayed: the gaps between launches are the host's time to issue them, and none is counted "
            "as saved."
        )
    if forward.abutting:
        least = float(np.median(forward.duration.min(axis=1)))
        said.append(
            "The launches of this trace abut: each duration contains its dispatch, no gap is left to drop, and no "
            f"launch is shorter than {us(least)}, so a kernel's time in a loop is another unit."
        )
    if fused is None:
        return " ".join(said)
    if fused.trust() == "isolated":
        said.append(
            "The interval is wide because the kernel was timed alone in a loop, where its data is in cache: in place a "
            "kernel took 1.43 times as long as alone (measured), so up to 1.6 times is allowed for."
        )
    if fused.other_program:
        assert fused.split_ns is not None
        place = float(np.median(found.extent - found.idle))
        said.append(
            f"The bench's split kernels took {us(fused.split_ns)} a site and this run's take {us(place)}, so they are "
            "not of one version and GPU: the fused time is stretched alike. Bench and capture anew, both with one "
            "version."
        )
    elif fused.trust() == "isolated-corrected":
        said.append(
            "The fused kernel was timed alone in a loop; its time is stretched as the split kernels' is in place, and "
            "the interval allows for kernels that stretch differently."
        )
    if fused.source == "guess":
        said.append(
            "The interval is wide because the fused time is a guess; its time in a traced graph (--fused-us T "
            "--fused-from candidate) would narrow it most."
        )
    return " ".join(said)
