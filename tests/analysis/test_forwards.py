"""Which launches are one decode step, on literal traces."""

from __future__ import annotations

from pathlib import Path

import pandas as pd
import pytest
from literal_traces import AR, FUSED_RUN, GEMM, NORM, SPLIT, kernels

from fusionscope.analysis.analysed import analyse
from fusionscope.analysis.forwards import Forward, choose, forwards
from fusionscope.profiler.errors import FusionScopeError, GraphModeTrace
from fusionscope.profiler.runinfo import RunInfo
from fusionscope.profiler.store import Run
from fusionscope.profiler.trace import Trace, table

GAP = 1_000_000


def shapes(found: list[Forward]) -> list[tuple[int, int]]:
    return [(f.launches, f.replays) for f in found]


def steps(*spans: tuple[int, int], name: str = "execute_32_context_0(x)") -> pd.DataFrame:
    data = {"rank": 0, "process": 1, "thread": 1, "start_ns": [s for s, _ in spans], "end_ns": [e for _, e in spans]}
    return table("ranges", pd.DataFrame(data).assign(name=name))


def test_replays_of_one_program_are_one_kind_and_the_busiest_comes_first() -> None:
    found = forwards(Trace(kernels=kernels([SPLIT, FUSED_RUN, SPLIT])))
    assert shapes(found) == [(6, 2), (4, 1)]
    assert found[0].start[1, 0] == 2 * GAP


def test_warm_up_replays_are_left_out_but_never_all_of_them() -> None:
    trace = Trace(kernels=kernels([SPLIT] * 3))
    assert shapes(forwards(trace, warmup_replays=1)) == [(6, 2)]
    assert shapes(forwards(trace, warmup_replays=9)) == [(6, 3)]
    assert analyse(Run(RunInfo(warmup_replays=2), trace, Path())).forward.replays == 1


def test_node_order_and_not_start_order_tells_programs_apart() -> None:
    # Two streams whose launches start in another order in the second replay: still the same nodes.
    one = [(GEMM, 0, 50, 7), (AR, 10, 50, 8), (NORM, 100, 5, 7)]
    other = [(GEMM, 20, 50, 7), (AR, 10, 50, 8), (NORM, 100, 5, 7)]
    assert shapes(forwards(Trace(kernels=kernels([one, other])))) == [(3, 2)]
    assert shapes(forwards(Trace(kernels=kernels([one, other], nodes=False)))) == [(3, 1), (3, 1)]


def test_a_step_joins_its_replays_and_the_eager_work_between_them() -> None:
    piece = [(GEMM, 0, 100), (NORM, 110, 20)]
    rows = kernels([piece, piece, piece, piece], nodes=False)
    between = kernels(
        [[("attention", 500_000, 9), ("attention", 2_500_000, 9), ("attention", 3_900_000, 9)]], nodes=False
    )
    eager = between.assign(replay=-1, correlation=900)
    text = {"kind": object, "name": object, "raw_name": object}
    both = table("kernels", pd.concat([rows.astype(text), eager.astype(text)]))
    ranges = steps((-10, 1_900_000), (1_950_000, 3_950_000))
    found = forwards(Trace(kernels=both, ranges=ranges))
    # The launch after the last replay of the second step is no part of its forward.
    assert shapes(found) == [(5, 2)] and found[0].graph_launches == 2


def test_one_replay_a_step_stays_a_replay_and_a_training_step_joins_nothing() -> None:
    trace = Trace(kernels=kernels([SPLIT] * 2), ranges=steps((-10, GAP - 10), (GAP - 5, 2 * GAP)))
    assert shapes(forwards(trace)) == [(6, 2)]
    whole = steps((-10, 9 * GAP), name="ProfilerStep#7")
    assert shapes(forwards(Trace(kernels=kernels([SPLIT] * 2), ranges=whole))) == [(6, 2)]


def test_an_eager_trace_is_one_forward_with_no_replays_unless_steps_divide_it() -> None:
    rows = kernels([SPLIT, SPLIT], nodes=False).assign(replay=-1)
    found = forwards(Trace(kernels=rows))
    assert shapes(found) == [(12, 0)] and found[0].graph_launches == 0
    divided = Trace(kernels=rows, ranges=steps((-10, GAP - 10), (GAP - 5, 2 * GAP), name="ProfilerStep#1"))
    assert shapes(forwards(divided)) == [(6, 2)]


def test_launches_belong_to_the_step_that_issued_them() -> None:
    rows = kernels([SPLIT, SPLIT], nodes=False).assign(replay=-1)
    # Issued in the first step, run while the host is in the second.
    rows.loc[6, "correlation"] = 100
    calls = table("launches", pd.DataFrame({"rank": 0, "process": 1, "correlation": [100, 101], "start_ns": [5, GAP]}))
    ranges = steps((0, GAP - 10), (GAP - 5, 2 * GAP))
    assert sorted(shapes(forwards(Trace(kernels=rows, launches=calls, ranges=ranges)))) == [(5, 1), (7, 1)]


def test_copies_and_untimed_launches_are_no_part_of_a_forward() -> None:
    rows = kernels([SPLIT] * 2)
    rows["kind"] = rows["kind"].cat.add_categories(["memcpy"])
    rows.loc[[0, 6], "kind"] = "memcpy"
    rows.loc[[1, 7], "untimed"] = True
    assert shapes(forwards(Trace(kernels=rows))) == [(4, 2)]


def test_times_are_sums_unions_and_spans() -> None:
    run = forwards(Trace(kernels=kernels([[(GEMM, 0, 100, 7), (AR, 50, 100, 8), (NORM, 200, 10, 7)]])))[0]
    assert (run.kernel_time[0], run.busy_time[0], run.span[0]) == (210, 160, 210)


def test_what_is_not_there_is_named() -> None:
    with pytest.raises(FusionScopeError, match="no timed kernels"):
        forwards(Trace())
    with pytest.raises(GraphModeTrace, match="--cuda-graph-trace=node"):
        forwards(Trace(graph_mode=True))
    found = forwards(Trace(kernels=kernels([SPLIT, FUSED_RUN])))
    assert choose(found, "4").launches == 4 and choose(found, found[1].kind[:5]) is found[1]
    with pytest.raises(FusionScopeError, match="6 launches, 1 replay"):
        choose(found, "no-such-kind")
