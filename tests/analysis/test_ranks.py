"""Ranks side by side, on literal traces and on a measured two-rank trace."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from literal_traces import AR, GEMM, NORM, SPLIT, Launch, kernels

from fusionscope.analysis.ranks import RankRow, Ranks, ranks
from fusionscope.analysis.ranks_document import document
from fusionscope.analysis.ruleset import load
from fusionscope.analysis.summary_ranks import all_reduce_line
from fusionscope.profiler.importing import import_files
from fusionscope.profiler.runinfo import RunInfo
from fusionscope.profiler.store import Run
from fusionscope.profiler.trace import Trace, merge, table

RULES = load()
#: Rank 0 waits 500 ns in its first all-reduce for rank 1, whose first GEMM is slower.
LATE: list[Launch] = [
    (GEMM, 0, 10_500),
    (AR, 10_600, 1_500),
    (NORM, 12_200, 3_000),
    (GEMM, 15_300, 10_000),
    (AR, 25_400, 2_000),
    (NORM, 27_500, 3_000),
]


def of(*ranks_launches: list[Launch], replays: int = 3, shift: int = 0, **info: object) -> Ranks:
    traces = []
    for rank, launches in enumerate(ranks_launches):
        moved = [(n, s + shift * rank, d) for n, s, d in launches]  # type: ignore[misc]
        traces.append(Trace(kernels=kernels([moved] * replays)).with_rank(rank))
    return ranks(Run(RunInfo(**info), merge(traces), Path()), RULES)  # type: ignore[arg-type]


def test_transfer_is_the_shortest_and_the_late_rank_is_named() -> None:
    found = of(SPLIT, LATE)
    first, second = found.rows
    assert (first.reduce_ns, first.transfer_ns, first.wait_ns) == (3 * 4_000, 3 * 3_500, 3 * 500)
    assert (second.transfer_ns, second.wait_ns, second.forward_wait_ns) == (3 * 3_500, 0, 0)
    # The second all-reduce begins on both at the same time: each counts as last there.
    assert (first.last, second.last, found.last_rank, found.last_by) == (3, 6, 1, "clock")
    assert found.other is not None and (found.other.name, found.other.last_ns, found.other.others_ns) == (
        GEMM, 20_500, 20_000,
    )  # fmt: skip
    assert found.occurrences == 6 and not found.notes


def test_without_a_shared_clock_the_shortest_came_last() -> None:
    found = of(SPLIT, LATE, shift=1_000_000_000)
    assert found.last_by == "shortest duration" and [r.last for r in found.rows] == [3, 6]
    assert [r.wait_ns for r in found.rows] == [1_500, 0]


def test_unequal_ranks_are_named() -> None:
    more = of(SPLIT, [*LATE, (GEMM, 31_000, 10)])
    assert more.notes == ("Ranks differ in launches (rank 0 6, rank 1 7), so they are not averaged.",)
    assert more.occurrences == 6
    assert more.median_span_ns is None and of(SPLIT, LATE).median_span_ns is not None
    wait = all_reduce_line(more, more)
    assert wait is not None and "wait 0.00 to 0.25 us each; fusing" in "".join(map(str, wait))
    fewer = of(SPLIT, LATE[:3])
    assert [r.transfer_ns for r in fewer.rows] == [None, None] and fewer.last_rank is None
    assert any("all-reduces (rank 0 2, rank 1 1), so no transfer is told" in note for note in fewer.notes)


def test_unequal_batches_are_named() -> None:
    def with_step(rank: int, name: str) -> Trace:
        step = table("ranges", {"name": [name], "start_ns": [0], "end_ns": [10]})
        return Trace(kernels=kernels([SPLIT] * 2), ranges=step).with_rank(rank)

    both = [with_step(0, "step[DECODE bs=32]"), with_step(1, "execute_8_context_0(sq0)_generation_8(sq8)")]
    found = ranks(Run(RunInfo(), merge(both), Path()), RULES)
    assert [r.batch for r in found.rows] == [32, 8] and document(found)["median_span_ns"] is None
    assert any("differ in batch (rank 0 32, rank 1 8)" in note for note in found.notes)
    # A step in which nothing decodes has no batch.
    prefill = ranks(Run(RunInfo(), with_step(0, "execute_context_1(888_788544)_generation_0(0)"), Path()), RULES)
    assert [r.batch for r in prefill.rows] == [None]


def test_the_run_tells_the_batch_where_no_step_does() -> None:
    found = of(SPLIT, LATE, batch=4)
    assert [r.batch for r in found.rows] == [4, 4] and found.tokens == 4 and not found.notes
    drafted = of(SPLIT, LATE, batch=4, settings={"tokens": "16"})
    assert [r.batch for r in drafted.rows] == [4, 4] and document(drafted)["tokens"] == 16
    assert of(SPLIT, LATE).tokens is None and of(SPLIT, LATE, settings={"tokens": "²"}).tokens is None


def test_a_step_knows_better_than_the_run() -> None:
    """A rank's share of a batch that data parallelism divides; of a rank without a step nothing is claimed."""
    step = table("ranges", {"name": ["step[DECODE bs=32]"], "start_ns": [0], "end_ns": [10]})
    both = [
        Trace(kernels=kernels([SPLIT] * 2), ranges=step).with_rank(0),
        Trace(kernels=kernels([SPLIT] * 2)).with_rank(1),
    ]
    found = ranks(Run(RunInfo(batch=64), merge(both), Path()), RULES)
    assert [r.batch for r in found.rows] == [32, None] and found.tokens is None


def test_one_rank_of_many_tells_no_transfer() -> None:
    found = of(SPLIT, world_size=8)
    assert found.notes[0].startswith("1 of 8 ranks was traced: all-reduce time includes an unknown wait")
    assert found.rows[0].transfer_ns is None and found.world_size == 8 and found.slowest.rank == 0


def test_emulated_ranks_have_no_wait_to_tell() -> None:
    assert of(SPLIT, tp=4, emulated_ranks=True, world_size=1).notes == (
        "The other 3 ranks are emulated on this one's GPU: there is no wait to tell.",
    )


def test_no_all_reduce_is_said() -> None:
    found = of([(GEMM, 0, 5)], [(GEMM, 0, 5)])
    assert any("No launch is known to be an all-reduce" in note for note in found.notes)


durations = st.lists(st.integers(1, 50), min_size=3, max_size=3)


@settings(max_examples=25, deadline=None)
@given(st.lists(durations, min_size=2, max_size=4), st.randoms())
def test_permuting_ranks_changes_nothing(per_rank: list[list[int]], random: object) -> None:
    def trace(times: list[int]) -> list[Launch]:
        begin, rows = 0, []
        for name, time in zip((GEMM, AR, NORM), times, strict=True):
            rows.append((name, begin, time))
            begin += time + 1
        return rows  # type: ignore[return-value]

    order = list(range(len(per_rank)))
    random.shuffle(order)  # type: ignore[attr-defined]
    plain = of(*(trace(t) for t in per_rank))
    mixed = of(*(trace(per_rank[k]) for k in order))

    def told(row: RankRow) -> tuple[object, ...]:
        return (row.span_ns, row.reduce_ns, row.transfer_ns, row.wait_ns, row.last, row.forward_wait_ns)

    assert [told(mixed.rows[order.index(k)]) for k in range(len(order))] == [told(r) for r in plain.rows]
    assert (plain.occurrences, plain.median_span_ns, plain.last_by) == (
        mixed.occurrences, mixed.median_span_ns, mixed.last_by,
    )  # fmt: skip


@pytest.mark.parametrize("swapped", [False, True])
def test_the_measured_skew_comes_apart_exactly(samples: Path, swapped: bool) -> None:
    trace = import_files([samples / "h200_tp2_skew" / "tp2.nsys.sqlite"])
    if swapped:
        halves = [trace.with_rank(1 - r) for r in (0, 1)]
        for r, half in enumerate(halves):
            keep = (trace.kernels["rank"] == r).to_numpy()
            halves[r] = Trace(kernels=half.kernels[keep])
        trace = merge(halves)
    found = ranks(Run(RunInfo(), trace, Path()), RULES)
    rows = found.rows[::-1] if swapped else found.rows
    assert found.occurrences == 192
    assert [r.transfer_ns for r in rows] == [1_199_996] * 2
    assert [r.wait_ns for r in rows] == [2_481_360, 47_583]
    assert [r.launches for r in rows] == [132, 156]
    assert any("launches" in note and "132" in note and "156" in note for note in found.notes)
    assert found.last_by == "clock" and found.last_rank == (0 if swapped else 1)
    assert found.other is not None and "nvjet" in found.other.name and sorted(found.other.launches) == [6, 18]


def test_two_kineto_files_of_the_same_run_agree_on_who_is_last(samples: Path) -> None:
    files = [samples / "h200_tp2_skew" / f"tp2_rank{r}.kineto.json.gz" for r in (0, 1)]
    found = document(ranks(Run(RunInfo(), import_files(files), Path()), RULES))
    assert found["last_rank"] == 1 and found["last_by"] == "clock" and found["occurrences"] == 192
    first, second = found["ranks"]  # type: ignore[misc]
    assert first["transfer_ns"] == second["transfer_ns"] == 1_364_731
