"""The sites of one boundary in one forward, and what their replacement saves: the ground of every estimate.

A traced saving is carried to the untraced step: tracing adds time per launch, and a launch that goes takes part of it
along.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np
import pandas as pd
from numpy.typing import NDArray
from scipy import optimize

from fusionscope.analysis import noise
from fusionscope.analysis.attribution import Attribution
from fusionscope.analysis.forwards import Forward
from fusionscope.analysis.schedule import Schedule
from fusionscope.analysis.sites import Site
from fusionscope.profiler.errors import FusionScopeError

Floats = NDArray[np.float64]

#: Part of the mean tracing cost of a launch that a launch of the boundary takes along when it goes, and how far off
#: that may be. The mean is too low in short steps: an untraced step contains the launch of its graph, a traced span
#: does not.
TRACER_PART, TRACER_ERROR = 0.5, 0.5
#: What a launch takes along at the least, ns, and how far off that may be: 110 on an H200. Four sets of 44, 94, 52 and
#: 87 graphs, chains and whole models, choose 100 to 130 by the fused time alone (benchmarks/lab_parts.py), and two
#: whose candidates were traced whole 110 to 130.
TAKEN_NS, TAKEN_ERROR_NS = 110.0, 40.0
#: What tracing adds at a launch that need not wait for its predecessor's end, ns. A gap before it shows that (0.6 us);
#: where there is no gap it lies in the launch: with it, errors of 12 chains on an H200 fall from 0.38 points to 0.19
#: (0.23 where the other boundaries' chains choose it, as 0.38 to 0.5 us).
EARLY_NS = 500.0
#: A traced step that takes so many times the untraced one is told of: 1.02 was seen under Nsight on an
#: H200, 1.8 under the torch profiler on a busy CPU.
INFLATED = 1.2


def of_library(names: pd.Series) -> NDArray[np.bool_]:
    """Which kernels, by name, are collectives of NCCL or RCCL, whose kernels carry NCCL's name."""
    return names.str.contains("nccl", case=False).to_numpy(dtype=bool)


@dataclass(frozen=True, eq=False)
class Target:
    """What could be fused; all times in ns. `wait` [R, n] is what of each launch waits for other ranks."""

    attribution: Attribution
    schedule: Schedule
    boundary: str
    subtype: str
    sites: list[Site]
    untraced: noise.Baseline | None
    wait: Floats | None

    @property
    def name(self) -> str:
        """KIND or KIND:SUBTYPE."""
        return f"{self.boundary}:{self.subtype}" if self.subtype else self.boundary

    @property
    def forward(self) -> Forward:
        """The forward that the sites lie in."""
        return self.attribution.forward

    @cached_property
    def duration(self) -> Floats:
        """[R, n] ns."""
        found: Floats = self.forward.duration.astype(np.float64)
        return found

    @cached_property
    def columns(self) -> list[int]:
        """The launches of all sites, each once."""
        return sorted({c for s in self.sites for c in s.columns})

    @cached_property
    def span_ns(self) -> float:
        """Median traced span."""
        return float(np.median(self.forward.span))

    @property
    def step_ns(self) -> float:
        """Median untraced step, the traced span where that is not known."""
        return self.untraced.median_ns if self.untraced else self.span_ns

    @property
    def inflation(self) -> float:
        """How many times the untraced step the traced one takes."""
        return self.span_ns / self.step_ns if self.step_ns else 1.0

    @property
    def basis(self) -> str:
        """Which step the saving is a part of."""
        return self.untraced.source if self.untraced else "traced"

    @property
    def tracer_ns(self) -> float:
        """What tracing adds to the step per launch."""
        if self.untraced is None:
            return 0.0
        return max((self.span_ns - self.untraced.median_ns) / self.forward.launches, 0.0)

    @property
    def taken_ns(self) -> float:
        """What a launch that goes takes along of that; without a graph it lies in gaps that do not count."""
        if self.untraced is None or not self.forward.graph_launches:
            return 0.0
        return max(TRACER_PART * self.tracer_ns, 0.0 if self.forward.abutting else TAKEN_NS)

    @property
    def taken_error_ns(self) -> float:
        """How far off that may be."""
        if self.taken_ns == TAKEN_NS:
            return TAKEN_ERROR_NS
        return TRACER_ERROR / TRACER_PART * self.taken_ns

    @property
    def shrink(self) -> float:
        """Without a graph a saving is the same part of the untraced step as of the traced one: the factor for that."""
        return 1.0 if self.forward.graph_launches else 1 / max(self.inflation, 1.0)

    @cached_property
    def kernel_time_ns(self) -> float:
        """Median over replays of the sites' kernel time."""
        return float(np.median(self.duration[:, self.columns].sum(axis=1)))

    @cached_property
    def idle(self) -> Floats:
        """[sites, R] ns of wait for other ranks; 0 where it is not known."""
        waiting = np.zeros_like(self.duration) if self.wait is None else self.wait
        return np.stack([waiting[:, list(s.columns)].sum(axis=1) for s in self.sites])

    @cached_property
    def extent(self) -> Floats:
        """[sites, R] ns from a site's first start to its last end, without holes and what tracing alone adds."""
        start, end = self.forward.start, self.forward.start + self.forward.duration
        found = []
        for site in self.sites:
            columns = list(site.columns)
            whole = end[:, columns].max(axis=1) - start[:, columns].min(axis=1) - self.schedule.inner_holes(site)
            found.append(whole - self.taken_ns * (len(columns) - len(self._early(site))))
        return np.maximum(np.stack(found) - self.early_gaps, 0.0)

    @cached_property
    def late(self) -> Floats:
        """[sites, 1] ns by which NCCL's (RCCL's) collective at the front of a site begins later than other launches.

        In graphs on two H200 its kernels began 2.4 us after the end of what they waited for and all others 0.4.
        """
        schedule, names = self.schedule, self.forward.nodes["name"].astype(str)
        library = of_library(names)
        # The host decides when the first launch of a graph begins, and when one outside a graph does.
        apart = {c for c, waits in enumerate(schedule.waits_for) if not waits or schedule.by_host[c]}
        others = [c for c in range(len(names)) if not library[c] and c not in apart | schedule.programmatic]
        first = np.array([s.columns[0] for s in self.sites])
        slow = library[first] & ~np.isin(first, list(apart))
        if not slow.any() or not others:
            return np.zeros((len(first), 1))
        usual, own = (float(np.median([schedule.lags[c] for c in columns])) for columns in (others, first[slow]))
        return np.where(slow, max(own - usual, 0.0), 0.0)[:, None]

    def gaps(self, launches: int) -> Floats:
        """[sites, R] ns between the launches of a fused site: as much from one to the next as in the site it replaces.

        A site of one launch shows no such gap, and none is added then.
        """
        forward = self.forward
        gaps = np.zeros((len(self.sites), len(forward.duration)))
        for place, site in enumerate(self.sites):
            columns = list(site.columns)
            if launches > 1 and len(columns) > 1:
                end = forward.start[:, columns] + forward.duration[:, columns]
                between = forward.start[:, columns[1:]] - end[:, :-1]
                gaps[place] = (launches - 1) * between.mean(axis=1)
        return gaps

    def gone(self, launches: int) -> int:
        """Launches that go when every site has `launches` of them."""
        return sum(max(len(s.columns) - launches, 0) for s in self.sites)

    def plain_gone(self, launches: int) -> float:
        """The same without those that need not wait for an end, which take something else along."""
        return max(self.gone(launches) - self.early_launches * self.early_part(launches), 0.0)

    @property
    def begins_early(self) -> bool:
        """Whether most sites begin with a launch that need not wait for an end."""
        first = [site.columns[0] in self.schedule.programmatic for site in self.sites]
        return sum(first) * 2 > len(first)

    def plain_gone_of(self, launches: int, early: bool | None) -> float:
        """Launches that go, less early ones that are fewer; `early` of a fused launch, None: as the site's first."""
        first = self.begins_early if early is None else early
        fewer = self.early_launches + len(self.sites) * (self.begins_early - first)
        return float(max(self.gone(launches) - max(fewer, 0) * (launches == 1), 0))

    def kept(self, launches: int) -> Floats:
        """[sites, 1] ns that tracing alone shows of the launches that a fused site has, but for early ones."""
        early = np.array([len(self._early(site)) for site in self.sites]) * (1 - self.early_part(launches))
        found: Floats = self.taken_ns * np.maximum(launches - early, 0.0)[:, None]
        return found

    def traced_savings(self, per_site: Floats | None) -> Floats:
        """[R] ns of the traced span when each site takes `per_site` [sites, R], or nothing where that is None."""
        return np.asarray(self.forward.span - self.schedule.retimed_span(self.sites, per_site), dtype=np.float64)

    @cached_property
    def early_gaps(self) -> Floats:
        """[sites, R] ns that tracing puts at launches that need not wait for an end: gaps before them, or inside.

        On an H200 two such launches lay 0.6 us apart in most traces, and that part of the saving was never measured.
        What a launch visibly overlaps of its predecessor is taken off.
        """
        lags = self.schedule.lags
        found = np.zeros((len(self.sites), len(self.duration)))
        for place, site in enumerate(self.sites):
            for column in self._early(site):
                gap = np.maximum(lags[column], 0.0) - self.schedule.hole(column)
                found[place] += np.maximum(gap, EARLY_NS + np.minimum(lags[column], 0.0))
        return found

    @property
    def early_launches(self) -> int:
        """Launches inside sites that need not wait for the end of the one before."""
        return sum(len(self._early(site)) for site in self.sites)

    def _early(self, site: Site) -> list[int]:
        return [column for column in site.columns[1:] if column in self.schedule.programmatic]

    @property
    def early_gaps_ns(self) -> float:
        """Median over replays of those gaps in all sites."""
        return float(np.median(self.early_gaps.sum(axis=0)))

    def early_part(self, launches: int) -> float:
        """The part of those gaps that goes when every site has `launches` launches."""
        longest = max(len(s.columns) for s in self.sites)
        part = (longest - launches) / (longest - 1) if longest > 1 else 0.0
        return min(max(part, 0.0), 1.0)

    @property
    def several_streams(self) -> bool:
        """Whether launches lie on more than one stream."""
        return self.forward.nodes["stream"].nunique() > 1

    def of_tracing(self, launches: int) -> float:
        """What of the traced step is tracing's at the launches that go, ns.

        Beside other streams only what lies on the critical path: re-timing the sites without it tells.
        """
        if launches not in self._of_tracing:
            part = self.early_part(launches)
            found = self.early_gaps_ns * part + self.taken_ns * self.plain_gone(launches)
            if self.several_streams:
                # The sites as they are, with what tracing shows of the launches that stay.
                without = self.extent + self.kept(launches) + (1 - part) * self.early_gaps
                found = min(max(float(np.median(self.traced_savings(without))), 0.0), found)
            self._of_tracing[launches] = found
        return self._of_tracing[launches]

    @cached_property
    def _of_tracing(self) -> dict[int, float]:
        return {}

    def carried(self, traced_ns: float, launches: int) -> float:
        """A traced saving as one of the untraced step."""
        return self.shrink * (traced_ns - self.of_tracing(launches))

    @cached_property
    def ceiling_ns(self) -> float:
        """What the step gains if the boundary cost nothing; never more than the step."""
        traced = float(np.median(self.traced_savings(None)))
        removed = self.carried(traced, 0)
        # A kernel that takes no time keeps its place, and what overlaps it under programmatic launch may gain by that.
        ceiling = max(removed, self.saving_at(0.0))
        part = traced / max(self.span_ns, 1.0)
        # Where tracing stretched the step, its durations are the tracer's as much as the kernels'.
        most = self.step_ns * (min(part, 1.0) if self.inflation > INFLATED else 1.0)
        return min(ceiling, most)

    def saving_at(self, time_ns: float, launches: int = 1) -> float:
        """Saving of the untraced step when every site takes that time, ns."""
        placed = np.full((len(self.sites), len(self.duration)), time_ns) + self.gaps(launches)
        placed -= self.late if launches == 1 else 0.0
        return self.carried(float(np.median(self.traced_savings(placed))), launches)

    def time_for(self, saving_ns: float, launches: int = 1) -> float | None:
        """The longest time of a fused site that still saves so much, ns; None where no time above 0 does."""
        if self.saving_at(0.0, launches) < saving_ns:
            return None
        high = float(np.median(self.extent.max(axis=0))) + 1_000.0
        while self.saving_at(high, launches) >= saving_ns:
            high *= 2
            if high > 1e15:
                return None
        found = optimize.brentq(lambda t: self.saving_at(t, launches) - saving_ns, 0.0, high, xtol=0.5)
        return float(found)


def target(
    attribution: Attribution,
    schedule: Schedule,
    boundary: str,
    subtype: str = "",
    untraced: noise.Baseline | None = None,
    wait: Floats | None = None,
) -> Target:
    """The sites of a boundary (and subtype).

    Raises FusionScopeError where there is no such site, or the re-timed schedule does not reproduce the trace.
    """
    sites = _sites(attribution, boundary, subtype)
    if not schedule.self_check():
        raise FusionScopeError(
            "The re-timed schedule does not give the measured span back, so no estimate is made: please report this "
            "trace as a bug."
        )
    return Target(attribution, schedule, boundary, subtype, sites, untraced, wait)


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
