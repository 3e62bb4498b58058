"""`fusionscope knockout`."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Annotated, Any

import typer

from fusionscope.cli.common import JsonOpt, StoreOpt, emit, open_store

if TYPE_CHECKING:
    from rich.console import RenderableType

    from fusionscope.analysis.knockout import Ceiling
    from fusionscope.profiler.store import Run, Store


#: A step that takes so much longer beside its copies than before there were any is told of.
SLOWED = 0.02


def knockout(
    what: Annotated[str, typer.Argument(metavar="RUN|MODEL", help="A run of the built-in model, or a model's name.")],
    boundary: Annotated[
        list[str] | None,
        typer.Option("--boundary", metavar="KIND[:SUBTYPE]", help="What to disable; repeatable. Default: each kind."),
    ] = None,
    tp: Annotated[int, typer.Option("--tp", metavar="N", help="Tensor-parallel ranks, with a model's name.")] = 4,
    batch: Annotated[int, typer.Option("--batch", metavar="B", help="Sequences, with a model's name.")] = 4,
    context: Annotated[int | None, typer.Option("--context", metavar="C", help="Tokens in each cache.")] = None,
    layers: Annotated[int | None, typer.Option("--layers", metavar="N", help="Only the first N layers.")] = None,
    paths: Annotated[str, typer.Option("--paths", metavar="BOUNDARY=PATH,…", help="How boundaries run.")] = "",
    processes: Annotated[int, typer.Option("--processes", min=1, help="Processes, since processes differ.")] = 2,
    blocks: Annotated[int, typer.Option("--blocks", min=1, help="Blocks, in each process.")] = 8,
    replays: Annotated[int, typer.Option("--replays", min=1, help="Timed replays in each turn of a block.")] = 4,
    name: Annotated[str, typer.Option("--name", help="A name for the run.")] = "",
    store: StoreOpt = None,
    json: JsonOpt = False,
) -> None:
    """Disable a boundary's nodes on a copy of the live graph: the true ceiling of any fusion of it.

    Example: fusionscope knockout glm-5.3-flash --tp 4 --boundary mhc_post
    """
    opened = open_store(store)
    asked = (tp, batch, context, layers, paths)
    made = _measure(what, boundary or [], asked, processes, blocks, replays, opened, name)
    found = _ceilings(made)
    emit(json, payload(made, found), lambda: render(made, found))


def _measure(
    what: str, boundaries: list[str], asked: tuple[Any, ...], processes: int, blocks: int, replays: int,
    store: Store, name: str,
) -> Run:  # fmt: skip
    from fusionscope.cli import output
    from fusionscope.profiler.capture.arms_plan import make_knockout_plan, shape_of_run
    from fusionscope.profiler.capture.arms_session import run_arms

    model, (tp, batch, context, layers, paths) = shape_of_run(what, asked, store)
    plan, notes = make_knockout_plan(
        model, tp, boundaries, batch, context, layers, paths, blocks=blocks, replays=replays
    )
    for line in notes:
        output.say(line)
    with output.progress("measuring") as progress:
        return run_arms(plan, processes, store, name, progress, ["fusionscope", *sys.argv[1:]])


def _ceilings(made: Run) -> list[Ceiling]:
    from fusionscope.analysis.knockout import ceilings

    settings = made.info.settings
    nodes = {kind: int(settings[f"nodes {kind}"]) for kind in settings["knockout"].split(",")}
    return ceilings(made.trace.timings, nodes, float(settings["disabled_node_ns"]))


def payload(made: Run, found: list[Ceiling]) -> dict[str, Any]:
    """The JSON of `knockout`."""
    info = made.info
    return {
        "run": info.id,
        "path": str(made.path),
        "labels": info.labels,
        "step_ns": found[0].step_ns,
        "step_alone_ns": _alone(made),
        "disabled_node_ns": float(info.settings["disabled_node_ns"]),
        "clocks": {k: v for k, v in info.machine.items() if k.endswith("_measured")},
        "warnings": [*info.warnings, *_slowed(made, found)],
        "boundaries": [row.document() for row in found],
    }


def _alone(made: Run) -> float | None:
    """The base's time before there were copies of it, ns; None of a run that was stored without it."""
    alone = made.info.settings.get("alone_ns")
    return None if alone is None else float(alone)


def _slowed(made: Run, found: list[Ceiling]) -> list[str]:
    """A sentence where the step is slower beside its copies than alone."""
    from fusionscope.analysis.verdict import us

    alone, step = _alone(made), found[0].step_ns
    if alone is None or step <= (1 + SLOWED) * alone:
        return []
    return [
        f"Beside its copies the step takes {us(step)}, and {us(alone)} before there were any: the GPU launches each "
        "node later then, and the gains are those of that slower step, so that they are too large. Run it again."
    ]


def render(made: Run, found: list[Ceiling]) -> RenderableType:
    """The same for people."""
    from rich.console import Group
    from rich.text import Text

    from fusionscope.analysis.verdict import us
    from fusionscope.cli import output

    info = made.info
    rows = []
    for row in found:
        low, high = row.raw.interval_ns
        rows.append((
            row.boundary, row.nodes, f"{us(row.raw.value_ns)} [{us(low)}, {us(high)}]", us(row.corrected_ns),
            f"{row.corrected_ns / row.step_ns:.2%}",
        ))  # fmt: skip
    columns = ("boundary", "nodes disabled", "raw [95 %]", "corrected", "of the step")
    cost = us(float(info.settings["disabled_node_ns"]))
    note = (
        f"Step {us(found[0].step_ns)} with everything. The raw gain is a lower bound of the ceiling, as a disabled "
        f"node still costs {cost} (measured in the same process); corrected adds that for every node."
    )
    return Group(
        Text(f"Run {info.id} in {made.path}"),
        output.table(", ".join(info.labels), columns, rows, right=columns[1:]),
        Text(note),
        *(Text(f"Warning: {text}") for text in [*info.warnings, *_slowed(made, found)]),
    )
