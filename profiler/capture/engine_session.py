"""Somebody's engine from its command to a stored run: under a profiler, all ranks collected, imported."""

from __future__ import annotations

import contextlib
import shutil
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path

import msgspec

from fusionscope.profiler import runinfo
from fusionscope.profiler.capture import gather, nsys, serving
from fusionscope.profiler.capture.engines import CONTEXT, Job, Recipe, recipe
from fusionscope.profiler.capture.follow import Followed, following
from fusionscope.profiler.capture.plan import CaptureError
from fusionscope.profiler.capture.session import terminable
from fusionscope.profiler.capture.wrappers import RANGES, Wrapper, choose
from fusionscope.profiler.errors import FusionScopeError
from fusionscope.profiler.imported import run_info
from fusionscope.profiler.progress import Progress, quiet
from fusionscope.profiler.runinfo import RunInfo
from fusionscope.profiler.store import Run, Store, check_name
from fusionscope.profiler.trace import Trace


@dataclass(frozen=True)
class Asked:
    """What the user asked for: a command, or an engine with a model (then `command` holds more of its options)."""

    command: tuple[str, ...] = ()
    engine: str = ""
    model_path: str = ""
    serve: bool = False
    profiler: str = "auto"
    recorded: str = "auto"
    tp: int = -1
    batch: int = -1
    context: int = -1
    steps: int = 12
    #: Under nsys run everything once more and record whole graphs, for the cost of tracing and untraced times.
    graph_pass: bool = False
    settle_s: float = serving.SETTLE_S


class Interrupted(KeyboardInterrupt):
    """Ctrl-C ended a capture; `run` is what could still be stored, and the message says where the rest lies."""

    def __init__(self, message: str, run: Run | None = None) -> None:
        super().__init__(message)
        self.run = run


@dataclass(frozen=True)
class _Pass:
    """One execution of the command under the profiler, with a folder of its own."""

    asked: Asked
    wrapper: Wrapper
    out: Path
    job: Job | None
    made: Recipe
    #: How nsys records graphs: "node" or "graph".
    mode: str

    @property
    def recorded(self) -> str:
        return self.made.recorded if self.asked.recorded == "auto" else self.asked.recorded

    @property
    def log(self) -> Path:
        return self.out / "output.log"


def run_engine(
    asked: Asked, store: Store, name: str = "", progress: Progress = quiet, command: Sequence[str] = ()
) -> Run:
    """Capture an engine and store the run.

    Raises CaptureError with what went wrong and the folder of what was written, Interrupted after Ctrl-C or SIGTERM:
    then the command's processes have ended, and what they had written is stored where it can be read.
    """
    check_name(name)
    wrapper = choose(asked.profiler)
    once = _prepared(asked, wrapper, _folder(store), "node")
    try:
        failed = _execute(once, progress)
    except KeyboardInterrupt:
        raise _interrupted(once, store, name, command) from None
    progress(0, 0, "reading the traces")
    if failed is not None and not wrapper.files(once.out):
        raise failed
    found = _traces(once)
    notes = [str(failed)] if failed else []
    if asked.graph_pass and wrapper.profiler == "nsys":
        try:
            found, more = _with_graph_pass(found, asked, wrapper, store, progress)
        except KeyboardInterrupt:
            raise _interrupted(once, store, name, command) from None
        notes += more
    run = _save(found, asked, wrapper, store, name, command, notes)
    shutil.rmtree(once.out, ignore_errors=True)
    return run


def _prepared(asked: Asked, wrapper: Wrapper, out: Path, mode: str) -> _Pass:
    try:
        job, made = _recipe(asked, wrapper, out)
    except CaptureError:
        out.rmdir()
        raise
    for file, text in made.files.items():
        (out / file).write_text(text, encoding="utf-8")
    return _Pass(asked, wrapper, out, job, made, mode)


def _execute(once: _Pass, progress: Progress) -> CaptureError | None:
    """Run the command of a pass to its end -> how it failed, if it did."""
    line = once.wrapper.command(
        once.made.command, once.out, once.recorded, repeat=once.made.repeat, mode=once.mode
    )  # fmt: skip
    env = {**once.wrapper.environment(once.out), **once.made.env}
    try:
        with terminable(), following(line, env, once.log, lambda text: progress(0, 0, text[:100])) as child:
            return _run(child, once, lambda text: progress(0, 0, text))
    except CaptureError as error:
        if not once.log.is_file():
            # It was never started.
            shutil.rmtree(once.out, ignore_errors=True)
            raise
        raise CaptureError(f"{error} Its output is in {once.log}.") from error


def _with_graph_pass(
    found: gather.Gathered, asked: Asked, wrapper: Wrapper, store: Store, progress: Progress
) -> tuple[gather.Gathered, list[str]]:
    """The traces with replay times of a second run, recorded as whole graphs; and sentences about what is missing."""
    again = _prepared(asked, wrapper, _folder(store), "graph")
    try:
        failed = _execute(again, progress)
        whole = gather.gather(wrapper.files(again.out)).trace.timings if wrapper.files(again.out) else None
    except FusionScopeError as error:
        return found, [f"The pass of whole graphs failed, so that the cost of tracing is not known: {error}"]
    if whole is None or not len(whole):
        why = f" ({failed})" if failed else ""
        return found, [f"The pass of whole graphs recorded none, so that the cost of tracing is not known{why}."]
    shutil.rmtree(again.out, ignore_errors=True)
    return replace(found, trace=replace(found.trace, timings=whole)), []


def _recipe(asked: Asked, wrapper: Wrapper, out: Path) -> tuple[Job | None, Recipe]:
    numbers = ((asked.tp, "--tp"), (asked.batch, "--batch"), (asked.context, "--context"), (asked.steps, "--replays"))
    for number, option in numbers:
        if number < 1 and (number != -1 or option == "--replays"):
            raise CaptureError(f"{option} must be at least 1, not {number}.")
    if asked.recorded not in RANGES:
        raise CaptureError(f"--range takes one of {', '.join(RANGES)}, not {asked.recorded!r}.")
    if not asked.engine:
        if not asked.command:
            raise CaptureError("There is no command to capture: put it after `--`, or name an --engine.")
        recorded = "all" if wrapper.profiler == "rocprofv3" else "api"
        return None, Recipe(list(asked.command), recorded)
    if not asked.model_path:
        raise CaptureError("--engine needs --model-path: the folder or the name of the model to load.")
    job = Job(
        model_path=asked.model_path,
        tp=max(asked.tp, 1),
        batch=asked.batch if asked.batch > 0 else 1,
        context=asked.context if asked.context > 0 else CONTEXT,
        steps=asked.steps,
        profiler=wrapper.profiler,
        out=out,
        port=serving.free_port(),
        more=asked.command,
    )
    return job, recipe(asked.engine, job, asked.serve)


def _run(child: Followed, once: _Pass, say: Callable[[str], None]) -> CaptureError | None:
    """Run the command to its end -> how it failed, if it did."""
    if once.made.server is not None and once.job is not None:
        written = (lambda: once.wrapper.files(once.out)) if once.wrapper.profiler == "torch" else None
        serving.lead(once.made.server, once.job.port, child.alive, say, written, once.asked.settle_s)
        say("stopping the server")
        child.stop()
        return None
    code = child.wait()
    if code == 0:
        return None
    said = f"; its last line was: {child.last[:300]}" if child.last else ""
    return CaptureError(f"The command ended with code {code}{said}. Its output is in {child.log}.")


def _traces(once: _Pass) -> gather.Gathered:
    files = once.wrapper.files(once.out)
    profiler, advice = once.wrapper.profiler, once.wrapper.nothing(once.recorded)
    if not files:
        raise CaptureError(f"{profiler} left no trace: {advice}. The output of the command is in {once.log}.")
    try:
        found = gather.gather(files, sorted(once.out.glob("marks-*.jsonl")))
    except FusionScopeError as error:
        raise CaptureError(f"{error} What was written is in {once.out}.") from error
    if not len(found.trace.kernels):
        raise CaptureError(f"{profiler} recorded no kernels: {advice}. What was written is in {once.out}.")
    return found


def _save(
    found: gather.Gathered,
    asked: Asked,
    wrapper: Wrapper,
    store: Store,
    name: str,
    command: Sequence[str],
    warnings: list[str],
) -> Run:
    settings = {"engine": asked.engine} if asked.engine else {}
    info: RunInfo = run_info(
        found.files,
        found.trace,
        model=Path(asked.model_path).name,
        tp=asked.tp if asked.tp > 0 else None,
        batch=asked.batch if asked.batch > 0 else None,
        context=asked.context if asked.context > 0 else None,
        settings=settings,
        name=name,
        beside=found.marks,
    )
    machine = dict(info.machine)
    if wrapper.profiler == "nsys" and wrapper.path is not None:
        machine["nsys"] = nsys.version(wrapper.path)
    info = msgspec.structs.replace(
        info,
        command=list(command),
        profiler=wrapper.profiler,
        imported=False,
        machine=machine,
        environment=runinfo.recorded_environment(),
        warnings=[*info.warnings, *warnings],
    )
    trace: Trace = replace(found.trace, warnings=(*found.trace.warnings, *warnings))
    return store.save(info, trace)


def _interrupted(once: _Pass, store: Store, name: str, command: Sequence[str]) -> Interrupted:
    """After Ctrl-C: the run of what was written, or the folder where it lies."""
    warning = "The capture was interrupted: it holds what had been written by then."
    with contextlib.suppress(FusionScopeError, OSError):
        found = _traces(once)
        run = _save(found, once.asked, once.wrapper, store, name, command, [warning])
        shutil.rmtree(once.out, ignore_errors=True)
        return Interrupted(f"{warning} It is stored as {run.info.id}.", run)
    return Interrupted(f"The capture was interrupted. What was written is in {once.out}.")


def _folder(store: Store) -> Path:
    """A folder for the capture's files, which stays where the capture fails."""
    parent = Path(store.root) / "captures"
    try:
        parent.mkdir(parents=True, exist_ok=True)
        stamp = f"{datetime.now(UTC):%Y%m%d-%H%M%S}-"
        return Path(tempfile.mkdtemp(prefix=stamp, dir=parent)).resolve()
    except OSError as error:
        raise CaptureError(f"{store.root} cannot be written ({error.strerror}): name another --store.") from error
