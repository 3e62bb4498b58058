from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fusionscope.analysis.verdict import Verdict, judge, with_prediction

STEP = 1_000_000.0


def verdict(low: float, high: float, mde: float | None = 1_000.0, missing: str = "") -> Verdict:
    return judge((low + high) / 2, (low, high), STEP, mde, kind="predicted", missing=missing)


@pytest.mark.parametrize(
    "low,high,expected",
    [
        (6_000, 9_000, "worth_merging"),
        (2_000, 4_000, "below_margin"),
        (-500, 800, "not_measurable"),
        # A loss, or a saving, that the noise could be.
        (-800, -200, "not_measurable"),
        (200, 800, "not_measurable"),
        (-9_000, -500, "inconclusive"),
        (-9_000, -2_000, "slower"),
        (500, 9_000, "inconclusive"),
        (2_000, 9_000, "inconclusive"),
        (-9_000, 9_000, "inconclusive"),
    ],
)
def test_classes_at_a_margin_of_5_us_and_a_noise_floor_of_1_us(low: float, high: float, expected: str) -> None:
    assert verdict(low, high).class_ == expected


def test_an_unknown_noise_floor_is_inconclusive_and_says_what_it_would_be() -> None:
    found = verdict(6_000, 9_000, mde=None, missing="Import with --timings.")
    assert found.class_ == "inconclusive" and found.above_noise is None and found.above_margin
    assert "it would be worth merging" in found.sentence and "--timings" in found.sentence


def test_a_noisy_machine_cannot_call_a_saving_worth_merging() -> None:
    found = verdict(6_000, 9_000, mde=20_000)
    assert found.class_ == "not_measurable" and not found.above_noise


@given(st.floats(-1e5, 1e5), st.floats(0, 1e5), st.floats(0, 1e5))
def test_the_class_agrees_with_its_flags(low: float, width: float, mde: float) -> None:
    found = verdict(low, low + width, mde)
    assert (found.class_ == "worth_merging") == (bool(found.above_noise) and found.above_margin)
    assert 0.5 <= found.confidence <= 1


@pytest.mark.parametrize(
    "low,high,mde,ends",
    [
        (6_000, 9_000, 1_000.0, "7.5 times the noise floor: worth merging on time alone; a noise floor or margin above "
         "6.00 us would change that."),
        (2_000, 4_000, 1_000.0, "3.0 times the noise floor: real, but below the margin; a margin below 0.20% would "
         "make it worth merging."),
        (400, 800, 1_000.0, "0.6 times the noise floor: no measurable difference; a noise floor below 0.40 us would "
         "show it."),
        (-500, 800, 1_000.0, "no measurable difference; nothing above the noise is hidden in the interval."),
        (-9_000, -2_000, 1_000.0, "slower; it would have to take 14.00 us less to be worth merging."),
        (2_000, 12_000, 1_000.0, "undecided; with a narrower interval around the same saving it would be "
         "worth merging."),
        (6_000, 9_000, None, "the noise floor is not known: undecided; with a noise floor below 6.00 us it would be "
         "worth merging."),
    ],
)  # fmt: skip
def test_a_quote_is_one_sentence_with_what_would_change_it(
    low: float, high: float, mde: float | None, ends: str
) -> None:
    found = judge((low + high) / 2, (low, high), STEP, mde, kind="measured", subject="fusing x at 3 sites")
    assert found.quote.startswith("Measured: fusing x at 3 sites ") and found.quote.endswith(ends)
    assert ". " not in found.quote
    beside = with_prediction(found, "7.00 us [6.00 us, 8.00 us]")
    assert beside.endswith("; predicted beforehand: 7.00 us [6.00 us, 8.00 us].")


def test_confidence_is_the_probability_of_the_class() -> None:
    # Slower by 10 standard errors: sure. By 2.1 of them beyond the noise floor: about 98 %.
    assert verdict(-6_000, -4_000, 100).confidence > 0.999
    lost = verdict(-3_000, -1_100, 1_000)
    assert lost.class_ == "slower" and 0.97 < lost.confidence < 0.99
    # Inside the noise floor on both sides, hardly: about 95 %, not the 97.5 % of one side.
    inside = verdict(-1_000, 1_000, 1_000)
    assert inside.class_ == "not_measurable" and inside.confidence == pytest.approx(0.95, abs=0.001)
