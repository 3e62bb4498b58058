"""A measurement of two arms from plan to stored run; what was finished before Ctrl-C is kept."""

from __future__ import annotations

import statistics
import tempfile
from collections.abc import Sequence
from pathlib import Path

from fusionscope.profiler import runinfo
from fusionscope.profiler.capture import arms, clocks, launch
from fusionscope.profiler.capture.arms import (
    ALONE_NS,
    DID_NOT_FIRE,
    DISABLED_NS,
    EARLY,
    KNOCKOUT,
    NODES,
    SAME_KERNELS,
    SETTING,
    ArmsPlan,
    Head,
)
from fusionscope.profiler.capture.plan import CaptureError
from fusionscope.profiler.capture.session import environment, logged, terminable
from fusionscope.profiler.progress import Progress, quiet
from fusionscope.profiler.runinfo import RunInfo
from fusionscope.profiler.store import Run, Store, check_name
from fusionscope.profiler.trace import Trace

WORKER = "fusionscope.profiler.capture.arms_worker"


def run_arms(
    plan: ArmsPlan,
    processes: int,
    store: Store,
    name: str = "",
    progress: Progress = quiet,
    command: Sequence[str] = (),
) -> Run:
    """Measure in so many processes, one after the other, and store the run.

    Ctrl-C and SIGTERM end the measurement; finished blocks are stored all the same, with a warning. Raises CaptureError
    with what went wrong, FusionScopeError where no block was finished.
    """
    check_name(name)
    warnings: list[str] = []
    with tempfile.TemporaryDirectory(prefix="fusionscope-ab-") as folder, logged(store) as log:
        out = Path(folder)
        plan_file = out / "plan.json"
        arms.write_plan(plan, plan_file)
        try:
            with terminable():
                for process in range(processes):
                    line = launch.worker_command(plan.base, plan_file, str(process), out, module=WORKER)
                    launch.run_phase(line, out, log, progress, environment(plan.base))
        except KeyboardInterrupt:
            warnings.append(EARLY)
        timings, heads, readings = arms.timing_table(out, processes)
        info = _info(plan, heads, name, command, warnings)
        info.machine.update(clocks.summary(readings))
        return store.save(info, Trace(timings=timings))


def _info(plan: ArmsPlan, heads: list[Head], name: str, command: Sequence[str], warnings: list[str]) -> RunInfo:
    first, base = heads[0], plan.base
    if any(head.nodes != first.nodes for head in heads):
        raise CaptureError(
            "The processes captured graphs of different sizes: close what else uses this GPU, try again."
        )
    marks = {"built-in model"}
    if base.emulated:
        marks.add("emulated ranks")
    if first.scaled:
        marks.add("scaled shapes")
    if first.truncated:
        marks.add("truncated layers")
    nodes = {arm.replace(" ", "_"): str(count) for arm, count in first.nodes.items()}
    if first.declines:
        warnings = [*warnings, f"The candidate stepped back at {len(first.declines)} sites, first {first.declines[0]}."]
    if first.facts.get(SAME_KERNELS):
        warnings = [*warnings, DID_NOT_FIRE]
    return RunInfo(
        name=name,
        command=list(command),
        model=base.model,
        tp=base.tp,
        batch=base.batch,
        context=base.context,
        layers=first.layers,
        device=base.device,
        profiler="none",
        tracing_mode="none",
        paths=dict(base.paths),
        machine=dict(first.machine),
        environment=runinfo.recorded_environment(),
        labels=runinfo.ordered_labels(marks),
        settings=_settings(plan, heads) | {f"nodes_{arm}": count for arm, count in nodes.items()},
        emulated_ranks=base.emulated,
        imported=False,
        world_size=base.processes,
        warnings=warnings,
    )


def _settings(plan: ArmsPlan, heads: list[Head]) -> dict[str, str]:
    if not plan.knockouts:
        return {SETTING: "paths", "candidate": ",".join(f"{site}={path}" for site, path in plan.candidate.items())}
    # Each process measured it for itself.
    cost, alone = (statistics.median(head.facts[name] for head in heads) for name in (DISABLED_NS, ALONE_NS))
    counted = {f"{NODES}{kind}": f"{heads[0].facts[NODES + kind]:.0f}" for kind in plan.knockouts}
    return {KNOCKOUT: ",".join(plan.knockouts), DISABLED_NS: f"{cost:.1f}", ALONE_NS: f"{alone:.0f}", **counted}
