"""`fusionscope suggest`."""

from __future__ import annotations

import shlex
from typing import TYPE_CHECKING, Annotated

import typer

from fusionscope.cli.analysing import analysed
from fusionscope.cli.common import BoundariesOpt, ForwardOpt, JsonOpt, RankOpt, RulesOpt, RunArg, StoreOpt, emit

if TYPE_CHECKING:
    from rich.console import RenderableType

    from fusionscope.analysis.analysed import Analysed
    from fusionscope.analysis.suggest import Suggestion

NONE = "No chain of small kernels repeats between GEMMs and attention."


def suggest(
    run: RunArg,
    limit: Annotated[int, typer.Option("--limit", min=1, help="Chains to show.")] = 10,
    toml: Annotated[bool, typer.Option("--toml", help="Print the chains as a rules file and nothing else.")] = False,
    store: StoreOpt = None,
    rank: RankOpt = None,
    forward: ForwardOpt = "",
    rules: RulesOpt = None,
    boundary: BoundariesOpt = None,
    json: JsonOpt = False,
) -> None:
    """Find chains of small kernels between GEMMs and attention that repeat, ranked by what their end would save.

    Example: fusionscope suggest example --toml > chains.toml
    """
    import sys

    from fusionscope.analysis.suggest import suggest as find
    from fusionscope.profiler.errors import FusionScopeError

    if toml and json:
        raise FusionScopeError("Give either --toml or --json: each prints one document.")
    found = analysed(run, store, rank, forward, rules, "", boundaries=boundary)
    made = find(found, limit)
    if toml:
        sys.stdout.write("\n".join(s.toml for s in made))
        if not made:
            from fusionscope.cli import output

            output.say(NONE)
        return
    step = found.step_ns()
    payload = {
        "run": found.info.id,
        "labels": found.info.labels,
        "step_ns": step,
        "suggestions": [s.document(step) for s in made],
    }
    emit(json, payload, lambda: render(found, made))


def render(found: Analysed, made: list[Suggestion]) -> RenderableType:
    """The chains for people, with the TOML of the first."""
    from rich.console import Group
    from rich.text import Text

    from fusionscope.analysis.names import short
    from fusionscope.analysis.suggest import ADJACENT
    from fusionscope.analysis.verdict import us
    from fusionscope.cli import output

    if not made:
        return Text(NONE)
    step = found.step_ns()
    rows = []
    for place, one in enumerate(made, 1):
        chain = " -> ".join(short(k) for k in one.kernels)
        known = ", ".join(f"{kind} {n}" for kind, n in one.known.items()) or "-"
        ceiling = f"{us(one.ceiling_ns)} ({one.ceiling_ns / step:.2%})" if step else us(one.ceiling_ns)
        rows.append((place, chain, len(one.sites), f"{one.share:.2%}", ceiling, known))
    columns = ("", "chain", "sites", "share", "ceiling", "holds sites of")
    table = output.table(f"{found.title}: {ADJACENT}", columns, rows, right=("", "sites", "share", "ceiling"))
    note = (
        "The ceiling is what the step would gain if the chain cost nothing, not what a fusion saves. As a rules file "
        f"(`fusionscope suggest {shlex.quote(found.title)} --toml`), the first is:"
    )
    # Whole lines whatever the width: a line broken inside a string could not be pasted.
    return Group(table, Text(note), Text(made[0].toml.rstrip(), no_wrap=True, overflow="ignore"))
