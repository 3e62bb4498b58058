"""Gated DeltaNet: linear attention by the gated delta rule with one decay a head, after a short convolution."""

from __future__ import annotations

from typing import Any

import torch

from fusionscope.fusion_runtime.context import DecodeContext
from fusionscope.fusion_runtime.decode.one_launch import reshaped, split
from fusionscope.fusion_runtime.decode.spec import ModelSpec
from fusionscope.fusion_runtime.decode.weights import WeightSource
from fusionscope.fusion_runtime.ownership import Exit, Full, PartialSum

Tensor = Any


class GdnAttention:
    """Heads are split over the ranks; several value heads share one query and key head."""

    input_quant = None
    """The gates' projections read the input in the storage dtype."""

    def __init__(self, spec: ModelSpec, weights: WeightSource, name: str, batch: int) -> None:
        size, d = weights.group.size, spec.gdn_head_dim
        self.spec, self.name = spec, name
        self.k_heads, self.v_heads = spec.gdn_k_heads // size, spec.gdn_v_heads // size
        rows = {"q": spec.gdn_k_heads * d, "k": spec.gdn_k_heads * d, "v": spec.gdn_v_heads * d}
        wide = {**rows, "z": rows["v"]}
        self.qkvz = weights.quantise(
            torch.cat([weights.matrix(f"{name}.{part}", n, spec.hidden, shard=0) for part, n in wide.items()])
        )
        gates = [weights.matrix(f"{name}.{part}", spec.gdn_v_heads, spec.hidden, shard=0) for part in ("beta", "a")]
        self.gates = torch.cat(gates)
        std = spec.conv_width**-0.5
        taps = [
            weights.normal(f"{name}.conv_{part}", (n, spec.conv_width), shard=0, std=std) for part, n in rows.items()
        ]
        self.conv = torch.cat(taps)
        heads = (spec.gdn_v_heads,)
        self.A_log = weights.normal(f"{name}.A_log", heads, shard=0, std=0.5, dtype=torch.float32)
        self.dt_bias = weights.normal(f"{name}.dt_bias", heads, shard=0, dtype=torch.float32)
        self.out_norm = weights.normal(f"{name}.out_norm", (d,), std=0.1).add_(1)
        self.out = weights.quantised(f"{name}.out", spec.hidden, rows["v"], shard=1)
        past = spec.conv_width - 1
        self.conv_state = torch.cat(
            [weights.normal(f"{name}.past_{part}", (batch, n, past), shard=1) for part, n in rows.items()], 1
        )
        state = (batch, spec.gdn_v_heads, d, d)
        self.state = weights.normal(f"{name}.state", state, shard=1, std=0.1, dtype=torch.float32)

    def forward(self, x: Tensor, ctx: DecodeContext, exit: Exit) -> PartialSum | Full:
        """x [T, H] -> this rank's addend [T, H]; advances the convolution's and the recurrent state in place."""
        ops, spec, tokens, d = ctx.ops, self.spec, x.shape[0], self.spec.gdn_head_dim
        keys, values = self.k_heads * d, self.v_heads * d
        qkv, z = split(ops.fp8_linear(x, self.qkvz.weight, self.qkvz.scale), [2 * keys + values, values])
        mixed = split(ops.causal_conv1d_update(qkv, self.conv_state, self.conv), [keys, keys, values])
        q, k, v = (
            reshaped(part, tokens, heads, d)
            for part, heads in zip(mixed, (self.k_heads, self.k_heads, self.v_heads), strict=True)
        )
        beta, a = split(ops.linear(x, self.gates), [self.v_heads, self.v_heads])
        o = ops.gdn_update(q, k, v, a, beta, self.A_log, self.dt_bias, self.state)
        o = ops.gated_rmsnorm(o, reshaped(z, tokens, self.v_heads, d), self.out_norm, spec.rms_eps, silu=True)
        y = reshaped(o, tokens, values)
        return exit.hand_on(ops.fp8_linear(y, self.out.weight, self.out.scale))
