"""A difference between two arms with its 95 % interval, from blocks that lie in captures and processes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray
from scipy import optimize, stats

from fusionscope.analysis.noise import CONFIDENCE, POWER, SEED

Floats = NDArray[np.float64]

RESAMPLES = 1000
#: With fewer blocks nothing is known of their spread.
LEAST_BLOCKS = 4
#: "Faster" and "slower" are said at this level, so that at most 1 % of comparisons of a program with itself say so.
SURE = 0.99
#: That processes differ as captures in them do is believed like so many degrees of freedom between processes.
LIKE_CAPTURES = 2
#: Level of the test that processes differ by more than captures in them explain.
APART = 0.01
#: What the error of a difference comes from.
BLOCKS, CAPTURES, PROCESSES = "blocks", "captures", "processes"


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
    #: What the error comes from: blocks, captures or processes.
    unit: str = BLOCKS

    def sure(self) -> bool:
        """Whether the difference is told from 0 at the level at which a verdict says faster or slower."""
        return abs(self.value_ns) > float(stats.t.ppf(0.5 + SURE / 2, self.freedom)) * self.error_ns

    @property
    def level(self) -> float:
        """The level of the interval that just reaches to 0."""
        if not self.error_ns:
            return 1.0 if self.value_ns else 0.0
        return 1 - 2 * float(stats.t.sf(abs(self.value_ns) / self.error_ns, self.freedom))

    @property
    def mde_ns(self) -> float:
        """The smallest true difference that another measurement with such an error shows with 80 % power at 5 %."""
        return errors_seen(round(self.freedom, 2)) * self.error_ns

    def within(self, margin_ns: float) -> bool:
        """Whether two one-sided tests at 5 % find the difference smaller than the margin on either side."""
        reach = float(stats.t.ppf(0.95, self.freedom)) * self.error_ns
        return abs(self.value_ns) + reach < margin_ns


@lru_cache(maxsize=256)
def errors_seen(freedom: float) -> float:
    """Standard errors of which a true difference is found in 80 % of measurements, at 5 %.

    The error is estimated twice, with so many degrees of freedom: by the measurement that tells the noise floor, and by
    the one that is to find the difference. The sum of Student's quantiles at 5 % and 80 % allows for one of the two:
    with six degrees of freedom another measurement finds 71 % of differences of that size, with two 60 %.
    """
    nodes = (np.arange(100) + 0.5) / 100
    told = np.sqrt(stats.chi2.ppf(nodes, freedom) / freedom)
    needed = float(stats.t.ppf(0.5 + CONFIDENCE / 2, freedom))

    def short(factor: float) -> float:
        return float(np.mean(stats.nct.sf(needed, freedom, factor * told))) - POWER

    return float(optimize.brentq(short, 1.0, 200.0, xtol=1e-3))


def shift(by_process: Sequence[Floats], captured: Floats | None = None) -> Shift | None:
    """Estimate a difference from its blocks, one array a process; None with fewer than 4 blocks in all.

    The estimate is the mean over processes of the Hodges-Lehmann estimate of their blocks. `captured` [processes, 2, n]
    are the times of the n captures that each arm has in a process. The interval is Student's t on the units that differ
    most (see `_variance`); where blocks are the only unit it has the shape of their bootstrap.
    """
    parts = [np.asarray(p, dtype=np.float64) for p in by_process if len(p)]
    blocks = sum(len(p) for p in parts)
    if blocks < LEAST_BLOCKS:
        return None
    rng = np.random.default_rng(SEED)
    centres = np.array([hodges_lehmann(p) for p in parts])
    resampled = [_walsh_medians(p[rng.integers(0, len(p), (RESAMPLES, len(p)))]) for p in parts]
    variance, freedom, unit = _variance(parts, centres, resampled, captured)
    middle, error = float(centres.mean()), float(np.sqrt(variance))
    quantile = float(stats.t.ppf(0.5 + CONFIDENCE / 2, freedom))
    low, high = -quantile * error, quantile * error
    deviations = resampled[0] - middle
    if unit == BLOCKS and (spread := float(np.std(deviations))) > 0:
        ends = np.quantile(deviations, [0.5 - CONFIDENCE / 2, 0.5 + CONFIDENCE / 2])
        low, high = ends * (error / spread) * quantile / float(stats.norm.ppf(0.5 + CONFIDENCE / 2))
    return Shift(middle, (middle + float(low), middle + float(high)), error, freedom, blocks, len(parts), unit)


def _variance(
    parts: list[Floats], centres: Floats, resampled: list[Floats], captured: Floats | None
) -> tuple[float, float, str]:
    """Variance of the mean over processes, its degrees of freedom, and the unit that it comes from.

    In a nested design the variance between units of the highest level holds all below it. A few processes tell little
    of it, and processes whose captures lie in drawn places hardly differ by more than those captures do: in five
    comparisons on H200s the variance between processes was 0.9 times what captures explain. So what captures differ by
    is believed beside it, like `LIKE_CAPTURES` degrees of freedom more (a moderated variance: Smyth 2004, "Linear
    models and empirical Bayes methods"), unless processes differ by more than captures can (an F-test at 1 %): then
    they alone count. A capture's own effect that comes back in every process is not seen between processes: it is taken
    from the captures' means over processes, less what captures that differ anew each time would show, and added with
    the degrees of freedom of Satterthwaite (1946), "An approximate distribution of estimates of variance components".
    """
    count = len(parts)
    # A bootstrap of n values is too narrow by (n - 1) / n.
    inside = [float(np.var(r)) * len(p) / (len(p) - 1) for p, r in zip(parts, resampled, strict=True) if len(p) > 1]
    by_blocks = float(np.mean(inside)) / count if inside else 0.0
    lasting, once, freedom = (0.0, 0.0, 0.0) if captured is None else _by_captures(captured)
    if count == 1:
        if captured is None:
            return by_blocks, float(max(len(parts[0]) - 1, 1)), BLOCKS
        return max(by_blocks, lasting), freedom, CAPTURES
    between, degrees = float(np.var(centres, ddof=1)) / count, count - 1.0
    unit = PROCESSES if between > once else CAPTURES
    if captured is not None and between <= once * float(stats.f.isf(APART, degrees, count * freedom)):
        between = (LIKE_CAPTURES * once + degrees * between) / (LIKE_CAPTURES + degrees)
        degrees += LIKE_CAPTURES
    between = max(between, by_blocks)
    # What lasts is in both; of what differs anew each time, the captures' means over processes hold as much.
    more = max(lasting - once, 0.0) * count / (count - 1)
    if not more:
        return between, degrees, unit
    total = between + more
    if more > between:
        return total, freedom, CAPTURES
    # Captures that keep what they differ by show it again in each process: those are no more degrees of freedom.
    return total, total**2 / (between**2 / min(degrees, freedom) + more**2 / freedom), unit


def _by_captures(captured: Floats) -> tuple[float, float, float]:
    """Variance of a saving from the captures' means over processes, the same if captures differed anew in each process,

    and the degrees of freedom of the first.
    """
    processes, arms, n = captured.shape
    lasting = float(np.var(captured.mean(axis=0), axis=1, ddof=1).sum()) / n
    once = float(np.var(captured, axis=2, ddof=1).sum(axis=1).mean()) / n / processes
    return lasting, once, float(arms * (n - 1))
