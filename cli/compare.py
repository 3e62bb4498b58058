"""`fusionscope compare`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import typer

from fusionscope.cli.analysing import MarginOpt, margin_part
from fusionscope.cli.common import (
    BoundariesOpt,
    ForwardOpt,
    JsonOpt,
    RankOpt,
    RulesOpt,
    SitesOpt,
    StoreOpt,
    emit,
)
from fusionscope.cli.pairing import AbOpt, compared
from fusionscope.cli.variadic import Variadic

if TYPE_CHECKING:
    from rich.console import RenderableType

    from fusionscope.analysis.batches import BatchRow, Gate
    from fusionscope.analysis.compare import Comparison


class COMMAND(Variadic):
    """The class of this command."""

    several = ("--base", "--candidate", "--ab")


def compare(
    runs: Annotated[
        list[str] | None, typer.Argument(metavar="[BASE CANDIDATE]", help="The run before and the run after.")
    ] = None,
    base: Annotated[
        list[str] | None, typer.Option("--base", metavar="RUN...", help="Runs before: batches, or captures of one.")
    ] = None,
    candidate: Annotated[
        list[str] | None, typer.Option("--candidate", metavar="RUN...", help="Runs after, as many.")
    ] = None,
    ab: AbOpt = None,
    margin: MarginOpt = "0.5%",
    store: StoreOpt = None,
    rank: RankOpt = None,
    forward: ForwardOpt = "",
    rules: RulesOpt = None,
    boundary: BoundariesOpt = None,
    sites: SitesOpt = "",
    json: JsonOpt = False,
) -> None:
    """Compare two runs: first whether the fusion fired, then what it changed, boundary by boundary.

    With several runs on either side they are paired by batch, and a gate says up to how many tokens to fuse. Several
    runs of one batch are several captures, which a measurement takes.

    Example: fusionscope compare split fused
    """
    from fusionscope.analysis.batches import gate, rows_of
    from fusionscope.analysis.compare_document import document
    from fusionscope.profiler.errors import FusionScopeError

    given = runs or []
    if bool(given) == bool(base or candidate) or (given and len(given) != 2):
        raise FusionScopeError("Give either BASE CANDIDATE, or --base B1 B4… and --candidate C1 C4….")
    part = margin_part(margin)
    before, after = base or given[:1], candidate or given[1:]
    found = compared(before, after, part, store, rank, forward, rules, boundary, sites, ab)
    if len(found) == 1:
        emit(json, document(found[0]), lambda: render(found[0]))
        return
    rows = rows_of(found, part)
    decided = gate(rows)
    payload = {
        "pairs": [document(one) for one in found],
        "batches": [row.document() for row in rows],
        "gate": decided.document(),
    }
    emit(json, payload, lambda: render_batches(rows, decided))


def render_batches(rows: list[BatchRow], decided: Gate) -> RenderableType:
    """One row a batch, and the gate."""
    from rich.console import Group
    from rich.text import Text

    from fusionscope.analysis.verdict import us
    from fusionscope.cli import output

    columns = ("batch", "graph", "tokens", "launches", "step", "saving [95 %]", "of the step", "verdict", "")
    cells = []
    for row in rows:
        saving, part = "-", "-"
        if row.saving_ns is not None and row.interval_ns is not None:
            saving = f"{us(row.saving_ns)} [{us(row.interval_ns[0])}, {us(row.interval_ns[1])}]"
            part = f"{row.saving_ns / row.step_ns:.2%}" if row.step_ns else "-"
        verdict = f"{row.verdict.class_}" if row.verdict else row.state
        kind = row.verdict.kind if row.verdict else ""
        cells.append(
            (row.batch or "-", row.padded or "-", row.tokens or "-", f"{row.launches[0]:,} -> {row.launches[1]:,}",
             us(row.step_ns), saving, part, verdict, kind)
        )  # fmt: skip
    table = output.table("Batches", columns, cells, right=columns[:7])
    lines = [decided.sentence]
    if decided.control_part is not None:
        lines.append(
            f"Controls: where both sides run the same kernels they differ by up to {decided.control_part:.2%}."
        )
    return Group(table, Text("\n".join(lines)))


def render(found: Comparison) -> RenderableType:
    """The comparison for people."""
    import numpy as np
    from rich.console import Group
    from rich.text import Text

    from fusionscope.analysis.blocks import plain
    from fusionscope.analysis.compare_document import quote_of, ranks_document
    from fusionscope.analysis.names import distinct, short
    from fusionscope.analysis.summary_lines import differences
    from fusionscope.cli import output

    us = output.microseconds
    fired = found.fired
    if fired is not None:
        first = f"{fired.boundary} fired at {fired.told()}."
    elif found.same_sequence:
        first = "Did not fire: both runs launch the same kernels in the same order."
    else:
        first = "No known boundary takes fewer launches in the candidate."
    lines = [first]
    for word, fields in (("Not comparable, so no time is judged", found.incomparable), ("Doubtful", found.doubts)):
        if fields:
            lines.append(f"{word}: {', '.join(f'{name} {a} -> {b}' for name, (a, b) in fields.items())}.")
    lines += [
        f"{n} sites of {b} vanished and {short(k)} appears as often: if it is the fused kernel, name it under `fused` "
        "in a rules file (--rules); nothing was subtracted."
        for k, n, b in found.suspects
    ]
    labels = [", ".join(side.info.labels) or "none" for side in (found.base, found.candidate)]
    lines.append(f"Labels: {labels[0]}." if labels[0] == labels[1] else f"Labels: {labels[0]} -> {labels[1]}.")
    lines.append(plain(differences(found)))
    counts = [side.forward.launches for side in (found.base, found.candidate)]
    change = (f"{counts[1] - counts[0]:+,}", f"{counts[1] / counts[0] - 1:+.2%}")
    rows: list[tuple[object, ...]] = [("launches", *(f"{count:,}" for count in counts), *change)]
    for title, value in (("kernel time us", "kernel_time"), ("busy time us", "busy_time"), ("span us", "span")):
        a, b = (float(np.median(getattr(s.forward, value))) for s in (found.base, found.candidate))
        rows.append((title, us(a), us(b), us(b - a), f"{b / a - 1:+.2%}"))
    labels_of = distinct(row.name for row in found.rows)
    boundaries = [
        (c.name, c.base_sites, c.candidate_sites, c.base_launches, c.candidate_launches, us(c.base_ns),
         us(c.candidate_ns), c.fired_sites)
        for c in found.changes
    ]  # fmt: skip
    kernels = [
        (labels_of[r.name], r.where or "elsewhere", r.base.launches, r.candidate.launches, us(r.base.sum_ns),
         us(r.candidate.sum_ns), us(r.difference_ns), r.status)
        for r in found.rows[:20]
    ]  # fmt: skip
    sides = ("before", "after")
    title = f"One forward of rank {found.base.forward.rank}, traced: {found.base.title} -> {found.candidate.title}"
    parts: list[RenderableType] = [
        Text("\n".join(lines)),
        output.table(title, ("", *sides, "difference", "of before"), rows, (*sides, "difference", "of before")),
        output.table(
            "Boundaries",
            ("boundary", "sites", "sites after", "launches", "launches after", "us", "us after", "fired"),
            boundaries,
            ("sites", "sites after", "launches", "launches after", "us", "us after", "fired"),
        ),
        output.table(
            f"Kernels ({len(kernels)} of {len(found.rows)})",
            ("kernel", "where", "launches", "after", "sum us", "sum after", "difference", "status"),
            kernels,
            ("launches", "after", "sum us", "sum after", "difference"),
        ),
    ]
    if (over := ranks_document(found)) is not None:
        parts.append(ranks_table(over))
    if found.measured is not None:
        parts.append(Text(f"{found.measured.kind.capitalize()} ({found.source}): "
                          f"{found.measured.class_}. {found.measured.sentence}"))  # fmt: skip
    if (quote := quote_of(found)) is not None:
        parts.append(Text(f"To quote: {quote}"))
    return Group(*parts)


def ranks_table(over: dict[str, Any]) -> RenderableType:
    """Both runs over all ranks: the slowest, the median, and the wait in the all-reduces."""
    from rich.console import Group
    from rich.text import Text

    from fusionscope.cli import output

    us = output.microseconds
    rows = []
    for title, side in (("before", over["base"]), ("after", over["candidate"])):
        waits = [ns for ns in side["forward_wait_ns"].values() if ns is not None]
        wait = f"{us(min(waits))} to {us(max(waits))}" if waits else "not known"
        median = "not averaged" if side["median_span_ns"] is None else us(side["median_span_ns"])
        rows.append((title, side["slowest_rank"], us(side["slowest_span_ns"]), median, wait))
    columns = ("", "slowest rank", "its span us", "median span us", "wait in a forward us")
    notes = [
        f"{title}: {n}" for title, name in (("before", "base"), ("after", "candidate")) for n in over[name]["notes"]
    ]
    table = output.table("All ranks; fusing removes no wait", columns, rows, columns[1:])
    return Group(table, Text("\n".join(notes))) if notes else table
