"""Two arms measured in turn: how far apart they are, with an interval, a noise floor and a verdict.

A block holds every arm twice, in random order and then in that order reversed (ABBA or BAAB; ABaaBA with an A/A arm),
so that a steady drift cancels in the difference of any two arms. Blocks lie in processes and in captures of the arms,
and those differ by far more than blocks do: on an H200 93 % of the variance between captures of one program came back
in the next process (benchmarks/lab_refit.py). So captures and processes are what is counted, and blocks only where
there is nothing else. Nothing is dropped as an outlier.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from fusionscope.analysis.noise import AGAIN, BASE, CANDIDATE, CANDIDATE_AGAIN
from fusionscope.analysis.observed import observe
from fusionscope.analysis.shifts import BLOCKS, CAPTURES, LEAST_BLOCKS, SURE, Shift, shift
from fusionscope.analysis.tables import number
from fusionscope.analysis.verdict import (
    BELOW_MARGIN,
    INCONCLUSIVE,
    MARGIN,
    SLOWER,
    WORDS,
    WORTH_MERGING,
    Verdict,
    confidence_of,
    judge,
    us,
)
from fusionscope.profiler.errors import FusionScopeError

Floats = NDArray[np.float64]

#: More than so many times the blocks that there are is no advice.
_FAR = 256
#: With so many captures of each arm in a process, what they differ by is the noise floor; two tell too little of it.
_ENOUGH = 3
#: Classes that say faster or slower.
DECIDED = (WORTH_MERGING, BELOW_MARGIN, SLOWER)


def block_values(timings: pd.DataFrame, arm: str) -> pd.Series:
    """Time of an arm in each block (index: process, block), ns: mean of the medians of its two turns in the block."""
    # Blocks are cut by hand: a data frame for each of hundreds takes most of a comparison's time.
    rows = timings[(timings["arm"] == arm).to_numpy()]
    keys = rows[["process", "block"]].to_numpy(dtype=np.int64)
    order = np.lexsort((keys[:, 1], keys[:, 0]))
    keys, times = keys[order], rows["duration_ns"].to_numpy(dtype=np.float64)[order]
    first = np.flatnonzero(np.any(np.diff(keys, axis=0), axis=1)) + 1
    parts = np.split(times, first) if len(times) else []
    # Rows are in the order in which they were taken: the first half is the first turn.
    halves = [np.array_split(part, 2) if len(part) > 1 else [part] for part in parts]
    found = [float(np.mean([np.median(half) for half in both])) for both in halves]
    at = keys[np.r_[0, first]] if len(times) else keys
    return pd.Series(found, index=pd.MultiIndex.from_arrays([at[:, 0], at[:, 1]]), dtype=np.float64)


def differences(timings: pd.DataFrame, first: str, second: str) -> list[Floats]:
    """First minus second, ns, of the blocks that hold both arms, one array a process."""
    apart = (block_values(timings, first) - block_values(timings, second)).dropna()
    if not len(apart):
        return []
    return [part.to_numpy() for _, part in apart.groupby(level=0, sort=True)]


def captures(timings: pd.DataFrame) -> list[tuple[str, str]]:
    """The captures of both arms, paired in order: (`base`, `candidate`), (`base again`, `candidate again`), …"""
    there = set(timings["arm"].astype(str))
    arms = [sorted(a for a in there if a == arm or a.startswith(again)) for arm, again in _ARMS]
    return list(zip(*arms, strict=False))


_ARMS = ((BASE, AGAIN), (CANDIDATE, CANDIDATE_AGAIN))


def savings(timings: pd.DataFrame) -> list[Floats]:
    """Base minus candidate, ns, of each block, one array a process; every capture of an arm counts as much.

    What two captures of one program differ by is halved in the mean of two.
    """
    pairs = captures(timings)
    if not pairs:
        return []
    each = [block_values(timings, a) - block_values(timings, b) for a, b in pairs]
    apart = pd.concat(each, axis=1).dropna().mean(axis=1)
    return [part.to_numpy() for _, part in apart.groupby(level=0, sort=True)] if len(apart) else []


def capture_times(timings: pd.DataFrame) -> Floats | None:
    """[processes, 2, captures] ns: median block of each capture of both arms; None with one capture an arm."""
    pairs = captures(timings)
    if len(pairs) < 2:
        return None
    arms = [[pair[k] for pair in pairs] for k in (0, 1)]
    table = pd.DataFrame({arm: block_values(timings, arm) for both in arms for arm in both}).dropna()
    middle = table.groupby(level=0, sort=True).median()
    return np.stack([middle[both].to_numpy() for both in arms], axis=1) if len(middle) else None


@dataclass(frozen=True)
class Comparison:
    """A measured pair of arms; times in ns, a saving is positive where the candidate is faster."""

    saving: Shift
    #: The base against itself; None where there was no A/A arm.
    control: Shift | None
    base_ns: float
    candidate_ns: float
    margin: float
    equivalent: bool
    #: Blocks that the question still needs: 0 where it is answered, None where no number of them would do.
    blocks_needed: int | None
    verdict: Verdict
    #: Captures of each arm over all processes; None where every turn was a process of its own.
    captures: int | None = None
    #: The noise floor; None where there was no A/A arm.
    mde_ns: float | None = None

    def document(self) -> dict[str, object]:
        """The comparison as the JSON of `fusionscope ab`."""
        control = None if self.control is None else _shift_document(self.control)
        return {
            "base_ns": number(self.base_ns),
            "candidate_ns": number(self.candidate_ns),
            "saving": _shift_document(self.saving),
            "part": self.saving.value_ns / self.base_ns,
            "control": control,
            "noise": {
                "mde_ns": None if self.mde_ns is None else number(self.mde_ns),
                "part": None if self.mde_ns is None else self.mde_ns / self.base_ns,
            },
            "margin": self.margin,
            "equivalent": self.equivalent,
            "blocks_needed": self.blocks_needed,
            "captures": self.captures,
            "verdict": self.verdict.document(),
        }


def _shift_document(found: Shift) -> dict[str, object]:
    return {
        "ns": number(found.value_ns),
        "interval_ns": [number(end) for end in found.interval_ns],
        "error_ns": number(found.error_ns),
        "blocks": found.blocks,
        "processes": found.processes,
        "unit": found.unit,
        "sure": found.sure(),
    }


def compare(timings: pd.DataFrame, margin: float = MARGIN, paired_processes: bool = True) -> Comparison:
    """Compare the arms `base` and `candidate` of a table TIMINGS, with `base again` as the A/A arm.

    `paired_processes` False: every turn was a process of its own (two commands), so blocks already differ as processes
    do. Raises FusionScopeError with fewer than 4 blocks.
    """
    found = shift(savings(timings), capture_times(timings) if paired_processes else None)
    if found is None:
        raise FusionScopeError(
            f"The measurement holds fewer than {LEAST_BLOCKS} whole blocks, which say nothing of their spread: measure "
            "longer (--blocks, --processes)."
        )
    base, candidate = (float(np.median(block_values(timings, arm))) for arm in (BASE, CANDIDATE))
    control = shift(differences(timings, BASE, AGAIN))
    each = len(captures(timings)) if paired_processes else None
    return judged(found, control, base, candidate, margin, each)


def floor_ns(found: Shift, control: Shift | None, each: int | None) -> float | None:
    """The noise floor (MDE): the smallest difference that the error shows with 80 % power at 5 %.

    The error is what captures of one program and processes differ by, where enough of them were measured (`each` in a
    process). Else it is that of the base against itself, and the floor is at least as far as the base may lie from
    itself: two captures of one program can differ for good, on an H200 by 21 us of 980 in every process.
    """
    if each is not None and each >= _ENOUGH:
        return found.mde_ns
    if control is None:
        return None
    most = max(control.mde_ns, *(abs(end) for end in control.interval_ns))
    return most if each == 1 or each is None else max(most, found.mde_ns)


def judged(
    found: Shift,
    control: Shift | None,
    base: float,
    candidate: float,
    margin: float,
    each: int | None,
) -> Comparison:
    """The comparison with its verdict, and how many blocks are still needed.

    `each` captures of each arm were measured in a process (None: every turn was a process). Faster or slower is said of
    more than one, and where 0 lies outside the 99 % interval as well.
    """
    floor = floor_ns(found, control, each)
    taken = None if each is None else each * found.processes
    said = caution(found, control, each)
    if taken == 1:
        seen = observe(
            found.value_ns, found.interval_ns, base, floor, together=True, margin=margin,
            next_step="both captured again (--captures), and in more processes (--processes)",
        )  # fmt: skip
        found = replace(found, interval_ns=seen.interval_ns)
        return Comparison(found, control, base, candidate, margin, False, None, seen.verdict, taken, floor)
    return _decided(found, control, base, candidate, margin, taken, floor, said)


def of_captures(found: Shift, steps: tuple[float, float], margin: float, subject: str) -> Comparison:
    """The same judgement of a difference between runs of which each holds a capture; `found` counts captures."""
    return _decided(found, None, *steps, margin, found.processes, found.mde_ns, "", subject)


def _decided(
    found: Shift, control: Shift | None, base: float, candidate: float, margin: float, taken: int | None,
    floor: float | None, said: str, subject: str = "",
) -> Comparison:  # fmt: skip
    equivalent, error = found.within(margin * base), (found.error_ns, found.freedom)
    verdict = judge(
        found.value_ns, found.interval_ns, base, floor, kind="measured", margin=margin, caution=said, subject=subject,
        equivalent=equivalent, error=error,
    )  # fmt: skip
    needed: int | None = 0
    doubt = _doubt(found, control is None) if verdict.class_ in DECIDED and not found.sure() else ""
    if doubt:
        needed = None
        quote = f"{verdict.quote.partition(f': {WORDS[verdict.class_]}')[0]}: {WORDS[INCONCLUSIVE]}; {doubt}"
        sentence = f"Undecided: {verdict.sentence.partition(': ')[2]} But {doubt}"
        sure = confidence_of(*found.interval_ns, INCONCLUSIVE, floor or 0.0, margin * base, error)
        verdict = replace(verdict, class_=INCONCLUSIVE, confidence=sure, sentence=sentence, quote=quote)
    elif verdict.class_ == INCONCLUSIVE:
        needed = None if floor is None or found.unit != BLOCKS else _blocks_needed(found, floor, base, margin)
        missing = _missing(found, needed, floor is None, control is None)
        verdict = judge(
            found.value_ns, found.interval_ns, base, floor, kind="measured", margin=margin, missing=missing,
            caution=said, subject=subject, error=error,
        )  # fmt: skip
    return Comparison(found, control, base, candidate, margin, equivalent, needed, verdict, taken, floor)


def _doubt(found: Shift, runs: bool) -> str:
    """Why a difference is not told from what captures and processes differ by."""
    more = _more(found.unit, runs)
    # Rounded down: 98.96 % must not read as the 99 % that it misses.
    level = np.floor(found.level * 1000) / 1000
    return (
        f"with so few {found.unit} 0 lies outside the {level:.1%} interval only, and faster or slower takes "
        f"{SURE:.0%}. What would settle it: {more}."
    )


def _more(unit: str, runs: bool) -> str:
    """What lowers the error; `runs`: each capture is a run."""
    if unit == BLOCKS:
        return "more blocks"
    if runs:
        return "more captures of each arm"
    if unit == CAPTURES:
        return "more captures of each arm (--captures), in more processes (--processes)"
    return "more processes (--processes)"


def _blocks_needed(found: Shift, floor: float, base: float, margin: float) -> int | None:
    """Blocks in all after which the same difference would be decided, if errors shrink as the root of their number."""
    low, high = found.interval_ns
    factor = 1.0
    while factor < _FAR:
        factor *= 1.25
        shrink = factor**-0.5
        ends = (found.value_ns - (found.value_ns - low) * shrink, found.value_ns + (high - found.value_ns) * shrink)
        if judge(found.value_ns, ends, base, floor * shrink, kind="measured", margin=margin).class_ != INCONCLUSIVE:
            return int(np.ceil(found.blocks * factor)) - found.blocks
    return None


def _missing(found: Shift, needed: int | None, no_floor: bool, runs: bool) -> str:
    if no_floor:
        return "What would settle it: an A/A arm, the base measured against itself."
    if found.unit != BLOCKS:
        more = _more(found.unit, runs)
        return f"More blocks would hardly settle it: what differs is {found.unit}. What would: {more}."
    if needed is None:
        return "More blocks would hardly settle it: the difference lies at the margin or the noise floor."
    return f"What would settle it: about {needed} more blocks."


def caution(found: Shift, control: Shift | None, each: int | None) -> str:
    """What must be said beside such a measurement; "" for nothing."""
    said = []
    if each is not None and found.processes == 1:
        said.append("One process was measured, and processes differ: the interval does not cover that.")
    few = each is None or each < _ENOUGH
    if few and control is not None and not control.interval_ns[0] <= 0 <= control.interval_ns[1]:
        why = "something drifts with the order of arms" if each is None else "two captures of one program do"
        said.append(f"The base differs from itself by {us(control.value_ns)}: {why}.")
    return " ".join(said)
