"""The fused kernel as a traced candidate shows it, as the input of an estimate."""

from __future__ import annotations

import numpy as np

from fusionscope.analysis.analysed import Analysed
from fusionscope.analysis.estimate import Fused
from fusionscope.analysis.target import of_library
from fusionscope.profiler.errors import FusionScopeError


def begins_early(candidate: Analysed, boundary: str, subtype: str = "") -> bool | None:
    """Whether most sites begin with a launch that need not wait for the end of what stands before it.

    None where the run does not have its graph's edges.
    """
    schedule = candidate.schedule()
    sites = [s for s in candidate.attribution.sites.get(boundary, []) if not subtype or s.subtype == subtype]
    if not schedule.real_edges or not sites:
        return None
    return sum(s.columns[0] in schedule.programmatic for s in sites) * 2 > len(sites)


def fused_in(candidate: Analysed, boundary: str, subtype: str = "", *, net_of_wait: bool = False) -> Fused:
    """The fused kernel's time and launches at a site of a traced run: the mean over sites, its median over replays.

    The mean, since a step is their sum: one slow site of many is not in a median.

    `net_of_wait` leaves out what of it waits for other ranks, where the run knows that: for an estimate that knows the
    wait of the base. Raises FusionScopeError where the run has no such site.
    """
    sites = [s for s in candidate.attribution.sites.get(boundary, []) if not subtype or s.subtype == subtype]
    if not sites:
        what = f"{boundary}:{subtype}" if subtype else boundary
        raise FusionScopeError(f"Run {candidate.title} has no site of {what}: choose a run in which it is fused.")
    wait = candidate.wait() if net_of_wait else None
    duration = candidate.forward.duration if wait is None else candidate.forward.duration - wait
    each = np.stack([duration[:, list(s.columns)].sum(axis=1) for s in sites])
    launches = int(np.median([len(s.columns) for s in sites]))
    time = float(np.median(each.mean(axis=0)))
    first = candidate.forward.nodes["name"].astype(str).iloc[[s.columns[0] for s in sites]]
    return Fused(
        time_ns=time,
        launches=launches,
        source="candidate",
        net_of_wait=wait is not None,
        begins_late=bool(of_library(first).mean() > 0.5),
    )
