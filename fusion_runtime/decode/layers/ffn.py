"""The two kinds of feed-forward: dense, and a mixture of experts with a shared expert."""

from __future__ import annotations

from typing import Any

import torch

from fusionscope.fusion_runtime.context import DecodeContext
from fusionscope.fusion_runtime.decode.spec import ModelSpec
from fusionscope.fusion_runtime.decode.weights import WeightSource
from fusionscope.fusion_runtime.ownership import DeferredFinalize, FinalizeOperands, PartialSum

Tensor = Any

CPU_BLOCK, CUDA_BLOCK = 1, 16
"""Rows to which each expert's tokens are padded: none on the CPU, a tensor core's tile on CUDA."""


class Mlp:
    """Clamped SwiGLU, split over the ranks by its inner width: the dense FFN and the shared expert."""

    def __init__(self, spec: ModelSpec, weights: WeightSource, name: str, intermediate: int) -> None:
        self.spec, self.name = spec, name
        self.up = weights.stacked([f"{name}.gate", f"{name}.up"], intermediate, spec.hidden)
        self.down = weights.quantised(f"{name}.down", spec.hidden, intermediate, shard=1)

    def addend(self, x: Tensor, ctx: DecodeContext) -> Tensor:
        """x [T, H] -> this rank's addend [T, H], bare: only for whoever adds it to something owed."""
        ops = ctx.ops
        inner = ops.silu_mul_clamp(ops.fp8_linear(x, self.up.weight, self.up.scale), self.spec.swiglu_limit)
        return ops.fp8_linear(inner, self.down.weight, self.down.scale)

    def forward(self, x: Tensor, ctx: DecodeContext) -> PartialSum:
        """x [T, H] -> this rank's addend [T, H]."""
        return PartialSum(self.addend(x, ctx), ctx.group, f"{self.name}.down")


class MoeFfn:
    """Sigmoid router, top-k experts each split over the ranks by their inner width, one shared expert."""

    def __init__(self, spec: ModelSpec, weights: WeightSource, name: str) -> None:
        self.spec, self.name = spec, name
        self.block = CPU_BLOCK if weights.device.type == "cpu" else CUDA_BLOCK
        self.router = weights.matrix(f"{name}.router", spec.experts, spec.hidden, dtype=torch.float32)
        self.bias = weights.normal(f"{name}.router_bias", (spec.experts,), std=0.02, dtype=torch.float32)
        inner, hidden = spec.expert_intermediate, spec.hidden
        self.up = weights.experts([f"{name}.gate", f"{name}.up"], spec.experts, inner, hidden, shard=0)
        self.down = weights.experts([f"{name}.down"], spec.experts, hidden, inner, shard=1)
        self.shared = Mlp(spec, weights, f"{name}.shared", spec.shared_intermediate)

    def forward(self, x: Tensor, ctx: DecodeContext) -> DeferredFinalize:
        """x [T, H] -> the experts' products, whose weighted sum and all-reduce are still owed."""
        ops, spec = ctx.ops, self.spec
        ids, chosen = ops.router(ops.router_gemm(x, self.router), self.bias, spec.top_k)
        sorted_ids, expert_of_block, num_padded, idx = ops.moe_align(ids, spec.experts, self.block)
        rows = (sorted_ids, expert_of_block, num_padded)
        gate_up = ops.moe_gemm(x, self.up.weight, self.up.scale, *rows, spec.top_k)
        inner = ops.silu_mul_clamp(gate_up, spec.swiglu_limit)
        out = ops.moe_gemm(inner, self.down.weight, self.down.scale, *rows, 0)
        shared = self.shared.addend(x, ctx)
        operands = FinalizeOperands(out, idx, chosen, spec.routed_scaling, shared)
        return DeferredFinalize(operands, ctx.group, f"{self.name}.experts")
