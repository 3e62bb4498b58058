"""`fusionscope estimate` without a kernel and from a bench table."""

from __future__ import annotations

import tomllib
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
from literal_traces import SPLIT, kernels, timings

from fusionscope.analysis.target import TAKEN_NS
from fusionscope.profiler.capture.bench import Row, save
from fusionscope.profiler.runinfo import RunInfo
from fusionscope.profiler.store import Store
from fusionscope.profiler.trace import Trace, table

#: Two sites of 5.1 us with the gap, and some of tracing goes along with the launch that goes.
EVEN_US = 5.1 - TAKEN_NS / 1000


def test_without_a_kernel_it_says_how_fast_one_must_be(run: Any) -> None:
    answer = run("estimate", "split", "--boundary", "ar_norm", "--json")
    assert answer.code == 0
    told = answer.json
    assert told["break_even_us"] == pytest.approx(EVEN_US, abs=0.002)
    assert told["target_us"] == pytest.approx(EVEN_US - 0.0295 * 5 / 2, abs=0.002)
    assert told["target_saving_ns"] == pytest.approx(0.005 * 29_500)
    assert told["floor_us"] == 2.0 and len(told["floors"]["unknown"]) == 2
    assert set(told["baselines"]) == {
        "amdahl_kernel_time", "amdahl_span", "share_discount", "isolated_difference", "roofline",
    }  # fmt: skip
    assert told["baselines"]["amdahl_span"] == {"saving_ns": None, "gain": None}
    assert told["verdict"]["class"] == "inconclusive" and told["abutting"] is False


def test_with_a_kernel_the_same_fields_stand_beside_the_estimate(run: Any) -> None:
    told = run("estimate", "split", "--boundary", "ar_norm", "--speedup", "2", "--json").json
    assert told["break_even_us"] == pytest.approx(EVEN_US, abs=0.002) and told["schedule"]["saving_ns"] > 0
    assert told["baselines"]["amdahl_span"]["gain"] == pytest.approx(told["amdahl"]["gain"])


def test_a_bench_table_gives_times_and_their_class(run: Any, tmp_path: Path) -> None:
    table = tmp_path / "bench.csv"
    table.write_text("tokens,split_us,fused_us,setting\n4,4.0,3.0,isolated\n16,9,7,in-context\n", encoding="utf-8")
    args = ("estimate", "split", "--boundary", "ar_norm", "--from", str(table))
    told = run(*args, "--json").json
    assert told["baselines"]["isolated_difference"]["saving_ns"] == 2 * 1_000
    assert told["fused"] == {
        "speedup": None, "time_us": 3.0, "launches": 1, "class": "isolated-corrected", "isolated_split_us": 4.0,
        "bench": {"from": str(table), "tokens": 4, "setting": "isolated", "path": None},
    }  # fmt: skip
    assert "stretched as the split kernels' is in place" in told["verdict"]["sentence"]
    slower = run(*args, "--tokens", "16", "--json").json
    assert slower["verdict"]["class"] == "slower"
    answer = run(*args, "--tokens", "2")
    assert answer.code == 2 and "it has 4, 16" in answer.err


def test_a_stored_bench_gives_them_too(fusionscope: Any, tmp_path: Path) -> None:
    store = Store(tmp_path / "store")
    step = timings([[29_500] * 4] * 4)
    store.save(RunInfo(name="split", batch=4), Trace(kernels=kernels([SPLIT] * 4), timings=step))
    rows = [
        Row(4, "split", 0.0, "", 5_000.0, 4_000.0, None),
        Row(4, "triton", 0.0, "", 3_000.0, 2_500.0, 2_800.0),
        Row(4, "mine:f", 0.0, "", 3_500.0, 3_000.0, None),
        Row(4, "bad:f", 0.5, "its result is off"),
    ]
    save("ar_norm", "tiny", 4, rows, table("timings"), store, "b", [], device="cpu")
    args = ("estimate", "split", "--boundary", "ar_norm", "--from")
    several = fusionscope(*args, "b")
    assert several.code == 2 and "several fused paths (mine:f, triton): choose one with --from-path" in several.err
    told = fusionscope(*args, "b", "--from-path", "triton", "--json").json["fused"]
    assert (told["time_us"], told["class"]) == (3.0, "in-context")
    assert told["bench"] == {"from": "b", "tokens": 4, "setting": "in-context", "path": "triton"}
    text = fusionscope(*args, "b", "--from-path", "triton").out
    assert "3.00 us a site in 1 launch, in-context (triton at 4 tokens of b)" in text
    other = fusionscope("estimate", "split", "--boundary", "add_norm", "--from", "b")
    save("ar_norm", "deepseek-v3", 4, rows, table("timings"), store, "wide", [], device="cpu")
    wide = (*args, "wide", "--from-path", "triton", "--hidden")
    assert fusionscope(*wide, "7168").code == 0
    narrow = fusionscope(*wide, "4096")
    assert narrow.code == 2 and "a hidden width of 7,168 (deepseek-v3), and this step has 4,096" in narrow.err
    for answer, says in (
        (fusionscope(*args, "split"), "split holds no bench: `fusionscope bench` makes such a run."),
        (fusionscope(*args, "none"), "There is no run none in"),
        (fusionscope(*args, "none.csv"), "The bench table none.csv cannot be read"),
        (other, "b is a bench of ar_norm, not of add_norm: bench that."),
    ):
        assert answer.code == 2 and says in answer.err


def test_suggest_prints_rules_that_attribute_takes(run: Any, tmp_path: Path) -> None:
    assert "No chain" in run("suggest", "split").out
    answer = run("suggest", "example", "--json")
    best = answer.json["suggestions"][0]
    assert best["says"] == "adjacent; data flow not known" and best["sites"] >= 80
    assert "fusable" not in answer.out
    rules = tmp_path / "chains.toml"
    rules.write_text(run("suggest", "example", "--toml", "--limit", "2").out, encoding="utf-8")
    told = run("attribute", "example", "--rules", str(rules), "--json").json["boundaries"]
    assert {b["boundary"]: b["sites"] for b in told}[best["name"]] == best["sites"]
    assert run("suggest", "example", "--toml", "--json").code == 2


def test_the_rules_that_suggest_shows_can_be_pasted_whatever_the_names_length(
    fusionscope: Any, samples: Path, tmp_path: Path
) -> None:
    assert fusionscope("import", samples / "kineto_mi300x_sglang_decode.json.gz", "--name", "b").code == 0
    shown = "[[boundary]]" + fusionscope("suggest", "b").out.partition("[[boundary]]")[2]
    assert max(map(len, shown.splitlines())) > 160 and fusionscope("suggest", "b", "--toml").out.startswith(shown)
    (rules := tmp_path / "pasted.toml").write_text(shown, encoding="utf-8")
    (one,) = tomllib.loads(shown)["boundary"]
    answer = fusionscope("estimate", "b", "--rules", rules, "--boundary", one["name"], "--json")
    assert answer.json["sites"] == 36 and answer.json["break_even_us"] > answer.json["target_us"] > 0


def test_a_stored_knock_out_stands_beside_the_ceiling(fusionscope: Any, tmp_path: Path) -> None:
    store = Store(tmp_path / "store")
    known = {"model": "m", "tp": 4, "batch": 4}
    store.save(RunInfo(name="mine", **known), Trace(kernels=kernels([SPLIT] * 4), timings=timings([[30_500] * 4] * 4)))  # type: ignore[arg-type]
    told = fusionscope("estimate", "mine", "--boundary", "ar_norm", "--json").json
    assert told["ceiling_measured"] is None
    rows = [
        (b, arm, t) for b in range(6) for arm, t in (("base", 30_500), ("without ar_norm", 21_000)) for _ in range(4)
    ]
    arms = pd.DataFrame(rows, columns=["block", "arm", "duration_ns"]).assign(rank=0, process=1, source="untraced")
    settings = {"knockout": "ar_norm", "nodes ar_norm": "4", "disabled_node_ns": "100"}
    store.save(RunInfo(name="out", settings=settings, **known), Trace(timings=table("timings", arms)))  # type: ignore[arg-type]
    args = ("estimate", "mine", "--boundary", "ar_norm", "--speedup", "2")
    measured = fusionscope(*args, "--json").json["ceiling_measured"]
    assert (measured["raw_ns"], measured["corrected_ns"], measured["nodes"]) == (9_500, 9_900, 4)
    assert "knocked out it gained 9.50 us raw, 9.90 us corrected" in fusionscope(*args).out
    # Another batch is another program.
    store.save(RunInfo(name="other", model="m", tp=4, batch=64), Trace(kernels=kernels([SPLIT] * 4)))
    assert fusionscope("estimate", "other", "--boundary", "ar_norm", "--json").json["ceiling_measured"] is None
