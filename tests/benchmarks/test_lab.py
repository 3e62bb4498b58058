"""The lab's cases, how its processes take turns, and what it writes down."""

from __future__ import annotations

import argparse
import importlib
import json
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from fusionscope.analysis.target import TAKEN_NS

pytest.importorskip("torch")
pytest.importorskip("triton")

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"


@pytest.fixture
def lab(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Imports a module of the lab by name."""
    monkeypatch.setattr(sys, "path", [str(BENCHMARKS), *sys.path])
    return importlib.import_module


def test_no_case_was_seen_in_a_set_before(lab: Any) -> None:
    groups, cases = lab("lab_groups"), lab("lab_cases")

    def named(models: Any, chains: Any) -> list[str]:
        of_models = [f"{name}.l{n or 45}.{short}.b{batch}" for name, n, batch, shorts in models for short in shorts]
        return [*of_models, *(case.id for case in chains)]

    rows = (BENCHMARKS / "results" / "h200_lab.jsonl").read_text(encoding="utf-8").splitlines()
    first = {json.loads(row).get("case") for row in rows}
    second = named(groups.second_models(), cases.second_chains())
    third = named(groups.third_models(), cases.third_chains())
    fourth = named(groups.fourth_models(), cases.fourth_chains())
    assert len(second) == len(set(second)) == 116 and len(third) == len(set(third)) == 121
    assert not set(second) & first and not set(third) & (first | set(second))
    # The fourth takes up some of the third that time cut off, so what was measured decides.
    rows = (BENCHMARKS / "results" / "h200_lab3.jsonl").read_text(encoding="utf-8").splitlines()
    measured = {json.loads(row).get("case") for row in rows}
    assert len(fourth) == len(set(fourth)) == 115 and not set(fourth) & (first | set(second) | measured)
    assert all(case.held_out for case in [*cases.second_chains(), *cases.third_chains(), *cases.fourth_chains()])


@pytest.mark.parametrize("which", ["second", "fourth"])
def test_an_early_end_leaves_every_kind(lab: Any, which: str) -> None:
    begun = [name for name, _ in lab("lab_groups").groups(which)][:12]
    assert any(".l" in name for name in begun) and any("fi_" in name for name in begun)
    assert any("2streams" in name for name in begun) and any(name.endswith("pdl") for name in begun)


def test_a_pair_counts_a_site_inside_another_once(lab: Any) -> None:
    def row(boundary: str, subtype: str, first: int, last: int) -> Any:
        return SimpleNamespace(boundary=boundary, subtype=subtype, first_node=first, last_node=last)

    rows = [
        row("ar_norm", "residual", 2, 4),
        row("moe_finalize", "ffn_exit", 9, 13),
        row("ar_norm", "trailing", 11, 13),
        row("mhc_post", "attn_exit", 20, 22),
    ]
    of_rows = lab("lab_groups").of_rows
    assert of_rows(rows, ("ar_norm", "moe_finalize")) == [(2, 4), (9, 13)]
    assert of_rows(rows, ("ar_norm",)) == [(2, 4), (11, 13)]
    assert of_rows(rows, ("mhc_post:attn_exit", "moe_finalize")) == [(9, 13), (20, 22)]


def test_a_whole_traced_step_is_a_class_of_its_own(lab: Any, tmp_path: Path) -> None:
    predict = lab("lab_predict")
    duration = np.tile([20_000, 3_000, 2_000, 20_000], (6, 4))
    start = np.cumsum(np.c_[np.zeros((6, 1), int), duration[:, :-1] + 100], axis=1)
    span = float(start[0, -1] + duration[0, -1])
    seen = predict.Seen(
        boundary="add_norm", start=start, duration=duration, nodes=list(range(16)), streams=[7] * 16,
        names=["gemm", "add", "norm", "gemm"] * 4, edges=[(k, k + 1, False) for k in range(15)],
        sites=[(4 * k + 1, 4 * k + 3) for k in range(4)], candidate=4_000.0, in_context=None, isolated=None,
        moved=1e4, untraced=[[round(span)] * 6] * 4, spans=[span] * 3, fused_spans=[span - 4_400 - 2_000] * 3,
    )  # fmt: skip
    seen.save(tmp_path / "case.npz")
    made = predict.predictions(predict.Seen.load(tmp_path / "case.npz"))
    by = made["by"]
    # Four sites of 5.1 us with their gap become 4 us, less what a launch takes along; 2 us more went beside them.
    assert by["candidate"]["ns"] == pytest.approx(4_400 - 4 * TAKEN_NS)
    more = by["candidate run"]["ns"] - by["candidate"]["ns"]
    assert more == pytest.approx(by["candidate run"]["beside_ns"]) and 200 < more < 2_000
    assert by["candidate run"]["plain"]["traced_difference"] == 6_400


FAKE = """
import json, pathlib, sys
out, phase = pathlib.Path(sys.argv[2]), sys.argv[4]
for line in sys.stdin:
    name = line.strip()
    if name == "dies" and phase == "trace":
        sys.exit(3)
    with (out / f"{phase}0.jsonl").open("a") as file:
        file.write(json.dumps({"group": name}) + chr(10))
    print("done", name, flush=True)
"""


def test_two_processes_take_turns_and_one_that_dies_starts_again(
    lab: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    turns = lab("lab_turns")
    (tmp_path / "fake.py").write_text(FAKE, encoding="utf-8")
    monkeypatch.setattr(turns, "SCRIPT", tmp_path / "fake.py")
    monkeypatch.setattr(turns, "names", lambda which: ["a", "dies", "b"])
    options = argparse.Namespace(gpus="0", out=tmp_path, seconds=60.0, only="", set="second")
    assert turns.run(options) == 0
    lines = lab("lab").lines
    traced, measured = (lines(tmp_path / "gpu0" / f"{phase}0.jsonl") for phase in ("trace", "measure"))
    assert [row["group"] for row in measured] == ["a", "dies", "b"]
    assert [row["group"] for row in traced] == ["a", "dies", "b"] and "ended with 3" in traced[1]["failed"]
    # What is done is not done again.
    turns.run(options)
    assert len(lines(tmp_path / "gpu0" / "measure0.jsonl")) == 3
