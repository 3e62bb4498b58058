"""DeepSeek-V3: plain norms, experts after the first layers, a shared expert that is split over the ranks."""

from __future__ import annotations

from typing import Any

from fusionscope.fusion_runtime.families.base import Family
from fusionscope.fusion_runtime.ownership import FinalizeOperands

Tensor = Any


class DeepseekV3(Family):
    """A mixture of experts has `experts(x)` -> (gemm2_out [P, H], idx [T, K], weights [T, K]); the scale of the routed
    part is applied by the finalize, not folded into the weights."""

    def feed_forward(self, layer: Any, x: Tensor) -> Tensor | FinalizeOperands:
        mlp = layer.mlp
        if not hasattr(mlp, "experts"):
            return mlp(x)
        gemm2_out, idx, weights = mlp.experts(x)
        return FinalizeOperands(gemm2_out, idx, weights, mlp.routed_scaling_factor, mlp.shared_experts(x))
