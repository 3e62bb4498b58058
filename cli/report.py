"""`fusionscope report`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from fusionscope.cli.analysing import MarginOpt, analysed, margin_part
from fusionscope.cli.common import BoundariesOpt, ForwardOpt, JsonOpt, RankOpt, RulesOpt, RunArg, SitesOpt, StoreOpt


def report(
    run: RunArg,
    html: Annotated[Path, typer.Option("--html", metavar="FILE", help="The file to write.")],
    candidate: Annotated[str, typer.Argument(metavar="[CANDIDATE]", help="The run after, for a report of both.")] = "",
    title: Annotated[str, typer.Option("--title", help="Stands as the heading, before the claim.")] = "",
    margin: MarginOpt = "0.5%",
    store: StoreOpt = None,
    rank: RankOpt = None,
    forward: ForwardOpt = "",
    rules: RulesOpt = None,
    boundary: BoundariesOpt = None,
    sites: SitesOpt = "",
    json: JsonOpt = False,
) -> None:
    """Write a run, or two runs beside each other, as one HTML file with plots that loads nothing.

    Example: fusionscope report example example-fused --html report.html
    """
    from fusionscope.analysis.compare import compare
    from fusionscope.analysis.summary import Options
    from fusionscope.cli import output, writing
    from fusionscope.dashboard import report as pages

    part = margin_part(margin)
    before = analysed(run, store, rank, forward, rules, sites, boundaries=boundary)
    if candidate:
        after = analysed(candidate, store, before.forward.rank, "", rules, sites, boundaries=boundary)
        text = pages.of_pair(compare(before, after, part), Options(part, title, output.command_line()))
    else:
        text = pages.of_run(before)
    writing.write(html, text.encode())
    if json:
        output.write_json({"run": before.info.id, "written": str(html)})
    else:
        output.line(str(html))
