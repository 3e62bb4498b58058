"""MLA: attention over a latent cache, where there is an indexer restricted to the pools of tokens that it picks."""

from __future__ import annotations

from typing import Any

import torch

from fusionscope.fusion_runtime.context import DecodeContext
from fusionscope.fusion_runtime.decode.layers.rope import rotation
from fusionscope.fusion_runtime.decode.one_launch import reshaped, split
from fusionscope.fusion_runtime.decode.spec import ModelSpec
from fusionscope.fusion_runtime.decode.weights import Quantised, WeightSource
from fusionscope.fusion_runtime.ownership import Exit, Full, PartialSum
from fusionscope.fusion_runtime.quant import Activation, InputQuant

Tensor = Any


class MlaAttention:
    """Heads are split over the ranks; the latent cache, the indexer and the down projections are replicated.

    The query is absorbed into the latent space (key and value up-projections act per head), as at decode. A cache row
    is the latent, then the rotated key that all heads share. The cache is full: the step's own token replaces the last
    one, so that every replay does the same work.
    """

    def __init__(self, spec: ModelSpec, weights: WeightSource, name: str, batch: int, context: int) -> None:
        heads, hidden, rank = spec.mla_heads, spec.hidden, spec.q_lora
        width = spec.kv_lora + spec.qk_rope
        self.spec, self.name = spec, name
        self.heads = heads // weights.group.size
        down = torch.cat(
            [weights.matrix(f"{name}.q_down", rank, hidden), weights.matrix(f"{name}.kv_down", width, hidden)]
        )
        self.down: Quantised = weights.quantise(down)
        self.q_norm = weights.normal(f"{name}.q_norm", (rank,), std=0.1).add_(1)
        self.kv_norm = weights.normal(f"{name}.kv_norm", (spec.kv_lora,), std=0.1).add_(1)
        self.q_up = weights.quantised(f"{name}.q_up", heads * (spec.qk_dim + spec.qk_rope), rank, shard=0)
        self.k_absorb = weights.normal(
            f"{name}.k_absorb", (heads, spec.qk_dim, spec.kv_lora), shard=0, std=spec.kv_lora**-0.5
        )
        self.v_up = weights.normal(f"{name}.v_up", (heads, spec.kv_lora, spec.v_dim), shard=0, std=spec.kv_lora**-0.5)
        self.out = weights.quantised(f"{name}.out", hidden, heads * spec.v_dim, shard=1)
        self.last = context - 1
        self.kv_cache = weights.normal(f"{name}.kv_cache", (batch, context, width))
        if spec.qk_rope:
            self.cos, self.sin = rotation(spec.qk_rope, spec.rope_theta, self.last, weights.device)
        if spec.index_heads:
            self._make_indexer(weights, batch, context)

    def _make_indexer(self, weights: WeightSource, batch: int, context: int) -> None:
        spec, name, hidden = self.spec, self.name, self.spec.hidden
        self.index_q = weights.quantised(f"{name}.index_q", spec.index_heads * spec.index_dim, spec.q_lora)
        self.index_k = weights.matrix(f"{name}.index_k", spec.index_dim, hidden)
        self.index_k_norm = weights.normal(f"{name}.index_k_norm", (spec.index_dim,), std=0.1).add_(1)
        head_std = (hidden * spec.index_heads * spec.index_dim) ** -0.5
        self.index_head = weights.normal(
            f"{name}.index_head", (spec.index_heads, hidden), std=head_std, dtype=torch.float32
        )
        self.pools_kept = spec.pools_kept(context)
        pools = context // spec.index_kpool
        self.index_cache = weights.normal(f"{name}.index_cache", (batch, pools, spec.index_dim))

    @property
    def input_quant(self) -> InputQuant | None:
        """The indexer reads the input too, in the storage dtype."""
        return None if self.spec.index_heads else self.down.input_quant

    def forward(self, x: Activation, ctx: DecodeContext, exit: Exit) -> PartialSum | Full:
        """x [T, H] -> this rank's addend [T, H]; writes the token into the caches in place."""
        ops, spec, tokens = ctx.ops, self.spec, x.shape[0]
        low = ops.fp8_linear(x, self.down.weight, self.down.scale)
        q_low, kv, k_rope = split(low, [spec.q_lora, spec.kv_lora, spec.qk_rope])
        q_low = ops.rmsnorm(q_low, self.q_norm, spec.rms_eps)
        q = reshaped(ops.fp8_linear(q_low, self.q_up.weight, self.q_up.scale), tokens, self.heads, -1)
        row = ops.rmsnorm(kv, self.kv_norm, spec.rms_eps)
        if spec.qk_rope:
            q, q_rope = split(q, [spec.qk_dim, spec.qk_rope])
            shared = reshaped(k_rope, tokens, 1, spec.qk_rope)
            ops.qk_norm_rope(q_rope, shared, None, None, spec.rms_eps, 0.0, self.cos, self.sin)
            row = ops.concat(row, k_rope)
        ops.cache_write(self.kv_cache, row, self.last)
        chosen = self._choose_pools(x, q_low, ctx) if spec.index_heads else None
        q_lat = ops.batched_heads(q, self.k_absorb)
        if spec.qk_rope:
            q_lat = ops.concat(q_lat, q_rope)
        scale = (spec.qk_dim + spec.qk_rope) ** -0.5
        o_lat = ops.mla_decode(q_lat, self.kv_cache, chosen, spec.index_kpool, scale, spec.kv_lora)
        o = reshaped(ops.batched_heads(o_lat, self.v_up), tokens, self.heads * spec.v_dim)
        return exit.hand_on(ops.fp8_linear(o, self.out.weight, self.out.scale))

    def _choose_pools(self, x: Tensor, q_low: Tensor, ctx: DecodeContext) -> Tensor:
        """[T, n] int32: the pools this token attends to; its own key stands for the last pool."""
        ops, spec = ctx.ops, self.spec
        key = ops.rmsnorm(ops.linear(x, self.index_k), self.index_k_norm, spec.rms_eps)
        ops.cache_write(self.index_cache, key, self.last // spec.index_kpool)
        q = ops.fp8_linear(q_low, self.index_q.weight, self.index_q.scale)
        head_weights = ops.router_gemm(x, self.index_head)
        q = reshaped(q, x.shape[0], spec.index_heads, spec.index_dim)
        logits = ops.indexer_logits(q, self.index_cache, head_weights)
        return ops.topk_blocks(logits, self.pools_kept)
