"""`fusionscope knockout` as a user runs it; what needs a GPU is in test_measuring_gpu.py."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from fusionscope.profiler.capture import arms, arms_plan, arms_session, arms_worker
from fusionscope.profiler.capture.arms import Head
from fusionscope.profiler.capture.clocks import Reading
from fusionscope.profiler.capture.plan import CapturePlan

#: What the step of 100 us took before there were copies of it.
ALONE = {"ns": 99_000.0}


def fake_phase(command: Sequence[str], out: Path, *rest: object) -> None:
    """What a worker leaves behind: a step of 100 us, 10 us of which go with each boundary."""
    plan = arms.read_plan(out / "plan.json")
    process = int(command[command.index("--phase") + 1])
    path = arms.lines_path(out, process, 0)
    facts = {
        arms.DISABLED_NS: 300.0,
        arms.ALONE_NS: ALONE["ns"],
        **{arms.NODES + kind: 10.0 for kind in plan.knockouts},
    }
    arms.append(path, Head(process=100 + process, nodes={"base": 50}, facts=facts, layers=5))
    timers = {"base": lambda: 100_000} | {arms.WITHOUT + kind: lambda: 90_000 for kind in plan.knockouts}
    arms_worker.measured(plan, process, timers, lambda: Reading(sm_mhz=1980), path)


@pytest.fixture
def with_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    """A machine with a GPU as far as planning is concerned; nothing runs on it."""

    def plan(model: str, tp: int, batch: int, context: int | None, paths: str, *rest: object) -> Any:
        made = CapturePlan(
            model=model, tp=tp, batch=batch, context=context or 64, device="cuda", profiler="torch", emulated=True
        )
        return made, ["ranks: emulated"]

    monkeypatch.setattr(arms_plan, "require_gpu", lambda *words: None)
    monkeypatch.setattr(arms_plan, "make_plan", plan)
    monkeypatch.setattr(arms_session.launch, "run_phase", fake_phase)


def test_every_boundary_of_the_model_is_knocked_out(fusionscope: Any, with_gpu: None) -> None:
    answer = fusionscope("knockout", "tiny", "--processes", 2, "--blocks", 4, "--json")
    assert answer.code == 0, answer.err
    rows = {row["boundary"]: row for row in answer.json["boundaries"]}
    assert set(rows) == {"mhc_post", "mhc_post:attn_exit", "mhc_post:ffn_exit", "mhc_post_pre", "moe_finalize"}
    row = rows["mhc_post"]
    assert (row["raw_ns"], row["corrected_ns"], row["nodes"], row["processes"]) == (10_000, 13_000, 10, 2)
    assert answer.json["step_ns"] == 100_000 and answer.json["disabled_node_ns"] == 300
    assert {"built-in model", "emulated ranks"} <= set(answer.json["labels"])
    said = fusionscope("knockout", answer.json["run"], "--boundary", "moe_finalize", "--blocks", 4)
    assert said.code == 0 and "lower bound" in said.out and "moe_finalize" in said.out and "ffn_exit" not in said.out


def test_a_step_that_is_slower_beside_its_copies_is_told_of(
    fusionscope: Any, with_gpu: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    arguments = ("knockout", "tiny", "--boundary", "moe_finalize", "--processes", 1, "--blocks", 4)
    usual = fusionscope(*arguments, "--json")
    assert usual.json["step_alone_ns"] == 99_000 and usual.json["warnings"] == []
    monkeypatch.setitem(ALONE, "ns", 93_000.0)
    slower = fusionscope(*arguments, "--json")
    assert slower.json["warnings"][0].startswith("Beside its copies the step takes 100.0 us, and 93.00 us before")
    assert "Warning: Beside its copies" in " ".join(fusionscope(*arguments).out.split())


def test_what_the_model_lacks_is_named(fusionscope: Any, with_gpu: None) -> None:
    answer = fusionscope("knockout", "tiny", "--boundary", "ar_norm")
    assert answer.code == 2 and "0 sites of ar_norm" in answer.err and "moe_finalize" in answer.err


def test_another_engines_run_is_sent_to_measure(fusionscope: Any, run: Any) -> None:
    answer = run("knockout", "split")
    assert answer.code == 2 and "measure.knockout" in answer.err


def test_without_a_gpu_the_sentence_says_what_else(fusionscope: Any) -> None:
    if torch.cuda.is_available():
        pytest.skip("there is a GPU")
    answer = fusionscope("knockout", "tiny")
    assert answer.code == 2 and "needs a GPU" in answer.err and "measure.knockout" in answer.err
