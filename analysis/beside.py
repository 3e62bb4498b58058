"""What a candidate's own traced step tells beyond its fused kernel's time: how the launches around its sites changed.

The step that re-timing makes with the fused time alone is held against the traced step of the candidate. What is left
is the neighbours' doing (a consumer that finds its data in cache, or no longer does) and the difference between two
captures of one program, whose buffers lie elsewhere. The less the captures agree, the less of it is believed.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from fusionscope.analysis.estimate import NEIGHBOURS_NS, Fused
from fusionscope.analysis.target import Target

#: Standard deviation of the step between captures of one program, ns, and for how many captures' spread it stands:
#: captures of the lab's chains differ by 0.9 us (median) to 4.0 (root mean square).
CAPTURE_NS, CAPTURE_WEIGHT = 1600.0, 2
#: Half of a 95 % interval in standard deviations.
_REACH = 1.96


def with_step(found: Target, fused: Fused, base_ns: Sequence[float], candidate_ns: Sequence[float]) -> Fused:
    """The fused input with what the candidate's traced step adds to it.

    Its error is that of a measurement that captures both arms as often: such captures lie elsewhere again, and differ.
    `base_ns` and `candidate_ns` are the median traced spans of the captures of each arm (at least one each), traced the
    same way; `found` is the target in the base.
    """
    explained = float(np.median(found.traced_savings(fused.placed(found))))
    left = float(np.mean(base_ns) - np.mean(candidate_ns)) - explained
    variance = _variance(base_ns) + _variance(candidate_ns)
    expected = (NEIGHBOURS_NS / _REACH) ** 2 * len(found.sites)
    believed = expected / (expected + variance)
    return replace(fused, beside_ns=believed * left, beside_error_ns=float(np.sqrt((believed + 1) * variance)))


def _variance(captures: Sequence[float]) -> float:
    """Variance of the mean over the captures, what is known of other programs' captures counted in."""
    apart = float(np.sum((np.asarray(captures) - np.mean(captures)) ** 2))
    freedom = CAPTURE_WEIGHT + len(captures) - 1
    return (CAPTURE_WEIGHT * CAPTURE_NS**2 + apart) / freedom / len(captures)
