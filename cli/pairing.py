"""Pairs of runs from a command line: what `summary`, `ci` and `comment` compare."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from fusionscope.cli.analysing import analysed
from fusionscope.cli.common import open_store

if TYPE_CHECKING:
    from fusionscope.analysis.compare import Comparison
    from fusionscope.analysis.serving import Serving

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


ServingBaseOpt = Annotated[
    list[Path] | None,
    typer.Option("--serving-base", metavar="F...", help="Serving results before (bench_serving, vllm bench serve)."),
]
ServingCandidateOpt = Annotated[
    list[Path] | None, typer.Option("--serving-candidate", metavar="F...", help="Serving results after.")
]
ControlsOpt = Annotated[
    str, typer.Option("--controls", metavar="N,N", help="Concurrencies at which the fusion cannot fire.")
]
AccuracyOpt = Annotated[
    list[str] | None,
    typer.Option("--accuracy", metavar="NAME=A,B", help="gsm8k=0.967/1319,0.969/1319, or two files of answers."),
]
AbOpt = Annotated[
    list[str] | None,
    typer.Option("--ab", metavar="RUN...", help="Runs of `fusionscope ab` whose times decide, one a pair."),
]
#: Options of these commands that take several values at once.
SEVERAL = ("--base", "--candidate", "--ab", "--serving-base", "--serving-candidate")


def references(
    runs: list[str] | None, base: list[str] | None, candidate: list[str] | None
) -> tuple[list[str], list[str]]:
    """The runs before and the runs after. Raises FusionScopeError where one side is missing."""
    from fusionscope.profiler.errors import FusionScopeError

    given = runs or []
    if given and (base or candidate):
        raise FusionScopeError("Give either BASE CANDIDATE or --base and --candidate, not both.")
    before, after = base or given[:1], candidate or given[1:]
    if not before or not after:
        raise FusionScopeError("Give the run before and at least one after: BASE CANDIDATE, or --base and --candidate.")
    return before, after


def compared(
    base: list[str],
    candidate: list[str],
    margin: float,
    store: str | None,
    rank: int | None = None,
    forward: str = "",
    rules: list[Path] | None = None,
    boundary: list[str] | None = None,
    sites: str = "",
    ab: list[str] | None = None,
) -> list[Comparison]:
    """Each run before with its run after (by batch; one before serves all), attributed and compared.

    Several captures of the same two programs are one comparison.

    `ab` are runs of measured arms, in the order of the pairs. Raises FusionScopeError for another number of them.
    """
    from fusionscope.analysis.batches import captures_of, pair
    from fusionscope.analysis.compare import compare
    from fusionscope.analysis.measured_ab import with_ab
    from fusionscope.profiler.errors import FusionScopeError

    # The kind of forward is the base's: the candidate's is the one that is most like it.
    before = [analysed(ref, store, rank, forward, rules, sites, boundaries=boundary) for ref in base]
    same = before[0].forward.rank
    after = [analysed(ref, store, same, "", rules, sites, boundaries=boundary) for ref in candidate]
    # Runs of one batch that are the same two programs are several captures of each, and one comparison.
    groups = [tuple(zip(*group, strict=True)) for group in captures_of(pair(before, after))]
    found = [compare(b[0], c[0], margin, (b[1:], c[1:])) for b, c in groups]
    if ab and len(ab) != len(found):
        raise FusionScopeError(f"--ab names {len(ab)} runs for {len(found)} pairs: give one a pair, in their order.")
    return [with_ab(one, open_store(store).load(ref)) for one, ref in zip(found, ab, strict=True)] if ab else found


def served(
    base: list[Path] | None, candidate: list[Path] | None, controls: str, pairs: list[Comparison], margin: float
) -> Serving | None:
    """Serving results of both sides beside what the pairs foretell; None without any.

    Raises FusionScopeError where one side is missing or a file cannot be read.
    """
    from fusionscope.analysis.serving import serving
    from fusionscope.analysis.serving_forecast import control_batches, step_savings
    from fusionscope.cli.serving import numbers
    from fusionscope.profiler.errors import FusionScopeError
    from fusionscope.profiler.readers.serving_json import read_serving

    if not base and not candidate:
        return None
    if not base or not candidate:
        raise FusionScopeError("Give serving results of both sides: --serving-base F… and --serving-candidate F….")
    off = numbers(controls) | control_batches(pairs)
    return serving(read_serving(base), read_serving(candidate), step_savings(pairs, margin), None, off)
