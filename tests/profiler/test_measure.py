"""Measuring graphs, on a machine whose times are known."""

from __future__ import annotations

from dataclasses import dataclass

import pytest
from fake_graphs import FakeGraph, FakeGraphs

from fusionscope.analysis import ab
from fusionscope.fusion_runtime.marks import Mark
from fusionscope.profiler import measure
from fusionscope.profiler.errors import FusionScopeError

#: GEMM 10 us, all-reduce 2 us, norm 3 us, and a kernel on another stream that nobody waits for: 15 us.
SPLIT = FakeGraph(["gemm", "all_reduce", "norm", "side"], [10_000, 2_000, 3_000, 4_000], frozenset({3}))
FUSED = FakeGraph(["gemm", "fused"], [10_000, 4_000])


@dataclass
class Row:
    boundary: str
    subtype: str
    first_node: int
    last_node: int


SITES = [Row("ar_norm", "residual", 1, 3), Row("other", "", 0, 1)]


def test_replays_are_timed_one_by_one() -> None:
    on = FakeGraphs()
    assert measure.replays(SPLIT, 4, graphs=on).tolist() == [20_000] * 4
    assert on.timed_launches == 7


def test_a_block_runs_every_arm_twice_in_mirrored_order() -> None:
    seen: list[str] = []

    def arm(name: str) -> int:
        seen.append(name)
        return 1

    arms = {name: (lambda n=name: arm(n)) for name in ("a", "b", "c")}
    told = []
    rows = measure.in_blocks(arms, 6, 2, seed=3, finished=lambda block, taken: told.append((block, len(taken))))
    turns = [seen[k : k + 3][0] for k in range(0, len(seen), 3)]
    blocks = [turns[k : k + 6] for k in range(0, len(turns), 6)]
    assert all(block == block[::-1] and set(block) == {"a", "b", "c"} for block in blocks)
    assert len({tuple(block) for block in blocks}) > 1
    assert told == [(block, 12) for block in range(6)] and len(rows) == 72
    assert rows == measure.in_blocks(arms, 6, 2, seed=3)


def test_a_time_limit_ends_with_a_whole_block() -> None:
    rows = measure.in_blocks({"a": lambda: 1, "b": lambda: 2}, 100, 2, seconds=0)
    assert [row[:2] for row in rows].count((0, "a")) == 4 and {row[0] for row in rows} == {0}


def test_two_graphs_compare_as_they_differ() -> None:
    on = FakeGraphs(noise_ns=40, seed=1)
    table = measure.ab(SPLIT, FUSED, again=SPLIT, candidate_again=FUSED, blocks=20, graphs=on)
    found = ab.compare(table)
    assert found.base_ns == pytest.approx(20_000, abs=30) and found.candidate_ns == pytest.approx(19_000, abs=30)
    assert found.saving.interval_ns[0] < 1_000 < found.saving.interval_ns[1]
    assert found.verdict.class_ == "worth_merging" and found.verdict.kind == "measured"
    assert found.control is not None and found.control.interval_ns[0] < 0 < found.control.interval_ns[1]
    once = ab.compare(measure.ab(SPLIT, FUSED, again=SPLIT, blocks=20, graphs=on))
    assert once.verdict.class_ == "inconclusive" and "captured again" in once.verdict.sentence


def test_a_knock_out_is_raw_and_corrected_by_what_a_disabled_node_costs() -> None:
    found = measure.knockout(SPLIT, "ar_norm", sites=SITES, blocks=3, graphs=FakeGraphs())
    # The launch is in neither time, although a copy takes longer to launch.
    assert (found.base_ns, found.nodes, found.disabled_node_ns) == (15_000, 2, 300)
    assert found.raw_ns == 5_000 - 600 and found.corrected_ns == 5_000
    assert found.corrected_ns >= 20_000 - 19_000  # never below what a real fusion saves


def test_copies_of_graphs_do_not_outlive_a_measurement(monkeypatch: pytest.MonkeyPatch) -> None:
    closed: list[int] = []

    class Own(FakeGraphs):
        def close(self) -> None:
            closed.append(1)

    monkeypatch.setattr(measure, "CudaGraphs", Own)
    measure.knockout(SPLIT, [1], blocks=1)
    measure.delay(SPLIT, [1], 1.0, blocks=1)
    assert measure.disabled_node_ns() == 300 and len(closed) == 3
    with pytest.raises(FusionScopeError):
        measure.delay(SPLIT, [1], 0.0, blocks=1)


def test_noise_makes_no_disabled_node_cost_less_than_nothing() -> None:
    assert measure.disabled_node_ns(graphs=FakeGraphs(disabled_ns=0, noise_ns=50_000, seed=3)) >= 0
    assert measure.disabled_node_ns(graphs=FakeGraphs(disabled_ns=-10)) == 0


def test_what_nobody_waits_for_is_not_critical() -> None:
    assert measure.knockout(SPLIT, [3], blocks=2, graphs=FakeGraphs()).raw_ns == 0
    assert measure.delay(SPLIT, [3], 2.0, blocks=2, graphs=FakeGraphs()).criticality == 0
    found = measure.delay(SPLIT, [1, 2], 2.0, blocks=2, graphs=FakeGraphs())
    assert found.added_ns == 2_000 and found.step_ns == 4_000 and found.criticality == 1


def test_nodes_are_found_by_kernel_name_or_by_boundary() -> None:
    on = FakeGraphs()
    assert measure.named(SPLIT, "reduce|norm", graphs=on) == [1, 2]
    assert measure.names(SPLIT, graphs=on) == SPLIT.names
    assert measure.nodes_of(SITES, "ar_norm:residual") == [1, 2]
    with pytest.raises(FusionScopeError, match="0 nodes of ar_norm:trailing"):
        measure.nodes_of(SITES, "ar_norm:trailing")
    with pytest.raises(FusionScopeError, match=r"which nodes ar_norm has: give its sites .*measure\.named"):
        measure.knockout(SPLIT, "ar_norm", blocks=1, graphs=on)
    with pytest.raises(FusionScopeError, match=r"measure\.names"):
        measure.named(SPLIT, "attention", graphs=on)


def test_marks_of_a_model_are_sites_of_one_graph() -> None:
    marks = [Mark("ar_norm", 0, 0, "residual", "", capture, 1, 3) for capture in (0, 1)]
    mine = [mark for mark in marks if mark.capture == 1]
    assert measure.nodes_of(mine, "ar_norm") == [1, 2]
    by_name = measure.knockout(SPLIT, "ar_norm", sites=mine, blocks=2, graphs=FakeGraphs())
    assert by_name.raw_ns == measure.knockout(SPLIT, [1, 2], blocks=2, graphs=FakeGraphs()).raw_ns > 0
    with pytest.raises(FusionScopeError, match=r"of 2 captured graphs: .*m\.capture == 0"):
        measure.nodes_of(marks, "ar_norm")


def test_a_delay_must_be_one() -> None:
    with pytest.raises(FusionScopeError, match="above 0"):
        measure.delay(SPLIT, [1], 0, graphs=FakeGraphs())


def test_without_a_gpu_the_sentence_says_what_is_needed() -> None:
    torch = pytest.importorskip("torch")
    if torch.cuda.is_available():
        pytest.skip("there is a GPU")
    with pytest.raises(FusionScopeError, match=r"GPU|cuda-bindings"):
        measure.replays(object())
