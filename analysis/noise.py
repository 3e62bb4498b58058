"""What a difference must exceed to be seen: bootstrap intervals and the smallest detectable effect of a machine."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np
import pandas as pd
from numpy.typing import NDArray
from scipy import stats

Floats = NDArray[np.float64]

#: Resamples of a bootstrap, and the seed that makes a report the same every time it is made.
RESAMPLES, SEED = 2000, 20261
#: Replays that make a block where the timings tell of none.
BLOCK = 10
CONFIDENCE, POWER = 0.95, 0.80
#: Arms of a measurement in turn: the base, the candidate, and both captured a second time.
BASE, CANDIDATE, AGAIN, CANDIDATE_AGAIN = "base", "candidate", "base again", "candidate again"


def bootstrap(values: Floats, statistic: Callable[..., Floats] = np.median) -> tuple[float, float]:
    """95 % percentile interval of a statistic of [n] values; one value alone gives (nan, nan)."""
    if len(values) < 2:
        return float("nan"), float("nan")
    picks = np.random.default_rng(SEED).integers(0, len(values), (RESAMPLES, len(values)))
    low, high = np.quantile(statistic(np.asarray(values)[picks], axis=1), [0.025, 0.975])
    return float(low), float(high)


@dataclass(frozen=True)
class Baseline:
    """Untraced replay times of one arm on one rank."""

    median_ns: float
    interval_ns: tuple[float, float]
    #: Smallest difference that a comparison over as many blocks would see; None with under 3 blocks.
    mde_ns: float | None
    blocks: int
    processes: int
    source: str
    #: Median of each process, which is that of a capture, ns.
    by_process: dict[int, float] = field(default_factory=dict)


#: Sources in order of trust; times of the traced process carry the tracer's cost and are no baseline.
SOURCES = ("untraced", "graph-level trace", "host latency")


def baseline(timings: pd.DataFrame, rank: int = 0) -> Baseline | None:
    """The most trusted replay times of a rank (table TIMINGS), None where there are none."""
    mine = timings[timings["rank"].isin([rank, -1])]
    if (mine["arm"] == BASE).any():
        # A run that measured two arms: its step is that of the base.
        mine = mine[mine["arm"] == BASE]
    for source in SOURCES:
        rows = mine[mine["source"] == source]
        if len(rows):
            return _baseline(rows, source)
    return None


def blocks(rows: pd.DataFrame) -> list[Floats]:
    """Times in ns by (process, block) in order; one long block is cut into blocks of 10 replays."""
    found = []
    for _, part in rows.groupby(["process", "block"], sort=True):
        times = part["duration_ns"].to_numpy(dtype=np.float64)
        pieces = max(len(times) // BLOCK, 1) if part["block"].iloc[0] < 0 else 1
        found += list(np.array_split(times, pieces))
    return found


def _baseline(rows: pd.DataFrame, source: str) -> Baseline:
    parts = blocks(rows)
    medians = np.array([np.median(p) for p in parts])
    low, high = bootstrap(medians)
    # A against A: the two halves of a block are the same program under the same conditions, apart in time as the
    # two arms of an A/B block are.
    apart = np.array([np.median(p[: len(p) // 2]) - np.median(p[len(p) // 2 :]) for p in parts if len(p) >= 4])
    return Baseline(
        median_ns=float(np.median(rows["duration_ns"])),
        interval_ns=(low, high),
        mde_ns=smallest_effect(apart),
        blocks=len(parts),
        processes=int(rows["process"].nunique()),
        source=source,
        by_process={
            int(process): float(np.median(rows["duration_ns"][rows["process"] == process]))
            for process in np.unique(rows["process"].to_numpy())
        },
    )


def smallest_effect(differences: Floats) -> float | None:
    """Smallest true mean difference that n paired differences of this spread show with 80 % power at 5 %; ns.

    None with fewer than 3 differences, which say nothing of their spread.
    """
    n = len(differences)
    if n < 3:
        return None
    error = float(np.std(differences, ddof=1)) / np.sqrt(n)
    freedom = n - 1
    factor = stats.t.ppf(0.5 + CONFIDENCE / 2, freedom) + stats.t.ppf(POWER, freedom)
    return float(factor * error)
