"""One process of a measurement in turn: builds the model once, captures both arms and the base again, times blocks.

Started by `arms_session.py` as `python -m fusionscope.profiler.capture.arms_worker --plan FILE --phase K --out DIR`.
"""

from __future__ import annotations

import argparse
import os
import signal
import sys
import traceback
from collections.abc import Callable, Mapping
from pathlib import Path

from fusionscope.profiler import measure
from fusionscope.profiler.capture import arms, machine, messages
from fusionscope.profiler.capture.arms import ArmsPlan, Block, Head
from fusionscope.profiler.capture.clocks import Clocks, Reading
from fusionscope.profiler.capture.launch import end_with_parent
from fusionscope.profiler.capture.worker import failure


def main(args: list[str] | None = None) -> int:
    """Measure in this process; the exit code is 0 or 1, and then a Failure lies in the folder."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--plan", type=Path, required=True)
    parser.add_argument("--phase", type=int, required=True, help="number of this process")
    parser.add_argument("--out", type=Path, required=True)
    options = parser.parse_args(args)
    plan = arms.read_plan(options.plan)
    rank = int(os.environ.get("RANK", "0"))
    end_with_parent(signal.SIGKILL)
    try:
        _run(plan, options.phase, arms.lines_path(options.out, options.phase, rank), rank)
    except Exception as error:
        traceback.print_exc()
        messages.leave(failure(error, rank), messages.failure_path(options.out, rank))
        return 1
    return 0


def _run(plan: ArmsPlan, process: int, path: Path, rank: int) -> None:
    from fusionscope.profiler.capture import forward

    told = messages.say if rank == 0 else _nothing
    told(0, 0, f"process {process + 1}: building {plan.base.model}")
    with forward.group_of(plan.base) as group:
        base = forward.build(plan.base, group)
        assert isinstance(base, forward.CudaForward), "arms are measured on a GPU"
        candidate = base.again(plan.candidate)
        made = {measure.BASE: base, measure.CANDIDATE: candidate, measure.AGAIN: base.again(dict(plan.base.paths))}
        declines = [
            f"{s.boundary}{':' + s.subtype if s.subtype else ''} layer {s.layer}: {s.declined}"
            for s in candidate.sites()
            if s.declined
        ]
        head = Head(
            process=os.getpid(),
            nodes={name: arm.nodes() for name, arm in made.items()},
            declines=declines,
            machine=machine.describe("cuda", base.device_index) if rank == 0 else {},
            layers=base.spec.layers,
            scaled=base.spec.is_scaled,
            truncated=base.spec.is_truncated,
        )
        arms.append(path, head)
        timers = {name: arm.timed for name, arm in made.items()}
        clocks = Clocks(base.device_index)
        measured(
            plan, process, timers, clocks.read, path, lambda done: told(done, plan.blocks, f"process {process + 1}")
        )
        for arm in made.values():
            arm.close()


def measured(
    plan: ArmsPlan,
    process: int,
    timers: Mapping[str, Callable[[], int]],
    read_clocks: Callable[[], Reading],
    path: Path,
    told: Callable[[int], object] = lambda done: None,
) -> None:
    """Time blocks, leaving a line for each as soon as it is whole. All ranks draw the same order of arms."""

    def finished(block: int, rows: list[tuple[str, int]]) -> None:
        arms.append(path, Block(block=block, rows=rows, clocks=read_clocks()))
        told(block + 1)

    seed = 1000 * plan.base.seed + process
    limit = plan.seconds or None
    measure.in_blocks(timers, plan.blocks, plan.replays, seconds=limit, seed=seed, finished=finished)


def _nothing(done: int, total: int, what: str) -> None:
    """Only rank 0 reports how far the measurement is."""


if __name__ == "__main__":
    sys.exit(main())
