"""From what the ranks left in the capture's folder to one trace."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pandas as pd

from fusionscope.profiler.capture import cupti, nsys, rocprof, torch_profiler
from fusionscope.profiler.capture.messages import Report, SiteNote
from fusionscope.profiler.capture.plan import WARMUP_REPLAYS, CaptureError, CapturePlan
from fusionscope.profiler.readers import read_trace
from fusionscope.profiler.trace import Trace, merge, table


def trace_of(plan: CapturePlan, folder: Path, reports: dict[str, list[Report]], beside: Path | None = None) -> Trace:
    """The ranks' traces as one, with sites and edges of the captured graphs and every timing.

    `beside` is the folder of the traces of whole graphs, where that pass was made. Raises CaptureError where a
    rank's trace holds no launches.
    """
    parts = []
    for report in reports["traced"]:
        trace = _read(plan, folder, report.rank)
        if not len(trace.kernels):
            raise CaptureError(
                f"{plan.profiler} recorded no launches on rank {report.rank}: try another --profiler, and close other "
                "profilers of this GPU."
            )
        graph = _graph(trace)
        sites = site_table(report.sites, report.rank, graph)
        edges = edge_table(report.edges, report.rank, graph)
        parts.append(replace(trace.with_rank(report.rank), sites=sites, edges=edges))
    merged = merge(parts)
    whole, missing = graph_timings(plan, beside)
    timings = timing_table([report for phase in ("untraced", "traced") for report in reports[phase]])
    timings = table("timings", pd.concat([_plain(timings), *whole], ignore_index=True)) if whole else timings
    doubts = [*_doubts(plan, merged, reports["traced"]), *missing]
    return replace(merged, timings=timings, warnings=(*merged.warnings, *doubts))


def graph_timings(plan: CapturePlan, folder: Path | None) -> tuple[list[pd.DataFrame], list[str]]:
    """Replay times of the pass that recorded whole graphs, a rank each, and sentences about ranks without any."""
    if folder is None:
        return [], []
    parts, missing = [], []
    for rank in range(plan.processes):
        path = nsys.trace_file(folder, rank)
        times = read_trace(path).timings if path.is_file() else table("timings")
        # Those that count, as in the pass that records every kernel.
        times = times[WARMUP_REPLAYS:]
        if len(times):
            parts.append(_plain(times.assign(rank=rank)))
        else:
            missing.append(
                f"The pass that records whole graphs has no replays of rank {rank}: tracing cost is unknown."
            )
    return parts, missing


def _plain(rows: pd.DataFrame) -> pd.DataFrame:
    # Categories differ between ranks: as objects they concatenate.
    return rows.astype({column: "object" for column in rows.columns if rows[column].dtype == "category"})


def _read(plan: CapturePlan, folder: Path, rank: int) -> Trace:
    if plan.profiler == "cupti":
        return cupti.read(folder, rank)
    if plan.profiler == "nsys":
        return read_trace(nsys.trace_file(folder, rank))
    if plan.profiler == "rocprofv3":
        return read_trace(rocprof.trace_file(folder, rank))
    return read_trace(torch_profiler.trace_file(folder, rank))


def _graph(trace: Trace) -> int:
    """The id of the replayed graph in the trace: the one with the most kernels; -1 where there is none."""
    graphs = trace.kernels.loc[trace.kernels["node"] >= 0, "graph"]
    return int(graphs.mode().iloc[0]) if len(graphs) else -1


def site_table(sites: list[SiteNote], rank: int, graph: int) -> pd.DataFrame:
    """SITES: one row per site and node; without a graph the ranges in the trace tell the sites, and this is empty."""
    numbers: dict[str, int] = {}
    rows: list[dict[str, Any]] = []
    for site in sites:
        number = numbers.get(site.boundary, 0)
        numbers[site.boundary] = number + 1
        rows += [
            {
                "rank": rank,
                "graph": graph,
                "boundary": site.boundary,
                "subtype": site.subtype,
                "site": number,
                "layer": site.layer,
                "node": node,
                "path": site.path,
                "declined": site.declined,
            }
            for node in range(site.first_node, site.last_node)
        ]
    return table("sites", pd.DataFrame(rows) if rows else None)


def edge_table(edges: list[tuple[int, int, bool]], rank: int, graph: int) -> pd.DataFrame:
    """EDGES of one rank's graph."""
    if not edges:
        return table("edges")
    data = pd.DataFrame(edges, columns=["source", "target", "programmatic"])
    return table("edges", data.assign(rank=rank, graph=graph))


def timing_table(reports: list[Report]) -> pd.DataFrame:
    """TIMINGS of every rank and phase, in the order in which they were taken."""
    rows = [
        {
            "rank": report.rank,
            "process": report.process,
            "block": timing.block,
            "duration_ns": timing.duration_ns,
            "source": timing.source,
        }
        for report in reports
        for timing in report.timings
    ]
    return table("timings", pd.DataFrame(rows) if rows else None)


def _doubts(plan: CapturePlan, trace: Trace, reports: list[Report]) -> list[str]:
    """Sentences about replays that were made and are not in the trace."""
    if plan.device == "cpu":
        from fusionscope.fusion_runtime.decode.recorder import FORWARD_RANGE

        seen = trace.ranges[trace.ranges["name"] == FORWARD_RANGE].groupby("rank", observed=True).size()
    else:
        graphs = trace.kernels[trace.kernels["replay"] >= 0]
        seen = graphs.groupby("rank", observed=True)["replay"].nunique()
    made = WARMUP_REPLAYS + plan.replays
    found = [(report.rank, int(seen.get(report.rank, 0))) for report in reports]
    return [
        f"Rank {rank} replayed {made} times and the trace holds {count}: record again, with fewer --replays."
        for rank, count in found
        if count != made
    ]
