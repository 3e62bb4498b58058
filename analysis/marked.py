"""Sites that the capture marked: by graph node (rung 1), by range (2), by place in the replay (3)."""

from __future__ import annotations

import re
from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from fusionscope.analysis import ordinal
from fusionscope.analysis.forwards import Forward
from fusionscope.analysis.sites import Site
from fusionscope.profiler.trace import Trace

if TYPE_CHECKING:
    from fusionscope.analysis.attribution import Attribution

#: A range that a decode step, or `fusion_runtime.boundary`, opens around a site: kind, subtype, layer and path.
SITE_RANGE = re.compile(r"fusionscope\.site\|([^|]+)\|([^|]*)\|(-?\d{1,9})\|([^|]*)")
Sites = dict[str, list[Site]]

SOURCES = {
    1: "graph-node provenance (--provenance)",
    2: "site ranges",
    3: "provenance by place in the replay (--provenance, or --like RUN)",
}


def marked_sites(
    trace: Trace,
    forward: Forward,
    rung: int | None,
    sibling: Attribution | None,
    ruled: Sites,
    warnings: list[str],
) -> tuple[Sites, int]:
    """The sites by the best rung above the rules that knows any, and that rung; with `rung` by that one alone.

    `ruled` are the sites by name, against which doubtful ones are checked; sentences go to `warnings`.
    """
    if rung in (None, 1):
        nodes = forward.nodes["node"].to_numpy()
        found = _by_nodes(trace, forward, nodes, 1, ruled, warnings) if (nodes >= 0).all() else {}
        if found:
            return found, 1
    if rung in (None, 2):
        found = _by_ranges(trace, forward)
        if found:
            return found, 2
    if rung in (None, 3):
        return _by_place(trace, forward, sibling, ruled, warnings), 3
    return {}, 4


def _by_place(trace: Trace, forward: Forward, sibling: Attribution | None, ruled: Sites, warnings: list[str]) -> Sites:
    if (forward.nodes["node"] < 0).any() and (trace.sites["rank"] == forward.rank).any():
        nodes, reason = ordinal.ordinals(trace, forward)
        if nodes is not None:
            return _by_nodes(trace, forward, nodes, 3, ruled, warnings)
        warnings.append(f"The run's provenance cannot be placed, as {reason}.")
    if sibling is not None:
        placed, reason = ordinal.of_sibling(sibling, forward)
        if reason:
            warnings.append(reason if placed is not None else f"The sibling's sites cannot be placed, as {reason}.")
        return placed or {}
    return {}


def _by_nodes(
    trace: Trace, forward: Forward, nodes: NDArray[np.int64], rung: int, ruled: Sites, warnings: list[str]
) -> Sites:
    rows = trace.sites[trace.sites["rank"] == forward.rank]
    graphs = set(forward.nodes["graph"].tolist())
    if len(rows) == 0 or len(graphs) > 1:
        return {}
    place = {int(node): column for column, node in enumerate(nodes)}
    if rows["graph"].isin(graphs - {-1}).any():
        chosen = [rows[rows["graph"].isin(graphs)]]
    elif rung == 1 or rows["graph"].nunique() > 1:
        # A capture may know the graph under another id than the tracer: then one graph alone must be the one, or
        # one of those that were captured one after the other.
        everywhere = rows[rows["graph"] == -1]
        chosen = (
            [everywhere] if len(everywhere) else [rows[rows["graph"] == g] for g in rows["graph"].unique() if g <= -2]
        )
    else:
        chosen = [rows]
    return _best([_on_nodes(part, place, rung) for part in chosen], ruled, warnings)


def _on_nodes(rows: pd.DataFrame, place: dict[int, int], rung: int) -> tuple[Sites, int]:
    """The sites of one captured graph on the launches of a forward, and how many have no launch there."""
    found: Sites = {}
    lost = 0
    for (kind, _), part in rows.groupby(["boundary", "site"], observed=True, sort=True):
        columns = sorted(place[int(n)] for n in part["node"] if int(n) in place)
        # Nodes without a launch are copies or fills, which are no kernels; a site without any is lost.
        if not columns:
            lost += 1
            continue
        first = part.iloc[0]
        texts = (str(first["path"]), str(first["declined"]))
        site = Site(str(kind), str(first["subtype"]), int(first["layer"]), tuple(columns), rung, *texts)
        found.setdefault(str(kind), []).append(site)
    return {kind: _numbered(sites) for kind, sites in found.items()}, lost


def _best(candidates: list[tuple[Sites, int]], ruled: Sites, warnings: list[str]) -> Sites:
    """Of several captured graphs the one whose sites lie on this forward; several alike are one."""
    different: list[tuple[Sites, int]] = []
    for candidate in candidates:
        if candidate not in different:
            different.append(candidate)
    scores = [_fit(sites, lost, ruled) for sites, lost in different]
    if not different or max(scores) == (0.0, 0.0, -1):
        lost = sum(lost for _, lost in different)
        if lost:
            warnings.append(_lost(lost))
        return {}
    best = [k for k, score in enumerate(scores) if score == max(scores)]
    if len(best) > 1:
        warnings.append(
            f"{len(best)} of the {len(different)} graphs that the provenance knows fit this forward as well as each "
            "other, so none is used: capture the batch size of interest alone."
        )
        return {}
    sites, lost = different[best[0]]
    if lost:
        warnings.append(_lost(lost))
    return sites


def _fit(sites: Sites, lost: int, ruled: Sites) -> tuple[float, float, int]:
    """(part of the sites that have launches, part of those that the names confirm, the last launch of a site).

    The last tells a smaller graph of the same model apart, whose nodes all exist in the larger one as well.
    """
    all_sites = [(kind, s) for kind, found in sites.items() for s in found]
    if not all_sites:
        return 0.0, 0.0, -1
    known = {kind: {c for s in found for c in s.columns} for kind, found in ruled.items()}
    confirmed = sum(1 for kind, s in all_sites if known.get(kind, set()) & set(s.columns))
    last = max(s.columns[-1] for _, s in all_sites)
    return len(all_sites) / (len(all_sites) + lost), confirmed / len(all_sites), last


def _lost(count: int) -> str:
    return f"{count} sites of the provenance have no launch in this forward: check that it belongs to this trace."


def _by_ranges(trace: Trace, forward: Forward) -> Sites:
    ranges = trace.ranges[trace.ranges["rank"] == forward.rank]
    names = ranges["name"].astype(str)
    ranges = ranges[names.str.fullmatch(SITE_RANGE.pattern)]
    if len(ranges) == 0:
        return {}
    # The executions are the same program, so one of them places the sites; the last is surely no warm-up.
    rows = trace.kernels.loc[forward.rows[-1]]
    when, threads = _host(trace, forward, rows)
    processes = rows["process"].to_numpy()
    found: Sites = {}
    spans = ranges.sort_values("start_ns")
    columns_of = (spans[c].tolist() for c in ("name", "start_ns", "end_ns", "process", "thread"))
    for name, start, end, process, thread in zip(*columns_of, strict=True):
        inside = (when >= start) & (when < end) & (processes == process) & (threads == thread)
        columns = np.flatnonzero(inside)
        match = SITE_RANGE.fullmatch(str(name))
        if len(columns) == 0 or match is None:
            continue
        kind, subtype, layer, path = match.groups()
        site = Site(kind, subtype, int(layer), tuple(int(c) for c in columns), 2, path)
        found.setdefault(kind, []).append(site)
    return {kind: _numbered(sites) for kind, sites in found.items()}


def _host(trace: Trace, forward: Forward, rows: pd.DataFrame) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """[n] ns at which the host issued each launch, and [n] the thread that did; an operator is its own issue."""
    calls = trace.launches[trace.launches["rank"] == forward.rank].drop_duplicates(["process", "correlation"])
    known = {
        (int(p), int(c)): (int(start), int(thread))
        for p, c, start, thread in zip(
            calls["process"], calls["correlation"], calls["start_ns"], calls["thread"], strict=True
        )
    }
    own = zip(rows["process"], rows["correlation"], rows["start_ns"], rows["thread"], rows["kind"], strict=True)
    issued = [
        (int(start), int(thread)) if kind == "op" else known.get((int(p), int(c)), (int(start), int(thread)))
        for p, c, start, thread, kind in own
    ]
    return np.array([w for w, _ in issued], dtype=np.int64), np.array([t for _, t in issued], dtype=np.int64)


def _numbered(sites: list[Site]) -> list[Site]:
    ordered = sorted(sites, key=lambda s: s.columns[0])
    return [replace(site, site=number) for number, site in enumerate(ordered)]
