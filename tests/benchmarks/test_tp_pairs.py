"""What the pairs of real ranks are made of: a recording of several graphs, blocks of several arms."""

from __future__ import annotations

import importlib
import json
import sys
from pathlib import Path
from typing import Any

import pytest

from fusionscope.profiler.trace import Trace, table

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"


@pytest.fixture
def pairs(monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.setattr(sys, "path", [str(BENCHMARKS), *sys.path])
    return importlib.import_module("tp_pairs")


@pytest.fixture
def plan(pairs: Any) -> Any:
    case = pairs.Case("tiny", 2, [pairs.Arm("mhc_post", "triton"), pairs.Arm("moe_finalize", "triton")])
    return pairs.Plan([case], 2, 2, 64, "cpu", "torch", 2, 4, 1)


def recorded(graphs: list[int]) -> Trace:
    """One launch a replay, of these graphs (-1: eager) in turn."""
    count = len(graphs)
    rows = {
        "rank": 0,
        "start_ns": [100 * k for k in range(count)],
        "duration_ns": 10,
        "name": "kernel",
        "correlation": list(range(count)),
        "graph": graphs,
        "node": [0 if graph >= 0 else -1 for graph in graphs],
        "replay": list(range(count)),
    }
    launches = {key: rows[key] for key in ("rank", "start_ns", "correlation")} | {"is_graph": [g >= 0 for g in graphs]}
    return Trace(kernels=table("kernels", rows), launches=table("launches", launches))


def test_a_recording_of_several_graphs_is_cut_into_each(pairs: Any) -> None:
    replays = pairs.REPLAYS
    trace = recorded([-1, *[9] * (replays + 1), -1, *[4] * replays])
    first, second = pairs.cut(trace, 0), pairs.cut(trace, 1)
    assert set(first.kernels["graph"]) == {9} and set(second.kernels["graph"]) == {4}
    for one in (first, second):
        assert one.kernels["replay"].tolist() == list(range(replays))
        assert sorted(one.launches["correlation"]) == sorted(one.kernels["correlation"])
    # The first replay of the graph that has one more is the one that goes.
    assert int(first.kernels["start_ns"].min()) == 200


def test_a_fused_step_is_a_run_without_times_of_its_own(pairs: Any, plan: Any, tmp_path: Path) -> None:
    case, shared = plan.cases[0], recorded([7] * pairs.REPLAYS)
    plan = pairs.msgspec.structs.replace(plan, profiler="nsys")
    for name in case.choices():
        for rank in range(plan.tp):
            folder = tmp_path / case.name / name
            folder.mkdir(parents=True, exist_ok=True)
            report = pairs.messages.Report(rank=rank, process=rank, machine={"gpu": "one"}, layers=2)
            pairs.messages.leave(report, pairs.messages.report_path(folder, "traced", rank))
    traces = pairs.Traces(plan, tmp_path)
    traces._shared = {rank: shared.with_rank(rank) for rank in range(plan.tp)}
    run = traces.run(case, "split")
    assert run.info.machine["gpu"] == "one" and not len(run.trace.timings)
    assert set(run.trace.kernels["rank"]) == {0, 1}


def test_blocks_of_several_arms_are_pairs_with_the_split_step(pairs: Any, plan: Any, tmp_path: Path) -> None:
    names = ["split", "mhc_post=triton", "moe_finalize=triton"]
    for process in range(2):
        lines = []
        for block in range(4):
            order = [f"{name} {k}" for k in range(2) for name in names]
            rows = [[arm, 1000 - 100 * names.index(arm[:-2]) + block] for arm in [*order, *reversed(order)]]
            lines.append(json.dumps({"block": block, "began": 0, "rows": rows}))
        pairs.blocks_file(tmp_path, process, 0).write_text("\n".join(lines))
    timings = pairs.timings_of(plan, tmp_path, "moe_finalize=triton", 2)
    assert set(timings["arm"]) == {"base", "base again", "candidate", "candidate again"}
    found = pairs.ab.compare(timings)
    assert found.saving.value_ns == 200
    assert (found.saving.processes, found.captures) == (2, 4)


def test_a_prediction_that_was_never_measured_is_named(pairs: Any, plan: Any, tmp_path: Path) -> None:
    folder = tmp_path / plan.cases[0].name
    folder.mkdir()
    pair = {"boundary": "mhc_post", "path": "triton", "predicted_ns": 10.0, "step_ns": 1000.0}
    told = {"machine": {}, "runs": [], "pairs": [pair], "failed": [], "written": 1.0}
    pairs.predicted_file(folder).write_text(json.dumps(told))
    found = pairs.collected(plan, tmp_path, 1)
    assert "error_points" not in found["pairs"][0]
    assert found["failed"] and "mean_absolute_error_points" not in found


def test_what_time_cuts_off_is_the_last_batch(pairs: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "argv", ["tp_pairs.py", "--out", "x", "--batches", "16,1"])
    made = pairs.planned(pairs.parsed())
    assert [case.name for case in made.cases] == [
        "deepseek-v3.b16", "glm-5.3-flash.b16", "deepseek-v3.b1", "glm-5.3-flash.b1",
    ]  # fmt: skip
    assert made.cases[0].choices()["ar_norm=flashinfer"] == {"ar_norm": "flashinfer"}
