"""A capture from plan to stored run: untraced timings first, then the traced replays, each in processes of its own."""

from __future__ import annotations

import contextlib
import os
import signal
import tempfile
import threading
from collections.abc import Iterator, Sequence
from pathlib import Path
from types import FrameType

from fusionscope.profiler import labels, runinfo
from fusionscope.profiler.capture import collect, launch, messages, nsys, rocprof
from fusionscope.profiler.capture import plan as plans
from fusionscope.profiler.capture.plan import WARMUP_REPLAYS, CaptureError, CapturePlan
from fusionscope.profiler.progress import Progress, quiet
from fusionscope.profiler.runinfo import Decline, RunInfo
from fusionscope.profiler.store import Run, Store, check_name
from fusionscope.profiler.trace import Trace


def run_capture(
    plan: CapturePlan,
    store: Store,
    name: str = "",
    progress: Progress = quiet,
    command: Sequence[str] = (),
) -> Run:
    """Capture and store one run.

    Raises CaptureError with what went wrong; then nothing is stored and no process is left. The same holds for
    Ctrl-C and SIGTERM, which end the capture with KeyboardInterrupt.
    """
    check_name(name)
    nsys_path = nsys.require() if plan.profiler == "nsys" else None
    with (
        terminable(),
        tempfile.TemporaryDirectory(prefix="fusionscope-capture-") as folder,
        logged(store) as log,
    ):
        out = Path(folder)
        plan_file = out / "plan.json"
        plans.write(plan, plan_file)
        env = environment(plan)
        for phase in ("untraced", "traced"):
            prefix = _prefix(plan, nsys_path, out) if phase == "traced" else ()
            line = launch.worker_command(plan, plan_file, phase, out, prefix)
            launch.run_phase(line, out, log, progress, env)
        beside = _graph_pass(plan, nsys_path, plan_file, out, log, progress, env) if nsys_path else None
        if nsys_path:
            for rank in range(plan.processes):
                nsys.check_output(nsys_path, out, rank)
        progress(0, 0, "reading the trace")
        reports = {phase: _reports(plan, out, phase, log) for phase in ("untraced", "traced")}
        trace = collect.trace_of(plan, out, reports, beside)
        info = run_info(plan, reports, trace, name, command)
        if nsys_path:
            info.machine["nsys"] = nsys.version(nsys_path)
        return store.save(info, trace)


def _prefix(plan: CapturePlan, nsys_path: Path | None, out: Path) -> Sequence[str]:
    """What goes before a rank's command in the traced phase."""
    if nsys_path:
        return nsys.prefix(nsys_path, out, plan.processes)
    return rocprof.prefix(rocprof.require(), out, plan.processes) if plan.profiler == "rocprofv3" else ()


def _graph_pass(
    plan: CapturePlan, nsys_path: Path, plan_file: Path, out: Path, log: Path, progress: Progress, env: dict[str, str]
) -> Path | None:
    """The same replays recorded as whole graphs, in processes of their own -> the folder of their traces."""
    if not plan.graph_pass:
        return None
    folder = out / "graph"
    folder.mkdir()
    prefix = nsys.prefix(nsys_path, folder, plan.processes, "graph")
    launch.run_phase(launch.worker_command(plan, plan_file, "graph", folder, prefix), folder, log, progress, env)
    return folder


def _reports(plan: CapturePlan, out: Path, phase: str, log: Path) -> list[messages.Report]:
    paths = [messages.report_path(out, phase, rank) for rank in range(plan.processes)]
    if absent := [path.name for path in paths if not path.is_file()]:
        raise CaptureError(f"The capture ended without {absent[0]}; its output is in {log}.")
    return [messages.read_report(path) for path in paths]


def run_info(
    plan: CapturePlan,
    reports: dict[str, list[messages.Report]],
    trace: Trace,
    name: str,
    command: Sequence[str],
) -> RunInfo:
    """What the run of a capture tells of itself; `reports` are every rank's, by phase; untraced ones can be missing."""
    first = reports["traced"][0]
    facts = {k: v for phase in ("untraced", "traced") for one in reports[phase][:1] for k, v in one.machine.items()}
    marks = {"built-in model"} | labels.trace_labels(trace, plan.processes)
    if plan.device == "cpu":
        marks.add("cpu")
    if plan.emulated:
        marks.add("emulated ranks")
    if first.scaled:
        marks.add("scaled shapes")
    if first.truncated:
        marks.add("truncated layers")
    declines = [
        Decline(boundary=site.boundary, subtype=site.subtype, layer=site.layer, path=site.path, declined=site.declined)
        for site in first.sites
        if site.declined
    ]
    return RunInfo(
        name=name,
        command=list(command),
        model=plan.model,
        tp=plan.tp,
        batch=plan.batch,
        context=plan.context,
        layers=first.layers,
        device=plan.device,
        profiler=plan.profiler,
        tracing_mode="node" if plan.device == "cuda" else "operators",
        paths=dict(plan.paths),
        declines=declines,
        machine=trace.machine | facts,
        environment=runinfo.recorded_environment(),
        labels=runinfo.ordered_labels(marks),
        warmup_replays=WARMUP_REPLAYS,
        emulated_ranks=plan.emulated,
        imported=False,
        world_size=plan.processes,
        warnings=list(trace.warnings),
    )


def environment(plan: CapturePlan) -> dict[str, str]:
    """What workers need beyond the user's environment; what the user has set is kept."""
    wanted = {"PYTHONUNBUFFERED": "1"}
    if plan.device == "cpu":
        # One thread a rank: several ranks share few cores, and a compiler's own worker processes need memory.
        wanted |= {"OMP_NUM_THREADS": "1", "TORCHINDUCTOR_COMPILE_THREADS": "1"}
        if Path("/sys/class/net/lo").exists():
            # The ranks talk within this machine, whatever its host name resolves to.
            wanted["GLOO_SOCKET_IFNAME"] = "lo"
    return {key: value for key, value in wanted.items() if key not in os.environ}


@contextlib.contextmanager
def logged(store: Store) -> Iterator[Path]:
    """A new log in the store, which stays where something goes wrong: Ctrl-C is nothing to look into.

    Raises CaptureError where it cannot be written.
    """
    log = _log_file(store)
    try:
        yield log
    except Exception:
        raise
    except BaseException:
        log.unlink(missing_ok=True)
        raise
    else:
        with contextlib.suppress(OSError):
            log.unlink()


def _log_file(store: Store) -> Path:
    folder = store.root / "logs"
    try:
        folder.mkdir(parents=True, exist_ok=True)
        handle, path = tempfile.mkstemp(prefix="capture-", suffix=".log", dir=folder)
    except OSError as error:
        raise CaptureError(f"{store.root} cannot be written ({error.strerror}): name another --store.") from error
    os.close(handle)
    return Path(path)


@contextlib.contextmanager
def terminable() -> Iterator[None]:
    """SIGTERM ends a capture as Ctrl-C does, so that workers and temporary files are cleared away."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    def interrupt(number: int, frame: FrameType | None) -> None:
        raise KeyboardInterrupt

    before = signal.signal(signal.SIGTERM, interrupt)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)
