"""What a candidate's traced step adds to the time of its fused kernel."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pandas as pd
import pytest
from literal_traces import AR, FUSED_RUN, GEMM, NORM, SPLIT, kernels, timings

from fusionscope.analysis.analysed import Analysed, analyse
from fusionscope.analysis.beside import CAPTURE_NS, LEFT_NS, PART, PART_UNSURE, with_step
from fusionscope.analysis.candidate import fused_in
from fusionscope.analysis.compare import compare
from fusionscope.analysis.estimate import EARLY_ERROR_NS, REACH, Fused, of_target
from fusionscope.analysis.summary_lines import predicted
from fusionscope.analysis.target import EARLY_NS, TAKEN_NS, Target, target
from fusionscope.profiler.runinfo import RunInfo
from fusionscope.profiler.store import Run
from fusionscope.profiler.trace import Trace, table

Made = Callable[..., Analysed]
FUSED = Fused(time_ns=4_000, source="candidate")
#: Two sites of 5.1 us become 4 us.
EXPLAINED = 2_200


@pytest.fixture
def site(made: Made) -> Target:
    run = made([SPLIT] * 4)
    return target(run.attribution, run.schedule(), "ar_norm")


def test_a_step_that_the_fused_time_explains_adds_nothing_but_narrows(site: Target) -> None:
    found = with_step(site, FUSED, [30_500] * 4, [30_500 - EXPLAINED] * 4)
    assert found.beside_ns == 0
    seen, alone = of_target(site, found), of_target(site, FUSED)
    assert seen.saving_ns == alone.saving_ns == EXPLAINED
    assert seen.interval_ns[1] - seen.interval_ns[0] < alone.interval_ns[1] - alone.interval_ns[0]


def test_what_neighbours_gain_is_believed_as_far_as_captures_agree(site: Target) -> None:
    gained = [30_500 - EXPLAINED - 1_000] * 16
    sure = with_step(site, FUSED, [30_500] * 16, gained)
    # Captures that differ by 4 us either way say little of 1 us.
    doubtful = with_step(site, FUSED, [26_500, 34_500] * 8, gained)
    assert 0 < doubtful.beside_ns < sure.beside_ns < 1_000
    assert sure.beside_error_ns is not None and doubtful.beside_error_ns is not None
    assert sure.beside_error_ns < doubtful.beside_error_ns
    assert of_target(site, sure).saving_ns == pytest.approx(EXPLAINED + sure.beside_ns)


def test_one_capture_of_each_arm_is_taken_to_differ_as_captures_do(site: Target) -> None:
    found = with_step(site, FUSED, [30_500], [30_500 - EXPLAINED - 1_000])
    expected = LEFT_NS**2 * 2
    assert found.beside_ns == pytest.approx(1_000 * PART * expected / (expected + 2 * CAPTURE_NS**2))
    # Captures of a step of 4 ms differ twice as much.
    long = with_step(site, FUSED, [4e6], [4e6 - EXPLAINED - 1_000])
    assert long.beside_ns == pytest.approx(1_000 * PART * expected / (expected + 8 * CAPTURE_NS**2), rel=1e-3)


def test_a_kernel_that_begins_early_where_none_did_is_believed_as_its_step_shows(site: Target) -> None:
    gained = [30_500 - EXPLAINED - 1_000] * 16
    late, early = (with_step(site, FUSED, [30_500] * 16, gained, early=early) for early in (False, True))
    assert early.beside_ns == pytest.approx(1_000) and late.beside_ns < 1_000 * PART


def test_two_profilers_spans_are_not_held_against_each_other(made: Made) -> None:
    base = made([SPLIT] * 4, profiler="nsys")
    alike, other = (made([FUSED_RUN] * 4, profiler=name) for name in ("nsys", "cupti"))
    alone = of_target(target(base.attribution, base.schedule(), "ar_norm"), fused_in(other, "ar_norm"))
    for candidate, whole in ((alike, True), (other, False)):
        guess = predicted(compare(base, candidate), 0.005)
        assert guess is not None and (guess.interval_ns != alone.interval_ns) is whole


def beside_a_gemm(length: int) -> Target:
    """A site of 5.1 us (nodes 1 and 3) beside a GEMM on a second stream (2); a last GEMM waits for both."""
    end = 10_100 + max(length, 5_100)
    launches = [(GEMM, 0, 10_000, 7), (AR, 10_100, 2_000, 7), (GEMM, 10_100, length, 8), (NORM, 12_200, 3_000, 7)]
    rows = [(a, b, False) for a, b in ((0, 1), (0, 2), (1, 3), (2, 4), (3, 4))]
    edges = pd.DataFrame(rows, columns=["source", "target", "programmatic"]).assign(rank=0, graph=3)
    trace = Trace(
        kernels=kernels([[*launches, (GEMM, end + 100, 10_000, 7)]] * 4),
        edges=table("edges", edges), timings=timings([[end + 10_000] * 6] * 4),
    )  # fmt: skip
    run = analyse(Run(RunInfo(), trace, Path()))
    return target(run.attribution, run.schedule(), "ar_norm", "", run.untraced)


def test_tracing_off_the_critical_path_is_taken_along_by_no_launch() -> None:
    hidden, behind = (of_target(beside_a_gemm(length), FUSED) for length in (9_000, 1_000))
    assert hidden.saving_ns == 0
    assert behind.saving_ns == pytest.approx(5_100 - 4_000 - TAKEN_NS)
    # Half of it where the site was the longer one by half of what tracing adds.
    between = beside_a_gemm(5_100 - round(TAKEN_NS / 2))
    assert between.of_tracing(1) == pytest.approx(TAKEN_NS / 2)


def test_overlapping_streams_are_believed_further_as_both_traces_show_them() -> None:
    site = beside_a_gemm(9_000)
    span = site.span_ns
    found = with_step(site, FUSED, [span] * 100, [span - 1_000] * 100)
    assert found.beside_ns == pytest.approx(1_000 * PART_UNSURE, rel=0.05)
    alone = target(site.attribution, site.schedule, "ar_norm")
    assert alone.several_streams and of_target(site, found).saving_ns == found.beside_ns


def test_early_launches_inside_a_site_are_believed_further_and_leave_less_unsure(site: Target) -> None:
    schedule = replace(site.schedule, programmatic=frozenset({2, 5}))
    early = target(site.attribution, schedule, "ar_norm")
    gained = [30_500 - EXPLAINED - 1_000] * 100
    plain, unsure = (with_step(one, FUSED, [30_500] * 100, gained, early=False) for one in (site, early))
    # What was taken for tracing's at the two early launches, 2 x 500 ns, shows in the candidate's step too.
    assert plain.beside_ns == pytest.approx(1_000 * PART, rel=0.05)
    assert unsure.beside_ns == pytest.approx((1_000 + 2 * EARLY_NS) * PART_UNSURE, rel=0.05)
    assert plain.beside_error_ns is not None and unsure.beside_error_ns is not None
    assert plain.beside_error_ns < unsure.beside_error_ns < plain.beside_error_ns + 2 * EARLY_ERROR_NS / REACH
