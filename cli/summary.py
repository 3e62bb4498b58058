"""`fusionscope summary`."""

from __future__ import annotations

from typing import Annotated

import typer

from fusionscope.cli.analysing import MarginOpt, margin_part
from fusionscope.cli.common import BoundariesOpt, ForwardOpt, JsonOpt, RankOpt, RulesOpt, SitesOpt, StoreOpt
from fusionscope.cli.pairing import (
    SEVERAL,
    AbOpt,
    AccuracyOpt,
    BaseOpt,
    CandidateOpt,
    ControlsOpt,
    FailIfOpt,
    RunsArg,
    ServingBaseOpt,
    ServingCandidateOpt,
    TitleOpt,
    compared,
    references,
    served,
)  # fmt: skip
from fusionscope.cli.variadic import Variadic


class COMMAND(Variadic):
    """The class of this command."""

    several = SEVERAL


def summary(
    runs: RunsArg = None,
    base: BaseOpt = None,
    candidate: CandidateOpt = None,
    format: Annotated[str, typer.Option("--format", help="md, html or json.")] = "md",
    title: TitleOpt = "",
    fail_if: FailIfOpt = "",
    ab: AbOpt = None,
    serving_base: ServingBaseOpt = None,
    serving_candidate: ServingCandidateOpt = None,
    controls: ControlsOpt = "",
    accuracy: AccuracyOpt = None,
    margin: MarginOpt = "0.5%",
    store: StoreOpt = None,
    rank: RankOpt = None,
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

    from fusionscope.analysis.accuracy import parse
    from fusionscope.analysis.gates import Gates
    from fusionscope.analysis.summary import FORMATS, Options, written
    from fusionscope.cli import output
    from fusionscope.profiler.errors import FusionScopeError

    if format not in FORMATS:
        raise FusionScopeError(f"--format {format} is not known: choose {', '.join(FORMATS)}.")
    gates = Gates.of(fail_if)
    part = margin_part(margin)
    found = compared(*references(runs, base, candidate), part, store, rank, forward, rules, boundary, sites, ab)
    serving = served(serving_base, serving_candidate, controls, found, part)
    scores = tuple(parse(text) for text in accuracy or [])
    options = Options(part, title, output.command_line(), serving, scores)
    outcome = gates.of_pairs(found, part, serving)
    if json or format == "json":
        output.write_json(written(found, options, "json", outcome))
    else:
        # Plain text, not through a console: wrapped lines would break the Markdown.
        sys.stdout.write(str(written(found, options, format, outcome)))
    for sentence in outcome.sentences:
        output.say(sentence)
    if outcome.exit_code:
        raise typer.Exit(outcome.exit_code)
