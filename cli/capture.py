"""`fusionscope capture`."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Annotated, Any

import typer

from fusionscope.cli.common import JsonOpt, StoreOpt, emit, open_store

if TYPE_CHECKING:
    from rich.console import RenderableType

    from fusionscope.analysis.analysed import Analysed
    from fusionscope.profiler.store import Run

#: What the first verdicts suppose of a fused site, and the least saving that is worth a merge.
GUESS = 2.0
MARGIN = 0.005


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

    from fusionscope.analysis.analysed import analyse
    from fusionscope.cli import attribute
    from fusionscope.profiler.errors import FusionScopeError

    where = Text(f"Run {run.info.id} in {run.path}")
    try:
        found = analyse(run)
    except FusionScopeError as error:
        # The run is stored all the same, and that comes first.
        return Group(where, Text(f"It cannot be attributed: {error}"))
    return Group(where, attribute.render(found), Text("\n".join(verdicts(found))))


def verdicts(found: Analysed) -> list[str]:
    """One line for every boundary that the forward has, and the command that takes the user's own numbers."""
    from fusionscope.analysis.estimate import Fused, estimate
    from fusionscope.profiler.errors import FusionScopeError

    guess = Fused(speedup=GUESS, time_ns=None, launches=1, source="guess")
    schedule, wait = found.schedule(), found.wait()
    lines = [f"If every site became one launch that is {GUESS:g} times as fast (a guess):"]
    kinds = [kind for kind, sites in found.attribution.sites.items() if sites]
    for kind in kinds:
        try:
            made = estimate(found.attribution, schedule, kind, "", guess, found.untraced, MARGIN, wait)
        except FusionScopeError as error:
            lines.append(f"  {kind}: no estimate: {error}")
            continue
        lines.append(f"  {kind}: {made.verdict.class_}: {made.verdict.sentence}")
    if not kinds:
        return ["No boundary has a site in this forward."]
    ref = found.info.name or found.info.id
    return [*lines, f"With your own number: fusionscope estimate {ref} --boundary {kinds[0]} --fused-us T"]
