"""`fusionscope ab` on a GPU."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from gpus import needs_gpu

from fusionscope.profiler.store import Store

pytestmark = needs_gpu


def test_two_choices_of_paths_in_two_processes(fusionscope: Any, tmp_path: Path) -> None:
    arguments = ("--model", "glm-5.3-flash", "--tp", 4, "--layers", 4, "--processes", 2, "--blocks", 4)
    answer = fusionscope("ab", *arguments, "--base", "split", "--candidate", "mhc_post=triton", "--json")
    assert answer.code == 0, answer.err
    found = answer.json
    assert found["saving"]["processes"] == 2 and found["saving"]["blocks"] == 8
    assert found["verdict"]["kind"] == "measured" and found["saving"]["ns"] > 0
    nodes = {arm: int(found["settings"][f"nodes_{arm}"]) for arm in ("base", "candidate", "base_again")}
    assert nodes["base"] == nodes["base_again"] == nodes["candidate"] + 8
    assert {"built-in model", "emulated ranks", "truncated layers"} <= set(found["labels"])
    run = Store(tmp_path / "store").load(found["run"])
    arms = set(run.trace.timings["arm"].astype(str))
    assert {"base", "candidate", "base again", "candidate again"} <= arms
    assert all(re.fullmatch(r"(base|candidate)( again( \d+)?)?", arm) for arm in arms), arms


def test_a_knock_out_gains_more_than_the_fusion(fusionscope: Any) -> None:
    arguments = ("glm-5.3-flash", "--tp", 4, "--layers", 4, "--processes", 1, "--blocks", 4, "--boundary", "mhc_post")
    answer = fusionscope("knockout", *arguments, "--boundary", "mhc_post:ffn_exit", "--json")
    assert answer.code == 0, answer.err
    whole, half = answer.json["boundaries"]
    assert (whole["boundary"], whole["nodes"]) == ("mhc_post", 16) and half["nodes"] == 8
    assert 0 < half["raw_ns"] < whole["raw_ns"] < whole["corrected_ns"] < answer.json["step_ns"]
    assert 50 < answer.json["disabled_node_ns"] < 2_000


def test_a_bench_times_paths_in_context_and_alone(fusionscope: Any) -> None:
    arguments = ("mhc_post", "--model", "glm-5.3-flash", "--tokens", "4", "--paths", "triton")
    answer = fusionscope("bench", *arguments, "--json")
    assert answer.code == 0, answer.err
    split, triton = answer.json["rows"]
    assert (split["path"], triton["path"]) == ("split", "triton") and triton["error"] < 0.02
    assert 0 < triton["isolated_hot_ns"] < 100_000 and triton["chain_ns"] < split["chain_ns"]
