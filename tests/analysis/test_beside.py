"""What a candidate's traced step adds to the time of its fused kernel."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from literal_traces import FUSED_RUN, SPLIT

from fusionscope.analysis.analysed import Analysed
from fusionscope.analysis.beside import CAPTURE_NS, LEFT_NS, PART, with_step
from fusionscope.analysis.candidate import fused_in
from fusionscope.analysis.compare import compare
from fusionscope.analysis.estimate import Fused, of_target
from fusionscope.analysis.summary_lines import predicted
from fusionscope.analysis.target import Target, target

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
