"""The labels that a trace earns by what it holds, whoever recorded it."""

from __future__ import annotations

from fusionscope.profiler.importing import ranks_of
from fusionscope.profiler.trace import Trace


def trace_labels(trace: Trace, world_size: int = 0) -> set[str]:
    """`graph mode`, `cpu`, `eager` and `incomplete`, as far as the tables show them.

    `world_size` is what the user says of the run (0: nothing); the file's own word counts as well.
    """
    labels = set()
    kinds = set(trace.kernels["kind"].unique())
    on_cpu = "op" in kinds and "kernel" not in kinds
    in_graphs = bool(trace.launches["is_graph"].any()) or bool((trace.kernels["replay"] >= 0).any())
    if trace.graph_mode:
        labels.add("graph mode")
    if on_cpu:
        labels.add("cpu")
    elif not in_graphs and not trace.graph_mode:
        labels.add("eager")
    if max(trace.world_size, world_size) > max(len(ranks_of(trace)), 1):
        labels.add("incomplete")
    return labels
