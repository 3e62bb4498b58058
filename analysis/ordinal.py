"""Rung 3: a launch's place in the replay in place of its graph node, for traces that have no node ids.

HIP graphs give every launch of a replay one correlation id and no node. On one stream the launches of a graph run in
the order in which they were captured, so that the place in the replay is the node's ordinal, as long as every replay
shows the same kernels in the same order. A sibling, another run of the same program whose sites are known, can be
aligned by the sequence of kernel names as well, also where single launches are missing.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from fusionscope.analysis.forwards import Forward
from fusionscope.analysis.sites import Site
from fusionscope.profiler.trace import Trace

if TYPE_CHECKING:
    from fusionscope.analysis.attribution import Attribution

#: Launches that a replay may lack and still be a damaged copy of another: at least one, at most this part.
LACKING = 0.05
#: A sibling that differs in more than this part of the launches, or this many, is another program.
UNLIKE, MOST = 0.25, 500


def ordinals(trace: Trace, forward: Forward) -> tuple[NDArray[np.int64] | None, str]:
    """[n] node ordinals of the launches of a forward without node ids, and "" or why there are none.

    Copies and fills of the replay count, as they are nodes too.
    """
    if forward.graph_launches != 1:
        return None, f"a forward joins {forward.graph_launches} graph launches"
    kernels = trace.kernels
    heads = kernels.loc[forward.rows[:, 0], ["process", "replay"]]
    mine = kernels[(kernels["rank"] == forward.rank) & (kernels["replay"] >= 0)]
    groups = mine.groupby(["process", "replay"], sort=False)
    found: NDArray[np.int64] | None = None
    sequence: list[str] = []
    for place, (process, number) in enumerate(zip(heads["process"], heads["replay"], strict=True)):
        rows = groups.get_group((process, number)).sort_values("start_ns", kind="stable")
        streams = rows["stream"].nunique()
        if streams > 1:
            return None, f"its launches run on {streams} streams, where order of start is not order of capture"
        names = rows["name"].astype(str).tolist()
        at = {int(label): k for k, label in enumerate(rows.index)}
        here = np.array([at[int(label)] for label in forward.rows[place]], dtype=np.int64)
        if found is not None and (names != sequence or (here != found).any()):
            return None, "its replays do not hold the same copies and kernels in the same order"
        found, sequence = here, names
    return found, ""


def damaged(found: Sequence[Forward], chosen: Forward) -> list[str]:
    """Sentences about replays that are the chosen forward with some launches missing: they are left out of it."""
    whole = _keys(chosen)
    told = []
    for other in found:
        lacking = chosen.launches - other.launches
        if other is chosen or not 0 < lacking <= max(1, LACKING * chosen.launches) or other.replays == 0:
            continue
        missing = _missing(_keys(other), whole)
        if missing is None:
            continue
        names = chosen.nodes["name"].astype(str)
        first = names.iloc[missing[0]].partition("<")[0].partition("(")[0][:60]
        replays = f"{other.replays} of {other.replays + chosen.replays} replays"
        told.append(
            f"{replays} of this graph lack {lacking} of {chosen.launches} launches (the first: {first}, launch "
            f"{missing[0]}): the recording lost them or the graph has a condition; they are the kind {other.kind} and "
            "left out here."
        )
    return told


def _keys(forward: Forward) -> list[tuple[int, str]]:
    streams = forward.nodes["stream"].to_numpy()
    order: dict[int, int] = {}
    numbers = [order.setdefault(int(s), len(order)) for s in streams]
    return list(zip(numbers, forward.nodes["name"].astype(str), strict=True))


def _missing(part: list[tuple[int, str]], whole: list[tuple[int, str]]) -> list[int] | None:
    """Places of `whole` that `part` lacks where it is `whole` with some left out, stream by stream; else None."""
    missing: list[int] = []
    for stream in {s for s, _ in whole} | {s for s, _ in part}:
        mine = [name for s, name in part if s == stream]
        places = [k for k, (s, _) in enumerate(whole) if s == stream]
        pairs = align(mine, [whole[k][1] for k in places], len(places) - len(mine))
        if pairs is None or len(pairs) < len(mine):
            return None
        kept = {b for _, b in pairs}
        missing += [k for n, k in enumerate(places) if n not in kept]
    return sorted(missing)


def align(first: Sequence[str], second: Sequence[str], most: int | None = None) -> list[tuple[int, int]] | None:
    """Pairs of places that the shortest edit from `first` to `second` leaves as they are (Myers 1986, O(ND)).

    None where more than `most` insertions and deletions are needed (default: a quarter of the launches, at most 500).
    """
    n, m = len(first), len(second)
    limit = min(int(UNLIKE * (n + m)) + 1, MOST) if most is None else most
    if limit < 0 or abs(n - m) > limit:
        return None
    reach = {1: 0}
    history: list[dict[int, int]] = []
    for edits in range(min(limit, n + m) + 1):
        history.append(dict(reach))
        for k in range(-edits, edits + 1, 2):
            down = k == -edits or (k != edits and reach.get(k - 1, -1) < reach.get(k + 1, -1))
            x = reach[k + 1] if down else reach[k - 1] + 1
            while x < n and x - k < m and first[x] == second[x - k]:
                x += 1
            reach[k] = x
            if x >= n and x - k >= m:
                return _walk_back(history, n, m, first, second)
    return None


def _walk_back(
    history: list[dict[int, int]], n: int, m: int, first: Sequence[str], second: Sequence[str]
) -> list[tuple[int, int]]:
    pairs: list[tuple[int, int]] = []
    x, y = n, m
    for edits in range(len(history) - 1, -1, -1):
        reach = history[edits]
        k = x - y
        down = k == -edits or (k != edits and reach.get(k - 1, -1) < reach.get(k + 1, -1))
        before = k + 1 if down else k - 1
        at = reach[before] if edits else 0
        start = (at, at - before) if edits else (0, 0)
        while x > start[0] and y > start[1] and x > 0 and y > 0 and first[x - 1] == second[y - 1]:
            x, y = x - 1, y - 1
            pairs.append((x, y))
        if edits:
            x, y = start
    return pairs[::-1]


def of_sibling(sibling: Attribution, forward: Forward) -> tuple[dict[str, list[Site]] | None, str]:
    """The sites of a sibling's forward at the same places of this one, and a sentence about what did not fit, or "".

    A site of which a launch has no partner is left out. None where the two are not the same program.
    """
    theirs, ours = _keys(sibling.forward), _keys(forward)
    partner: dict[int, int] = {}
    for stream in sorted({s for s, _ in theirs}):
        mine = [k for k, (s, _) in enumerate(theirs) if s == stream]
        other = [k for k, (s, _) in enumerate(ours) if s == stream]
        pairs = align([theirs[k][1] for k in mine], [ours[k][1] for k in other])
        if pairs is None:
            return None, "the two launch other kernels in another order"
        partner.update((mine[a], other[b]) for a, b in pairs)
    sites: dict[str, list[Site]] = {}
    lost = 0
    for kind, known in sibling.sites.items():
        # What the sibling knows by names alone, this run's own names tell as well.
        if sibling.rungs[kind] == 4:
            continue
        whole = [s for s in known if all(c in partner for c in s.columns)]
        lost += len(known) - len(whole)
        sites[kind] = [replace(s, rung=3, columns=tuple(sorted(partner[c] for c in s.columns))) for s in whole]
    note = f"{lost} sites of the sibling have a launch without a partner here, and are left out." if lost else ""
    return {kind: found for kind, found in sites.items() if found}, note


def disagreements(placed: dict[str, list[Site]], ruled: dict[str, list[Site]], name: Callable[[int], str]) -> list[str]:
    """Sentences about kinds whose sites by place hold no launch of the sites that the names tell."""
    told = []
    for kind, sites in placed.items():
        known = {c for s in ruled.get(kind, []) for c in s.columns}
        off = [s for s in sites if known and not known & set(s.columns)]
        if off:
            there = name(off[0].columns[0]).partition("<")[0].partition("(")[0][:60]
            told.append(
                f"{len(off)} of {len(sites)} {kind} sites by place hold none of the kernels that the names give (the"
                f" first: {there}): the graph may have nodes that the trace does not show; --rung 4 uses the names."
            )
    return told
