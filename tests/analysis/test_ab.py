"""Differences of two arms: estimate, interval, noise floor, verdict; and how often each of them is right."""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from fusionscope.analysis import ab, shifts
from fusionscope.analysis.noise import baseline
from fusionscope.profiler import measure
from fusionscope.profiler.errors import FusionScopeError
from fusionscope.profiler.trace import table

STEP = 1_000_000.0


def measured(
    saving: float = 0.0,
    blocks: int = 12,
    processes: int = 1,
    noise: float = 1_000.0,
    between: float = 0.0,
    seed: int = 0,
) -> pd.DataFrame:
    """TIMINGS of arms with heavy-tailed noise and a steady drift, two turns of two replays in each block."""
    rng = np.random.default_rng(seed)
    rows = []
    for process in range(processes):
        extra = {"base": 0.0, "candidate": rng.normal(0, between) - saving, "base again": rng.normal(0, between)}
        time = 0
        for block in range(blocks):
            order = list(rng.permutation(list(extra)))
            for arm in [*order, *order[::-1]]:
                for _ in range(2):
                    time += 1
                    rows.append((process, block, arm, STEP + extra[arm] + 5 * time + noise * rng.standard_t(4)))
    data = pd.DataFrame(rows, columns=["process", "block", "arm", "duration_ns"])
    data["duration_ns"] = data["duration_ns"].round().astype("int64")
    return table("timings", data.assign(rank=0, source="untraced"))


def test_hodges_lehmann_is_the_median_of_the_means_of_pairs() -> None:
    # Pairs of 1, 2, 9: means 1, 1.5, 5, 2, 5.5, 9.
    assert shifts.hodges_lehmann(np.array([1.0, 2.0, 9.0])) == 3.5


def test_a_block_is_the_mean_of_its_two_turns_and_drift_cancels() -> None:
    rows = [("base", 10), ("candidate", 12), ("candidate", 13), ("base", 15)]
    data = pd.DataFrame(rows, columns=["arm", "duration_ns"]).assign(block=0, process=1, rank=0, source="untraced")
    timings = table("timings", data)
    assert ab.block_values(timings, "base").tolist() == [12.5]
    assert [d.tolist() for d in ab.differences(timings, "base", "candidate")] == [[0.0]]


def test_nothing_is_dropped_as_an_outlier() -> None:
    values = np.array([0.0, 1.0, 2.0, 3.0, 1_000.0])
    assert shifts.hodges_lehmann(values) > shifts.hodges_lehmann(values[:4])


def test_the_same_table_gives_the_same_answer() -> None:
    timings = measured(3_000, processes=3)
    assert ab.compare(timings).document() == ab.compare(timings).document()


@pytest.mark.parametrize(
    ("saving", "verdict"), [(30_000, "worth_merging"), (2_500, "below_margin"), (-9_000, "slower")]
)
def test_a_plain_difference_gets_its_verdict(saving: float, verdict: str) -> None:
    found = ab.compare(measured(saving, blocks=30, processes=3))
    assert found.verdict.class_ == verdict and found.verdict.kind == "measured"
    assert found.saving.interval_ns[0] < saving < found.saving.interval_ns[1]
    assert found.blocks_needed == 0


def test_no_difference_is_not_measurable_and_equivalent_within_the_margin() -> None:
    found = ab.compare(measured(0.0, blocks=30, processes=3))
    assert found.verdict.class_ == "not_measurable" and found.equivalent
    assert not ab.compare(measured(0.0, blocks=30, processes=3), margin=0.0001).equivalent


def test_an_undecided_measurement_says_how_many_blocks_it_needs() -> None:
    found = ab.compare(measured(6_000, blocks=6, noise=1_500, seed=3), paired_processes=False)
    assert found.verdict.class_ == "inconclusive", found.verdict.sentence
    assert found.blocks_needed is not None and found.blocks_needed > 0
    assert f"{found.blocks_needed} more blocks" in found.verdict.sentence
    many = measured(6_000, blocks=6 + 3 * found.blocks_needed, noise=1_500, seed=3)
    assert ab.compare(many, paired_processes=False).verdict.class_ == "worth_merging"
    # One capture of each arm is one sample, however many blocks are timed.
    once = ab.compare(many)
    assert once.verdict.class_ == "inconclusive" and once.captures == 1 and not once.equivalent
    assert once.verdict.kind == "observed"
    assert "This is one capture of each arm" in once.verdict.sentence and "worth merging" not in once.verdict.quote


def test_without_an_a_a_arm_the_noise_is_not_known() -> None:
    timings = measured(30_000)
    found = ab.compare(timings[timings["arm"] != "base again"], paired_processes=False)
    assert found.verdict.class_ == "inconclusive" and "A/A arm" in found.verdict.sentence


def test_too_few_blocks_are_refused() -> None:
    with pytest.raises(FusionScopeError, match="fewer than 4"):
        ab.compare(measured(blocks=3))


def test_one_process_is_told_of() -> None:
    once = of_captures(np.random.default_rng(3), 1, once=500.0, saving=30_000.0)
    assert "One process" in ab.compare(once).verdict.sentence
    assert "One process" not in ab.compare(measured(30_000), paired_processes=False).verdict.sentence
    assert "One process" not in ab.compare(measured(30_000, processes=2)).verdict.sentence


def test_processes_that_differ_widen_the_interval() -> None:
    alike, apart = (ab.compare(measured(9_000, processes=5, between=b, seed=4)) for b in (0.0, 5_000.0))
    width = [found.saving.interval_ns[1] - found.saving.interval_ns[0] for found in (alike, apart)]
    assert width[1] > 3 * width[0]


def test_more_blocks_narrow_the_interval_and_lower_the_floor() -> None:
    few, many = (ab.compare(measured(9_000, blocks=n, processes=2)) for n in (10, 40))
    width = [found.saving.interval_ns[1] - found.saving.interval_ns[0] for found in (few, many)]
    assert width[1] < 0.7 * width[0]
    assert few.mde_ns is not None and many.mde_ns is not None and many.mde_ns < few.mde_ns


@given(
    st.lists(st.integers(-50_000, 50_000), min_size=4, max_size=15),
    st.integers(-10_000, 10_000),
    st.randoms(use_true_random=False),
)
@settings(max_examples=30, deadline=None)
def test_shifting_and_turning_the_differences_shifts_and_turns_the_answer(values, by, chooser) -> None:  # type: ignore[no-untyped-def]
    one = np.array(values, dtype=float)
    found, moved, turned = (shifts.shift([x]) for x in (one, one + by, -one))
    assert found is not None and moved is not None and turned is not None
    assert moved.value_ns == pytest.approx(found.value_ns + by)
    assert moved.error_ns == pytest.approx(found.error_ns, abs=1e-6)
    assert turned.value_ns == pytest.approx(-found.value_ns)
    assert found.interval_ns[0] <= found.value_ns + 1e-6 and found.value_ns - 1e-6 <= found.interval_ns[1]


def seen(effect: float, trials: int, **how: float) -> float:
    """Share of measurements of an effect whose interval excludes nothing."""
    found = [
        shifts.shift(ab.differences(measured(effect, seed=1_000 + k, **how), "base", "candidate"))
        for k in range(trials)
    ]  # type: ignore[arg-type]
    return float(np.mean([f.interval_ns[0] > 0 for f in found if f is not None]))


def test_an_effect_of_the_noise_floor_is_mostly_seen_and_one_of_twice_it_nearly_always() -> None:
    floors = [ab.compare(measured(seed=trial)).mde_ns for trial in range(25)]
    floor = float(np.median([f for f in floors if f is not None]))
    assert 0.7 <= seen(floor, 40) <= 0.95
    assert seen(2 * floor, 40) >= 0.98


@pytest.mark.parametrize(("processes", "between"), [(1, 0.0), (3, 0.0), (3, 1_500.0), (5, 600.0)])
def test_intervals_cover_and_false_alarms_are_rare(
    processes: int, between: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(shifts, "RESAMPLES", 200)
    trials = 40
    covered = alarms = 0
    for trial in range(trials):
        found = ab.compare(measured(blocks=8, processes=processes, between=between, seed=trial))
        covered += found.saving.interval_ns[0] <= 0 <= found.saving.interval_ns[1]
        alarms += found.verdict.class_ in ("worth_merging", "below_margin", "slower")
    assert covered >= 0.9 * trials and alarms <= 0.03 * trials


def test_the_step_of_such_a_run_is_that_of_its_base() -> None:
    found = baseline(measured(300_000))
    assert found is not None and found.median_ns == pytest.approx(STEP, rel=0.002)


def of_captures(
    chooser: np.random.Generator, processes: int, once: float = 0.0, lasting: float = 0.0, process: float = 0.0,
    saving: float = 0.0, blocks: int = 6, captures: int = 2,
) -> pd.DataFrame:  # fmt: skip
    """TIMINGS of captures of two arms; ns of what captures differ by anew in each process, and by in every process.

    `process` is what the arms differ by from process to process. A drift and autocorrelated noise lie over all of it.
    """
    names = [measure.names_of(arm, captures) for arm in ("base", "candidate")]
    arms = [arm for both in zip(*names, strict=True) for arm in both]
    stays = chooser.normal(0, lasting, len(arms))
    frames = []
    for number in range(processes):
        effects = chooser.normal(0, once, len(arms)) + stays + np.tile(chooser.normal(0, process, 2), captures)
        effects -= np.tile([0, saving], captures)
        orders = [list(half) for half in (chooser.permutation(len(arms)) for _ in range(blocks))]
        turns = np.array([arm for order in orders for arm in [*order, *order[::-1]] for _ in range(2)])
        noise = chooser.standard_t(4, len(turns) + 20) * 700
        noise = np.convolve(noise, 0.7 ** np.arange(20), mode="full")[20 : 20 + len(turns)]
        times = STEP + effects[turns] + noise + 40.0 * np.arange(len(turns))
        block = np.repeat(np.arange(blocks), 4 * len(arms))
        frames.append(pd.DataFrame({"process": number, "block": block, "arm": np.array(arms)[turns],
                                    "duration_ns": times.round().astype("int64")}))  # fmt: skip
    return table("timings", pd.concat(frames, ignore_index=True).assign(rank=0, source="untraced"))


@pytest.mark.parametrize(
    ("processes", "how"),
    [
        (1, {"once": 3_000.0}),
        (3, {"once": 3_000.0}),
        (3, {"lasting": 4_000.0}),
        (5, {"lasting": 3_000.0, "once": 1_000.0}),
        (3, {"once": 3_000.0, "process": 3_000.0, "captures": 4, "blocks": 4}),
    ],
)
def test_captures_and_processes_that_differ_are_covered_and_give_no_false_alarm(
    processes: int, how: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    # Blocks as the unit, or processes where captures keep their effect, would cover 10 to 50 % of these.
    monkeypatch.setattr(shifts, "RESAMPLES", 30)
    trials, chooser = 40, np.random.default_rng(8)
    found = [ab.compare(of_captures(chooser, processes, **how)) for _ in range(trials)]
    covered = sum(f.saving.interval_ns[0] <= 0 <= f.saving.interval_ns[1] for f in found)
    alarms = sum(f.verdict.class_ in ("worth_merging", "below_margin", "slower") for f in found)
    assert covered >= 0.87 * trials and alarms <= 1


def test_a_difference_beyond_what_captures_differ_by_is_still_seen() -> None:
    chooser = np.random.default_rng(9)
    found = [ab.compare(of_captures(chooser, 5, once=1_000.0, saving=20_000.0)) for _ in range(8)]
    assert all(f.verdict.class_ == "worth_merging" and f.captures == 10 for f in found)


def test_an_interval_around_0_within_the_margin_is_no_measurable_difference() -> None:
    found = shifts.Shift(500.0, (-1_500.0, 2_500.0), 700.0, 10.0, 12, 3, "captures")
    within, beyond = (ab.of_captures(found, (STEP, STEP), margin, "") for margin in (0.005, 0.0015))
    assert (within.verdict.class_, beyond.verdict.class_) == ("not_measurable", "inconclusive")
    assert within.equivalent and not beyond.equivalent
    small = ab.of_captures(shifts.Shift(2_400.0, (-100.0, 4_900.0), 1_100.0, 10.0, 12, 3), (STEP, STEP), 0.005, "")
    assert small.verdict.class_ == "not_measurable" and "nothing above 4.90 us is hidden" in small.verdict.quote


def test_captures_in_drawn_places_are_more_degrees_of_freedom_than_processes() -> None:
    chooser = np.random.default_rng(12)
    units = [ab.compare(of_captures(chooser, 3, once=3_000.0, blocks=4)).saving for _ in range(12)]
    assert {found.unit for found in units} == {"captures", "processes"}
    assert min(found.freedom for found in units if found.unit == "captures") >= 2


def test_captures_that_keep_their_effect_are_the_unit() -> None:
    found = ab.compare(of_captures(np.random.default_rng(2), 3, lasting=20_000.0))
    assert found.saving.unit == "captures" and found.saving.freedom < 2.5
    assert "captures of each arm" in found.verdict.sentence or found.verdict.class_ == "not_measurable"


def test_an_undecided_answer_says_the_level_and_is_never_surer_than_a_decided_one() -> None:
    # One degree of freedom: the floor is 39 errors, the interval reaches 12.7 to either side, and 99 % takes 64.
    found = ab.of_captures(shifts.Shift(60_000.0, (47_294.0, 72_706.0), 1_000.0, 1.0, 12, 2), (STEP, STEP), 0.005, "")
    assert found.verdict.class_ == "inconclusive" and found.saving.level == pytest.approx(0.9894, abs=0.0002)
    assert "0 lies outside the 98.9% interval only, and faster or slower takes 99%" in found.verdict.sentence
    assert "not told from 0" not in found.verdict.sentence and found.verdict.confidence <= 0.95
    # 1 - 2 / pi * atan(1 / 63.6) is 98.999 %.
    nearly = ab.of_captures(shifts.Shift(63_600.0, (50_894.0, 76_306.0), 1_000.0, 1.0, 12, 2), (STEP, STEP), 0.005, "")
    assert nearly.verdict.class_ == "inconclusive" and "outside the 98.9% interval only" in nearly.verdict.sentence


def test_no_answer_contradicts_its_confidence() -> None:
    chooser, undecided = np.random.default_rng(4), 0
    for _ in range(300):
        freedom, error = float(chooser.choice([1, 2, 4, 6, 18])), chooser.uniform(200, 4_000)
        value, reach = chooser.uniform(-60_000, 60_000), float(stats.t.ppf(0.975, freedom)) * error
        one = shifts.Shift(value, (value - reach, value + reach), error, freedom, 12, 3, "captures")
        verdict = ab.of_captures(one, (STEP, STEP), 0.005, "").verdict
        undecided += verdict.class_ == "inconclusive"
        assert (verdict.confidence <= 0.95) if verdict.class_ == "inconclusive" else (verdict.confidence >= 0.95)
        assert verdict.sentence.startswith("Undecided") == (verdict.class_ == "inconclusive")
        assert (": undecided" in verdict.quote) == (verdict.class_ == "inconclusive")
    assert undecided > 30


def test_two_processes_that_agree_are_no_doubt_that_contradicts_itself() -> None:
    # Two processes of the whole GLM-5.3-Flash: 114.4 and 109.2 us saved, captures 3.3 us apart. Counting the two
    # processes alone, ab had said "undecided, not told from 0 at 99 %" of a saving 40 times its error.
    captured = np.array([[[3.3, -3.3, 3.3, -3.3], [-111.1, -117.7, -111.1, -117.7]],
                         [[-3.3, 3.3, -3.3, 3.3], [-112.5, -105.9, -112.5, -105.9]]]) * 1000 + 8_200_000  # fmt: skip
    blocks = [np.full(30, 114_400.0), np.full(30, 109_200.0)]
    saving = shifts.shift(blocks, captured)
    assert saving is not None and saving.freedom == 1 + shifts.LIKE_CAPTURES and saving.unit == shifts.PROCESSES
    found = ab.judged(saving, None, 8_205_000.0, 8_093_000.0, 0.005, 4)
    assert found.verdict.class_ == "worth_merging" and saving.sure()
    assert found.mde_ns is not None and found.mde_ns < 0.002 * found.base_ns


@pytest.mark.parametrize(("freedom", "found_before"), [(2, 0.604), (3, 0.648), (6, 0.712), (18, 0.767)])
def test_a_difference_of_the_noise_floor_is_found_by_four_of_five_other_measurements(
    freedom: int, found_before: float
) -> None:
    chooser, trials = np.random.default_rng(5), 200_000
    told, again = (np.sqrt(chooser.chisquare(freedom, trials) / freedom) for _ in range(2))
    floor = shifts.errors_seen(freedom) * told
    needed = float(stats.t.ppf(0.975, freedom))
    seen_once = chooser.normal(0, 1, trials) + floor > needed * again
    assert seen_once.mean() == pytest.approx(0.8, abs=0.005)
    # The sum of the quantiles would be found by fewer: it allows for the error of one measurement alone.
    plain = (needed + float(stats.t.ppf(0.8, freedom))) * told
    assert (chooser.normal(0, 1, trials) + plain > needed * again).mean() == pytest.approx(found_before, abs=0.01)
    # The median of many floors is found more often, and twice that nearly always.
    for times, least in ((1, 0.8), (2, 0.99)):
        assert (chooser.normal(0, 1, trials) + times * np.median(floor) > needed * again).mean() > least
