"""`fusionscope summary`."""

from __future__ import annotations

from typing import Annotated

import typer

from fusionscope.cli.analysing import MarginOpt, analysed, margin_part
from fusionscope.cli.common import BoundariesOpt, ForwardOpt, JsonOpt, RankOpt, RulesOpt, SitesOpt, StoreOpt
from fusionscope.cli.variadic import Variadic


class COMMAND(Variadic):
    """The class of this command."""

    several = ("--base", "--candidate")


def summary(
    runs: Annotated[
        list[str] | None, typer.Argument(metavar="[BASE CANDIDATE...]", help="The run before, and one or more after.")
    ] = None,
    base: Annotated[
        list[str] | None,
        typer.Option("--base", metavar="RUN...", help="Runs before, one a batch; each is paired with a --candidate."),
    ] = None,
    candidate: Annotated[
        list[str] | None, typer.Option("--candidate", metavar="RUN...", help="Runs after, in the order of --base.")
    ] = None,
    format: Annotated[str, typer.Option("--format", help="md, html or json.")] = "md",
    title: Annotated[str, typer.Option("--title", help="Stands as the heading, before the claim.")] = "",
    fail_if: Annotated[
        str,
        typer.Option(
            "--fail-if",
            metavar="GATES",
            help="Fail where one holds of any pair: slower, below-margin, not-measurable, inconclusive, incomparable, "
            "not-fired, launches-grew; separated by commas.",
        ),
    ] = "",
    margin: MarginOpt = "0.5%",
    store: StoreOpt = None,
    rank: RankOpt = 0,
    forward: ForwardOpt = "",
    rules: RulesOpt = None,
    boundary: BoundariesOpt = None,
    sites: SitesOpt = "",
    json: JsonOpt = False,
) -> None:
    """Write the text of a pull request from two runs, before and after the fusion, or from pairs of them.

    Exit codes: 1 where a gate of --fail-if holds (2 for incomparable).

    Example: fusionscope summary example example-fused --fail-if slower,not-fired > summary.md
    """
    import sys

    from fusionscope.analysis.compare import compare
    from fusionscope.analysis.gates import Gates
    from fusionscope.analysis.summary import FORMATS, Options, written
    from fusionscope.analysis.summary_pairs import check_pairs
    from fusionscope.cli import output
    from fusionscope.profiler.errors import FusionScopeError

    if format not in FORMATS:
        raise FusionScopeError(f"--format {format} is not known: choose {', '.join(FORMATS)}.")
    gates = Gates.of(fail_if)
    part = margin_part(margin)
    given = runs or []
    if given and (base or candidate):
        raise FusionScopeError("Give either BASE CANDIDATE or --base and --candidate, not both.")
    found = []
    for before_ref, after_ref in check_pairs(base or given[:1], candidate or given[1:]):
        # The kind of forward is the base's: the candidate's is the one that is most like it.
        before = analysed(before_ref, store, rank, forward, rules, sites, boundaries=boundary)
        after = analysed(after_ref, store, rank, "", rules, sites, boundaries=boundary)
        found.append(compare(before, after, part))
    options = Options(part, title, command=output.command_line())
    outcome = gates.of_pairs(found, part)
    if json or format == "json":
        output.write_json(written(found, options, "json", outcome))
    else:
        # Plain text, not through a console: wrapped lines would break the Markdown.
        sys.stdout.write(str(written(found, options, format, outcome)))
    for sentence in outcome.sentences:
        output.say(sentence)
    if outcome.exit_code:
        raise typer.Exit(outcome.exit_code)
