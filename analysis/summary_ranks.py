"""The ranks of both runs of a summary: span of the slowest and the median one, transfer and wait of the all-reduces."""

from __future__ import annotations

from fusionscope.analysis.analysed import Analysed
from fusionscope.analysis.blocks import Block, Line, Paragraph, Table, bold, line
from fusionscope.analysis.compare import Comparison
from fusionscope.analysis.forwards import forwards, most_like
from fusionscope.analysis.quantities import in_us
from fusionscope.analysis.ranks import Member, RankRow, Ranks, member, of_members
from fusionscope.profiler.file_ranks import ranks_of


def ranks_beside(run: Analysed) -> Ranks:
    """The forward of an analysed run on every traced rank."""
    trace, mine = run.run.trace, run.forward
    if ranks_of(trace) == [mine.rank]:
        # The roles of one rank alone are known already.
        return of_members([Member(mine.rank, mine, run.attribution.roles, None)], run.info.world_size)
    members = []
    for rank in ranks_of(trace):
        found = mine if rank == mine.rank else most_like(forwards(trace, rank, run.info.warmup_replays), mine)
        members.append(member(trace, found, run.rules))
    return of_members(members, max(run.info.world_size, trace.world_size))


def notes_line(found: Comparison, before: Ranks, after: Ranks) -> Line | None:
    """What the ranks differ in or lack, before the fold; None where there is nothing to say."""
    told: dict[str, None] = {}
    for run, ranks in ((found.base, before), (found.candidate, after)):
        missing = len(ranks.rows) < ranks.world_size and not run.info.emulated_ranks
        if missing or len(ranks.rows) > 1:
            told |= dict.fromkeys(ranks.notes)
    return (bold("Ranks:"), " ", " ".join(told)) if told else None


def all_reduce_line(before: Ranks, after: Ranks) -> Line | None:
    """What an all-reduce of the two runs is, transfer and wait apart; None where one rank alone was traced."""
    told = []
    for side, ranks in (("before", before), ("after", after)):
        rows = [row for row in ranks.rows if row.transfer_ns is not None]
        if not rows or not ranks.occurrences:
            return None
        # Transfer is the same on every rank; wait is the mean over ranks that are alike.
        transfer = (rows[0].transfer_ns or 0) / ranks.occurrences
        waits = [(row.wait_ns or 0) / ranks.occurrences for row in rows]
        wait = in_us(sum(waits) / len(waits)) if ranks.alike else f"{in_us(min(waits))} to {in_us(max(waits))}"
        told.append(f"{side} transfer {in_us(transfer)} us and wait {wait} us each")
    return line(f"All-reduces, {len(before.rows)} ranks: {', '.join(told)}; fusing removes no wait.")


def rank_blocks(side: str, ranks: Ranks) -> list[Block]:
    """A table with one row a rank, and what was noticed; nothing for one rank alone."""
    if len(ranks.rows) < 2:
        return []
    head = (f"{side}: rank", "launches", "replays", "span us", "wait in a forward us", "came last")
    rows = tuple(_row(row) for row in ranks.rows)
    blocks: list[Block] = [Table(tuple(line(text) for text in head), rows)]
    if ranks.notes:
        blocks.append(Paragraph(tuple(line(note) for note in ranks.notes)))
    return blocks


def _row(row: RankRow) -> tuple[Line, ...]:
    wait = "not known" if row.forward_wait_ns is None else f"{row.forward_wait_ns / 1000:.1f}"
    last = "not known" if row.last is None else str(row.last)
    cells = (str(row.rank), str(row.launches), str(row.replays), f"{row.span_ns / 1000:.1f}", wait, last)
    return tuple(line(cell) for cell in cells)
