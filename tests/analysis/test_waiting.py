"""Transfer and wait of an all-reduce, on a measured two-rank trace and on literal ones."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from literal_traces import AR, FUSED, FUSED_RUN, SPLIT, Launch, kernels

from fusionscope.analysis.analysed import Analysed, analyse
from fusionscope.analysis.compare import compare
from fusionscope.analysis.estimate import MEETING_NS, Fused, estimate
from fusionscope.analysis.summary_lines import predicted
from fusionscope.profiler.importing import import_files
from fusionscope.profiler.runinfo import RunInfo
from fusionscope.profiler.store import Run
from fusionscope.profiler.trace import Trace, merge


def two_ranks() -> Run:
    # Rank 1 arrives later: its first all-reduce takes 1,500 ns of the 2,000 that rank 0 spends there.
    late = [(n, s, 1_500 if k == 1 else d) for k, (n, s, d) in enumerate(SPLIT)]
    other = Trace(kernels=kernels([late] * 3)).with_rank(1)
    return Run(RunInfo(), merge([Trace(kernels=kernels([SPLIT] * 3)), other]), Path())


def test_what_exceeds_the_shortest_over_the_ranks_is_wait() -> None:
    found = analyse(two_ranks())
    wait = found.wait()
    assert wait is not None and wait[0].tolist() == [0, 500, 0, 0, 0, 0]
    later = analyse(two_ranks(), rank=1).wait()
    assert later is not None and not later.any()


def test_a_speedup_removes_no_wait() -> None:
    found = analyse(two_ranks())
    made = estimate(
        found.attribution, found.schedule(), "ar_norm", "", Fused(speedup=2.0), None, wait=found.wait()
    )  # fmt: skip
    assert made.wait_ns == 500
    assert made.saving_ns == (4_600 + 5_100) / 2


def test_ranks_that_meet_make_an_estimate_less_sure() -> None:
    # Rank 1 arrives last and waits for nobody: the saving is the same whether its wait is known or not.
    found = analyse(two_ranks(), rank=1)
    wait = found.wait()
    assert wait is not None
    widths = []
    for known in (None, wait):
        fused = Fused(time_ns=2_000, source="candidate")
        made = estimate(found.attribution, found.schedule(), "ar_norm", "", fused, None, wait=known)
        widths.append(made.saving_ns - made.interval_ns[0])
    assert widths[1] == pytest.approx(np.hypot(widths[0], MEETING_NS), rel=1e-3)


def test_one_rank_cannot_tell(made: Callable[..., Analysed]) -> None:
    assert made([SPLIT]).wait() is None


def test_the_measured_skew(samples: Path) -> None:
    trace = import_files([samples / "h200_tp2_skew" / "tp2.nsys.sqlite"])
    waits = []
    for rank in (0, 1):
        found = analyse(Run(RunInfo(), trace, Path()), rank=rank)
        wait = found.wait()
        assert wait is not None
        waits.append(int(wait.sum()))
        names = found.forward.nodes["name"].astype(str).to_numpy()
        reduced = (
            np.array([r == "all_reduce" for r in found.attribution.roles])
            & pd.Series(names).str.contains("AllReduce").to_numpy()
        )
        assert int((found.forward.duration - wait)[:, reduced].sum()) == 1_199_996
    assert waits == [2_481_360, 47_583]


def test_ranks_with_other_meetings_cannot_be_compared() -> None:
    fewer = Trace(kernels=kernels([SPLIT[:3]] * 3)).with_rank(1)
    run = Run(RunInfo(), merge([Trace(kernels=kernels([SPLIT] * 3)), fewer]), Path())
    assert analyse(run).wait() is None


def test_the_other_ranks_forward_of_the_same_program_counts() -> None:
    # Rank 1 ran a longer program as well, with as many all-reduces of the same name and as many replays.
    late = [(n, s, 1_500 if k == 1 else d) for k, (n, s, d) in enumerate(SPLIT)]
    longer = [
        ("prefill_kernel" if k in (0, 3) else n, s, 900 if k in (1, 4) else 9_000) for k, (n, s, d) in enumerate(SPLIT)
    ]
    rows = kernels([late] * 3 + [longer] * 3)
    rows.loc[rows["replay"] >= 3, "graph"] = 4
    run = Run(RunInfo(), merge([Trace(kernels=kernels([SPLIT] * 3)), Trace(kernels=rows).with_rank(1)]), Path())
    wait = analyse(run).wait()
    assert wait is not None and wait[0].tolist() == [0, 500, 0, 0, 0, 0]


@pytest.mark.parametrize("rank", [0, 1])
def test_every_rank_keeps_its_own_forward(rank: int) -> None:
    assert analyse(two_ranks(), rank=rank).forward.rank == rank


def test_a_prediction_takes_the_candidates_wait_for_no_part_of_its_kernel() -> None:
    def ranks(rows: list[Launch], waiting: int) -> Run:
        # Rank 0 waits in its first meeting; rank 1 came last and takes the transfer alone.
        meets = next(k for k, row in enumerate(rows) if row[0] in (AR, FUSED))
        first = [(n, s + (waiting if k > meets else 0), d + (waiting if k == meets else 0))
                 for k, (n, s, d) in enumerate(rows)]  # type: ignore[misc]  # fmt: skip
        both = [Trace(kernels=kernels([first] * 3)), Trace(kernels=kernels([rows] * 3)).with_rank(1)]
        return Run(RunInfo(), merge(both), Path())

    base, candidate = analyse(ranks(SPLIT, 700)), analyse(ranks(FUSED_RUN, 4_000))
    guess = predicted(compare(base, candidate), 0.005)
    # Each site goes from 5.1 us to 4 us, whatever either rank waited for the other.
    assert guess is not None and guess.saving_ns == 2 * 1_100 and guess.wait_ns == 700
