"""`fusionscope import FILE…`."""

from __future__ import annotations

import shlex
import sys
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from fusionscope.cli.capture import payload
from fusionscope.cli.common import JsonOpt, StoreOpt, emit, open_store, settings

if TYPE_CHECKING:
    from rich.console import RenderableType

    from fusionscope.profiler.store import Run


def import_(
    files: Annotated[
        list[str],
        typer.Argument(
            metavar="FILE…",
            help="Traces (docs/formats.md), one file per rank or a folder of them; URLs too; - reads one from stdin. "
            "Or one packed run.",
        ),
    ],
    provenance: Annotated[
        Path | None,
        typer.Option("--provenance", metavar="NODES.json", help="Graph-node ranges of every site, from the capture."),
    ] = None,
    timings: Annotated[
        str | None,
        typer.Option("--timings", metavar="FILE[:ARM]", help="Replay times without a profiler, of one arm."),
    ] = None,
    profiler: Annotated[
        str,
        typer.Option(
            "--profiler",
            metavar="nsys|torch|rocprofv3|…",
            help="Of traces that several profilers recorded, take those of this one.",
        ),
    ] = "",
    model: Annotated[str, typer.Option("--model", metavar="NAME", help="The model that was traced.")] = "",
    tp: Annotated[int | None, typer.Option("--tp", min=1, metavar="N", help="Its tensor-parallel ranks.")] = None,
    batch: Annotated[int | None, typer.Option("--batch", min=1, metavar="B", help="Its batch size.")] = None,
    context: Annotated[int | None, typer.Option("--context", min=1, metavar="C", help="Its context length.")] = None,
    setting: Annotated[
        list[str] | None,
        typer.Option("--set", metavar="KEY=VALUE", help="Anything else worth keeping; may be repeated."),
    ] = None,
    name: Annotated[str, typer.Option("--name", help="A name for the run.")] = "",
    workers: Annotated[
        int | None,
        typer.Option("--workers", min=1, metavar="N", help="Processes that read files. Default: as many as pay."),
    ] = None,
    scheduler: Annotated[
        str,
        typer.Option("--scheduler", metavar="ADDRESS", help="Read on a Dask cluster, as in tcp://host:8786."),
    ] = "",
    store: StoreOpt = None,
    json: JsonOpt = False,
) -> None:
    """Store traces of other tools as a run; several files, or a folder, are one run's ranks.

    A packed run (.tar, .zip; a file or URL) is stored as it is, without its tags.

    Example: fusionscope import split.nsys.sqlite --provenance split.nodes.json --timings untraced.json:split
    """
    from fusionscope.cli import output
    from fusionscope.profiler.errors import FusionScopeError
    from fusionscope.profiler.imported import packed_run, run_info
    from fusionscope.profiler.importing import joined, read_files, recorded_by
    from fusionscope.profiler.inputs import gathered
    from fusionscope.profiler.packed import is_packed
    from fusionscope.profiler.readers.timings import timings_file
    from fusionscope.profiler.recorders import check_recorder
    from fusionscope.profiler.store import check_name

    check_name(name)
    check_recorder(profiler)
    values = settings(setting)
    opened = open_store(store)
    if len(files) == 1 and is_packed(files[0]):
        if provenance or timings or values or profiler or model or tp or batch or context:
            raise FusionScopeError(f"{files[0]} is a packed run, which brings what is known of it: give --name alone.")
        run = packed_run(opened, files[0], name)
        emit(json, payload(run), lambda: render(run))
        return
    with output.progress("reading") as progress, gathered(files) as inputs:
        parts = read_files(inputs.paths, workers=workers, scheduler=scheduler, progress=progress)
        parts, left_out = recorded_by(parts, profiler)
        trace = joined(parts, provenance, timings)
        trace = replace(trace, warnings=(*trace.warnings, *inputs.notes, *left_out))
        beside = [*([provenance] if provenance else []), *([timings_file(timings)] if timings else [])]
        info = run_info(
            [part.file for part in parts],
            trace,
            model=model,
            tp=tp,
            batch=batch,
            context=context,
            settings=values,
            name=name,
            beside=beside,
        )
        info.command = ["fusionscope", *sys.argv[1:]]
        run = opened.save(info, trace)
    for warning in run.info.warnings:
        output.say(f"Warning: {warning}")
    emit(json, payload(run), lambda: render(run))


def render(run: Run) -> RenderableType:
    """Where the run is and what to do next."""
    from rich.text import Text

    labels = ", ".join(run.info.labels) or "none"
    following = shlex.join(["fusionscope", "attribute", run.info.name or run.info.id])
    if run.trace.graph_mode:
        following = (
            "these are replay times without kernels; import a trace recorded with --cuda-graph-trace=node, and this "
            "file beside it with --timings"
        )
    return Text(f"Run {run.info.id} in {run.path}\nLabels: {labels}\nNext: {following}")
