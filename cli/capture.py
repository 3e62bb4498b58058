"""`fusionscope capture`."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Annotated, Any

import typer

from fusionscope.cli.common import JsonOpt, StoreOpt, emit, open_store

if TYPE_CHECKING:
    from rich.console import RenderableType

    from fusionscope.profiler.store import Run


def capture(
    model: Annotated[str, typer.Option("--model", metavar="NAME", help="The model: glm-5.3-flash, or tiny.")],
    tp: Annotated[int, typer.Option("--tp", metavar="N", help="Tensor-parallel ranks.")],
    batch: Annotated[int, typer.Option("--batch", metavar="B", help="Sequences that decode together.")] = 4,
    context: Annotated[
        int | None,
        typer.Option("--context", metavar="C", help="Tokens in each sequence's cache. Default: 8192, CPU 1024."),
    ] = None,
    paths: Annotated[
        str | None,
        typer.Option(
            "--paths",
            metavar="BOUNDARY=PATH,…",
            help="How boundaries run, as in mhc_post=triton. Default: $FUSIONSCOPE_PATHS, else split.",
        ),
    ] = None,
    profiler: Annotated[
        str, typer.Option("--profiler", metavar="auto|nsys|cupti|torch", help="What records the replays.")
    ] = "auto",
    device: Annotated[str, typer.Option("--device", metavar="auto|cuda|cpu", help="Where the forward runs.")] = "auto",
    layers: Annotated[
        int | None, typer.Option("--layers", metavar="N", help="Only the first N layers of the model.")
    ] = None,
    replays: Annotated[int, typer.Option("--replays", metavar="K", help="Traced replays that count.")] = 12,
    name: Annotated[str, typer.Option("--name", help="A name for the run.")] = "",
    store: StoreOpt = None,
    json: JsonOpt = False,
) -> None:
    """Trace decode forwards of the built-in model and store them as a run.

    Example: fusionscope capture --model glm-5.3-flash --tp 4
    """
    from fusionscope.cli import output
    from fusionscope.profiler.capture.choose import make_plan
    from fusionscope.profiler.capture.session import run_capture

    plan, notes = make_plan(model, tp, batch, context, paths, profiler, device, layers, replays)
    at_once = sys.stderr.isatty()
    if at_once:
        _say(notes)
    with output.progress("capturing") as progress:
        run = run_capture(plan, open_store(store), name, progress, ["fusionscope", *sys.argv[1:]])
    # To a script stderr is for errors: what was chosen is told there once it is sure that there is none.
    _say([*([] if at_once else notes), *(f"Warning: {text}" for text in run.info.warnings)])
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
