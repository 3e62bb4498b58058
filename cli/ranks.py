"""`fusionscope ranks`."""

from __future__ import annotations

from typing import TYPE_CHECKING

from fusionscope.cli.common import (
    BoundariesOpt,
    ForwardOpt,
    JsonOpt,
    RulesOpt,
    RunArg,
    StoreOpt,
    emit,
    open_store,
    rule_sources,
)

if TYPE_CHECKING:
    from rich.console import RenderableType

    from fusionscope.analysis.ranks import Ranks


def ranks(
    run: RunArg,
    store: StoreOpt = None,
    forward: ForwardOpt = "",
    rules: RulesOpt = None,
    boundary: BoundariesOpt = None,
    json: JsonOpt = False,
) -> None:
    """Put the ranks of a run beside each other: what of their all-reduces is transfer, what is wait, who comes last.

    Example: fusionscope ranks example
    """
    from fusionscope.analysis import ruleset
    from fusionscope.analysis.ranks import ranks as beside
    from fusionscope.analysis.ranks_document import document

    loaded = open_store(store).load(run)
    found = beside(loaded, ruleset.load(rule_sources(rules, boundary)), forward or None)
    payload = {"run": loaded.info.id, "labels": loaded.info.labels, **document(found)}
    emit(json, payload, lambda: render(loaded.info.name or loaded.info.id, found))


def render(title: str, found: Ranks) -> RenderableType:
    """The ranks for people."""
    from rich.console import Group
    from rich.text import Text

    from fusionscope.analysis.names import short
    from fusionscope.cli import output

    us = output.microseconds

    def known(ns: int | None) -> str:
        return "-" if ns is None else us(ns)

    columns = ("rank", "launches", "replays", "batch", "span us", "all-reduce us", "transfer us", "wait us", "last")
    rows = [
        (r.rank, f"{r.launches:,}", f"{r.replays:,}", "-" if r.batch is None else r.batch, us(r.span_ns),
         us(r.reduce_ns), known(r.transfer_ns), known(r.wait_ns), "-" if r.last is None else r.last)
        for r in found.rows
    ]  # fmt: skip
    lines = list(found.notes)
    if found.occurrences:
        by = {
            "clock": "by start times, since every all-reduce overlaps on all ranks",
            "shortest duration": "by the shortest duration, since the ranks' clocks are not shared",
        }[found.last_by]
        tied = len({r.last for r in found.rows}) == 1
        most = "no rank more often than another" if tied else f"most often rank {found.last_rank}"
        lines.append(
            f"{found.occurrences:,} all-reduces of {len(found.rows)} ranks; sums over all replays; span is one "
            f"forward's median. A fusion removes no wait. Last {by}: {most}."
        )
    if (other := found.other) is not None:
        lines.append(
            f"Of the other kernels {short(other.name)} differs most on rank {other.rank}: {us(other.last_ns)} us a "
            f"forward ({other.launches[0]} launches), on the others {us(other.others_ns)} us ({other.launches[1]})."
        )
    tokens = f", {found.tokens:,} {'token' if found.tokens == 1 else 'tokens'} a step" if found.tokens else ""
    heading = f"{title}: {len(found.rows)} of {found.world_size} ranks{tokens}"
    table = output.table(heading, columns, rows, right=columns)
    return Group(table, Text("\n".join(lines)))
