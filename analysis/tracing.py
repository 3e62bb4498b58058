"""What tracing adds to a step: the same replays without a profiler, as whole graphs, and kernel by kernel."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from fusionscope.analysis.forwards import forwards
from fusionscope.profiler.errors import FusionScopeError
from fusionscope.profiler.store import Run

#: The source of replay times that a trace of whole graphs gives.
GRAPH_LEVEL = "graph-level trace"


@dataclass(frozen=True)
class Tracing:
    """Median ns of one replay, by how it was recorded; None where the run does not know."""

    untraced_ns: float | None
    graph_level_ns: float | None
    node_level_ns: float
    #: Launches of one replay.
    launches: int

    @property
    def per_launch_ns(self) -> float | None:
        """What recording every kernel adds to a launch, against whole graphs; None where these were not recorded."""
        if self.graph_level_ns is None:
            return None
        return (self.node_level_ns - self.graph_level_ns) / self.launches

    def document(self) -> dict[str, float | None]:
        """As JSON; the ratios are of the node-level span to the others."""
        return {
            "untraced_ns": self.untraced_ns,
            "graph_level_ns": self.graph_level_ns,
            "node_level_ns": self.node_level_ns,
            "node_over_untraced": None if not self.untraced_ns else self.node_level_ns / self.untraced_ns,
            "node_over_graph_level": None if not self.graph_level_ns else self.node_level_ns / self.graph_level_ns,
            "added_per_launch_ns": self.per_launch_ns,
        }


def tracing(run: Run, rank: int) -> Tracing | None:
    """The cost of tracing the rank's main forward; None where its kernels were not traced in graphs."""
    try:
        found = forwards(run.trace, rank, run.info.warmup_replays)[0]
    except FusionScopeError:
        return None
    if not found.graph_launches:
        return None
    times = run.trace.timings[run.trace.timings["rank"] == rank]
    by_source = {str(source): part["duration_ns"].median() for source, part in times.groupby("source", observed=True)}
    known = [by_source.get(source) for source in ("untraced", GRAPH_LEVEL)]
    untraced, graph_level = (None if ns is None else float(ns) for ns in known)
    return Tracing(untraced, graph_level, float(np.median(found.span)), found.launches)
