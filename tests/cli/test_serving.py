from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest


def result(folder: Path, name: str, **values: object) -> str:
    known = {"max_concurrency": 4, "median_tpot_ms": 10.0, "median_ttft_ms": 300.0, "output_throughput": 100.0}
    path = folder / name
    path.write_text(json.dumps(known | values), encoding="utf-8")
    return str(path)


def test_serving_runs_with_a_control_and_accuracy(run: Any, tmp_path: Path) -> None:
    before = [result(tmp_path, "b1.json"), result(tmp_path, "b2.json", max_concurrency=64, median_tpot_ms=40.0)]
    after = [
        result(tmp_path, "a1.json", median_tpot_ms=9.8),
        result(tmp_path, "a2.json", max_concurrency=64, median_tpot_ms=40.1),
    ]
    args = ("serving", "--serving-base", *before, "--serving-candidate", *after, "--controls", "64",
            "--accuracy", "gsm8k=0.967/1319,0.969/1319")  # fmt: skip
    told = run(*args, "--json").json
    assert [(r["concurrency"], r["control"]) for r in told["rows"]] == [(4, False), (64, True)]
    assert told["noise"]["freedom"] == 1 and told["accuracy"][0]["changed"] is False
    text = run(*args).out
    assert "Concurrency 64 is a control (fusion off)" in text and "would miss a drop below 1.4 points" in text


def test_the_forward_predicts_where_the_batch_is_the_concurrency(run: Any, tmp_path: Path) -> None:
    # The traced step is 29.5 us and 2 us are saved: a token takes 100 us, so 2 % are predicted.
    before, after = result(tmp_path, "b.json", median_tpot_ms=0.1), result(tmp_path, "a.json", median_tpot_ms=0.098)
    args = (
        "serving",
        "--serving-base",
        before,
        "--serving-candidate",
        after,
        "--base",
        "split",
        "--candidate",
        "fused",
    )
    (row,) = run(*args, "--json").json["rows"]
    assert abs(row["predicted"] - 0.02) < 1e-9 and abs(row["observed"] - 0.02) < 1e-9 and row["ceiling"] > 0.02
    assert abs(row["predicted_tpot_ms"] - 0.098) < 1e-9 and abs(row["predicted_throughput"] - 100 / 0.98) < 1e-9
    assert "predicted -2.0 % (0.10 -> 0.10 ms, 100 -> 102 tokens a second)" in run(*args).out
    (less,) = run(*args, "--decode-share", "0.5", "--json").json["rows"]
    assert abs(less["predicted"] - 0.01) < 1e-9
    wrong = run(*args, "--controls", "four")
    assert wrong.code == 2 and "--controls takes concurrencies" in wrong.err


def test_traced_runs_alone_foretell_time_per_token_and_throughput(run: Any) -> None:
    # A step of 29.5 us of which 2 us are saved, and 10.5 us of the host's; two tokens a step for each of 4 requests.
    args = ("serving", "--base", "split", "--candidate", "fused", "--host-us", "10.5", "--accept-length", "2")
    told = run(*args, "--json").json
    (one,) = told["forecasts"]
    assert one["batch"] == 4 and one["tpot_ms"] == pytest.approx([0.020, 0.019])
    assert one["throughput"] == pytest.approx([4 / 20e-6, 4 / 19e-6]) and one["predicted"] == pytest.approx(0.05)
    low, high = one["predicted_interval"]
    assert low < one["predicted"] < high and one["ceiling"] > 0.05
    assert "10.5 us of the host's, and gives a request 2 tokens" in told["assumed"] and "rows" not in told
    text = run(*args, "--decode-share", "0.5").out
    # Half of the time per token stays as it is.
    assert "Batch 4: 0.040 -> 0.039 ms a token (-2.50 % [" in text and "50 % of the time per token" in text
    nothing = run("serving", "--base", "split", "--candidate", "split")
    assert nothing.code == 0 and "Nothing is foretold" in nothing.out


def test_an_estimated_saving_is_enough(run: Any) -> None:
    args = ("serving", "--base", "split", "--saving-us", "2")
    (one,) = run(*args, "--host-us", "10.5", "--json").json["forecasts"]
    assert one["tpot_ms"] == pytest.approx([0.040, 0.038]) and one["ceiling"] is None
    assert one["predicted_interval"] == pytest.approx([0.05, 0.05])
    text = run(*args, "--host-us", "10.5").out
    assert "Batch 4: 0.040 -> 0.038 ms a token (-5.00 %), 100,000.0 -> 105,263.2 tokens a second." in text
    for more in (("--candidate", "fused"), ("--base", "fused")):
        answer = run(*args, *more)
        assert answer.code == 2 and "--saving-us X is what one run would save" in answer.err


def test_what_is_missing_is_named(run: Any, tmp_path: Path) -> None:
    one = result(tmp_path, "b.json")
    for args, says in (
        ((), "Give serving results (--serving-base"),
        (("--serving-base", one), "Give serving results of both sides"),
        (("--base", "split"), "the run before and at least one after"),
    ):
        answer = run("serving", *args)
        assert answer.code == 2 and says in answer.err
