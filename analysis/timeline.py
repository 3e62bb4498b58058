"""One execution of a forward as rows to draw: launches by stream with their boundaries, and the gaps between them."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from fusionscope.analysis.attribution import Attribution
from fusionscope.analysis.forwards import Forward
from fusionscope.analysis.sites import Site
from fusionscope.profiler.errors import FusionScopeError


@dataclass(frozen=True, eq=False)
class Timeline:
    """The n launches of one execution, in the order of the forward's columns."""

    attribution: Attribution
    #: Which of the R executions this is.
    replay: int
    #: [n] ns since the execution's first start.
    start: NDArray[np.int64]
    #: [n] ns.
    duration: NDArray[np.int64]
    #: [n] the stream, and the device where there are several.
    lanes: list[str]
    #: [n] the widest kind of boundary that holds the launch, "" none.
    boundaries: list[str]
    #: [n] every site that holds the launch, the widest last.
    sites: list[tuple[Site, ...]]

    @property
    def span(self) -> int:
        """First start to last end, ns."""
        return int((self.start + self.duration).max())

    @property
    def names(self) -> list[str]:
        """[n] kernel names."""
        return self.attribution.forward.nodes["name"].astype(str).tolist()

    def window(self, site: Site) -> tuple[int, int]:
        """First start and last end of a site, ns since the execution's first start."""
        columns = list(site.columns)
        return int(self.start[columns].min()), int((self.start + self.duration)[columns].max())


@dataclass(frozen=True)
class Gap:
    """A time in which no launch runs on any stream, between the launches (columns) `after` and `before`."""

    start_ns: int
    length_ns: int
    after: int
    before: int


def timeline(attribution: Attribution, replay: int | None = None) -> Timeline:
    """One execution of the attributed forward; by default the one whose span is the median (of two, the shorter).

    Raises FusionScopeError for an execution that the forward does not have.
    """
    forward = attribution.forward
    chosen = _median_replay(forward) if replay is None else replay
    if not 0 <= chosen < len(forward.span):
        raise FusionScopeError(
            f"The forward has executions 0 to {len(forward.span) - 1}, not {chosen}: leave the replay out for the "
            "median one."
        )
    start = forward.start[chosen]
    sites = _sites(attribution)
    return Timeline(
        attribution=attribution,
        replay=chosen,
        start=start - start.min(),
        duration=forward.duration[chosen],
        lanes=_lanes(forward),
        boundaries=[held[-1].boundary if held else "" for held in sites],
        sites=sites,
    )


def gaps(shown: Timeline) -> list[Gap]:
    """Every gap of the execution, in order of time; their sum is span minus busy time."""
    order = np.lexsort((np.arange(len(shown.start)), shown.start))
    start, end = shown.start[order], (shown.start + shown.duration)[order]
    reach = np.maximum.accumulate(end)
    # The launch that ends a busy stretch is the one whose end is the reach so far.
    places = np.flatnonzero(start[1:] > reach[:-1])
    last = [int(order[int(np.argmax(end[: place + 1]))]) for place in places]
    return [
        Gap(int(reach[place]), int(start[place + 1] - reach[place]), after, int(order[place + 1]))
        for place, after in zip(places, last, strict=True)
    ]


def _median_replay(forward: Forward) -> int:
    order = np.argsort(forward.span, kind="stable")
    return int(order[(len(order) - 1) // 2])


def _lanes(forward: Forward) -> list[str]:
    several = forward.nodes["device"].nunique() > 1
    pairs = zip(forward.nodes["device"].tolist(), forward.nodes["stream"].tolist(), strict=True)
    return [f"device {device}, stream {stream}" if several else f"stream {stream}" for device, stream in pairs]


def _sites(attribution: Attribution) -> list[tuple[Site, ...]]:
    held: list[list[Site]] = [[] for _ in range(attribution.forward.launches)]
    # A kind that lies in another comes first, so that the wider one is the last.
    kinds = sorted(attribution.sites, key=lambda kind: not attribution.nested(kind))
    for site in (s for kind in kinds for s in attribution.sites[kind]):
        for column in site.columns:
            held[column].append(site)
    return [tuple(sites) for sites in held]
