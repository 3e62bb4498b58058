"""Re-times the schedule of a forward with sites replaced by one fused launch, or taken away.

Every launch starts a lag after the latest end of what it waits for: its real predecessors where the capture stored
the graph's edges, else the launch before it on its stream and the latest-ending one on the other streams. The lag is
the observed one (negative under programmatic dependent launch), so that with nothing replaced the measured span comes
out to the nanosecond.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from fusionscope.analysis.forwards import Forward
from fusionscope.analysis.sites import Site

Floats = NDArray[np.float64]


@dataclass(frozen=True)
class Schedule:
    """A forward and what each of its launches waits for (column numbers, all smaller than the launch's own)."""

    forward: Forward
    waits_for: tuple[tuple[int, ...], ...]
    real_edges: bool

    def retimed_span(self, sites: list[Site] = (), fused_ns: Floats | None = None) -> Floats:  # type: ignore[assignment]
        """[R] ns: span with each site replaced by one launch of `fused_ns` [sites, R], or gone where that is None."""
        start, duration = self.forward.start, self.forward.duration
        removed = {c for s in sites for c in s.columns}
        # The fused launch stands where the site's last launch stood, with the lag of its first: the gaps between
        # the site's launches go with them.
        fused_at = {s.columns[-1]: (k, s.columns[0]) for k, s in enumerate(sites)} if fused_ns is not None else {}
        lags = self._lags()
        origin = start.min(axis=1).astype(np.int64)
        end: list[Floats] = []
        ends: list[Floats] = []
        for column, waits in enumerate(self.waits_for):
            ready = np.maximum.reduce([end[w] for w in waits]) if waits else np.zeros(len(origin))
            if column in fused_at:
                number, first = fused_at[column]
                assert fused_ns is not None
                finish = ready + lags[first] + fused_ns[number]
                ends.append(finish)
            elif column in removed:
                finish = ready
            else:
                finish = ready + lags[column] + duration[:, column]
                ends.append(finish)
            end.append(finish)
        begun = self._first_start(lags, removed, fused_at)
        return np.maximum.reduce(ends) - begun if ends else np.zeros(len(origin))

    def self_check(self) -> bool:
        """Whether nothing replaced gives the measured span exactly, for every replay."""
        return bool((self.retimed_span() == self.forward.span).all())

    def _lags(self) -> list[Floats]:
        origin = self.forward.start.min(axis=1)
        relative = (self.forward.start - origin[:, None]).astype(np.float64)
        end = relative + self.forward.duration
        return [
            relative[:, c] - (np.maximum.reduce([end[:, w] for w in waits]) if waits else 0.0)
            for c, waits in enumerate(self.waits_for)
        ]

    def _first_start(self, lags: list[Floats], removed: set[int], fused_at: dict[int, tuple[int, int]]) -> Floats:
        roots = [c for c, waits in enumerate(self.waits_for) if not waits and c not in removed]
        if roots:
            return _earliest([lags[c] for c in roots])
        # The forward begins with a removed site: the span then begins where that site began.
        return _earliest([lags[c] for c, waits in enumerate(self.waits_for) if not waits])


def _earliest(times: list[Floats]) -> Floats:
    found: Floats = np.minimum.reduce(times)
    return found


def build(forward: Forward, edges: pd.DataFrame | None = None) -> Schedule:
    """The schedule of a forward; `edges` are the graph's by node ordinal (table EDGES) where they are known."""
    real = _real_waits(forward, edges) if edges is not None and len(edges) else None
    return Schedule(forward, real or _inferred_waits(forward), real is not None)


def _inferred_waits(forward: Forward) -> tuple[tuple[int, ...], ...]:
    streams = list(zip(forward.nodes["device"], forward.nodes["stream"], strict=True))
    start, end = forward.start[-1], forward.start[-1] + forward.duration[-1]
    last_on: dict[tuple[int, int], int] = {}
    waits: list[tuple[int, ...]] = []
    for column, stream in enumerate(streams):
        mine = [last_on[stream]] if stream in last_on else []
        earlier = [c for other, c in last_on.items() if other != stream and end[c] <= start[column]]
        if earlier:
            mine.append(max(earlier, key=lambda c: int(end[c])))
        waits.append(tuple(mine))
        last_on[stream] = column
    return tuple(waits)


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
