"""One process of a measurement in turn: builds the model once, captures both arms and the base again, times blocks.

Started by `arms_session.py` as `python -m fusionscope.profiler.capture.arms_worker --plan FILE --phase K --out DIR`.
"""

from __future__ import annotations

import argparse
import os
import signal
import statistics
import sys
import traceback
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import msgspec

from fusionscope.profiler import measure
from fusionscope.profiler.capture import arms, machine, messages, placement
from fusionscope.profiler.capture.arms import ArmsPlan, Block, Head
from fusionscope.profiler.capture.clocks import Clocks, Reading
from fusionscope.profiler.capture.launch import end_with_parent
from fusionscope.profiler.capture.plan import CapturePlan
from fusionscope.profiler.capture.worker import failure
from fusionscope.profiler.errors import FusionScopeError


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
    with forward.group_of(plan.base, plan.candidate) as group:
        # Where kernels are disabled, what they wrote must stay: a router's choice of experts is read from it.
        padding = placement.padding(plan.base.seed, process, 0)
        first = forward.build(first_plan(plan, process), group, padding, keep=bool(plan.knockouts))
        assert isinstance(first, forward.CudaForward), "arms are measured on a GPU"
        head = Head(
            process=os.getpid(),
            nodes={},
            machine=machine.describe("cuda", first.device_index) if rank == 0 else {},
            layers=first.spec.layers,
            scaled=first.spec.is_scaled,
            truncated=first.spec.is_truncated,
        )
        captured = [first]
        if plan.knockouts:
            head.nodes[measure.BASE] = first.nodes()
            timers: dict[str, Callable[[], int]] = knocked_out(plan, first, head)
        else:
            named = two_arms(plan, first, head, process)
            captured = list(named.values())
            timers = {name: arm.timed for name, arm in named.items()}
        arms.append(path, head)
        clocks = Clocks(first.device_index)
        say = f"process {process + 1}"
        measured(plan, process, timers, clocks.read, path, lambda done: told(done, plan.blocks, say))
        for arm in captured:
            arm.close()


#: Arms whose nodes a run tells: the base's second capture shows that they are the same each time.
_COUNTED = (measure.BASE, measure.CANDIDATE, measure.AGAIN)


def turned(process: int) -> bool:
    """Whether a process captures the candidate before the base: every second one does.

    What the order still does to a capture counts once for the one arm and once for the other.
    """
    return process % 2 == 1


def first_plan(plan: ArmsPlan, process: int) -> CapturePlan:
    """The plan of the forward that is captured first."""
    if plan.knockouts or not turned(process):
        return plan.base
    return msgspec.structs.replace(plan.base, paths=dict(plan.candidate))


def two_arms(plan: ArmsPlan, first: Any, head: Head, process: int = 0) -> dict[str, Any]:
    """Base and candidate in turn, each captured `plan.captures` times, by arm; `first` is captured already.

    The head learns of nodes, and of sites that stepped back. Two captures of one program can differ by more than a
    fusion saves, and one alone would not show that.
    """
    names = [measure.names_of(arm, plan.captures) for arm in (measure.BASE, measure.CANDIDATE)]
    pairs = zip(*names, strict=True)
    order = [arm for pair in pairs for arm in (reversed(pair) if turned(process) else pair)]
    made = {order[0]: first}
    for place, arm in enumerate(order[1:], 1):
        paths = plan.base.paths if arm.startswith(measure.BASE) else plan.candidate
        made[arm] = first.again(dict(paths), placement.padding(plan.base.seed, process, place))
    base, candidate = made[measure.BASE], made[measure.CANDIDATE]
    head.nodes |= {arm: one.nodes() for arm, one in made.items() if arm in _COUNTED}
    if any(one.nodes() != candidate.nodes() for arm, one in made.items() if arm.startswith(measure.CANDIDATE)):
        raise FusionScopeError("Two captures of the candidate differ in size: close what else uses this GPU.")
    names = [measure.names(arm.captured.graph) for arm in (base, candidate)]
    head.facts[arms.SAME_KERNELS] = float(names[0] == names[1])
    head.declines = [
        f"{s.boundary}{':' + s.subtype if s.subtype else ''} layer {s.layer}: {s.declined}"
        for s in candidate.sites()
        if s.declined
    ]
    return made


#: Whole replays before nodes are disabled.
_WHOLE = 10


def knocked_out(plan: ArmsPlan, base: Any, head: Head) -> dict[str, Callable[[], int]]:
    """Timers of the base and of the base without each boundary's nodes; the head learns what a disabled node costs."""
    from fusionscope.profiler.capture.graph_copies import CudaGraphs

    graphs, sites = CudaGraphs(), base.sites()
    # What a disabled kernel leaves is that of the last whole replay, so there must have been one.
    whole = measure.covered(graphs, base.captured.replay)
    alone = [whole() for _ in range(_WHOLE)]
    head.facts[arms.ALONE_NS] = statistics.median(alone[1:])
    head.facts[arms.DISABLED_NS] = measure.disabled_node_ns(graphs=graphs)
    timers = {measure.BASE: whole}
    for boundary in plan.knockouts:
        nodes = measure.nodes_of(sites, boundary)
        timers[arms.WITHOUT + boundary] = measure.covered(graphs, graphs.without(base.captured.graph, nodes))
        head.facts[arms.NODES + boundary] = len(nodes)
    return timers


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
