"""One rank of tp_pairs.py: traces every choice of paths of every case, or measures all of a case in turn.

Started by it, once a stage, with RANK, WORLD_SIZE and what torch.distributed needs in the environment. One start does
all models, batches and paths: starting takes longer (packages, NCCL, compiled kernels) than a case does.
"""

from __future__ import annotations

import argparse
import contextlib
import gc
import os
import signal
import sys
import time
import traceback
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec

from fusionscope.profiler import measure
from fusionscope.profiler.capture import machine, messages, nsys, placement, worker
from fusionscope.profiler.capture.launch import end_with_parent
from fusionscope.profiler.capture.plan import WARMUP_REPLAYS, CapturePlan

#: What the ranks wait for a prediction, s: then the case is left out.
PATIENCE = 60
BASE = "split"
#: Replays of a graph that count in a recording which holds all, the last ones of each.
REPLAYS = WARMUP_REPLAYS + 12


class Arm(msgspec.Struct, frozen=True):
    """A choice of paths that fuses one boundary."""

    boundary: str
    path: str

    @property
    def name(self) -> str:
        """`ar_norm=triton`: the paths, as --paths takes them."""
        return f"{self.boundary}={self.path}"


class Case(msgspec.Struct, frozen=True):
    """One model at one batch, split and with each of the arms."""

    model: str
    batch: int
    arms: list[Arm]

    @property
    def name(self) -> str:
        """Also the folder of its traces."""
        return f"{self.model}.b{self.batch}"

    def choices(self) -> dict[str, dict[str, str]]:
        """Name to paths, the split one first."""
        return {BASE: {}} | {arm.name: {arm.boundary: arm.path} for arm in self.arms}


class Plan(msgspec.Struct, frozen=True):
    """What all ranks do."""

    cases: list[Case]
    tp: int
    layers: int
    context: int
    device: str
    profiler: str
    captures: int
    blocks: int
    replays: int

    def capture(self, case: Case, paths: dict[str, str]) -> CapturePlan:
        """The same as the plan of a capture of these paths."""
        return CapturePlan(
            model=case.model, tp=self.tp, batch=case.batch, context=self.context, device=self.device,
            profiler=self.profiler, paths=paths, layers=self.layers, timed_blocks=8,
        )  # fmt: skip


def read_plan(path: Path) -> Plan:
    """The plan that tp_pairs.py wrote."""
    return msgspec.json.decode(path.read_bytes(), type=Plan)


def blocks_file(folder: Path, process: int, rank: int) -> Path:
    """Where a rank leaves the blocks of a case that a process measured."""
    return folder / f"process{process}.rank{rank}.jsonl"


def predicted_file(folder: Path) -> Path:
    """Where the predictions of a case lie before anything but its split step is timed."""
    return folder / "predicted.json"


class Rank:
    """What every case needs of this process."""

    def __init__(self, plan: Plan, group: Any, out: Path, process: int) -> None:
        self.plan, self.group, self.out, self.process = plan, group, out, process
        self.rank = int(os.environ["RANK"])

    def forward(self, case: Case, paths: dict[str, str], padding: tuple[int, ...] = (), like: Any = None) -> Any:
        """The forward of these paths, on CUDA captured, of the same model as `like`."""
        from fusionscope.profiler.capture import forward

        if isinstance(like, forward.CudaForward):
            return like.again(paths, padding)
        return forward.build(self.plan.capture(case, paths), self.group, padding)

    def report(self, made: Any, timings: list[messages.Timing], folder: Path, phase: str) -> None:
        """Leave what a worker of a capture leaves."""
        report = messages.Report(
            rank=self.rank,
            process=os.getpid(),
            timings=timings,
            sites=made.sites(),
            edges=made.edges(),
            nodes=made.nodes(),
            machine=machine.describe(self.plan.device, made.device_index) if self.rank == 0 else {},
            scaled=made.spec.is_scaled,
            truncated=made.spec.is_truncated,
            layers=made.spec.layers,
        )
        messages.leave(report, messages.report_path(folder, phase, self.rank))

    def trace(self, case: Case) -> None:
        """Every choice of paths, one after the other."""
        made: Any = None
        for name, paths in case.choices().items():
            folder = self.out / case.name / name
            folder.mkdir(parents=True, exist_ok=True)
            made = self.forward(case, paths, like=made)
            if self.plan.profiler == "nsys":  # one recording holds all
                made.timed()
                made.fresh()
                timings = [self._traced(made) for _ in range(REPLAYS)][WARMUP_REPLAYS:]
            else:
                timings = worker.traced(self.plan.capture(case, paths), made, folder, self.rank, _quiet)
            self.report(made, timings, folder, "traced")
            made.close()

    @staticmethod
    def _traced(made: Any) -> messages.Timing:
        return messages.Timing(block=1, duration_ns=made.timed(aligned=False), source="traced process")

    def measure(self, case: Case) -> None:
        """The split step alone; when the predictions are there, all choices in blocks."""
        folder, plan = self.out / case.name, self.plan
        choices = case.choices()
        split = self.forward(case, {}, self._padding(case, 0))
        if self.process == 0:
            timings = worker.untraced(plan.capture(case, {}), split, _quiet)
            self.report(split, timings, folder / BASE, "untraced")
            say(f"{case.name}: split timed")
        captures = {f"{BASE} 0": split}
        for k in range(plan.captures):
            names = list(choices) if (k + self.process) % 2 == 0 else list(reversed(choices))
            for name in names:
                if f"{name} {k}" not in captures:
                    captures[f"{name} {k}"] = self.forward(
                        case, choices[name], self._padding(case, len(captures)), split
                    )
        say(f"{case.name}: {len(captures)} captured")
        if not self._predicted(folder):
            raise TimeoutError(f"no prediction of {case.name} came")
        timers = {name: one.timed for name, one in captures.items()}
        path, begin = blocks_file(folder, self.process, self.rank), time.time()

        def finished(block: int, rows: list[tuple[str, int]]) -> None:
            line = {"block": block, "began": begin, "rows": rows}
            with path.open("ab") as file:
                file.write(msgspec.json.encode(line) + b"\n")

        seed = zlib.crc32(f"{case.name} {self.process}".encode())
        measure.in_blocks(timers, plan.blocks, plan.replays, seed=seed, finished=finished)
        for one in captures.values():
            one.close()

    def _padding(self, case: Case, place: int) -> tuple[int, ...]:
        return placement.padding(case.name, self.process, place) if self.plan.device == "cuda" else ()

    def _predicted(self, folder: Path) -> bool:
        """Whether the predictions came in time, the same answer on every rank."""
        for _ in range(PATIENCE * 10):
            if self.group.agree([predicted_file(folder).is_file()])[0]:
                return True
            time.sleep(0.1)
        return False


def _quiet(done: int, total: int, what: str) -> None:
    """Nobody watches the progress of one capture."""


def say(what: str) -> None:
    """A line with the seconds since tp_pairs.py started this stage."""
    if os.environ["RANK"] == "0":
        print(f"{time.time() - float(os.environ['STARTED']):6.1f} s  {what}", flush=True)


@contextlib.contextmanager
def recording(plan: Plan, stage: str) -> Iterator[None]:
    """Nsight Systems records one range a process, so that it holds everything; other profilers record each choice."""
    with nsys.recording() if plan.profiler == "nsys" and stage == "trace" else contextlib.nullcontext():
        yield


def main() -> int:
    """Do every case that can be begun in time; one that fails is named, and the others go on."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--plan", type=Path, required=True)
    parser.add_argument("--stage", choices=("trace", "measure"), required=True)
    parser.add_argument("--process", type=int, default=0)
    parser.add_argument("--until", type=float, required=True, help="begin no case after this time")
    options = parser.parse_args()
    plan = read_plan(options.plan)
    if not (plan.profiler == "nsys" and options.stage == "trace"):
        end_with_parent(signal.SIGKILL)
    from fusionscope.profiler.capture import forward

    say("packages loaded")
    wanted = {arm.name: arm.path for case in plan.cases for arm in case.arms}
    first, failed = plan.capture(plan.cases[0], {}), 0
    with forward.group_of(first, wanted) as group:
        rank = Rank(plan, group, options.plan.parent, options.process)
        say("group made")
        with recording(plan, options.stage):
            for case in plan.cases:
                if not group.agree([time.time() < options.until])[0]:
                    say(f"{case.name}: not begun, the time is over")
                    continue
                try:
                    getattr(rank, options.stage)(case)
                except Exception:  # the cases that follow are worth more
                    traceback.print_exc()
                    failed += 1
                gc.collect()
                if plan.device == "cuda":
                    import torch

                    torch.cuda.synchronize()
                    torch.cuda.empty_cache()
                say(f"{case.name}: {options.stage} done")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
