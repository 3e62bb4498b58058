"""What is in a trace as a whole, warm-up and all: the numbers of `fusionscope show`."""

from __future__ import annotations

from dataclasses import dataclass

from fusionscope.analysis.intervals import union_ns
from fusionscope.profiler.file_ranks import ranks_of
from fusionscope.profiler.trace import Trace


@dataclass(frozen=True)
class Totals:
    """Counts and times (ns) over every rank of a trace; copies and memsets are not launches."""

    launches: int
    kernel_time_ns: int
    #: Union of the launches' intervals per device of a rank, summed: overlaps count once.
    busy_time_ns: int
    graph_launches: int
    rank_ids: list[int]
    devices: int


def totals(trace: Trace) -> Totals:
    """Count launches and add up their times."""
    rows = trace.kernels[trace.kernels["kind"].isin(["kernel", "op"])]
    busy = sum(
        union_ns(group["start_ns"].to_numpy(), group["duration_ns"].to_numpy())
        for _, group in rows[~rows["untimed"]].groupby(["rank", "process", "device"], observed=True)
    )
    return Totals(
        launches=len(rows),
        kernel_time_ns=int(rows["duration_ns"].sum()),
        busy_time_ns=busy,
        graph_launches=int(trace.launches["is_graph"].sum()),
        rank_ids=ranks_of(trace),
        devices=int(rows[["rank", "device"]].drop_duplicates().shape[0]),
    )
