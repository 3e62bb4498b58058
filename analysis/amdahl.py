"""Amdahl's law, for a share of the time: the first row of every estimate."""

from __future__ import annotations

import math

from fusionscope.profiler.errors import FusionScopeError


def gain(share: float, speedup: float) -> float:
    """Part of the old time that is saved: share x (1 - 1/speedup).

    `share` is the boundary's part of the old time (0 to 1), `speedup` how many times faster the boundary becomes
    (below 1: slower, inf: it vanishes). Raises FusionScopeError outside those ranges.
    """
    if not 0 <= share <= 1:
        raise FusionScopeError(f"--share is a part of the time from 0 to 1, not {share:g}: 0.33 % is 0.0033.")
    if not speedup > 0 or math.isnan(speedup):
        raise FusionScopeError(f"--speedup is a factor above 0, not {speedup:g}: twice as fast is 2.0.")
    return share * (1 - 1 / speedup)
