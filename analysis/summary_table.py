"""The kernel table of a summary: inside the boundary, elsewhere as controls, and totals that the columns add up to."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from fusionscope.analysis.blocks import Block, Code, Inline, Line, Paragraph, Table, bold, line
from fusionscope.analysis.compare import Comparison
from fusionscope.analysis.copies import copies
from fusionscope.analysis.names import distinct
from fusionscope.analysis.paired_rows import Cell, Row
from fusionscope.analysis.quantities import Ticks, launch_us, percent
from fusionscope.analysis.ranks import Ranks

#: Kernels that stand by name inside each boundary, and elsewhere; the rest of each is one row.
INSIDE, ELSEWHERE = 12, 8
#: A kernel elsewhere that moved by less than this part of the kernel time is in the row of all others.
SEEN = 1e-4
SIDES = ("base", "candidate")


@dataclass
class _Columns:
    """The rows so far, and the ticks that they took of each side's kernel time."""

    ticks: Ticks
    names: dict[str, str]
    rows: list[tuple[Line, ...]] = field(default_factory=list)
    used: list[int] = field(default_factory=lambda: [0, 0])
    #: Largest part by which a true sum differs from launches x median.
    apart: float = 0.0

    def add(self, label: Line, *texts: str, strong: bool = False) -> None:
        cells = [label, *(line(text) for text in texts)]
        self.rows.append(tuple(line(bold(*cell)) for cell in cells) if strong else tuple(cells))

    def sums(self, rows: list[Row]) -> list[int]:
        return [sum(self.ticks.of(getattr(row, side).sum_ns) for row in rows) for side in SIDES]

    def kernel(self, row: Row, where: Line, note: str = "") -> None:
        before, after = self.sums([row])
        self.used = [self.used[0] + before, self.used[1] + after]
        label = line(Code(self.names[row.name]), ", ", *where)
        self.add(label, self.cell(row.base), self.cell(row.candidate), self.ticks.us(after - before, True) + note)

    def several(self, rows: list[Row], what: Line, strong: bool = False, note: str = "") -> None:
        before, after = self.sums(rows)
        counts = [sum(getattr(row, side).launches for row in rows) for side in SIDES]
        cells = [f"{n} launches, {self.ticks.us(t)}" for n, t in zip(counts, (before, after), strict=True)]
        self.add(what, *cells, self.ticks.us(after - before, True) + note, strong=strong)

    def cell(self, cell: Cell) -> str:
        """`launches x median = product`, and the true sum where it is another number."""
        if not cell.launches:
            return "0"
        product, true = self.ticks.of(cell.launches * cell.median_ns), self.ticks.of(cell.sum_ns)
        self.apart = max(self.apart, abs(product - true) / max(true, 1))
        text = f"{cell.launches} x {launch_us(cell.median_ns)} us = {self.ticks.us(product)}"
        return text if product == true else f"{text}, sum {self.ticks.us(true)}"


def kernel_table(found: Comparison, ranks: tuple[Ranks, Ranks]) -> list[Block]:
    """The table of one rank, with the spans of all, and a line on its sums."""
    totals = [float(np.median(run.forward.kernel_time)) for run in (found.base, found.candidate)]
    columns = _Columns(Ticks(max(totals)), distinct(row.name for row in found.rows))
    inside = [row for row in found.rows if row.where]
    _boundaries(columns, found, inside)
    named = _named_elsewhere(found.rows, inside, SEEN * max(totals))
    for row in named:
        columns.kernel(row, (f"elsewhere ({_control(row)})",), _band(columns.ticks, row))
    rest = [row for row in found.rows if not row.where and row not in named]
    whole = [columns.ticks.of(total) for total in totals]
    _rest(columns, rest, [t - u for t, u in zip(whole, columns.used, strict=True)])
    _totals(columns, found, ranks, whole)
    rank = found.base.forward.rank
    head = (f"one decode forward, rank {rank}, traced", "before: launches x median = sum",
            "after: launches x median = sum", "difference")  # fmt: skip
    blocks: list[Block] = [Table(tuple(line(text) for text in head), tuple(columns.rows))]
    if columns.apart:
        said = f"True sums differ from launches x median by up to {columns.apart:.1%}".replace("%", " %")
        blocks.append(Paragraph(((f"{said}; the columns add up by true sums, medians over the replays.",),)))
    return blocks


def _boundaries(columns: _Columns, found: Comparison, inside: list[Row]) -> None:
    for change, sites in found.claims:
        mine = sorted((row for row in inside if row.where == change.name), key=_was_first)
        alone = len(found.claims) == 1
        for row in mine[:INSIDE]:
            columns.kernel(row, ("in this boundary",) if alone else ("in ", Code(change.name)))
        if mine[INSIDE:]:
            before, after = columns.sums(mine[INSIDE:])
            columns.used = [columns.used[0] + before, columns.used[1] + after]
            columns.several(mine[INSIDE:], (f"{len(mine) - INSIDE} more kernels, in ", Code(change.name)))
        n = change.base_sites if change is found.claims[0][0] else sites
        before, after = columns.sums(mine)
        each = (after - before) / 10**columns.ticks.decimals / max(n, 1)
        name: Inline = "boundary" if alone else Code(change.name)
        columns.several(mine, (name, f", {n} sites"), strong=True, note=f" ({each:+.2f} us a site)")


def _was_first(row: Row) -> tuple[bool, float, str]:
    """What was there before comes first, most time first."""
    return (not row.base.launches, -max(row.base.sum_ns, row.candidate.sum_ns), row.name)


def _named_elsewhere(rows: list[Row], inside: list[Row], seen_ns: float) -> list[Row]:
    """Rows outside the boundary that a reviewer must see: shared kernels, and those that came, went or grew."""
    shared = {row.name for row in inside}
    elsewhere = [row for row in rows if not row.where]
    first = [row for row in elsewhere if row.name in shared]
    moved = [row for row in elsewhere if row.name not in shared and row.status != "untouched"]
    moved = [r for r in moved if abs(r.difference_ns) > seen_ns or r.base.launches != r.candidate.launches]
    moved.sort(key=lambda row: (-abs(row.difference_ns), row.name))
    return first[:ELSEWHERE] + moved[:ELSEWHERE]


def _control(row: Row) -> str:
    return "control" if row.status == "untouched" else row.status


def _band(ticks: Ticks, row: Row) -> str:
    if row.status in ("added", "removed", "more launches", "fewer launches"):
        return ""
    band = ticks.us(max(ticks.of(row.band_ns), 1)).removesuffix(" us")
    return f" (noise band ±{band})" if row.status == "untouched" else f" ({row.status} beyond the noise band ±{band})"


def _rest(columns: _Columns, rest: list[Row], left: list[int]) -> None:
    """What is left of the totals, so that the columns add up to them: medians of sums leave a little over."""
    counts = [sum(getattr(row, side).launches for row in rest) for side in SIDES]
    moved = sum(1 for row in rest if row.status not in ("untouched", "shrunk"))
    note = f"{moved} of {len(rest)} kernels came, went or grew" if moved else "none grew beyond noise"
    what, cells = "all other kernels", [columns.ticks.us(t) for t in left]
    if counts[0] == counts[1]:
        what += f", {counts[0]} launches"
    else:
        cells = [f"{n} launches, {text}" for n, text in zip(counts, cells, strict=True)]
    if rest and not moved:
        what += " (control)"
    columns.add((what,), *cells, f"{columns.ticks.us(left[1] - left[0], True)} ({note})")


def _totals(columns: _Columns, found: Comparison, ranks: tuple[Ranks, Ranks], whole: list[int]) -> None:
    ticks = columns.ticks
    n = [run.forward.launches for run in (found.base, found.candidate)]
    columns.add(
        ("launches",), str(n[0]), str(n[1]), f"{n[1] - n[0]:+d} ({percent(n[1] / n[0] - 1)})", strong=True
    )  # fmt: skip
    part = (whole[1] - whole[0]) / max(whole[0], 1)
    name = line(bold("kernel time"), " (sum of durations)")
    cells = [ticks.total(whole[0]), ticks.total(whole[1])]
    cells.append(f"{ticks.total(whole[1] - whole[0], True)} ({percent(part)} of kernel time)")
    columns.rows.append((name, *(line(bold(cell)) for cell in cells)))
    for label, before, after in _spans(found, ranks):
        a, b = ticks.of(before), ticks.of(after)
        share = percent((b - a) / max(a, 1))
        columns.add((label,), ticks.total(a), ticks.total(b), f"{ticks.total(b - a, True)} ({share} of span)")
    for label, kinds in _copies(found).items():
        (m, before), (k, after) = kinds
        a, b = ticks.of(before), ticks.of(after)
        columns.add((label,), f"{m}, {ticks.us(a)}", f"{k}, {ticks.us(b)}", f"{k - m:+d}, {ticks.us(b - a, True)}")


def _spans(found: Comparison, ranks: tuple[Ranks, Ranks]) -> list[tuple[str, float, float]]:
    before, after = ranks
    if min(len(side.rows) for side in ranks) < 2:
        one, two = (float(np.median(run.forward.span)) for run in (found.base, found.candidate))
        return [("span", one, two)]
    first, second = before.slowest, after.slowest
    which = f"rank {first.rank}" if first.rank == second.rank else f"ranks {first.rank} and {second.rank}"
    spans = [(f"span, slowest rank ({which})", first.span_ns, second.span_ns)]
    middle = (before.median_span_ns, after.median_span_ns)
    if middle[0] is not None and middle[1] is not None:
        spans.append((f"span, median of {len(before.rows)} ranks", middle[0], middle[1]))
    return spans


def _copies(found: Comparison) -> dict[str, list[tuple[int, float]]]:
    """Label -> (nodes, ns) of both sides; these are no launches and in no sum above."""
    sides = [{c.kind: (c.nodes, c.time_ns) for c in copies(run)} for run in (found.base, found.candidate)]
    return {
        f"{kind} nodes (not launches, in no sum above)": [side.get(kind, (0, 0.0)) for side in sides]
        for kind in ("memcpy", "memset")
        if any(kind in side for side in sides)
    }
