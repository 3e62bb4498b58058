"""Two arms measured in turn: how far apart they are, with an interval, a noise floor and a verdict.

A block holds every arm twice, in random order and then in that order reversed (ABBA or BAAB; ABaaBA with an A/A arm),
so that a steady drift cancels in the difference of any two arms. The difference of a block is one sample; blocks lie in
processes, and processes differ by more than blocks do. Nothing is dropped as an outlier.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import pandas as pd
from numpy.typing import NDArray
from scipy import stats

from fusionscope.analysis.noise import AGAIN, BASE, CANDIDATE, CANDIDATE_AGAIN, CONFIDENCE, POWER, SEED
from fusionscope.analysis.tables import number
from fusionscope.analysis.verdict import INCONCLUSIVE, MARGIN, Verdict, judge, us
from fusionscope.profiler.errors import FusionScopeError

Floats = NDArray[np.float64]

RESAMPLES = 1000
#: With fewer blocks nothing is known of their spread.
LEAST_BLOCKS = 4
#: More than so many times the blocks that there are is no advice.
_FAR = 256


def block_values(timings: pd.DataFrame, arm: str) -> pd.Series:
    """Time of an arm in each block (index: process, block), ns: mean of the medians of its two turns in the block."""
    rows = timings[timings["arm"].astype(str) == arm]
    found = {}
    for key, part in rows.groupby(["process", "block"], sort=True):
        times = part["duration_ns"].to_numpy(dtype=np.float64)
        # Rows are in the order in which they were taken: the first half is the first turn.
        halves = np.array_split(times, 2) if len(times) > 1 else [times]
        found[key] = float(np.mean([np.median(half) for half in halves]))
    return pd.Series(found, dtype=np.float64)


def differences(timings: pd.DataFrame, first: str, second: str) -> list[Floats]:
    """First minus second, ns, of the blocks that hold both arms, one array a process."""
    apart = (block_values(timings, first) - block_values(timings, second)).dropna()
    if not len(apart):
        return []
    return [part.to_numpy() for _, part in apart.groupby(level=0, sort=True)]


def savings(timings: pd.DataFrame) -> list[Floats]:
    """Base minus candidate, ns, of each block, one array a process; a second capture of either counts as much.

    What two captures of one program differ by is halved in the mean of two.
    """
    there = set(timings["arm"].astype(str))
    if CANDIDATE_AGAIN not in there or AGAIN not in there:
        return differences(timings, BASE, CANDIDATE)
    first, second = differences(timings, BASE, CANDIDATE), differences(timings, AGAIN, CANDIDATE_AGAIN)
    return [(a + b) / 2 for a, b in zip(first, second, strict=True)]


def hodges_lehmann(values: Floats) -> float:
    """Median of the means of all pairs of [n] values, each value with itself as well."""
    return float(_walsh_medians(np.asarray(values, dtype=np.float64)[None, :])[0])


def _walsh_medians(samples: Floats) -> Floats:
    """[m] Hodges-Lehmann estimates of [m, n] values."""
    count, n = samples.shape
    first, second = np.triu_indices(n)
    at_once = max(1, 4_000_000 // len(first))
    parts = [
        np.median((samples[k : k + at_once, first] + samples[k : k + at_once, second]) / 2, axis=1)
        for k in range(0, count, at_once)
    ]
    return np.concatenate(parts)


@dataclass(frozen=True)
class Shift:
    """A difference in ns with its 95 % interval; `error_ns` is its standard error, of `freedom` degrees."""

    value_ns: float
    interval_ns: tuple[float, float]
    error_ns: float
    freedom: float
    blocks: int
    processes: int

    @property
    def mde_ns(self) -> float:
        """The smallest true difference that such an error shows with 80 % power at 5 %."""
        factor = stats.t.ppf(0.5 + CONFIDENCE / 2, self.freedom) + stats.t.ppf(POWER, self.freedom)
        return float(factor * self.error_ns)

    def within(self, margin_ns: float) -> bool:
        """Whether two one-sided tests at 5 % find the difference smaller than the margin on either side."""
        reach = float(stats.t.ppf(0.95, self.freedom)) * self.error_ns
        return abs(self.value_ns) + reach < margin_ns


def shift(by_process: Sequence[Floats]) -> Shift | None:
    """Estimate a difference from its blocks, one array a process; None with fewer than 4 blocks in all.

    The estimate is the mean over processes of the Hodges-Lehmann estimate of their blocks. The interval has the shape
    of a hierarchical bootstrap (processes, then blocks in them), scaled to an unbiased variance and to Student's t,
    without which so few processes would give intervals that are too narrow.
    """
    parts = [np.asarray(p, dtype=np.float64) for p in by_process if len(p)]
    blocks = sum(len(p) for p in parts)
    if blocks < LEAST_BLOCKS:
        return None
    rng = np.random.default_rng(SEED)
    centres = np.array([hodges_lehmann(p) for p in parts])
    resampled = [_walsh_medians(p[rng.integers(0, len(p), (RESAMPLES, len(p)))]) for p in parts]
    variance, freedom = _variance(parts, centres, resampled)
    middle, error = float(centres.mean()), float(np.sqrt(variance))
    deviations = _hierarchical(centres, resampled, rng) - middle
    spread = float(np.std(deviations))
    reach = float(stats.t.ppf(0.5 + CONFIDENCE / 2, freedom)) / float(stats.norm.ppf(0.5 + CONFIDENCE / 2))
    if spread > 0:
        low, high = np.quantile(deviations, [0.5 - CONFIDENCE / 2, 0.5 + CONFIDENCE / 2]) * (error / spread) * reach
    else:
        low, high = 0.0, 0.0
    return Shift(middle, (middle + float(low), middle + float(high)), error, freedom, blocks, len(parts))


def _variance(parts: list[Floats], centres: Floats, resampled: list[Floats]) -> tuple[float, float]:
    """Variance of the mean over processes, and its degrees of freedom."""
    count = len(parts)
    # A bootstrap of n values is too narrow by (n - 1) / n.
    inside = [float(np.var(r)) * len(p) / (len(p) - 1) for p, r in zip(parts, resampled, strict=True) if len(p) > 1]
    by_blocks = float(np.mean(inside)) / count if inside else 0.0
    freedom = float(max(sum(len(p) - 1 for p in parts), 1))
    if count == 1:
        return by_blocks, freedom
    by_processes = float(np.var(centres, ddof=1)) / count
    # The larger of the two: where processes differ no more than their blocks explain, the blocks say more.
    return (by_processes, count - 1.0) if by_processes > by_blocks else (by_blocks, freedom)


def _hierarchical(centres: Floats, resampled: list[Floats], rng: np.random.Generator) -> Floats:
    """[m] bootstrap estimates: processes drawn with replacement, each with one of its resampled blocks."""
    count = len(centres)
    table = np.stack(resampled)
    if count == 1:
        found: Floats = table[0]
        return found
    drawn = rng.integers(0, count, (RESAMPLES, count))
    which = rng.integers(0, table.shape[1], (RESAMPLES, count))
    found = table[drawn, which].mean(axis=1)
    return found


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

    @property
    def mde_ns(self) -> float | None:
        """The noise floor from the A/A arm."""
        return None if self.control is None else floor_ns(self.control)

    def document(self) -> dict[str, object]:
        """The comparison as the JSON of `fusionscope ab`."""
        control = None if self.control is None else _shift_document(self.control)
        return {
            "base_ns": number(self.base_ns),
            "candidate_ns": number(self.candidate_ns),
            "saving": _shift_document(self.saving),
            "part": self.saving.value_ns / self.base_ns,
            "control": control,
            "noise": {"mde_ns": self.mde_ns},
            "margin": self.margin,
            "equivalent": self.equivalent,
            "blocks_needed": self.blocks_needed,
            "verdict": self.verdict.document(),
        }


def _shift_document(found: Shift) -> dict[str, object]:
    return {
        "ns": number(found.value_ns),
        "interval_ns": [number(end) for end in found.interval_ns],
        "error_ns": number(found.error_ns),
        "blocks": found.blocks,
        "processes": found.processes,
    }


def compare(timings: pd.DataFrame, margin: float = MARGIN, paired_processes: bool = True) -> Comparison:
    """Compare the arms `base` and `candidate` of a table TIMINGS, with `base again` as the A/A arm.

    `paired_processes` False: every turn was a process of its own (two commands), so blocks already differ as processes
    do. Raises FusionScopeError with fewer than 4 blocks.
    """
    found = shift(savings(timings))
    if found is None:
        raise FusionScopeError(
            f"The measurement holds fewer than {LEAST_BLOCKS} whole blocks, which say nothing of their spread: measure "
            "longer (--blocks, --processes)."
        )
    base, candidate = (float(np.median(block_values(timings, arm))) for arm in (BASE, CANDIDATE))
    control = shift(differences(timings, BASE, AGAIN))
    return judged(found, control, base, candidate, margin, paired_processes)


def floor_ns(control: Shift) -> float:
    """The noise floor: what such an error shows, and at least how far the base may lie from itself.

    Two captures of one program can differ for good: on an H200 by 21 us of 980 in every process.
    """
    return max(control.mde_ns, *(abs(end) for end in control.interval_ns))


def judged(
    found: Shift, control: Shift | None, base: float, candidate: float, margin: float, paired_processes: bool = True
) -> Comparison:
    """The comparison with its verdict, and how many blocks are still needed."""
    floor = None if control is None else floor_ns(control)
    verdict = judge(found.value_ns, found.interval_ns, base, floor, kind="measured", margin=margin)
    needed: int | None = 0
    if verdict.class_ == INCONCLUSIVE:
        needed = None if floor is None else _blocks_needed(found, floor, base, margin)
        verdict = judge(
            found.value_ns, found.interval_ns, base, floor, kind="measured", margin=margin,
            missing=_missing(found, needed, floor is None), caution=caution(found, control, paired_processes),
        )  # fmt: skip
    else:
        verdict = judge(
            found.value_ns, found.interval_ns, base, floor, kind="measured", margin=margin,
            caution=caution(found, control, paired_processes),
        )  # fmt: skip
    return Comparison(found, control, base, candidate, margin, found.within(margin * base), needed, verdict)


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


def _missing(found: Shift, needed: int | None, no_control: bool) -> str:
    if no_control:
        return "What would settle it: an A/A arm, the base measured against itself."
    if needed is None:
        return "More blocks would hardly settle it: the difference lies at the margin or the noise floor."
    each = f" (of {found.processes} processes so far)" if found.processes > 1 else ""
    return f"What would settle it: about {needed} more blocks{each}."


def caution(found: Shift, control: Shift | None, paired_processes: bool) -> str:
    """What must be said beside such a measurement; "" for nothing."""
    said = []
    if paired_processes and found.processes == 1:
        said.append("One process was measured, and processes differ: the interval does not cover that.")
    if control is not None and not control.interval_ns[0] <= 0 <= control.interval_ns[1]:
        said.append(f"The base differs from itself by {us(control.value_ns)}: something drifts with the order of arms.")
    return " ".join(said)
