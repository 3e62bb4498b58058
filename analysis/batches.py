"""One fusion at several batch sizes: a verdict for each, and up to how many tokens it is worth switching on.

Above the gate of a fusion both sides run the same kernels, and what they differ by there is noise.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from fusionscope.analysis.analysed import Analysed
from fusionscope.analysis.compare import Comparison
from fusionscope.analysis.differing import incomparable
from fusionscope.analysis.estimate import Estimate
from fusionscope.analysis.observed import ONCE
from fusionscope.analysis.ranks import batch_of
from fusionscope.analysis.serving import Serving
from fusionscope.analysis.summary_lines import predicted, verdict_of
from fusionscope.analysis.tables import number
from fusionscope.analysis.verdict import BELOW_MARGIN, NOT_MEASURABLE, OBSERVED, SLOWER, WORTH_MERGING, Verdict
from fusionscope.profiler.errors import FusionScopeError
from fusionscope.profiler.runinfo import PADDED, TOKENS, setting_number

#: What one size says: the fusion wins, loses, makes no measurable difference; nothing can be said; the same kernels.
WINS, LOSES, TIES, OPEN, CONTROL = "faster", "slower", "no measurable difference", "undecided", "control"
_STATES = {WORTH_MERGING: WINS, BELOW_MARGIN: WINS, SLOWER: LOSES, NOT_MEASURABLE: TIES}


@dataclass(frozen=True)
class BatchRow:
    """One size: times in ns of one step; `saving_ns` is None where nothing tells."""

    batch: int
    #: Batch that the graph was captured for; 0 where the runs do not tell.
    padded: int
    tokens: int
    state: str
    step_ns: float = 0.0
    saving_ns: float | None = None
    interval_ns: tuple[float, float] | None = None
    launches: tuple[int, int] = (0, 0)
    sites: int = 0
    verdict: Verdict | None = None
    #: Of single captures: what the size would say if several agreed.
    leans: str = ""

    def document(self) -> dict[str, object]:
        """The row as JSON."""
        return {
            "batch": self.batch,
            "padded": self.padded or None,
            "tokens": self.tokens,
            "state": self.state,
            "leans": self.leans or None,
            "launches": {"base": self.launches[0], "candidate": self.launches[1]},
            "fired_sites": self.sites,
            "step_ns": number(self.step_ns),
            "saving_ns": None if self.saving_ns is None else number(self.saving_ns),
            "interval_ns": None if self.interval_ns is None else [number(v) for v in self.interval_ns],
            "verdict": None if self.verdict is None else self.verdict.document(),
        }


@dataclass(frozen=True)
class Gate:
    """Where a fusion is worth switching on; tokens are None where there is no such bound."""

    sentence: str
    monotone: bool
    fuse_from: int | None = None
    fuse_up_to: int | None = None
    #: First measured size beyond `fuse_up_to` (or below `fuse_from`), and what it is there.
    other: int | None = None
    other_state: str = ""
    #: First and last number of tokens between them that nobody measured.
    not_measured: tuple[int, int] | None = None
    #: Largest part of a step by which two runs of the same kernels differ; None without such a size.
    control_part: float | None = None

    def document(self) -> dict[str, object]:
        """The gate as JSON."""
        return {
            "sentence": self.sentence,
            "monotone": self.monotone,
            "fuse_from": self.fuse_from,
            "fuse_up_to": self.fuse_up_to,
            "other": self.other,
            "other_state": self.other_state or None,
            "not_measured": list(self.not_measured) if self.not_measured else None,
            "control_part": self.control_part,
        }


def pair(bases: Sequence[Analysed], candidates: Sequence[Analysed]) -> list[tuple[Analysed, Analysed]]:
    """The runs before and after, paired by batch and in order of it; several of a batch as they came.

    One base serves all candidates; runs that do not know their batch are paired in the order in which they came.
    Raises FusionScopeError where the batches of the two sides are not the same.
    """
    if not bases or not candidates:
        raise FusionScopeError("Give at least one run before and one after: --base B… --candidate C….")
    if len(bases) == 1:
        return [(bases[0], one) for one in candidates]
    sides = [[batch_of_run(run) for run in side] for side in (bases, candidates)]
    if 0 in sides[0] + sides[1]:
        if len(bases) != len(candidates):
            raise FusionScopeError(
                f"--base names {len(bases)} runs and --candidate {len(candidates)}, and not all of them know their "
                "batch: give as many of each in the same order."
            )
        return list(zip(bases, candidates, strict=True))
    if sorted(sides[0]) != sorted(sides[1]):
        before, after = (", ".join(map(str, sorted(side))) for side in sides)
        raise FusionScopeError(
            f"The runs of --base have the batches {before}, those of --candidate {after}: give both sides every batch."
        )
    orders = [sorted(range(len(side)), key=side.__getitem__) for side in sides]
    return [(bases[b], candidates[c]) for b, c in zip(*orders, strict=True)]


Pair = tuple[Analysed, Analysed]


def captures_of(pairs: Sequence[Pair]) -> list[list[Pair]]:
    """The pairs, those of one batch that capture the same two programs again together, in the order of the first."""
    found: list[list[Pair]] = []
    for both in pairs:
        same = next((group for group in found if _again(group, both)), None)
        if same is None:
            found.append([both])
        else:
            same.append(both)
    return found


def _again(group: Sequence[Pair], both: Pair) -> bool:
    """Whether both runs are captures of the group's programs that it does not hold yet."""
    first = group[0]
    if not batch_of_run(first[0]) or batch_of_run(first[0]) != batch_of_run(both[0]):
        return False
    held = [run for pair in group for run in pair]
    if any(run is other or (run.info.id and run.info.id == other.info.id) for run in both for other in held):
        return False
    return all(_same_program(*sides) for sides in zip(first, both, strict=True))


def _same_program(one: Analysed, other: Analysed) -> bool:
    names = [list(run.forward.nodes["name"].astype(str)) for run in (one, other)]
    return names[0] == names[1] and one.info.paths == other.info.paths and not incomparable(one, other)


def batch_of_run(run: Analysed) -> int:
    """Sequences of a step: from the run's record, else its engine's step range; 0 where neither tells."""
    return run.info.batch if run.info.batch > 0 else batch_of(run.run.trace, run.forward.rank) or 0


def batch_row(found: Comparison, verdict: Verdict | None, guess: Estimate | None) -> BatchRow:
    """A pair of runs as a row; measured where it was measured, else predicted."""
    run = found.candidate
    batch = batch_of_run(found.base) or batch_of_run(run)
    settings = found.base.info.settings | run.info.settings
    saving, interval = found.measured_saving_ns, found.measured_interval_ns
    if found.incomparable:
        saving, interval, verdict = None, None, None
    elif saving is None and guess is not None:
        saving, interval = guess.saving_ns, guess.interval_ns
    state = _STATES.get(verdict.class_, OPEN) if verdict else OPEN
    return BatchRow(
        batch=batch,
        padded=setting_number(settings, *PADDED),
        tokens=setting_number(settings, *TOKENS) or batch,
        state=CONTROL if found.same_sequence else state,
        step_ns=found.step_ns,
        saving_ns=saving,
        interval_ns=interval,
        launches=(found.base.forward.launches, run.forward.launches),
        sites=found.fired.sites if found.fired else 0,
        verdict=None if found.same_sequence else verdict,
        leans=_STATES.get(verdict.would_be, "") if verdict and not found.same_sequence else "",
    )


def rows_of(pairs: Sequence[Comparison], margin: float, serving: Serving | None = None) -> list[BatchRow]:
    """A row for each pair; serving runs whose acceptance length fell forbid a win."""
    rows = []
    for one in pairs:
        guess = predicted(one, margin)
        rows.append(batch_row(one, verdict_of(one, guess, serving), guess))
    return rows


def gate(rows: Sequence[BatchRow]) -> Gate:
    """Up to how many tokens (or from how many) to fuse, where the sizes in order have one such place.

    Sizes of single captures count as what they lean to, and the sentence says so.
    """
    made = _gate(rows)
    once = sum(row.verdict is not None and row.verdict.kind == OBSERVED for row in rows)
    if not once:
        return made
    return replace(made, sentence=f"{made.sentence} Observed in {ONCE} at {once} of {len(rows)} sizes, not measured.")


def _gate(rows: Sequence[BatchRow]) -> Gate:
    rows = sorted(rows, key=lambda row: row.tokens)
    control = _control_part(rows)
    if not rows or any(row.tokens <= 0 for row in rows) or len({row.tokens for row in rows}) < len(rows):
        return Gate("No gate: the runs do not tell their tokens, each another number.", False, control_part=control)
    wins = [_wins(row, control) for row in rows]
    flips = int(np.count_nonzero(np.diff(np.array(wins, dtype=int))))
    if not any(wins):
        states = dict.fromkeys(_state(row, control) for row in rows)
        return Gate(f"Fuse at none of the measured sizes ({', '.join(states)}).", True, control_part=control)
    if flips > 1:
        return Gate(
            "No gate: the results are not monotone in the tokens, so every size stands for itself.", False,
            control_part=control,
        )  # fmt: skip
    low, high = rows[0].tokens, rows[-1].tokens
    if flips == 0:
        sizes = f"{low} to {high} tokens" if low != high else _tokens(low)
        return Gate(f"Fuse at every measured size ({sizes}); above {high} not measured.", True, control_part=control)
    at = wins.index(not wins[0])
    below, above = rows[at - 1].tokens, rows[at].tokens
    hole = (below + 1, above - 1) if above > below + 1 else None
    told = [f"{hole[0]}-{hole[1]} not measured" if hole[0] != hole[1] else f"{hole[0]} not measured"] if hole else []
    if wins[0]:
        beyond = _beyond(rows[at:], control)
        text = "; ".join([f"Fuse up to {_tokens(below)}", *beyond, *told])
        return Gate(f"{text}.", True, None, below, above, _state(rows[at], control), hole, control)
    rest = [f"{_state(row, control)} at {row.tokens}" for row in rows[:at]]
    text = "; ".join([f"Fuse from {_tokens(above)}", *rest, *told])
    return Gate(f"{text}.", True, above, None, below, _state(rows[at - 1], control), hole, control)


def _wins(row: BatchRow, control: float | None) -> bool:
    return _state(row, control) == WINS


def _state(row: BatchRow, control: float | None) -> str:
    """A win or loss no larger than what the same kernels differ by between two runs is none."""
    state = row.leans or row.state
    if state in (WINS, LOSES) and control is not None and row.saving_ns is not None and row.step_ns:
        return state if abs(row.saving_ns) / row.step_ns > control else "within what the controls differ by"
    return state


def _control_part(rows: Sequence[BatchRow]) -> float | None:
    parts = [abs(r.saving_ns) / r.step_ns for r in rows if r.state == CONTROL and r.saving_ns is not None and r.step_ns]
    return max(parts, default=None)


def _beyond(rows: Sequence[BatchRow], control: float | None) -> list[str]:
    """`slower from 32`, or each run of sizes with the same answer."""
    found: list[tuple[str, list[int]]] = []
    for row in rows:
        state = _state(row, control)
        if found and found[-1][0] == state:
            found[-1][1].append(row.tokens)
        else:
            found.append((state, [row.tokens]))
    words = {CONTROL: "fusion off"}
    texts = []
    for place, (state, tokens) in enumerate(found):
        last = place == len(found) - 1
        where = f"from {tokens[0]}" if last else f"at {', '.join(map(str, tokens))}"
        texts.append(f"{words.get(state, state)} {where}")
    return texts


def _tokens(count: int) -> str:
    return f"{count} token" if count == 1 else f"{count} tokens"
