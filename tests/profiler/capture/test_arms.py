"""Measuring two arms: what processes leave behind, what is kept after Ctrl-C, and two commands in turn."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import pytest

from fusionscope.analysis import ab
from fusionscope.profiler.capture import arms, arms_session, arms_worker, clocks, commands
from fusionscope.profiler.capture.arms import ArmsPlan, Block, Head
from fusionscope.profiler.capture.clocks import Reading
from fusionscope.profiler.capture.messages import SiteNote
from fusionscope.profiler.capture.plan import CaptureError, CapturePlan
from fusionscope.profiler.errors import FusionScopeError
from fusionscope.profiler.store import Store

BASE = CapturePlan(model="tiny", tp=4, batch=4, context=64, device="cuda", profiler="torch", emulated=True)
PLAN = ArmsPlan(base=BASE, candidate={"mhc_post": "triton"}, blocks=6, replays=2, captures=2)
#: Paddings that arms were captured with.
PADDED: list[tuple[int, ...]] = []
NODES = {"base": 20, "candidate": 15, "base again": 20}


def fill(folder: Path, process: int, blocks: int = 6, pid: int | None = None) -> None:
    """What one process leaves behind: base 100 us, candidate 98 us."""
    path = arms.lines_path(folder, process, 0)
    arms.append(path, Head(process=pid or 100 + process, nodes=NODES, layers=5))
    times = {"base": 100_000, "candidate": 98_000, "base again": 100_010}
    timers = {name: (lambda ns=ns: ns) for name, ns in times.items()}
    plan = ArmsPlan(base=BASE, candidate={}, blocks=blocks, replays=2)
    arms_worker.measured(plan, process, timers, lambda: Reading(sm_mhz=1980 - process, temperature_c=40), path)


def test_a_plan_and_lines_come_back_as_written(tmp_path: Path) -> None:
    arms.write_plan(PLAN, tmp_path / "plan")
    assert arms.read_plan(tmp_path / "plan") == PLAN
    path = tmp_path / "lines"
    block = Block(block=0, rows=[("base", 5)], clocks=Reading(sm_mhz=1))
    arms.append(path, Head(process=7, nodes={"base": 3}))
    arms.append(path, block)
    path.write_bytes(path.read_bytes() + b'{"type":"block","blo')  # killed while writing
    head, blocks = arms.read_lines(path)
    assert head is not None and head.process == 7 and blocks == [block]


def test_processes_become_one_table(tmp_path: Path) -> None:
    fill(tmp_path, 0)
    fill(tmp_path, 1)
    timings, heads, readings = arms.timing_table(tmp_path, 3)
    assert sorted(set(timings["process"])) == [100, 101] and len(heads) == 2 and len(readings) == 12
    assert len(timings) == 2 * 6 * 3 * 2 * 2
    found = ab.compare(timings)
    assert (found.base_ns, found.candidate_ns, found.saving.value_ns) == (100_000, 98_000, 2_000)
    assert found.saving.processes == 2 and found.verdict.class_ == "worth_merging"
    assert clocks.summary(readings)["sm_clock_mhz_measured"] == "1979 to 1980"


def test_a_process_id_that_comes_again_is_another_process(tmp_path: Path) -> None:
    for process in range(3):
        fill(tmp_path, process, pid=77)
    timings, heads, _ = arms.timing_table(tmp_path, 3)
    assert sorted(set(timings["process"])) == sorted(head.process for head in heads) == [77, 78, 79]
    assert ab.compare(timings).saving.processes == 3


def test_without_a_block_there_is_nothing_to_store(tmp_path: Path) -> None:
    with pytest.raises(FusionScopeError, match="No block"):
        arms.timing_table(tmp_path, 2)


def test_what_held_the_clocks_down_is_named() -> None:
    told = clocks.summary([Reading(sm_mhz=1200, reasons=0x4), Reading(sm_mhz=1980, reasons=0x20), Reading()])
    assert told["throttle_reasons_measured"] == "0x24 (software power cap, software thermal slowdown)"
    assert clocks.summary([Reading()]) == {}


def test_ctrl_c_keeps_the_blocks_that_were_finished(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def phase(command: Sequence[str], out: Path, *rest: object) -> None:
        process = int(command[command.index("--phase") + 1])
        fill(out, process, blocks=6 if process == 0 else 2)
        if process == 1:
            raise KeyboardInterrupt

    monkeypatch.setattr(arms_session.launch, "run_phase", phase)
    run = arms_session.run_arms(PLAN, 3, Store(tmp_path / "store"), "early")
    assert run.info.warnings == [arms.EARLY]
    assert len(run.trace.timings.groupby(["process", "block"])) == 8
    loaded = Store(tmp_path / "store").load("early")
    assert loaded.info.settings["nodes_candidate"] == "15" and loaded.info.settings["nodes_base"] == "20"
    assert {"built-in model", "emulated ranks"} <= set(loaded.info.labels)
    assert ab.compare(loaded.trace.timings).saving.blocks == 8


@pytest.mark.parametrize("fired", [True, False])
def test_arms_of_the_same_kernels_did_not_fire(fired: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def phase(command: Sequence[str], out: Path, *rest: object) -> None:
        path = arms.lines_path(out, 0, 0)
        head = Head(process=7, nodes=NODES, facts={arms.SAME_KERNELS: float(not fired)})
        arms.append(path, head)
        timers = dict.fromkeys(("base", "candidate", "base again"), lambda: 100_000)
        arms_worker.measured(PLAN, 0, timers, Reading, path)

    monkeypatch.setattr(arms_session.launch, "run_phase", phase)
    run = arms_session.run_arms(PLAN, 1, Store(tmp_path / "store"))
    assert (arms.DID_NOT_FIRE in run.info.warnings) is not fired


@dataclass
class FakeArm:
    """A captured forward of which only the graph's kernels matter."""

    kernels: list[str]
    declined: str = ""

    @property
    def captured(self) -> FakeArm:
        return self

    @property
    def graph(self) -> list[str]:
        return self.kernels

    def nodes(self) -> int:
        return len(self.kernels)

    def sites(self) -> list[SiteNote]:
        return [SiteNote(boundary="mhc_post", subtype="ffn_exit", layer=3, path="split", declined=self.declined)]

    def again(self, paths: dict[str, str], padding: Sequence[int]) -> FakeArm:
        PADDED.append(tuple(padding))
        if not paths:
            return self
        return FakeArm(["gemm", "fused"], "") if paths["mhc_post"] == "triton" else FakeArm(self.kernels, "x: no")


@pytest.mark.parametrize(("path", "same", "declines"), [("triton", 0.0, 0), ("x", 1.0, 1)])
def test_the_head_says_what_the_candidate_launches(
    path: str, same: float, declines: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(arms_worker.measure, "names", lambda graph: graph)
    base, head = FakeArm(["gemm", "ar", "post"]), Head(process=1, nodes={"base": 3})
    PADDED.clear()
    made = arms_worker.two_arms(ArmsPlan(base=BASE, candidate={"mhc_post": path}, captures=3), base, head)
    assert (
        list(made) == ["base", "candidate", "base again", "candidate again", "base again 2", "candidate again 2"]
        and len(set(PADDED)) == 5
        and head.facts[arms.SAME_KERNELS] == same
        and len(head.declines) == declines
    )
    assert head.nodes["base again"] == 3 and head.nodes["candidate"] == (2 if path == "triton" else 3)


def test_every_second_process_captures_the_candidate_first(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(arms_worker.measure, "names", lambda graph: graph)
    assert [arms_worker.first_plan(PLAN, k).paths for k in range(3)] == [{}, {"mhc_post": "triton"}, {}]
    plan = ArmsPlan(base=BASE, knockouts=["mhc_post"])
    assert arms_worker.first_plan(plan, 1) == plan.base

    class Turned(FakeArm):
        def again(self, paths: dict[str, str], padding: Sequence[int]) -> FakeArm:
            return FakeArm(["gemm", "fused"] if paths else ["gemm", "ar", "post"])

    head = Head(process=1, nodes={})
    made = arms_worker.two_arms(PLAN, Turned(["gemm", "fused"]), head, process=1)
    assert list(made) == ["candidate", "base", "candidate again", "base again"]
    assert {arm: len(one.kernels) for arm, one in made.items()} == {
        "base": 3, "base again": 3, "candidate": 2, "candidate again": 2,
    }  # fmt: skip
    assert head.nodes == {"base": 3, "candidate": 2, "base again": 3} and not head.facts[arms.SAME_KERNELS]


def test_graphs_that_differ_between_processes_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def phase(command: Sequence[str], out: Path, *rest: object) -> None:
        process = int(command[command.index("--phase") + 1])
        fill(out, process)
        if process:
            arms.append(arms.lines_path(out, process, 0), Head(process=9, nodes={**NODES, "base": 21}))

    monkeypatch.setattr(arms_session.launch, "run_phase", phase)
    with pytest.raises(CaptureError, match="different sizes"):
        arms_session.run_arms(PLAN, 2, Store(tmp_path / "store"))


def python(*lines: str) -> list[str]:
    return [sys.executable, "-c", "; ".join(lines)]


def test_commands_are_told_apart() -> None:
    assert commands.split_commands(["a", "-x", "--", "b"]) == (["a", "-x"], ["b"])
    for words in (["a"], ["a", "--"], ["--", "b"], ["a", "--", "b", "--", "c"]):
        with pytest.raises(FusionScopeError, match="ab -- "):
            commands.split_commands(words)


def test_a_command_prints_times() -> None:
    assert commands.run_command(python("print(1.5)", "print()", "print(' 2')"), "ms") == [1_500_000, 2_000_000]


@pytest.mark.parametrize(
    ("command", "says"),
    [
        (python("pass"), "printed nothing"),
        (python("print('warming up')"), "'warming up'"),
        (python("print(-1)"), "'-1'"),
        (python("print('nan')"), "'nan'"),
        (python("raise SystemExit(3)"), "code 3"),
        (["./no-such-command"], "cannot be run"),
    ],
)
def test_what_is_no_time_is_refused(command: list[str], says: str) -> None:
    with pytest.raises(FusionScopeError, match=says):
        commands.run_command(command)


@pytest.mark.parametrize(
    ("stop", "says"),
    [
        (KeyboardInterrupt(), commands.EARLY),
        (FusionScopeError("b ended with code 3."), "b ended with code 3. The blocks"),
    ],
)
def test_blocks_of_commands_end_whole_where_they_are_stopped(stop: BaseException, says: str) -> None:
    calls: list[str] = []

    def run(command: Sequence[str], unit: str) -> list[int]:
        calls.append(command[0])
        if len(calls) == 15:
            raise stop
        return [100]

    timings, ended = commands.run_blocks(["a"], ["b"], 5, run=run)
    assert ended.startswith(says) and sorted(set(timings["block"])) == [0, 1]
    assert timings.groupby(["block", "arm"], observed=True).size().tolist() == [2] * 6
    assert calls[:6] == calls[:6][::-1] and calls.count("a") > calls.count("b")


def test_a_command_that_fails_before_a_block_is_whole_is_raised() -> None:
    def run(command: Sequence[str], unit: str) -> list[int]:
        raise FusionScopeError("a ended with code 3.")

    with pytest.raises(FusionScopeError, match="code 3"):
        commands.run_blocks(["a"], ["b"], 5, run=run)


def test_an_unknown_unit_is_refused() -> None:
    with pytest.raises(FusionScopeError, match="--unit"):
        commands.run_blocks(["a"], ["b"], 1, "hours")
