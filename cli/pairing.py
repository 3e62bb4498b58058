"""Pairs of runs from a command line: what `summary`, `ci` and `comment` compare."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from fusionscope.cli.analysing import analysed

if TYPE_CHECKING:
    from fusionscope.analysis.compare import Comparison

RunsArg = Annotated[
    list[str] | None, typer.Argument(metavar="[BASE CANDIDATE...]", help="The run before, and one or more after.")
]
BaseOpt = Annotated[
    list[str] | None,
    typer.Option("--base", metavar="RUN...", help="Runs before, one a batch; each is paired with a --candidate."),
]
CandidateOpt = Annotated[
    list[str] | None, typer.Option("--candidate", metavar="RUN...", help="Runs after, in the order of --base.")
]
TitleOpt = Annotated[str, typer.Option("--title", help="Stands as the heading, before the claim.")]
FailIfOpt = Annotated[
    str,
    typer.Option(
        "--fail-if",
        metavar="GATES",
        help="Fail where one holds of any pair: slower, below-margin, not-measurable, inconclusive, incomparable, "
        "not-fired, launches-grew; separated by commas.",
    ),
]


def references(runs: list[str] | None, base: list[str] | None, candidate: list[str] | None) -> list[tuple[str, str]]:
    """(base, candidate) of each pair. Raises FusionScopeError where the options make none."""
    from fusionscope.analysis.summary_pairs import check_pairs
    from fusionscope.profiler.errors import FusionScopeError

    given = runs or []
    if given and (base or candidate):
        raise FusionScopeError("Give either BASE CANDIDATE or --base and --candidate, not both.")
    return check_pairs(base or given[:1], candidate or given[1:])


def compared(
    pairs: list[tuple[str, str]],
    margin: float,
    store: Path | None,
    rank: int = 0,
    forward: str = "",
    rules: list[Path] | None = None,
    boundary: list[str] | None = None,
    sites: str = "",
) -> list[Comparison]:
    """Each pair, attributed and compared."""
    from fusionscope.analysis.compare import compare

    found = []
    for before_ref, after_ref in pairs:
        # The kind of forward is the base's: the candidate's is the one that is most like it.
        before = analysed(before_ref, store, rank, forward, rules, sites, boundaries=boundary)
        after = analysed(after_ref, store, rank, "", rules, sites, boundaries=boundary)
        found.append(compare(before, after, margin))
    return found
