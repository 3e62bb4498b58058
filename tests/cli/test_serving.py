from __future__ import annotations

import json
from pathlib import Path
from typing import Any


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
    (less,) = run(*args, "--decode-share", "0.5", "--json").json["rows"]
    assert abs(less["predicted"] - 0.01) < 1e-9
    wrong = run(*args, "--controls", "four")
    assert wrong.code == 2 and "--controls takes concurrencies" in wrong.err
