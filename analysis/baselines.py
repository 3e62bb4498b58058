"""What plainer estimators say of the same fusion, computed by the same tool so that they can be held against ours."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from fusionscope.analysis import amdahl
from fusionscope.analysis.target import Target

#: Part of a boundary's time that the share estimator takes for saved, whatever the kernel.
DISCOUNT = 0.5


@dataclass(frozen=True)
class Baselines:
    """Savings of one step in ns; None where the estimator lacks its input."""

    amdahl_kernel_time_ns: float | None
    amdahl_span_ns: float | None
    share_discount_ns: float
    isolated_difference_ns: float | None
    roofline_ns: float

    def document(self, step_ns: float) -> dict[str, dict[str, float | None]]:
        """Name -> saving in ns and as a part of the step."""
        values = {
            "amdahl_kernel_time": self.amdahl_kernel_time_ns,
            "amdahl_span": self.amdahl_span_ns,
            "share_discount": self.share_discount_ns,
            "isolated_difference": self.isolated_difference_ns,
            "roofline": self.roofline_ns,
        }
        return {
            name: {"saving_ns": ns, "gain": None if ns is None or not step_ns else ns / step_ns}
            for name, ns in values.items()
        }


def baselines(
    found: Target,
    speedup: float | None,
    floor_ns: float,
    isolated_split_ns: float | None = None,
    isolated_fused_ns: float | None = None,
) -> Baselines:
    """The plain estimators of a target.

    `speedup` is the boundary's (its kernel time over the fused kernels'), None where no fused time is known;
    `floor_ns` the least time of a site; the isolated times are of one site alone in a loop.
    """
    step, time = found.step_ns, found.kernel_time_ns
    total = float(np.median(found.forward.kernel_time)) or 1.0
    of_span = min(time / found.span_ns, 1.0) if found.span_ns else 0.0
    sites = len(found.sites)
    alone = None
    if isolated_split_ns is not None and isolated_fused_ns is not None:
        alone = sites * (isolated_split_ns - isolated_fused_ns)
    return Baselines(
        amdahl_kernel_time_ns=None if speedup is None else step * amdahl.gain(time / total, speedup),
        amdahl_span_ns=None if speedup is None else step * amdahl.gain(of_span, speedup),
        share_discount_ns=step * of_span * DISCOUNT,
        isolated_difference_ns=alone,
        roofline_ns=time - sites * floor_ns,
    )
