"""`fusionscope capture`."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Annotated, Any

import typer

from fusionscope.cli.common import JsonOpt, StoreOpt, emit, open_store

if TYPE_CHECKING:
    from rich.console import RenderableType

    from fusionscope.profiler.capture.engine_session import Asked
    from fusionscope.profiler.capture.plan import CapturePlan
    from fusionscope.profiler.store import Run


def capture(
    command: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="-- COMMAND…",
            help="Your engine's command, to be run under the profiler; with --engine more options for the engine.",
        ),
    ] = None,
    model: Annotated[
        str, typer.Option("--model", metavar="NAME", help="A built-in model: glm-5.3-flash, deepseek-v3, llama, …")
    ] = "",
    tp: Annotated[int | None, typer.Option("--tp", metavar="N", help="Tensor-parallel ranks.")] = None,
    batch: Annotated[
        int | None,
        typer.Option("--batch", metavar="B", help="Sequences that decode together. Default: 4; engines 1."),
    ] = None,
    context: Annotated[
        int | None,
        typer.Option(
            "--context", metavar="C", help="Tokens in each sequence's cache. Default: 8192, CPU and engines 1024."
        ),
    ] = None,
    engine: Annotated[
        str, typer.Option("--engine", metavar="sglang|vllm|trtllm", help="Run this engine on one batch and trace it.")
    ] = "",
    model_path: Annotated[
        str, typer.Option("--model-path", metavar="M", help="The model that the engine loads: a folder or a name.")
    ] = "",
    serve: Annotated[
        bool, typer.Option("--serve", help="Trace the engine's server under load, not its offline benchmark.")
    ] = False,
    recorded: Annotated[
        str,
        typer.Option(
            "--range",
            metavar="auto|api|all",
            help="Record what lies between the command's profiler start and stop (api), or all of it.",
        ),
    ] = "auto",
    paths: Annotated[
        str | None,
        typer.Option(
            "--paths",
            metavar="BOUNDARY=PATH,…",
            help="How boundaries of the built-in model run: mhc_post=triton. Default: $FUSIONSCOPE_PATHS, else split.",
        ),
    ] = None,
    profiler: Annotated[
        str,
        typer.Option("--profiler", metavar="auto|nsys|cupti|rocprofv3|torch", help="What records the replays."),
    ] = "auto",
    device: Annotated[
        str, typer.Option("--device", metavar="auto|cuda|cpu", help="Where the built-in model runs.")
    ] = "auto",
    layers: Annotated[
        int | None, typer.Option("--layers", metavar="N", help="Only the first N layers of the built-in model.")
    ] = None,
    graph_pass: Annotated[
        bool | None,
        typer.Option(
            "--graph-pass/--no-graph-pass",
            help="Under nsys run once more and record whole graphs: what tracing every kernel adds. Default: for the "
            "built-in model.",
        ),
    ] = None,
    replays: Annotated[int, typer.Option("--replays", metavar="K", help="Traced replays that count.")] = 12,
    name: Annotated[str, typer.Option("--name", help="A name for the run.")] = "",
    store: StoreOpt = None,
    json: JsonOpt = False,
) -> None:
    """Trace decode forwards and store them as a run: of the built-in model, of an engine, or of any command.

    Example: fusionscope capture --model glm-5.3-flash --tp 4
    """
    from fusionscope.profiler.errors import FusionScopeError

    given = [what for what, there in (("--model", model), ("--engine", engine), ("-- COMMAND", command)) if there]
    if not given or (model and len(given) > 1):
        raise FusionScopeError(
            "Say what to capture: --model NAME and --tp N for the built-in model, --engine with --model-path for an "
            "engine, or your own command after `--`."
        )
    if model:
        if tp is None:
            raise FusionScopeError("--model needs --tp: the number of tensor-parallel ranks, as in --tp 4.")
        from fusionscope.profiler.capture.choose import make_plan

        sequences = 4 if batch is None else batch
        planned = make_plan(
            model, tp, sequences, context, paths, profiler, device, layers, replays, graph_pass is not False
        )
        _built_in(*planned, name, store, json)
        return
    from fusionscope.profiler.capture.engine_session import Asked

    asked = Asked(
        command=tuple(command or ()),
        engine=engine,
        model_path=model_path,
        serve=serve,
        profiler=profiler,
        recorded=recorded,
        tp=-1 if tp is None else tp,
        batch=-1 if batch is None else batch,
        context=-1 if context is None else context,
        steps=replays,
        graph_pass=bool(graph_pass),
    )
    _engine(asked, name, store, json)


def _built_in(plan: CapturePlan, notes: list[str], name: str, store: str | None, json: bool) -> None:
    from fusionscope.cli import output
    from fusionscope.profiler.capture.session import run_capture

    at_once = sys.stderr.isatty()
    if at_once:
        _say(notes)
    with output.progress("capturing") as progress:
        run = run_capture(plan, open_store(store), name, progress, ["fusionscope", *sys.argv[1:]])
    # To a script stderr is for errors: what was chosen is told there once it is sure that there is none.
    _say([*([] if at_once else notes), *(f"Warning: {text}" for text in run.info.warnings)])
    emit(json, payload(run), lambda: render(run))


def _engine(asked: Asked, name: str, store: str | None, json: bool) -> None:
    from fusionscope.cli import output
    from fusionscope.profiler.capture.engine_session import Interrupted, run_engine

    try:
        with output.progress("capturing") as progress:
            run = run_engine(asked, open_store(store), name, progress, ["fusionscope", *sys.argv[1:]])
    except Interrupted as stopped:
        _say([str(stopped)])
        raise
    _say([f"Warning: {text}" for text in run.info.warnings])
    emit(json, payload(run), lambda: render(run))


def _say(lines: list[str]) -> None:
    from fusionscope.cli import output

    for line in lines:
        output.say(line)


def payload(run: Run) -> dict[str, Any]:
    """The JSON of `capture` and `import`."""
    return {"run": run.info.id, "path": str(run.path), "labels": run.info.labels}


def render(run: Run) -> RenderableType:
    """What a person sees: where the run is, its boundaries, and a first verdict on each."""
    from rich.console import Group
    from rich.text import Text

    from fusionscope.cli import attribute

    return Group(Text(f"Run {run.info.id} in {run.path}"), attribute.report(run))
