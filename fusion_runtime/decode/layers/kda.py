"""KDA: linear attention by the gated delta rule, with a short convolution and a recurrent state."""

from __future__ import annotations

from typing import Any

import torch

from fusionscope.fusion_runtime.context import DecodeContext
from fusionscope.fusion_runtime.decode.one_launch import reshaped, split
from fusionscope.fusion_runtime.decode.spec import ModelSpec
from fusionscope.fusion_runtime.decode.weights import WeightSource
from fusionscope.fusion_runtime.ownership import Exit, Full, PartialSum

Tensor = Any


class KdaAttention:
    """Heads are split over the ranks; the low-rank projections' first halves are replicated."""

    input_quant = None
    """The gates' projections read the input in the storage dtype."""

    def __init__(self, spec: ModelSpec, weights: WeightSource, name: str, batch: int) -> None:
        size = weights.group.size
        dim, heads = spec.kda_head_dim, spec.kda_heads
        inner = heads * dim
        self.spec, self.name = spec, name
        self.heads, self.width = heads // size, inner // size
        self.qkv = weights.stacked([f"{name}.{part}" for part in "qkv"], inner, spec.hidden)
        low = [weights.matrix(f"{name}.{part}", spec.kda_lora, spec.hidden) for part in ("f_down", "g_down")]
        self.low = torch.cat([*low, weights.matrix(f"{name}.beta", heads, spec.hidden, shard=0)])
        self.f_up = weights.matrix(f"{name}.f_up", inner, spec.kda_lora, shard=0)
        self.g_up = weights.matrix(f"{name}.g_up", inner, spec.kda_lora, shard=0)
        taps = [
            weights.normal(f"{name}.conv_{part}", (inner, spec.conv_width), shard=0, std=spec.conv_width**-0.5)
            for part in "qkv"
        ]
        self.conv = torch.cat(taps)
        self.A_log = weights.normal(f"{name}.A_log", (heads,), shard=0, std=0.5, dtype=torch.float32)
        self.dt_bias = weights.normal(f"{name}.dt_bias", (inner,), shard=0, dtype=torch.float32).sub_(2)
        self.out_norm = weights.normal(f"{name}.out_norm", (dim,), std=0.1).add_(1)
        self.out = weights.quantised(f"{name}.out", spec.hidden, inner, shard=1)
        past = (batch, inner, spec.conv_width - 1)
        self.conv_state = torch.cat([weights.normal(f"{name}.past_{part}", past, shard=1) for part in "qkv"], 1)
        self.state = weights.normal(f"{name}.state", (batch, heads, dim, dim), shard=1, std=0.1, dtype=torch.float32)

    def forward(self, x: Tensor, ctx: DecodeContext, exit: Exit) -> PartialSum | Full:
        """x [T, H] -> this rank's addend [T, H]; advances the convolution's and the recurrent state in place."""
        ops, spec, rank = ctx.ops, self.spec, self.spec.kda_lora
        heads = (x.shape[0], self.heads, spec.kda_head_dim)
        mixed = ops.causal_conv1d_update(ops.fp8_linear(x, self.qkv.weight, self.qkv.scale), self.conv_state, self.conv)
        q, k, v = (reshaped(part, *heads) for part in split(mixed, [self.width] * 3))
        f_low, g_low, beta = split(ops.linear(x, self.low), [rank, rank, self.heads])
        decay, gate = ops.linear(f_low, self.f_up), ops.linear(g_low, self.g_up)
        o = ops.kda_update(
            q,
            k,
            v,
            reshaped(decay, *heads),
            beta,
            self.A_log,
            self.dt_bias,
            spec.gate_lower_bound,
            self.state,
        )
        o = ops.gated_rmsnorm(o, reshaped(gate, *heads), self.out_norm, spec.rms_eps)
        y = reshaped(o, x.shape[0], self.width)
        return exit.hand_on(ops.fp8_linear(y, self.out.weight, self.out.scale))
