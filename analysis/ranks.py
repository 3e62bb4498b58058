"""The ranks of one run beside each other: what of their all-reduces is transfer, what is wait, and who comes last.

An all-reduce ends nowhere before every rank has entered it. So the shortest duration of an occurrence over the ranks
is its transfer, which needs no common clock, and whoever is shortest came last. Arrival by start times is told only
where the clocks can be shared: where every occurrence overlaps on all ranks.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from fusionscope.analysis.forwards import Forward, choose, forwards, most_like
from fusionscope.analysis.ruleset import Rules
from fusionscope.analysis.waiting import MEETING
from fusionscope.profiler.file_ranks import ranks_of
from fusionscope.profiler.runinfo import TOKENS, setting_number
from fusionscope.profiler.store import Run
from fusionscope.profiler.trace import Trace

Ints = NDArray[np.int64]

#: How engines write the batch of a step into its range: SGLang's `bs=32`, vLLM's `generation_32(`. A step in which
#: nothing decodes (`generation_0(`) has none.
_BATCH = re.compile(r"\bbs=([1-9]\d*)|generation_([1-9]\d*)\(")


@dataclass(frozen=True, eq=False)
class Member:
    """One rank's part in the run: its forward and the launches in which ranks meet."""

    rank: int
    forward: Forward
    roles: list[str]
    batch: int | None

    @property
    def met(self) -> Ints:
        """Column numbers of the launches in which ranks meet, in order."""
        return np.flatnonzero(np.isin(self.roles, MEETING))


@dataclass(frozen=True)
class RankRow:
    """One rank; sums over all its replays, ns. What takes other ranks to know is None where they do not fit."""

    rank: int
    launches: int
    replays: int
    #: From the step's range, else the run's record; None where neither tells.
    batch: int | None
    #: Median over the replays.
    span_ns: float
    reduce_ns: int
    transfer_ns: int | None
    wait_ns: int | None
    #: Median over replays of the wait in one forward; a first replay's start-up wait can fill the sum.
    forward_wait_ns: float | None
    #: Occurrences in which this rank was the last to come.
    last: int | None


@dataclass(frozen=True)
class OtherKernel:
    """The kernel (no meeting) whose time per forward differs most between the last rank and the others."""

    rank: int
    name: str
    launches: tuple[int, int]
    #: Median over replays of its sum in a forward: on that rank, and the median of the other ranks.
    last_ns: float
    others_ns: float


@dataclass(frozen=True)
class Ranks:
    """All ranks of a run that were traced."""

    rows: list[RankRow]
    world_size: int
    #: All-reduces in which the ranks met, over all replays; 0 where they do not fit together.
    occurrences: int
    #: "clock", "shortest duration" or "": how the last one is known.
    last_by: str
    last_rank: int | None
    other: OtherKernel | None
    #: Full sentences: what differs between the ranks, what is missing.
    notes: tuple[str, ...]
    #: Of one step, from `--set tokens=N`; without it a batch is as many tokens. None where nothing tells.
    tokens: int | None = None

    @property
    def slowest(self) -> RankRow:
        """The rank with the longest span (of equals, the lowest rank)."""
        return max(self.rows, key=lambda r: (r.span_ns, -r.rank))

    @property
    def alike(self) -> bool:
        """Whether all ranks ran as many launches of as large a batch, so that a number between them means something."""
        return len({(row.launches, row.batch) for row in self.rows}) == 1

    @property
    def median_span_ns(self) -> float | None:
        """Median over the ranks of their median spans; None where the ranks are not alike."""
        return float(np.median([r.span_ns for r in self.rows])) if self.alike else None


def ranks(run: Run, rules: Rules, forward: str | None = None) -> Ranks:
    """Put the ranks of a run beside each other; `forward` chooses the kind on the lowest rank, the others follow.

    Raises GraphModeTrace or FusionScopeError where a rank has no kernels, or the forward does not exist.
    """
    present = ranks_of(run.trace)
    members: list[Member] = []
    for rank in present:
        found = forwards(run.trace, rank, run.info.warmup_replays)
        chosen = most_like(found, members[0].forward) if members else choose(found, forward or None)
        members.append(member(run.trace, chosen, rules))
    if run.info.batch > 0 and all(m.batch is None for m in members):
        members = [replace(m, batch=run.info.batch) for m in members]
    beside = of_members(members, max(run.info.world_size, run.trace.world_size))
    batches = {m.batch for m in members}
    tokens = setting_number(run.info.settings, *TOKENS) or (batches.pop() if len(batches) == 1 else None)
    beside = replace(beside, tokens=tokens)
    if len(members) == 1 and run.info.emulated_ranks:
        alone = f"The other {run.info.tp - 1} ranks are emulated on this one's GPU: there is no wait to tell."
        return replace(beside, notes=(alone, *beside.notes[1:]))
    return beside


def member(trace: Trace, forward: Forward, rules: Rules) -> Member:
    """A rank's forward with the role of each launch."""
    names = list(zip(forward.nodes["name"].astype(str), forward.nodes["raw_name"].astype(str), strict=True))
    known = {pair: rules.role_of(*pair) for pair in set(names)}
    return Member(forward.rank, forward, [known[pair] for pair in names], batch_of(trace, forward.rank))


def of_members(members: list[Member], world_size: int = 0) -> Ranks:
    """The same from forwards that were chosen already; the order of the members changes nothing."""
    members = sorted(members, key=lambda m: m.rank)
    notes = _notes(members, world_size)
    duration = [m.forward.duration[:, m.met] for m in members]
    fits = len(members) > 1 and duration[0].size > 0 and len({d.shape for d in duration}) == 1
    transfer = np.minimum.reduce(duration) if fits else None
    last, last_by = _last(members, duration) if fits else ([], "")
    rows = [
        RankRow(
            rank=m.rank,
            launches=m.forward.launches,
            replays=m.forward.replays,
            batch=m.batch,
            span_ns=float(np.median(m.forward.span)),
            reduce_ns=int(mine.sum()),
            transfer_ns=None if transfer is None else int(transfer.sum()),
            wait_ns=None if transfer is None else int((mine - transfer).sum()),
            forward_wait_ns=None if transfer is None else float(np.median((mine - transfer).sum(axis=1))),
            last=last[place] if fits else None,
        )
        for place, (m, mine) in enumerate(zip(members, duration, strict=True))
    ]
    latest = max(rows, key=lambda r: (r.last or 0, -r.rank)).rank if fits else None
    other = _other(members, latest) if latest is not None else None
    return Ranks(rows, max(world_size, len(rows)), int(duration[0].size) if fits else 0, last_by, latest, other, notes)


def batch_of(trace: Trace, rank: int) -> int | None:
    """The batch that the engine's step ranges of a rank tell; None where they tell none, or several."""
    names = trace.ranges.loc[trace.ranges["rank"] == rank, "name"].astype(str).unique()
    told = {int(next(g for g in m.groups() if g)) for name in names if (m := _BATCH.search(name))}
    return told.pop() if len(told) == 1 else None


def _notes(members: list[Member], world_size: int) -> tuple[str, ...]:
    notes = []
    if len(members) < max(world_size, 2):
        of = f"{len(members)} of {world_size} ranks was" if world_size > 1 else "One rank was"
        of = of.replace(" was", " were") if len(members) > 1 else of
        notes.append(f"{of} traced: all-reduce time includes an unknown wait; import the other ranks' traces too.")
    if not any(len(m.met) for m in members):
        notes.append(
            "No launch is known to be an all-reduce: name its kernel in a rules file (--rules) if there is one."
        )
    for what, values in (
        ("launches", {m.rank: m.forward.launches for m in members}),
        ("all-reduces", {m.rank: len(m.met) for m in members}),
        ("replays", {m.rank: m.forward.replays for m in members}),
        ("batch", {m.rank: m.batch for m in members if m.batch is not None}),
    ):
        if len(set(values.values())) > 1:
            told = ", ".join(f"rank {rank} {value}" for rank, value in values.items())
            effect = "so no transfer is told" if what in ("all-reduces", "replays") else "so they are not averaged"
            notes.append(f"Ranks differ in {what} ({told}), {effect}.")
    return tuple(notes)


def _last(members: list[Member], duration: list[Ints]) -> tuple[list[int], str]:
    """For each rank in how many occurrences it came last; ties count for every rank that shares them."""
    start = np.stack([m.forward.start[:, m.met] for m in members])
    length = np.stack(duration)
    if bool((start.max(axis=0) <= (start + length).min(axis=0)).all()):
        late, by = start == start.max(axis=0), "clock"
    else:
        late, by = length == length.min(axis=0), "shortest duration"
    return [int(n) for n in late.sum(axis=(1, 2))], by


def _other(members: list[Member], last: int) -> OtherKernel | None:
    sums = [_sums(m) for m in members]
    mine = sums[[m.rank for m in members].index(last)]
    theirs = [s for m, s in zip(members, sums, strict=True) if m.rank != last]
    best: OtherKernel | None = None
    for name in sorted({n for s in sums for n in s}):
        others = [s.get(name, (0, 0.0)) for s in theirs]
        count, time = mine.get(name, (0, 0.0))
        middle = float(np.median([t for _, t in others]))
        if best is None or abs(time - middle) > abs(best.last_ns - best.others_ns):
            best = OtherKernel(last, name, (count, int(np.median([n for n, _ in others]))), time, middle)
    return best if best is not None and best.last_ns != best.others_ns else None


def _sums(member: Member) -> dict[str, tuple[int, float]]:
    """Launches and median time of a forward by kernel, meetings left out."""
    met = set(member.met.tolist())
    places: dict[str, list[int]] = {}
    for column, name in enumerate(member.forward.nodes["name"].astype(str)):
        if column not in met:
            places.setdefault(name, []).append(column)
    return {
        name: (len(columns), float(np.median(member.forward.duration[:, columns].sum(axis=1))))
        for name, columns in places.items()
    }
