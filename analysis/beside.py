"""What a candidate's own traced step tells beyond its fused kernel's time: how the launches around its sites changed.

The step that re-timing makes with the fused time alone is held against the traced step of the candidate. What is left
is the neighbours' doing (a consumer that finds its data in cache, or no longer does), the difference between two
captures of one program, whose buffers lie elsewhere, and what tracing shows and the untraced step has not.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from fusionscope.analysis.estimate import EARLY_ERROR_NS, REACH, Fused
from fusionscope.analysis.target import Target

#: Standard deviation between captures of a program whose step takes up to 1 ms, ns, and for how many captures' spread
#: it stands. Beyond that it grows as the root of the step: 1.4 us below 0.85 ms, 1.1 at 1 ms and 3 to 5 at 7, of 190
#: graphs on an H200, traced and timed.
CAPTURE_NS, CAPTURE_WEIGHT = 1200.0, 4
#: Part of what is left that the untraced step shows too, where captures tell it surely: 0.36 to 0.5 fits 94 graphs on
#: an H200 best, 1 is worse than 0. And how much is left, ns times the root of the number of sites.
PART, LEFT_NS = 0.5, 400.0
#: The same where the fused time explains less. With early launches inside the sites, what tracing adds there is a guess
#: that the candidate's trace corrects (12 and 11 graphs choose 0.65 and 0.8); with several streams it is the overlap
#: that decides, and both traces have one (13 graphs choose 0.8).
PART_UNSURE = 0.8
#: Standard deviation of what is still off then, ns times the root of the number of launches that go. 240 held 104 of
#: 114 cases on an H200 that were new to it, but only 45 of the 54 plain chains among them.
STILL_NS = 260.0


def with_step(
    found: Target,
    fused: Fused,
    base_ns: Sequence[float],
    candidate_ns: Sequence[float],
    early: bool | None = None,
) -> Fused:
    """The fused input with what the candidate's traced step adds to it.

    Its error is that of a measurement that captures both arms as often: such captures lie elsewhere again, and differ.
    `base_ns` and `candidate_ns` are the median traced spans of the captures of each arm (at least one each), traced the
    same way; `found` is the target in the base. `early`: whether the fused kernel need not wait for the end of what
    stands before it (programmatic dependent launch), where that is known.
    """
    explained = found.carried(float(np.median(found.traced_savings(fused.placed(found)))), fused.launches)
    apart = float(np.mean(base_ns) - np.mean(candidate_ns))
    # Early launches that stay early show the same in both traces, and nothing of them is to be taken out.
    of_tracing = found.taken_ns * found.plain_gone_of(fused.launches, early)
    if found.several_streams:
        of_tracing = min(of_tracing, found.of_tracing(fused.launches))
    seen = found.shrink * (apart - of_tracing)
    variance = _variance(base_ns) + _variance(candidate_ns)
    left = LEFT_NS**2 * len(found.sites)
    unsure = found.several_streams or found.early_launches > 0
    believed = (PART_UNSURE if unsure else PART) * left / (left + variance)
    if early is not None and early != found.begins_early:
        # What stands before the site changes then (2 us a site were seen), and the fused time knows nothing of it.
        believed = 1.0
    early_ns = EARLY_ERROR_NS / REACH * found.early_launches * found.early_part(fused.launches)
    error = STILL_NS**2 * found.gone(fused.launches) + (believed**2 + 1) * variance + ((1 - believed) * early_ns) ** 2
    return replace(fused, beside_ns=believed * (seen - explained), beside_error_ns=float(np.sqrt(error)))


def _variance(captures: Sequence[float]) -> float:
    """Variance of the mean over the captures, what is known of other programs' captures counted in."""
    mean = float(np.mean(captures))
    apart = float(np.sum((np.asarray(captures) - mean) ** 2))
    freedom = CAPTURE_WEIGHT + len(captures) - 1
    return (CAPTURE_WEIGHT * CAPTURE_NS**2 * max(mean / 1e6, 1.0) + apart) / freedom / len(captures)
