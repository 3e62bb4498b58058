from __future__ import annotations

from pathlib import Path

import pandas as pd
import pytest
from literal_traces import SPLIT, kernels, timings

from fusionscope.analysis.tracing import tracing
from fusionscope.profiler.runinfo import RunInfo
from fusionscope.profiler.store import Run
from fusionscope.profiler.trace import Trace, table


def test_the_three_ways_to_record_a_replay() -> None:
    both = pd.concat(
        [timings([[30_000, 30_002]]).astype(object), timings([[30_200, 30_300]], "graph-level trace").astype(object)]
    )
    run = Run(RunInfo(), Trace(kernels=kernels([SPLIT] * 3), timings=table("timings", both)), Path())
    found = tracing(run, 0)
    assert found is not None
    assert (found.untraced_ns, found.graph_level_ns, found.node_level_ns) == (30_001, 30_250, 30_500)
    # Six launches: 250 ns more than as whole graphs.
    assert found.launches == 6 and found.per_launch_ns == pytest.approx(250 / 6)
    assert found.document()["node_over_graph_level"] == pytest.approx(30_500 / 30_250)
    assert tracing(Run(RunInfo(), Trace(kernels=kernels([SPLIT])), Path()), 0).document() == {  # type: ignore[union-attr]
        "untraced_ns": None, "graph_level_ns": None, "node_level_ns": 30_500, "node_over_untraced": None,
        "node_over_graph_level": None, "added_per_launch_ns": None,
    }  # fmt: skip


def test_without_graphs_there_is_nothing_to_say() -> None:
    eager = Trace(kernels=kernels([SPLIT]).assign(replay=-1))
    assert tracing(Run(RunInfo(), eager, Path()), 0) is None
    assert tracing(Run(RunInfo(), Trace(), Path()), 0) is None
