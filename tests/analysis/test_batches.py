"""Several batch sizes: pairing, states, and where the gate lies."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from literal_traces import FUSED_RUN, SPLIT, Launch, timings

from fusionscope.analysis.analysed import Analysed
from fusionscope.analysis.batches import (
    CONTROL,
    LOSES,
    OPEN,
    TIES,
    WINS,
    BatchRow,
    batch_of_run,
    captures_of,
    gate,
    pair,
    rows_of,
)  # fmt: skip
from fusionscope.analysis.compare import compare
from fusionscope.analysis.verdict import MARGIN
from fusionscope.profiler.errors import FusionScopeError


def row(tokens: int, state: str, saving: float | None = None) -> BatchRow:
    return BatchRow(tokens, 0, tokens, state, step_ns=1e6, saving_ns=saving)


@pytest.mark.parametrize(
    "rows,sentence",
    [
        ([(1, WINS), (16, WINS), (32, LOSES)], "Fuse up to 16 tokens; slower from 32; 17-31 not measured."),
        ([(1, WINS), (2, LOSES)], "Fuse up to 1 token; slower from 2."),
        (
            [(1, WINS), (3, TIES), (8, LOSES)],
            "Fuse up to 1 token; no measurable difference at 3; slower from 8; 2 not measured.",
        ),
        ([(4, WINS), (64, CONTROL)], "Fuse up to 4 tokens; fusion off from 64; 5-63 not measured."),
        ([(4, WINS), (8, OPEN)], "Fuse up to 4 tokens; undecided from 8; 5-7 not measured."),
        ([(4, LOSES), (16, WINS)], "Fuse from 16 tokens; slower at 4; 5-15 not measured."),
        ([(4, WINS), (16, WINS)], "Fuse at every measured size (4 to 16 tokens); above 16 not measured."),
        ([(4, WINS)], "Fuse at every measured size (4 tokens); above 4 not measured."),
        ([(4, LOSES), (16, TIES)], "Fuse at none of the measured sizes (slower, no measurable difference)."),
    ],
)  # fmt: skip
def test_the_gate_of_a_sequence(rows: list[tuple[int, str]], sentence: str) -> None:
    # The order in which the sizes are given does not matter.
    found = gate([row(*one) for one in reversed(rows)])
    assert found.sentence == sentence and found.monotone


def test_a_gate_is_a_number_too() -> None:
    found = gate([row(16, WINS), row(32, LOSES)]).document()
    assert (found["fuse_up_to"], found["other"], found["other_state"]) == (16, 32, "slower")
    assert found["not_measured"] == [17, 31] and found["fuse_from"] is None


@pytest.mark.parametrize("states", [(WINS, LOSES, WINS), (LOSES, WINS, TIES), (WINS, OPEN, WINS)])
def test_what_is_not_monotone_has_no_gate(states: tuple[str, ...]) -> None:
    found = gate([row(t, s) for t, s in zip((1, 4, 16), states, strict=True)])
    assert not found.monotone and found.fuse_up_to is None and found.sentence.startswith("No gate: the results are not")


def test_sizes_that_are_not_told_have_no_gate() -> None:
    for rows in ([row(0, WINS), row(4, LOSES)], [row(4, WINS), row(4, LOSES)], []):
        assert gate(rows).sentence.startswith("No gate: the runs do not tell their tokens")


def test_a_win_within_what_the_controls_differ_by_is_none() -> None:
    rows = [row(4, WINS, 20_000), row(16, WINS, 3_000), row(64, CONTROL, -4_000)]
    found = gate(rows)
    assert found.control_part == 0.004
    assert found.sentence == (
        "Fuse up to 4 tokens; within what the controls differ by at 16; fusion off from 64; 5-15 not measured."
    )


@given(st.lists(st.tuples(st.integers(1, 512), st.sampled_from([WINS, LOSES, TIES, OPEN, CONTROL])), max_size=7))
def test_a_gate_never_lets_a_loss_in_or_a_win_out(sizes: list[tuple[int, str]]) -> None:
    sizes = list(dict(sizes).items())
    found = gate([row(*one) for one in sizes])
    if found.fuse_up_to is not None:
        assert all((state == WINS) == (tokens <= found.fuse_up_to) for tokens, state in sizes)
    if found.fuse_from is not None:
        assert all((state == WINS) == (tokens >= found.fuse_from) for tokens, state in sizes)


SLOW = timings([[30_500, 30_510, 30_490, 30_500]] * 6, processes=3)
FAST = timings([[28_300, 28_310, 28_290, 28_300]] * 6, processes=3)

Make = Callable[..., Analysed]


def runs(made: Make, launches: list[Launch], times: Any, batches: list[int], **info: object) -> list[Analysed]:
    return [made([launches] * 4, times, batch=b, model="m", tp=4, **info) for b in batches]


def test_runs_are_paired_by_batch_whatever_the_order(made: Make) -> None:
    before, after = runs(made, SPLIT, SLOW, [16, 1, 4]), runs(made, FUSED_RUN, FAST, [4, 16, 1])
    pairs = pair(before, after)
    assert [(batch_of_run(b), batch_of_run(c)) for b, c in pairs] == [(1, 1), (4, 4), (16, 16)]
    rows = rows_of([compare(b, c) for b, c in pairs], MARGIN)
    assert [(r.batch, r.tokens, r.state, r.launches, r.sites) for r in rows] == [
        (n, n, WINS, (6, 4), 2) for n in (1, 4, 16)
    ]  # fmt: skip
    assert [r.saving_ns for r in rows] == [2_200] * 3 and rows[0].verdict is not None
    assert rows[0].verdict.kind == "measured"


def test_runs_of_one_batch_are_captures_of_the_same_programs(made: Make) -> None:
    before, after = runs(made, SPLIT, SLOW, [4, 1, 4]), runs(made, FUSED_RUN, FAST, [4, 1, 4])
    groups = captures_of(pair(before, after))
    assert [[batch_of_run(b) for b, _ in group] for group in groups] == [[1], [4, 4]]
    # Another program of the same batch, or one base for two candidates, is a comparison of its own.
    other = [*runs(made, FUSED_RUN, FAST, [4]), *runs(made, SPLIT, FAST, [4])]
    assert [len(group) for group in captures_of(pair(runs(made, SPLIT, SLOW, [4, 4]), other))] == [1, 1]
    assert [len(group) for group in captures_of(pair(before[:1], [after[0], after[2]]))] == [1, 1]


def test_single_captures_lean_and_the_gate_says_what_it_rests_on(made: Make) -> None:
    once = [timings([[ns, ns + 10, ns - 10, ns]] * 6) for ns in (30_500, 28_300)]
    pairs = zip(runs(made, SPLIT, once[0], [4, 16]), runs(made, FUSED_RUN, once[1], [4, 16]), strict=True)
    rows = rows_of([compare(b, c) for b, c in pairs], MARGIN)
    assert [(r.state, r.leans) for r in rows] == [(OPEN, WINS)] * 2
    assert gate(rows).sentence == (
        "Fuse at every measured size (4 to 16 tokens); above 16 not measured. "
        "Observed in one capture of each arm at 2 of 2 sizes, not measured."
    )


def test_sizes_that_do_not_fit_are_named(made: Make) -> None:
    with pytest.raises(FusionScopeError, match="batches 1, 4, those of --candidate 1, 16"):
        pair(runs(made, SPLIT, None, [1, 4]), runs(made, FUSED_RUN, None, [16, 1]))
    with pytest.raises(FusionScopeError, match="not all of them know their batch"):
        pair(runs(made, SPLIT, None, [-1, -1]), runs(made, FUSED_RUN, None, [-1]))
    with pytest.raises(FusionScopeError, match="at least one"):
        pair([], runs(made, FUSED_RUN, None, [1]))
    unknown = runs(made, SPLIT, None, [-1, -1])
    assert pair(unknown, unknown) == list(zip(unknown, unknown, strict=True))
    assert len(pair(unknown[:1], unknown)) == 2


def test_the_same_kernels_are_a_control_and_slower_is_slower(made: Make) -> None:
    before = runs(made, SPLIT, SLOW, [4, 16, 64])
    after = [*runs(made, FUSED_RUN, FAST, [4]), *runs(made, FUSED_RUN, SLOW, [16]), *runs(made, SPLIT, SLOW, [64])]
    rows = rows_of([compare(b, c) for b, c in pair(before, after)], MARGIN)
    assert [r.state for r in rows] == [WINS, TIES, CONTROL]
    assert rows[2].verdict is None and rows[2].saving_ns == 0
    assert gate(rows).sentence == (
        "Fuse up to 4 tokens; no measurable difference at 16; fusion off from 64; 5-15 not measured."
    )


def test_settings_tell_the_padded_size_and_the_tokens(made: Make) -> None:
    told = {"graph_size": "32", "tokens": "72"}
    (before,), (after,) = (runs(made, launches, SLOW, [18], settings=told) for launches in (SPLIT, FUSED_RUN))
    (found,) = rows_of([compare(before, after)], MARGIN)
    assert (found.batch, found.padded, found.tokens) == (18, 32, 72)
    assert found.document()["padded"] == 32


def test_a_size_of_single_captures_tells_what_several_would_say() -> None:
    rows = [BatchRow(4, 0, 4, OPEN, step_ns=1e6, saving_ns=5e4, leans=WINS), row(32, LOSES)]
    assert gate(rows).fuse_up_to == 4
    assert [(told["state"], told["leans"]) for told in (r.document() for r in rows)] == [(OPEN, WINS), (LOSES, None)]
