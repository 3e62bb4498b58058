"""Negative controls: kernels that a fusion does not touch should take the same time on both sides.

Each row is tested by itself, and with hundreds of rows some differ by chance: the false-discovery rate is kept at 5 %
over all rows (Benjamini-Hochberg). Two captures of one program drift by a little in every kernel, so that a row counts
as moved only where it differs by more than that as well.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy import stats

from fusionscope.analysis.tables import number

Floats = NDArray[np.float64]

#: False-discovery rate over all rows, and the drift between two captures that is no finding (0.5 % was seen).
LEVEL, DRIFT = 0.05, 0.01


@dataclass(frozen=True)
class Control:
    """One kernel on both sides; medians over the replays in ns. `q` is the p-value adjusted for all rows."""

    name: str
    base_ns: float
    candidate_ns: float
    p: float
    q: float
    moved: bool

    def document(self) -> dict[str, object]:
        """One row as JSON."""
        return {
            "name": self.name,
            "base_ns": number(self.base_ns),
            "candidate_ns": number(self.candidate_ns),
            "p": self.p,
            "q": self.q,
            "moved": self.moved,
        }


def controls(
    base: Mapping[str, Floats], candidate: Mapping[str, Floats], level: float = LEVEL, drift: float = DRIFT
) -> list[Control]:
    """A row for each kernel that both sides have: its times [R] ns by replay, the sum over a forward's launches.

    Rows with fewer than 4 replays on a side cannot be tested: their p is 1. Rows come in the order of `base`.
    """
    names = [name for name in base if name in candidate]
    p = np.array([_p(np.asarray(base[name]), np.asarray(candidate[name])) for name in names])
    q = stats.false_discovery_control(p) if len(p) else p
    found = []
    for name, raw, adjusted in zip(names, p, q, strict=True):
        before, after = float(np.median(base[name])), float(np.median(candidate[name]))
        beyond = abs(after - before) > drift * before
        found.append(Control(name, before, after, float(raw), float(adjusted), bool(adjusted <= level and beyond)))
    return found


def _p(before: Floats, after: Floats) -> float:
    """Two-sided Mann-Whitney: replays of one capture are alike, and their spread is not normal."""
    if min(len(before), len(after)) < 4 or (np.ptp(before) == 0 and np.ptp(after) == 0 and before[0] == after[0]):
        return 1.0
    return float(stats.mannwhitneyu(before, after).pvalue)
