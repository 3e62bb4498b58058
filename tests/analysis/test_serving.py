"""Serving runs beside each other: matching, noise, prediction, ceiling and acceptance length."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from small_inputs import SGLANG, VLLM

from fusionscope.analysis.observed import observe
from fusionscope.analysis.serving import Serve, Serving, StepSaving, guarded, predicted_part, sentences, serving
from fusionscope.analysis.verdict import judge
from fusionscope.profiler.errors import FusionScopeError
from fusionscope.profiler.readers.serving_json import ServingRun, read_serving

#: A step of 9.74 ms that a fusion makes 0.17 ms shorter, in a server that takes 10 ms a token.
STEP = StepSaving(9_740_000, 170_000, (150_000, 190_000), 500_000)


def runs(concurrency: int, *tpots: float, accept: float | None = None) -> list[ServingRun]:
    return [ServingRun("f", concurrency, t, 300.0 + 100 * k, 1000 / t, accept) for k, t in enumerate(tpots)]


def test_repeats_give_the_noise_and_the_interval() -> None:
    found = serving(runs(4, 10.0, 10.1, 9.9), runs(4, 9.8, 9.9, 9.7), {4: STEP})
    (row,) = found.rows
    assert row.observed == pytest.approx(0.02) and row.runs == (3, 3)
    assert found.noise.freedom == 4
    sigma = np.sqrt((2 * 0.01**2 + 2 * (0.1 / 9.8) ** 2) / 4)
    half = 2.7764 * sigma * np.sqrt(2 / 3)
    assert row.interval == pytest.approx((0.02 - half, 0.02 + half), rel=1e-3)
    # The whole time per token is the step: 0.17 of 10 ms.
    assert row.predicted == pytest.approx(0.017) and row.ceiling == pytest.approx(0.05)


def test_one_run_an_arm_and_no_control_has_no_noise() -> None:
    found = serving(runs(4, 10.0), runs(4, 9.8))
    assert found.rows[0].interval is None
    assert any(s.startswith("No noise known: one run an arm and no control") for s in sentences(found))


def test_a_control_gives_the_noise_of_single_runs() -> None:
    found = serving(
        [*runs(4, 10.0), *runs(64, 30.0)], [*runs(4, 9.8), *runs(64, 30.3)], {4: STEP, 64: STEP}, None, {64}
    )
    # A control's difference is that of two runs: one run has a root of two less.
    assert found.noise.freedom == 1 and found.noise.sigma == pytest.approx(0.01 / np.sqrt(2))
    assert found.rows[1].control and found.rows[1].predicted is None
    assert found.rows[0].interval == pytest.approx((0.02 - 12.706 * 0.01, 0.02 + 12.706 * 0.01), rel=1e-3)
    assert "Concurrency 64 is a control (fusion off): time per token +1.0 % +- 12.7 %." in sentences(found)


def test_more_than_the_ceiling_is_not_this_fusions() -> None:
    sure = serving(runs(4, 10.0, 10.01), runs(4, 9.0, 9.01), {4: STEP})
    assert "larger than this fusion can explain: the ceiling is 5.0%." in sure.rows[0].says[0]
    unsure = serving(runs(4, 10.0, 9.0), runs(4, 9.0, 8.8), {4: STEP})
    assert "its noise reaches down" in unsure.rows[0].says[0]
    quiet = serving(runs(4, 10.0), runs(4, 9.8), {4: STEP})
    assert quiet.rows[0].says == ()


def test_a_disagreement_beyond_the_noise_is_said() -> None:
    found = serving(runs(4, 10.0, 10.001), runs(4, 10.0, 10.001), {4: STEP})
    assert found.rows[0].says == ("Prediction and observation disagree beyond the noise.",)


def test_another_program_than_was_traced_is_noticed() -> None:
    found = serving(runs(4, 5.0), runs(4, 4.9), {4: STEP})
    assert "longer than the time of a step here" in found.rows[0].says[0]


def test_host_time_acceptance_and_share_make_the_prediction_smaller() -> None:
    assert predicted_part(STEP, 170_000, Serve(host_ns=260_000)) == pytest.approx(0.017)
    assert predicted_part(STEP, 170_000, Serve(host_ns=260_000, decode_share=0.5)) == pytest.approx(0.0085)
    # Two tokens a step: 5 ms a token are steps of 10 ms.
    assert predicted_part(STEP, 170_000, Serve(accept_length=2.0), 5.0) == pytest.approx(0.017)
    found = serving(runs(4, 5.0, accept=2.0), runs(4, 4.9, accept=2.0), {4: STEP})
    assert found.rows[0].predicted == pytest.approx(0.017)


def accepted(before: tuple[float, ...], after: tuple[float, ...]) -> Serving:
    def arm(values: tuple[float, ...]) -> list[ServingRun]:
        return [run for value in values for run in runs(4, 10.0, accept=value)]

    return serving(arm(before), arm(after))


def test_an_acceptance_length_that_falls_beyond_its_noise_forbids_a_positive_verdict() -> None:
    good = judge(10.0, (9.0, 11.0), 1000.0, 1.0, kind="measured", subject="fusing x at 3 sites")
    assert good.class_ == "worth_merging"
    fell = accepted((3.10, 3.11, 3.09), (2.90, 2.91, 2.89))
    assert fell.acceptance is not None and fell.acceptance.dropped
    made = guarded(good, fell)
    assert made.class_ == "inconclusive" and "it fell beyond its noise" in made.sentence
    assert made.quote == (
        "Measured: fusing x at 3 sites saves 0.01 us [0.01 us, 0.01 us] of 1.00 us (1.00%), 10.0 times the noise "
        "floor: undecided, since the acceptance length fell beyond its noise (3.1 -> 2.9)."
    )
    for kept in (
        accepted((3.10, 3.0, 3.2), (3.08, 3.0, 3.2)),
        accepted((3.1, 3.11), (3.3, 3.31)),
        accepted((3.1,), (2.9,)),
    ):
        assert guarded(good, kept) == good
    alone = accepted((3.1,), (2.9,)).acceptance
    assert alone is not None and not alone.dropped and "no noise known" in alone.sentence()
    slow = judge(-10.0, (-11.0, -9.0), 1000.0, 1.0, kind="measured")
    assert guarded(slow, fell) == slow
    # Of one capture of each arm: nothing is left that a gate could lean to.
    once = observe(100.0, (99.0, 101.0), 1000.0, 1.0, together=True, margin=0.005, next_step="ab").verdict
    assert (once.class_, once.would_be, guarded(once, fell).would_be) == ("inconclusive", "worth_merging", "")
    assert guarded(once, fell).quote.endswith(
        ": undecided, since the acceptance length fell beyond its noise (3.1 -> 2.9)."
    )


def test_concurrencies_of_one_arm_alone_are_named() -> None:
    found = serving([*runs(4, 10.0), *runs(8, 11.0)], runs(4, 9.8))
    assert found.unmatched == (8,) and [r.concurrency for r in found.rows] == [4]
    assert "One arm alone has concurrency 8." in sentences(found)
    wide = serving(runs(4, 10.0, 10.0), runs(4, 9.8))
    assert "Time to first token: no claim; it lies between 300 and 400 ms over all runs." in sentences(wide)


def test_what_sglang_and_vllm_write(tmp_path: Path) -> None:
    lines, one = tmp_path / "s.jsonl", tmp_path / "v.json"
    lines.write_text(json.dumps(SGLANG) + "\n" + json.dumps(SGLANG | {"median_tpot_ms": 10.3}) + "\n", encoding="utf-8")
    one.write_text(json.dumps(VLLM, indent=2), encoding="utf-8")
    found = read_serving([lines, one])
    assert [(r.concurrency, r.tpot_ms, r.ttft_ms, r.accept_length) for r in found] == [
        (4, 10.2, 333.0, 2.7), (4, 10.3, 333.0, 2.7), (16, 12.5, 90.0, 3.1),
    ]  # fmt: skip
    for bad, told in (
        ("{", "line 1: this is no JSON"),
        ("[3]", "no serving result"),
        (json.dumps(VLLM | {"max_concurrency": None}), "--max-concurrency"),
        (json.dumps(VLLM | {"mean_tpot_ms": 0.0}), "no time per output token"),
    ):
        one.write_text(bad, encoding="utf-8")
        with pytest.raises(FusionScopeError, match=told):
            read_serving([one])
    with pytest.raises(FusionScopeError, match="cannot be read"):
        read_serving([tmp_path / "none.json"])
    with pytest.raises(FusionScopeError, match="No serving result"):
        read_serving([])
