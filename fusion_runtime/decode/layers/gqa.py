"""GQA: softmax attention with fewer key-value heads than query heads, over a full cache."""

from __future__ import annotations

from typing import Any

import torch

from fusionscope.fusion_runtime.context import DecodeContext
from fusionscope.fusion_runtime.decode.layers.rope import rotation
from fusionscope.fusion_runtime.decode.one_launch import reshaped, split
from fusionscope.fusion_runtime.decode.spec import ModelSpec
from fusionscope.fusion_runtime.decode.weights import WeightSource
from fusionscope.fusion_runtime.ownership import Exit, Full, PartialSum
from fusionscope.fusion_runtime.quant import Activation, InputQuant

Tensor = Any


class GqaAttention:
    """Heads are split over the ranks; where there are fewer key-value heads than ranks, ranks share one.

    The cache is full: the step's own token replaces the last one. A cache row holds all keys, then all values.
    """

    def __init__(self, spec: ModelSpec, weights: WeightSource, name: str, batch: int, context: int) -> None:
        size, d = weights.group.size, spec.gqa_head_dim
        self.spec, self.name = spec, name
        self.heads, self.kv_heads = spec.gqa_heads // size, max(1, spec.gqa_kv_heads // size)
        self.qkv = weights.quantise(torch.cat(self._projections(weights)))
        self.out = weights.quantised(f"{name}.out", spec.hidden, spec.gqa_heads * d, shard=1)
        self.bias = 1.0 if spec.gemma else 0.0
        self.q_norm = self._head_norm(weights, "q")
        self.k_norm = self._head_norm(weights, "k")
        self.last = context - 1
        self.cos, self.sin = rotation(spec.rotary_dim, spec.rope_theta, self.last, weights.device)
        kv = [self._kv(weights, f"{name}.cache_{part}", (batch, context), 1.0, weights.dtype) for part in "kv"]
        self.cache = torch.cat(kv, -1)

    def _head_norm(self, weights: WeightSource, part: str) -> Tensor | None:
        """[d], to which a Gemma norm adds 1."""
        if not self.spec.qk_norm:
            return None
        drawn = weights.normal(f"{self.name}.{part}_norm", (self.spec.gqa_head_dim,), std=0.1)
        return drawn if self.spec.gemma else drawn.add_(1)

    def _projections(self, weights: WeightSource) -> list[Tensor]:
        """Rows of this rank: queries, their gates where the model has them, keys, values."""
        spec, hidden = self.spec, self.spec.hidden
        wide = ["q", "gate"] if spec.output_gate else ["q"]
        rows = spec.gqa_heads * spec.gqa_head_dim
        mine = [weights.matrix(f"{self.name}.{part}", rows, hidden, shard=0) for part in wide]
        kv = [self._kv(weights, f"{self.name}.{part}", (hidden,), hidden**-0.5, weights.dtype) for part in "kv"]
        return [*mine, *(part.transpose(0, 1).contiguous() for part in kv)]

    def _kv(self, weights: WeightSource, name: str, lead: tuple[int, ...], std: float, dtype: Any) -> Tensor:
        """[*lead, this rank's key-value heads * d] of a tensor over all of them."""
        spec, group, d = self.spec, weights.group, self.spec.gqa_head_dim
        heads = spec.gqa_kv_heads
        if heads % group.size == 0:
            return weights.normal(name, (*lead, heads * d), shard=len(lead), std=std, dtype=dtype)
        whole = weights.normal(name, (*lead, heads * d), std=std, dtype=dtype)
        return whole.chunk(heads, -1)[group.rank * heads // group.size].contiguous()

    @property
    def input_quant(self) -> InputQuant | None:
        return self.qkv.input_quant

    def forward(self, x: Activation, ctx: DecodeContext, exit: Exit) -> PartialSum | Full:
        """x [T, H] -> this rank's addend [T, H]; writes the token into the cache in place."""
        ops, spec, tokens, d = ctx.ops, self.spec, x.shape[0], self.spec.gqa_head_dim
        wide, narrow = self.heads * d, self.kv_heads * d
        gates = [wide] if spec.output_gate else []
        q, *gate, kv = split(ops.fp8_linear(x, self.qkv.weight, self.qkv.scale), [wide, *gates, 2 * narrow])
        k, _ = split(kv, [narrow, narrow])
        heads, keys = reshaped(q, tokens, self.heads, d), reshaped(k, tokens, self.kv_heads, d)
        ops.qk_norm_rope(heads, keys, self.q_norm, self.k_norm, spec.rms_eps, self.bias, self.cos, self.sin)
        ops.cache_write(self.cache, kv, self.last)
        o = reshaped(ops.gqa_decode(heads, self.cache, self.kv_heads), tokens, wide)
        if gate:
            o = ops.gate_mul(o, gate[0])
        return exit.hand_on(ops.fp8_linear(o, self.out.weight, self.out.scale))
