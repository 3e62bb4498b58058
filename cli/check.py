"""`fusionscope check`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from fusionscope.cli.analysing import analysed
from fusionscope.cli.common import (
    BoundariesOpt,
    ForwardOpt,
    JsonOpt,
    RulesOpt,
    RunArg,
    SitesOpt,
    StoreOpt,
    emit,
)  # fmt: skip

if TYPE_CHECKING:
    from rich.console import RenderableType

    from fusionscope.analysis.expect import Found


def check(
    run: RunArg,
    expect: Annotated[
        list[str],
        typer.Option(
            "--expect",
            metavar="EXPECTATION",
            help="launches<=1619, replays>=10, memcpy==0, kernel:NAME==46, or KIND[:SUBTYPE]. and sites, fused, split, "
            "declined or launches: mhc_post:ffn_exit.fused==45. May be repeated.",
        ),
    ],
    rank: Annotated[
        int, typer.Option("--rank", metavar="R", help="Check this rank alone. Default: every rank.", show_default=False)
    ] = -1,
    store: StoreOpt = None,
    forward: ForwardOpt = "",
    rules: RulesOpt = None,
    boundary: BoundariesOpt = None,
    sites: SitesOpt = "",
    json: JsonOpt = False,
) -> None:
    """Check exact numbers of a run, which are the same on any machine: exit code 1 where one is not as expected.

    Example: fusionscope check example --expect 'launches<=1629' --expect 'mhc_post.split==90'
    """
    from fusionscope.analysis.expect import found, near, on_every_rank, parse
    from fusionscope.cli import output

    expected = [parse(text) for text in expect]
    side = analysed(run, store, rank if rank >= 0 else None, forward, rules, sites, boundaries=boundary)
    results = [found(one, side) for one in expected] if rank >= 0 else on_every_rank(expected, side)
    holds = all(result.holds for result in results)
    rows = [result.document() for result in results]
    emit(json, {"run": run, "holds": holds, "expectations": rows}, lambda: render(results))
    for what in dict.fromkeys(r.expectation.what for r in results if not r.holds and not r.number):
        if meant := near(what, side):
            output.say(f"No kernel here is called {what.removeprefix('kernel:')}; there are: {', '.join(meant[:5])}.")
    if not holds:
        raise typer.Exit(1)


def render(results: list[Found]) -> RenderableType:
    """Expected and found, for people."""
    from fusionscope.cli import output

    rows = []
    for r in results:
        wanted = f"{r.expectation.sign} {r.expectation.value}"
        rows.append((r.expectation.what, wanted, r.number, r.rank, "yes" if r.holds else "NO"))
    return output.table("", ("what", "expected", "found", "rank", "holds"), rows, right=("expected", "found", "rank"))
