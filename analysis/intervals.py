"""Unions of time intervals: busy time never counts an overlap twice."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

Ints = NDArray[np.int64]


def union_ns(start: Ints, duration: Ints) -> int:
    """Length in ns of the union of half-open intervals; any order; empty input gives 0."""
    if len(start) == 0:
        return 0
    order = np.argsort(start, kind="stable")
    begin = np.asarray(start, dtype=np.int64)[order]
    end = begin + np.asarray(duration, dtype=np.int64)[order]
    reach = np.maximum.accumulate(end)
    # What an interval adds is the part beyond everything that began before it.
    covered = np.concatenate(([begin[0]], reach[:-1]))
    return int(np.maximum(end - np.maximum(begin, covered), 0).sum())
