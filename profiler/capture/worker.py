"""One rank of a capture: builds the decode forward, then times its replays or replays it under a profiler.

Started by `launch.py` as `python -m fusionscope.profiler.capture.worker --plan FILE --phase PHASE --out DIR`, where a
phase is untraced, traced, or graph (traced as whole graphs).
"""

from __future__ import annotations

import argparse
import os
import signal
import sys
import traceback
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

from fusionscope.profiler.capture import bandwidth, cupti, machine, messages, nsys, rocprof, torch_profiler
from fusionscope.profiler.capture import plan as plans
from fusionscope.profiler.capture.launch import end_with_parent
from fusionscope.profiler.capture.messages import Failure, Report
from fusionscope.profiler.capture.plan import WARMUP_REPLAYS, CapturePlan
from fusionscope.profiler.errors import FusionScopeError

#: Replays that the traced process times before anything is recorded.
_BEFORE = 3


def main(args: list[str] | None = None) -> int:
    """Run one phase of one rank; the exit code is 0 or 1, and then a Failure lies in the folder."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--plan", type=Path, required=True)
    parser.add_argument("--phase", choices=("untraced", "traced", "graph"), required=True)
    parser.add_argument("--out", type=Path, required=True)
    options = parser.parse_args(args)
    plan = plans.read(options.plan)
    rank = int(os.environ.get("RANK", "0"))
    # nsys may start us from a thread that ends at once, which Linux would take for the parent's death.
    if not (plan.profiler in ("nsys", "rocprofv3") and options.phase != "untraced"):
        end_with_parent(signal.SIGKILL)
    try:
        report = _run(plan, options.phase, options.out, rank)
    except Exception as error:
        traceback.print_exc()
        messages.leave(failure(error, rank), messages.failure_path(options.out, rank))
        return 1
    messages.leave(report, messages.report_path(options.out, options.phase, rank))
    return 0


def failure(error: Exception, rank: int) -> Failure:
    """What to tell the user of an error of this rank."""
    from fusionscope.fusion_runtime.errors import RuntimeContractError

    if isinstance(error, FusionScopeError | RuntimeContractError):
        return Failure(rank=rank, message=" ".join(str(error).split()), expected=True)
    said = next((line.strip() for line in str(error).splitlines() if line.strip()), "no message").rstrip(".")
    if type(error).__name__ == "OutOfMemoryError":
        hint = f"The GPU's memory is too small for this forward: lower --batch, --context or --layers ({said})."
        return Failure(rank=rank, message=hint, expected=True)
    return Failure(rank=rank, message=f"Rank {rank} failed with {type(error).__name__}: {said}.", expected=False)


def _run(plan: CapturePlan, phase: str, out: Path, rank: int) -> Report:
    from fusionscope.profiler.capture import forward

    told = messages.say if rank == 0 else _nothing
    told(0, 0, f"{phase}: building {plan.model}")
    with forward.group_of(plan) as group:
        made = forward.build(plan, group)
        timings = untraced(plan, made, told) if phase == "untraced" else traced(plan, made, out, rank, told)
        report = Report(
            rank=rank,
            process=os.getpid(),
            timings=timings,
            sites=made.sites(),
            edges=made.edges(),
            nodes=made.nodes(),
            machine=_machine(plan, phase, made) if rank == 0 else {},
            scaled=made.spec.is_scaled,
            truncated=made.spec.is_truncated,
            layers=made.spec.layers,
        )
        made.close()
        return report


def _machine(plan: CapturePlan, phase: str, made: Any) -> dict[str, str]:
    """Facts of the machine; once the replays are timed, where no profiler is, also how fast its memory is."""
    facts = machine.describe(plan.device, made.device_index)
    if phase == "untraced" and plan.device == "cuda":
        facts |= bandwidth.measured()
    return facts


def untraced(plan: CapturePlan, made: Any, told: Any) -> list[messages.Timing]:
    """Blocks of timed replays in a process that no profiler has touched."""
    source = "untraced" if plan.device == "cuda" else "host latency"
    timings: list[messages.Timing] = []
    for block in range(plan.timed_blocks):
        told(block, plan.timed_blocks, "untraced: timing replays")
        if plan.device == "cuda":
            # The first replay of a block finds the device idle: it is not part of the block.
            made.timed()
        timings += [
            messages.Timing(block=block, duration_ns=made.timed(), source=source) for _ in range(plan.timed_replays)
        ]
    return timings


def traced(plan: CapturePlan, made: Any, out: Path, rank: int, told: Any) -> list[messages.Timing]:
    """Replays under the profiler; the process times them too, before (block 0) and inside (block 1) the recording."""
    told(0, plan.replays, f"traced: recording replays with {plan.profiler}")
    source = "traced process"
    timings = [messages.Timing(block=0, duration_ns=made.timed(), source=source) for _ in range(_BEFORE)]
    made.fresh()
    with _recording(plan, out, rank):
        for number in range(WARMUP_REPLAYS + plan.replays):
            duration = made.timed(aligned=False)
            if number >= WARMUP_REPLAYS:
                timings.append(messages.Timing(block=1, duration_ns=duration, source=source))
    told(plan.replays, plan.replays, "traced: writing the trace")
    return timings


def _recording(plan: CapturePlan, out: Path, rank: int) -> AbstractContextManager[None]:
    if plan.profiler == "torch":
        return torch_profiler.recording(out, rank, plan.device)
    if plan.profiler == "cupti":
        return cupti.recording(out, rank)
    if plan.profiler == "rocprofv3":
        return rocprof.recording()
    return nsys.recording()


def _nothing(done: int, total: int, what: str) -> None:
    """Only rank 0 reports how far the capture is."""


if __name__ == "__main__":
    sys.exit(main())
