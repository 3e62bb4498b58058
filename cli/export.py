"""`fusionscope export`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from fusionscope.cli.analysing import analysed
from fusionscope.cli.common import BoundariesOpt, ForwardOpt, JsonOpt, RulesOpt, RunArg, SitesOpt, StoreOpt, open_store

FileOpt = Path | None


def export(
    run: RunArg,
    perfetto: Annotated[FileOpt, typer.Option(metavar="FILE.pftrace", help="A trace for ui.perfetto.dev.")] = None,
    chrome: Annotated[FileOpt, typer.Option(metavar="FILE.json", help="A trace for chrome://tracing.")] = None,
    csv: Annotated[FileOpt, typer.Option(metavar="FOLDER", help="Tables as CSV files.")] = None,
    parquet: Annotated[FileOpt, typer.Option(metavar="FOLDER", help="Tables as Parquet files.")] = None,
    pack: Annotated[
        FileOpt, typer.Option(metavar="FILE", help="The run itself as one .tar or .zip, which every command takes.")
    ] = None,
    rank: Annotated[
        int, typer.Option("--rank", metavar="R", help="This rank alone. Default: every rank.", show_default=False)
    ] = -1,
    store: StoreOpt = None,
    forward: ForwardOpt = "",
    rules: RulesOpt = None,
    boundary: BoundariesOpt = None,
    sites: SitesOpt = "",
    json: JsonOpt = False,
) -> None:
    """Write a run for other tools: boundaries, sites, gaps and roles of every launch, or the run as one file.

    Example: fusionscope export example --perfetto example.pftrace --csv tables
    """
    from fusionscope.cli import output, writing
    from fusionscope.profiler.errors import FusionScopeError
    from fusionscope.profiler.importing import ranks_of
    from fusionscope.profiler.packed import pack as packed

    if not any((perfetto, chrome, csv, parquet, pack)):
        raise FusionScopeError("Say what to write: --perfetto, --chrome, --csv, --parquet or --pack.")
    loaded = open_store(store).load(run)
    if pack:
        packed(loaded.path, pack)
    written = [pack] if pack else []
    if any((perfetto, chrome, csv, parquet)):
        ranks = [rank] if rank >= 0 else ranks_of(loaded.trace)
        sides = [analysed(run, store, one, forward, rules, sites, boundaries=boundary) for one in ranks]
        written += writing.tracks(sides, perfetto, chrome)
        written += writing.tables(sides, csv, parquet)
    if json:
        output.write_json({"run": loaded.info.id, "written": [str(file) for file in written]})
    else:
        for file in written:
            output.line(str(file))
