"""`fusionscope ab`."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Annotated, Any

import typer

from fusionscope.cli.analysing import MarginOpt, margin_part
from fusionscope.cli.common import JsonOpt, StoreOpt, emit, open_store

if TYPE_CHECKING:
    from rich.console import RenderableType

    from fusionscope.analysis.ab import Comparison
    from fusionscope.profiler.store import Run, Store


def ab(
    commands: Annotated[
        list[str] | None,
        typer.Argument(metavar="-- A… -- B…", help="Two commands; each prints its times, one number a line."),
    ] = None,
    model: Annotated[str, typer.Option("--model", metavar="NAME", help="A built-in model, in place of commands.")] = "",
    tp: Annotated[int, typer.Option("--tp", metavar="N", help="Tensor-parallel ranks.")] = 4,
    base: Annotated[str, typer.Option("--base", metavar="PATHS", help="Paths of the base: split, or as --paths.")] = "",
    candidate: Annotated[
        str, typer.Option("--candidate", metavar="BOUNDARY=PATH,…", help="Paths of the candidate.")
    ] = "",
    batch: Annotated[int, typer.Option("--batch", metavar="B", help="Sequences that decode together.")] = 4,
    context: Annotated[int | None, typer.Option("--context", metavar="C", help="Tokens in each cache.")] = None,
    layers: Annotated[int | None, typer.Option("--layers", metavar="N", help="Only the first N layers.")] = None,
    processes: Annotated[
        int, typer.Option("--processes", min=1, help="Processes, since processes differ (not with two commands).")
    ] = 3,
    blocks: Annotated[int, typer.Option("--blocks", min=1, help="Blocks, in each process.")] = 12,
    replays: Annotated[int, typer.Option("--replays", min=1, help="Timed replays in each turn of a block.")] = 5,
    captures: Annotated[
        int, typer.Option("--captures", min=2, help="Captures of each arm in a process, since captures differ.")
    ] = 4,
    seconds: Annotated[
        float, typer.Option("--seconds", min=0, help="Start no block after so long in a process; 0: no limit.")
    ] = 0,
    unit: Annotated[str, typer.Option("--unit", help="Unit of what the commands print: ns, us, ms or s.")] = "us",
    margin: MarginOpt = "0.5%",
    run: Annotated[str, typer.Option("--run", metavar="RUN", help="Judge a stored measurement again.")] = "",
    name: Annotated[str, typer.Option("--name", help="A name for the run.")] = "",
    store: StoreOpt = None,
    json: JsonOpt = False,
) -> None:
    """Measure two arms in ABBA blocks with an A/A arm, and judge the difference.

    Example: fusionscope ab --model glm-5.3-flash --tp 4 --base split --candidate mhc_post=triton

    Example: fusionscope ab --blocks 8 -- ./bench --old -- ./bench --new
    """
    from fusionscope.analysis import ab as analysis
    from fusionscope.profiler.errors import FusionScopeError

    part = margin_part(margin)
    chosen = [bool(commands), bool(model), bool(run)]
    if sum(chosen) != 1:
        raise FusionScopeError("Give either two commands (ab -- A -- B), or --model with --candidate, or --run RUN.")
    opened = open_store(store)
    if run:
        made = opened.load(run)
    elif commands:
        made = _commands(commands, blocks, unit, opened, name)
    else:
        made = _model(
            model, tp, base, candidate, batch, context, layers, processes, blocks, replays, seconds, captures, opened,
            name,
        )  # fmt: skip
    kind = made.info.settings.get("ab", "")
    if not kind:
        raise FusionScopeError(f"{made.info.id} holds no two arms: `fusionscope ab` makes such a run.")
    try:
        found = analysis.compare(made.trace.timings, part, paired_processes=kind == "paths")
    except FusionScopeError as error:
        raise FusionScopeError(f"{error} What was measured is kept as run {made.info.id}.") from error
    emit(json, payload(made, found), lambda: render(made, found))


def _model(
    model: str, tp: int, base: str, candidate: str, batch: int, context: int | None, layers: int | None,
    processes: int, blocks: int, replays: int, seconds: float, captures: int, store: Store, name: str,
) -> Run:  # fmt: skip
    from fusionscope.cli import output
    from fusionscope.profiler.capture.arms_plan import make_arms_plan
    from fusionscope.profiler.capture.arms_session import run_arms

    plan, notes = make_arms_plan(
        model, tp, base, candidate, batch, context, layers, blocks=blocks, replays=replays, seconds=seconds,
        captures=captures,
    )  # fmt: skip
    for line in notes:
        output.say(line)
    with output.progress("measuring") as progress:
        return run_arms(plan, processes, store, name, progress, ["fusionscope", *sys.argv[1:]])


def _commands(words: list[str], blocks: int, unit: str, store: Store, name: str) -> Run:
    from fusionscope.cli import output
    from fusionscope.profiler.capture import commands

    first, second = commands.split_commands(words)
    with output.progress("measuring") as progress:
        return commands.run_and_store(
            first, second, blocks, unit, store, name, progress, ["fusionscope", *sys.argv[1:]]
        )


def payload(made: Run, found: Comparison) -> dict[str, Any]:
    """The JSON of `ab`."""
    from fusionscope.profiler.capture.arms import DID_NOT_FIRE

    info = made.info
    return {
        "run": info.id,
        "path": str(made.path),
        "labels": info.labels,
        "settings": info.settings,
        "clocks": {k: v for k, v in info.machine.items() if k.endswith("_measured")},
        "fired": DID_NOT_FIRE not in info.warnings,
        "warnings": info.warnings,
        **found.document(),
    }


def render(made: Run, found: Comparison) -> RenderableType:
    """The same for people."""
    from rich.console import Group
    from rich.text import Text

    from fusionscope.analysis.verdict import us
    from fusionscope.cli import output
    from fusionscope.profiler.capture.arms import DID_NOT_FIRE

    info, saving = made.info, found.saving
    low, high = saving.interval_ns
    apart = "" if saving.processes == 1 else "es"
    processes = ", each turn a process" if info.settings["ab"] == "commands" else f", {saving.processes} process{apart}"
    rows: list[tuple[str, object]] = [
        ("base", us(found.base_ns)),
        ("candidate", us(found.candidate_ns)),
        ("saving", f"{us(saving.value_ns)} [{us(low)}, {us(high)}] ({saving.value_ns / found.base_ns:.2%})"),
        ("measured in", output.counted(saving.blocks, "block") + processes),
    ]
    counted = {"blocks": "blocks", "captures": "captures", "processes": "processes"}[saving.unit]
    rows.append(("the interval counts", counted))
    if found.captures is not None:
        rows.append(("captures of each arm", found.captures))
    if found.control is not None:
        at, to = found.control.interval_ns
        rows.append(("base against itself", f"{us(found.control.value_ns)} [{us(at)}, {us(to)}]"))
    if found.mde_ns is not None:
        rows.append(("noise floor (MDE)", f"{us(found.mde_ns)} ({found.mde_ns / found.base_ns:.2%})"))
    counts = [info.settings.get(f"nodes_{arm}") for arm in ("base", "candidate")]
    if None not in counts:
        rows.append(("graph nodes", f"{counts[0]} and {counts[1]}"))
    rows += [
        (k.removesuffix("_measured").replace("_", " "), v) for k, v in info.machine.items() if k.endswith("_measured")
    ]
    answer = f"{found.verdict.class_}: {found.verdict.sentence}\nTo quote: {found.verdict.quote}"
    return Group(
        Text(f"Run {info.id} in {made.path}"),
        output.pairs(", ".join(info.labels) or "Two commands", rows),
        *([] if DID_NOT_FIRE in info.warnings else [Text(answer)]),
        *(Text(f"Warning: {text}") for text in info.warnings),
    )
