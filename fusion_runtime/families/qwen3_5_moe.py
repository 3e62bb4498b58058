"""Qwen3.5-MoE: Gemma norms, linear attention in most layers, a shared expert behind a gate."""

from __future__ import annotations

from typing import Any

import torch

from fusionscope.fusion_runtime.families.base import Family
from fusionscope.fusion_runtime.ownership import FinalizeOperands

Tensor = Any


class Qwen35Moe(Family):
    """The gate of a token is the same on every rank, so that gated addends still sum to the gated whole."""

    weight_bias = 1.0

    def attention(self, layer: Any, x: Tensor) -> Tensor:
        return layer.linear_attn(x) if hasattr(layer, "linear_attn") else layer.self_attn(x)

    def feed_forward(self, layer: Any, x: Tensor) -> Tensor | FinalizeOperands:
        mlp = layer.mlp
        shared = torch.sigmoid(mlp.shared_expert_gate(x)) * mlp.shared_expert(x)
        gemm2_out, idx, weights = mlp.experts(x)
        return FinalizeOperands(gemm2_out, idx, weights, 1.0, shared)
