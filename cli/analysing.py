"""What the analysis commands share: from the options of a command line to an analysed run."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from fusionscope.cli.common import open_store, rule_sources

if TYPE_CHECKING:
    from fusionscope.analysis.analysed import Analysed

MarginOpt = Annotated[
    str,
    typer.Option("--margin", metavar="PART", help="The least saving worth a merge, of the step: 0.5% or 0.005."),
]
RungOpt = Annotated[
    int | None,
    typer.Option(
        "--rung", help="Attribute by this rung alone: 1 graph nodes, 2 ranges, 3 place in the replay, 4 rules by name."
    ),
]
LikeOpt = Annotated[
    str,
    typer.Option(
        "--like",
        metavar="RUN",
        help="A run of the same program whose sites are known: they are taken over by place in the replay (rung 3).",
    ),
]


def analysed(
    ref: str,
    store: str | None,
    rank: int | None,
    forward: str,
    rules: list[Path] | None,
    sites: str,
    rung: int | None = None,
    boundaries: list[str] | None = None,
    like: str = "",
) -> Analysed:
    """Load a run and attribute the forward that the options name; `rank` None is the lowest that was traced."""
    from fusionscope.analysis.analysed import analyse
    from fusionscope.profiler.errors import FusionScopeError

    if rung not in (None, 1, 2, 3, 4):
        raise FusionScopeError(
            f"--rung {rung} does not exist: choose 1 (graph nodes), 2 (ranges), 3 (place) or 4 (rules)."
        )
    opened = open_store(store)
    run, sibling = opened.load(ref), opened.load(like) if like else None
    sources = rule_sources(rules, boundaries)
    return analyse(run, rank=rank, forward=forward or None, rules=sources, sites=sites or None, rung=rung, like=sibling)


def margin_part(text: str) -> float:
    """`0.5%` or `0.005` as a part of the step. Raises FusionScopeError for anything else."""
    from fusionscope.profiler.errors import FusionScopeError

    try:
        value = float(text.removesuffix("%")) / (100 if text.endswith("%") else 1)
    except ValueError:
        value = -1.0
    if not 0 <= value < 1:
        raise FusionScopeError(f"--margin is a part of the step such as 0.5% or 0.005, not {text!r}.")
    return value


def boundary_and_subtype(text: str) -> tuple[str, str]:
    """`mhc_post:ffn_exit` as kind and subtype ("" for all of them); a definition KIND=… as its kind."""
    if "=" in text:
        return text.partition("=")[0].strip(), ""
    kind, _, subtype = text.partition(":")
    return kind, subtype
