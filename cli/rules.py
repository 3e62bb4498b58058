"""`fusionscope rules check`."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from fusionscope.cli.common import ForwardOpt, JsonOpt, RankOpt, RunArg, StoreOpt, emit

if TYPE_CHECKING:
    from rich.console import RenderableType

    from fusionscope.analysis.rulecheck import Checked


def rules(
    action: Annotated[str, typer.Argument(metavar="check", help="What to do: check.")],
    file: Annotated[str, typer.Argument(metavar="FILE", help="A TOML file with roles and boundaries, or `attention`.")],
    run: RunArg,
    store: StoreOpt = None,
    rank: RankOpt = None,
    forward: ForwardOpt = "",
    json: JsonOpt = False,
) -> None:
    """Try a rules file on a run: sites, the first match, and where a boundary almost matched.

    Exit code 1: a boundary of the file has no sites here, or another number than it expects.

    Example: fusionscope rules check attention example
    """
    from fusionscope.analysis import rulecheck, rulefile
    from fusionscope.cli.analysing import analysed
    from fusionscope.profiler.errors import FusionScopeError

    if action != "check":
        raise FusionScopeError(
            f"`fusionscope rules {action}` does not exist: write `fusionscope rules check FILE RUN`."
        )
    roles, kinds = rulefile.parse(file, rulefile.text_of(file))
    found = analysed(run, store, rank, forward, [Path(file)], "", 4)
    checked = rulecheck.check(found, kinds)
    unused = [role.pattern.pattern for role in rulecheck.unused(found, roles)]
    payload = {
        "rules": file,
        "run": found.info.id,
        "forward": found.forward.kind,
        "boundaries": [c.document() for c in checked],
        "unused_roles": unused,
    }
    emit(json, payload, lambda: render(f"{file} on {found.title}, forward {found.forward.kind}", checked, unused))
    if not all(c.fits for c in checked):
        raise typer.Exit(1)


def render(title: str, checked: list[Checked], unused: list[str]) -> RenderableType:
    """The check for people."""
    from rich.console import Group
    from rich.text import Text

    from fusionscope.analysis.names import short
    from fusionscope.cli import output

    rows: list[tuple[object, ...]] = []
    notes: list[str] = []
    for c in checked:
        expected = "layers?" if c.wants_layers else "" if c.expected is None else c.expected
        at = f"launch {c.first[0][0]}: " if c.first else ""
        rows.append((c.boundary, c.sites, expected, at + ", ".join(r or short(n) for _, r, n in c.first)))
        notes += [_miss(c.boundary, m) for m in c.near]
    if any(c.wants_layers for c in checked):
        notes.append("The run does not say how many layers it has: import it with --set layers=N to check the number.")
    notes += [f"No kernel here has the pattern {pattern!r}." for pattern in unused]
    table: Any = output.table(title, ("boundary", "sites", "expected", "first match"), rows, ("sites", "expected"))
    return Group(table, Text("\n".join(notes))) if notes else table


def _miss(boundary: str, miss: Any) -> str:
    from fusionscope.analysis.names import short

    there = (
        f"{short(miss.found)} ({miss.role or 'no role'}, launch {miss.launch})" if miss.found else "the stream ended"
    )
    return (
        f"{boundary}, {miss.form}: {miss.times} times as wanted up to element {miss.element} ({miss.wanted}), and then "
        f"{there}."
    )
