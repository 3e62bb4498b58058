"""The fold of a summary: how to make it again, both runs, every kernel by its full name, the ranks."""

from __future__ import annotations

import shlex

from fusionscope.analysis.analysed import Analysed
from fusionscope.analysis.blocks import (
    Block,
    Code,
    Fold,
    Inline,
    Line,
    Listing,
    Paragraph,
    Table,
    Verbatim,
    bold,
    data,
    joined,
    line,
)
from fusionscope.analysis.blocks_markdown import inline
from fusionscope.analysis.compare import Comparison
from fusionscope.analysis.compare_document import quote_of
from fusionscope.analysis.differing import machine
from fusionscope.analysis.paired_rows import Cell, Row
from fusionscope.analysis.quantities import launch_us
from fusionscope.analysis.ranks import Ranks
from fusionscope.analysis.serving import Serving
from fusionscope.analysis.summary_ranks import rank_blocks

#: Longest command, most variables or input files, and longest name that stand in the fold.
COMMAND, ENTRIES, NAME = 2_000, 40, 1_000


def details(
    found: Comparison, ranks: tuple[Ranks, Ranks], command: str, room: int, serving: Serving | None = None
) -> Fold:
    """The fold, with as many kernels as take `room` characters of Markdown; the rest is counted."""
    sides = (("before", found.base), ("after", found.candidate))
    commands = [shlex.join(run.info.command) for _, run in sides if run.info.command]
    text = "\n".join(part[:COMMAND] for part in (*dict.fromkeys(commands), command) if part)
    points = [point for side, run in sides for point in _run_points(side, run)]
    blocks: list[Block] = [Verbatim(text)] if text else []
    if (quote := quote_of(found, serving)) and not found.incomparable:
        blocks += [Paragraph((line("In one sentence, to quote:"),)), Verbatim(quote)]
    blocks.append(Listing(tuple(points)))
    if len(found.differs) > 1:
        blocks.append(Listing(tuple((0, _difference(name, *both)) for name, both in found.differs.items())[:ENTRIES]))
    blocks.append(_kernels(found.rows, room))
    for (side, _), one in zip(sides, ranks, strict=True):
        blocks += rank_blocks(side, one)
    return Fold(("Reproduce, kernel table, per rank, environment, input hashes",), tuple(blocks))


def _difference(name: str, before: str, after: str) -> Line:
    return line("differs: ", Code(name[:NAME]), " ", data(before or "unset"), " -> ", data(after or "unset"))


def _kernels(rows: list[Row], room: int) -> Table:
    head = tuple(line(text) for text in ("kernel", "where", "status", "before", "after"))
    kept: list[tuple[Line, ...]] = []
    for row in rows:
        where: Inline = Code(row.where) if row.where else "elsewhere"
        cells = (line(Code(row.name[:NAME])), line(where), line(row.status), _cell(row.base), _cell(row.candidate))
        room -= sum(len(inline(cell, cell=True)) + 3 for cell in cells) + 2
        if room < 0:
            break
        kept.append(cells)
    if len(kept) < len(rows):
        more = line(f"{len(rows) - len(kept)} more kernels: ", Code("fusionscope compare --json"), " has them")
        kept.append((more, *(line() for _ in range(4))))
    return Table(head, tuple(kept), left=3)


def _cell(cell: Cell) -> Line:
    if not cell.launches:
        return ("0",)
    return (f"{cell.launches} x {launch_us(cell.median_ns)} us, sum {cell.sum_ns / 1000:.2f} us",)


def _run_points(side: str, run: Analysed) -> list[tuple[int, Line]]:
    info = run.info
    points: list[tuple[int, Line]] = [
        (0, line(bold(f"{side}:"), " run ", Code(info.id), ", fusionscope ", data(info.tool_version or "unknown")))
    ]
    facts = {
        "machine": machine(run), "settings": info.settings, "environment": info.environment,
        "paths": info.paths,
    }  # fmt: skip
    for title, known in facts.items():
        if known:
            told: list[Line] = [(Code(f"{k}={v}"[:200]),) for k, v in list(known.items())[:ENTRIES]]
            more = f" and {len(known) - ENTRIES} more" if len(known) > ENTRIES else ""
            points.append((1, (f"{title}: ", *joined(told), more)))
    points += [(1, line("input: ", Code(i.path[:200]), ", sha256 ", Code(i.sha256))) for i in info.inputs[:ENTRIES]]
    if info.declines:
        points.append((1, (f"declined: {len(info.declines)} sites, first: ", Code(info.declines[0].declined[:200]))))
    covered = ", ".join(f"{k} {v * 100:.1f} %" for k, v in run.attribution.coverage().items() if v)
    points.append((1, (f"coverage of kernel time by rung: {covered}",)))
    warnings = [*dict.fromkeys([*info.warnings, *run.run.trace.warnings, *run.attribution.warnings])]
    points += [(1, ("warning: ", data(text, 300))) for text in warnings[:ENTRIES]]
    return points
