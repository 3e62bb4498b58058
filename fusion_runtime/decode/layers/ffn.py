"""The two kinds of feed-forward: dense, and a mixture of experts with a shared expert."""

from __future__ import annotations

from typing import Any

import torch

from fusionscope.fusion_runtime.boundaries import moe_finalize
from fusionscope.fusion_runtime.context import DecodeContext
from fusionscope.fusion_runtime.decode.spec import ModelSpec
from fusionscope.fusion_runtime.decode.weights import WeightSource
from fusionscope.fusion_runtime.ownership import DeferredFinalize, Exit, FinalizeOperands, Full, PartialSum
from fusionscope.fusion_runtime.quant import Activation, InputQuant

Tensor = Any

CPU_BLOCK, CUDA_BLOCK = 1, 16
"""Rows to which each expert's tokens are padded: none on the CPU, a tensor core's tile on CUDA."""


class Mlp:
    """SwiGLU (clamped in some models), split over the ranks by its inner width: dense FFN and shared expert."""

    def __init__(self, spec: ModelSpec, weights: WeightSource, name: str, intermediate: int) -> None:
        self.spec, self.name = spec, name
        self.up = weights.stacked([f"{name}.gate", f"{name}.up"], intermediate, spec.hidden)
        self.down = weights.quantised(f"{name}.down", spec.hidden, intermediate, shard=1)

    @property
    def input_quant(self) -> InputQuant | None:
        return self.up.input_quant

    def addend(self, x: Activation, ctx: DecodeContext) -> Tensor:
        """x [T, H] -> this rank's addend [T, H], bare: only for whoever adds it to something owed."""
        ops = ctx.ops
        inner = ops.silu_mul_clamp(ops.fp8_linear(x, self.up.weight, self.up.scale), self.spec.swiglu_limit)
        return ops.fp8_linear(inner, self.down.weight, self.down.scale)

    def forward(self, x: Activation, ctx: DecodeContext, exit: Exit) -> PartialSum | Full:
        """x [T, H] -> this rank's addend [T, H]."""
        return exit.hand_on(self.addend(x, ctx))


class MoeFfn:
    """Router, top-k experts each split over the ranks by their inner width, one shared expert."""

    input_quant = None
    """The router reads the input in the storage dtype."""

    def __init__(self, spec: ModelSpec, weights: WeightSource, name: str) -> None:
        self.spec, self.name = spec, name
        self.block = CPU_BLOCK if weights.device.type == "cpu" else CUDA_BLOCK
        self.router = weights.matrix(f"{name}.router", spec.experts, spec.hidden, dtype=torch.float32)
        self.bias = weights.normal(f"{name}.router_bias", (spec.experts,), std=0.02, dtype=torch.float32)
        if spec.softmax_router:
            self.bias.zero_()
        inner, hidden = spec.expert_intermediate, spec.hidden
        self.up = weights.experts([f"{name}.gate", f"{name}.up"], spec.experts, inner, hidden, shard=0)
        self.down = weights.experts([f"{name}.down"], spec.experts, hidden, inner, shard=1)
        self.shared = Mlp(spec, weights, f"{name}.shared", spec.shared_intermediate)
        # Replicated: the gate of a token is the same on every rank, so that gated addends still sum to the whole.
        self.shared_gate = weights.matrix(f"{name}.shared_gate", 1, hidden) if spec.shared_gate else None

    def forward(self, x: Tensor, ctx: DecodeContext, exit: Exit) -> DeferredFinalize | PartialSum | Full:
        """x [T, H] -> the experts' products, whose weighted sum and all-reduce are still owed.

        Where the exit reduces at once, the weighted sum is done here.
        """
        return moe_finalize.hand_on(exit, self._operands(x, ctx), ctx)

    def _operands(self, x: Tensor, ctx: DecodeContext) -> FinalizeOperands:
        ops, spec = ctx.ops, self.spec
        logits = ops.router_gemm(x, self.router)
        routing = (spec.expert_groups, spec.groups_kept, spec.softmax_router)
        ids, chosen = ops.router(logits, self.bias, spec.top_k, *routing)
        sorted_ids, expert_of_block, num_padded, idx = ops.moe_align(ids, spec.experts, self.block)
        rows = (sorted_ids, expert_of_block, num_padded)
        gate_up = ops.moe_gemm(x, self.up.weight, self.up.scale, *rows, spec.top_k)
        inner = ops.silu_mul_clamp(gate_up, spec.swiglu_limit)
        out = ops.moe_gemm(inner, self.down.weight, self.down.scale, *rows, 0)
        shared = self.shared.addend(x, ctx)
        if self.shared_gate is not None:
            shared = ops.gate_mul(shared, ops.linear(x, self.shared_gate))
        return FinalizeOperands(out, idx, chosen, spec.routed_scaling, shared)
