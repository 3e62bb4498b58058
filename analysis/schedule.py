"""Re-times the schedule of a forward with sites replaced by one fused launch, or taken away.

Every launch starts a lag after the latest end of what it waits for: its real predecessors where the capture stored
the graph's edges, else the launch before it on its stream and the latest-ending one on the other streams. The lag is
the observed one (negative under programmatic dependent launch), so that with nothing replaced the measured span comes
out to the nanosecond.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right, insort
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from fusionscope.analysis.forwards import Forward
from fusionscope.analysis.sites import Site

Floats = NDArray[np.float64]

#: A gap beyond this percentile of the graph's gaps is a hole, which no fusion is credited with: in one MI300X graph
#: of 544 launches that abut there was one of 274 us.
HOLE = 99.0


@dataclass(frozen=True, eq=False)
class Schedule:
    """A forward and what each of its launches waits for (column numbers, all smaller than the launch's own)."""

    forward: Forward
    waits_for: tuple[tuple[int, ...], ...]
    real_edges: bool
    #: Launches that may begin before what they wait for has ended (programmatic dependent launch).
    programmatic: frozenset[int] = frozenset()

    def retimed_span(self, sites: Sequence[Site] = (), fused_ns: Floats | None = None) -> Floats:
        """[R] ns: span with each site replaced by one launch of `fused_ns` [sites, R], or gone where that is None."""
        swap = _Swap(self, sites, fused_ns)
        swap.run()
        return swap.span()

    def self_check(self) -> bool:
        """Whether nothing replaced gives the measured span exactly, for every replay."""
        return bool((self.retimed_span() == self.forward.span).all())

    @cached_property
    def relative(self) -> Floats:
        """[R, n] start of each launch after the first of its replay, ns."""
        start: Floats = (self.forward.start - self.forward.start.min(axis=1)[:, None]).astype(np.float64)
        return start

    @cached_property
    def lags(self) -> list[Floats]:
        """[R] for each launch: its start after the latest end of what it waits for, ns."""
        end = self.relative + self.forward.duration
        return [
            self.relative[:, c] - (np.maximum.reduce([end[:, w] for w in waits]) if waits else 0.0)
            for c, waits in enumerate(self.waits_for)
        ]

    @cached_property
    def durations(self) -> list[Floats]:
        """[R] for each launch: what it took, ns."""
        return list(np.ascontiguousarray(self.forward.duration.T.astype(np.float64)))

    @cached_property
    def overlaps(self) -> list[bool]:
        """[n] whether a launch begins before the end of what it waits for, in any replay."""
        return [bool((lag < 0).any()) for lag in self.lags]

    @cached_property
    def by_host(self) -> list[bool]:
        """[n] whether the host decides when a launch begins: outside a graph, and first in a graph after another."""
        if "replay" not in self.forward.nodes:
            return [self.forward.graph_launches == 0] * self.forward.launches
        replay = self.forward.nodes["replay"].tolist()
        return [replay[c] < 0 or any(replay[w] != replay[c] for w in ws) for c, ws in enumerate(self.waits_for)]

    @cached_property
    def largest_gap(self) -> float:
        """What one gap between launches of a graph may be credited with, ns."""
        columns = [c for c, waits in enumerate(self.waits_for) if waits and not self.by_host[c]]
        if not columns:
            return 0.0
        gaps = np.maximum(np.array([self.lags[c] for c in columns]), 0.0)
        return float(np.percentile(gaps, HOLE, method="higher"))

    def hole(self, column: int) -> Floats:
        """[R] ns of the gap before a launch that no fusion is credited with: a hole, and all of the host's gaps."""
        most = 0.0 if self.by_host[column] else self.largest_gap
        return np.asarray(np.maximum(self.lags[column] - most, 0.0)) if self.waits_for[column] else np.zeros(1)

    def inner_holes(self, site: Site) -> Floats:
        """[R] ns of the gaps inside a site that it is not credited with."""
        return np.asarray(sum((self.hole(c) for c in site.columns[1:]), np.zeros(len(self.relative))))


@dataclass(eq=False)
class _Swap:
    """One run of the schedule, launch by launch in the order of their starts."""

    schedule: Schedule
    sites: Sequence[Site]
    fused_ns: Floats | None
    begin: list[Floats] = field(default_factory=list)
    end: list[Floats] = field(default_factory=list)
    #: Ends of what is still launched.
    ends: list[Floats] = field(default_factory=list)
    #: For a launch that is gone: the least lag that its follower keeps to what stands before it.
    least_lag: dict[int, Floats] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.first_of = {c: s.columns[0] for s in self.sites for c in s.columns}
        # The fused launch stands where the site's last launch stood, with the lag of its first: the gaps between
        # the site's launches go with them.
        fused = {s.columns[-1]: k for k, s in enumerate(self.sites)}
        self.fused_at = fused if self.fused_ns is not None else {}

    def run(self) -> None:
        """Place every launch."""
        schedule, begin, end, ends = self.schedule, self.begin, self.end, self.ends
        ordered = zip(schedule.waits_for, schedule.lags, schedule.durations, schedule.overlaps, strict=True)
        for column, (waits, lag, duration, overlaps) in enumerate(ordered):
            if overlaps or len(waits) != 1 or column in self.first_of:
                self.place(column)
                continue
            # Most launches wait for the end of one other; forwards of 40,000 launches are run again dozens of times.
            at = end[waits[0]] + lag
            begin.append(at)
            end.append(at + duration)
            ends.append(end[-1])

    def place(self, column: int) -> None:
        """Give a launch its begin and end; what it waits for has them already."""
        schedule, waits = self.schedule, self.schedule.waits_for[column]
        if column in self.first_of:
            ready = self._ready(waits)
            # A fused launch keeps the gap before the site as its own.
            own = self.fused_ns is not None and column == self.first_of[column]
            hole = np.zeros(1) if own else schedule.hole(column)
            if column not in self.fused_at:
                self.least_lag[column] = self._least(column, waits)
                # A hole at the very end of the forward stays too.
                self._put(ready + hole, ready + hole, stays=bool((hole > 0).any()))
                return
            assert self.fused_ns is not None
            begin = ready + schedule.lags[self.first_of[column]] + hole
            self._put(begin, begin + self.fused_ns[self.fused_at[column]], stays=True)
            return
        begin = self._begin(column, waits)
        self._put(begin, begin + schedule.durations[column], stays=True)

    def span(self) -> Floats:
        """[R] ns from the first begin to the last end of what is still launched."""
        schedule = self.schedule
        if not self.ends:
            return np.zeros(len(schedule.relative))
        roots = [c for c, waits in enumerate(schedule.waits_for) if not waits]
        # Where the forward begins with a launch that is gone, the span begins where that one began.
        left = [c for c in roots if c not in self.first_of or c in self.fused_at] or roots
        begun: Floats = np.minimum.reduce([schedule.lags[c] for c in left])
        return np.asarray(np.maximum.reduce(self.ends) - begun)

    def _put(self, begin: Floats, end: Floats, stays: bool = False) -> None:
        self.begin.append(begin)
        self.end.append(end)
        if stays:
            self.ends.append(end)

    def _ready(self, waits: tuple[int, ...]) -> Floats:
        if not waits:
            return np.zeros(len(self.schedule.relative))
        if len(waits) == 1:
            return self.end[waits[0]]
        if len(waits) == 2:
            return np.asarray(np.maximum(self.end[waits[0]], self.end[waits[1]]))
        return np.asarray(np.maximum.reduce([self.end[w] for w in waits]))

    def _begin(self, column: int, waits: tuple[int, ...]) -> Floats:
        lag = self.schedule.lags[column]
        if not waits or not self.schedule.overlaps[column]:
            return self._ready(waits) + lag
        # Programmatic dependent launch: it overlaps what it waits for. It overlaps what stood before a launch that
        # is gone no more than that launch did, and it begins before no launch that it did not begin before.
        begin = np.maximum.reduce(
            [self.end[w] + (np.maximum(lag, self.least_lag[w]) if w in self.least_lag else lag) for w in waits]
        )
        was = np.maximum.reduce([self.schedule.relative[:, w] for w in waits])
        earlier = np.minimum(self.schedule.relative[:, column] - was, 0.0)
        return np.asarray(np.maximum(begin, np.maximum.reduce([self.begin[w] for w in waits]) + earlier))

    def _least(self, column: int, waits: tuple[int, ...]) -> Floats:
        found = np.minimum(self.schedule.lags[column], 0.0)
        gone = [self.least_lag[w] for w in waits if w in self.least_lag]
        return np.asarray(np.maximum.reduce([found, *gone]))


def build(forward: Forward, edges: pd.DataFrame | None = None) -> Schedule:
    """The schedule of a forward; `edges` are the graph's by node ordinal (table EDGES) where they are known."""
    real = _real_waits(forward, edges) if edges is not None and len(edges) else None
    early = _programmatic(forward, edges) if real is not None and edges is not None else frozenset()
    return Schedule(forward, real or _inferred_waits(forward), real is not None, programmatic=early)


def _inferred_waits(forward: Forward) -> tuple[tuple[int, ...], ...]:
    streams = list(zip(forward.nodes["device"].tolist(), forward.nodes["stream"].tolist(), strict=True))
    starts, ends = forward.start[-1].tolist(), (forward.start[-1] + forward.duration[-1]).tolist()
    place = {stream: k for k, stream in enumerate(dict.fromkeys(streams))}
    last_on: dict[int, int] = {}
    # (end, - place of the stream, launch) of the last launch on each stream, in order of their ends: a forward with
    # hundreds of streams would take minutes if each launch looked at all of them.
    by_end: list[tuple[int, int, int]] = []
    waits: list[tuple[int, ...]] = []
    for column, stream in enumerate(streams):
        own = place[stream]
        mine = [last_on[own]] if own in last_on else []
        at = bisect_right(by_end, (starts[column], 1, 0)) - 1
        if at >= 0 and by_end[at][1] == -own:
            at -= 1
        if at >= 0:
            mine.append(by_end[at][2])
        waits.append(tuple(mine))
        if own in last_on:
            before = last_on[own]
            del by_end[bisect_left(by_end, (ends[before], -own, before))]
        insort(by_end, (ends[column], -own, column))
        last_on[own] = column
    return tuple(waits)


def _programmatic(forward: Forward, edges: pd.DataFrame) -> frozenset[int]:
    early = set(edges.loc[edges["programmatic"], "target"].astype(int))
    return frozenset(c for c, node in enumerate(forward.nodes["node"]) if int(node) in early)


def _real_waits(forward: Forward, edges: pd.DataFrame) -> tuple[tuple[int, ...], ...] | None:
    nodes = forward.nodes["node"].to_numpy()
    if (nodes < 0).any() or forward.nodes["graph"].nunique() > 1:
        return None
    place = {int(n): c for c, n in enumerate(nodes)}
    before: dict[int, list[int]] = {}
    for source, target in zip(edges["source"], edges["target"], strict=True):
        before.setdefault(int(target), []).append(int(source))
    memo: dict[int, frozenset[int]] = {}

    def launches_before(node: int) -> frozenset[int]:
        # Copies, fills and empty nodes are no launches: what they wait for is waited for through them.
        if node not in memo:
            memo[node] = frozenset(
                c for s in before.get(node, []) for c in ([place[s]] if s in place else launches_before(s))
            )
        return memo[node]

    waits = tuple(tuple(sorted(launches_before(int(n)))) for n in nodes)
    # Edges that run against the observed order belong to another graph than this trace.
    if any(w >= c for c, ws in enumerate(waits) for w in ws) or not any(waits):
        return None
    return waits
