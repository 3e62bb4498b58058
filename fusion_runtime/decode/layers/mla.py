"""MLA: attention over a latent cache, restricted to the pools of tokens that the indexer picks."""

from __future__ import annotations

from typing import Any

import torch

from fusionscope.fusion_runtime.context import DecodeContext
from fusionscope.fusion_runtime.decode.one_launch import reshaped, split
from fusionscope.fusion_runtime.decode.spec import ModelSpec
from fusionscope.fusion_runtime.decode.weights import Quantised, WeightSource
from fusionscope.fusion_runtime.ownership import PartialSum

Tensor = Any


class MlaAttention:
    """Heads are split over the ranks; the latent cache, the indexer and the down projections are replicated.

    The query is absorbed into the latent space (key and value up-projections act per head), as at decode. The cache
    is full: the step's own token replaces the last one, so that every replay does the same work.
    """

    def __init__(self, spec: ModelSpec, weights: WeightSource, name: str, batch: int, context: int) -> None:
        heads, hidden, rank = spec.mla_heads, spec.hidden, spec.q_lora
        self.spec, self.name = spec, name
        self.heads = heads // weights.group.size
        down = torch.cat(
            [weights.matrix(f"{name}.q_down", rank, hidden), weights.matrix(f"{name}.kv_down", spec.kv_lora, hidden)]
        )
        self.down: Quantised = weights.quantise(down)
        self.q_norm = weights.normal(f"{name}.q_norm", (rank,), std=0.1).add_(1)
        self.kv_norm = weights.normal(f"{name}.kv_norm", (spec.kv_lora,), std=0.1).add_(1)
        self.q_up = weights.quantised(f"{name}.q_up", heads * spec.qk_dim, rank, shard=0)
        self.k_absorb = weights.normal(
            f"{name}.k_absorb", (heads, spec.qk_dim, spec.kv_lora), shard=0, std=spec.kv_lora**-0.5
        )
        self.v_up = weights.normal(f"{name}.v_up", (heads, spec.kv_lora, spec.v_dim), shard=0, std=spec.kv_lora**-0.5)
        self.out = weights.quantised(f"{name}.out", hidden, heads * spec.v_dim, shard=1)
        self.index_q = weights.quantised(f"{name}.index_q", spec.index_heads * spec.index_dim, rank)
        self.index_k = weights.matrix(f"{name}.index_k", spec.index_dim, hidden)
        self.index_k_norm = weights.normal(f"{name}.index_k_norm", (spec.index_dim,), std=0.1).add_(1)
        head_std = (hidden * spec.index_heads * spec.index_dim) ** -0.5
        self.index_head = weights.normal(
            f"{name}.index_head", (spec.index_heads, hidden), std=head_std, dtype=torch.float32
        )
        self.last, self.pools_kept = context - 1, spec.pools_kept(context)
        self.kv_cache = weights.normal(f"{name}.kv_cache", (batch, context, spec.kv_lora))
        pools = context // spec.index_kpool
        self.index_cache = weights.normal(f"{name}.index_cache", (batch, pools, spec.index_dim))

    def forward(self, x: Tensor, ctx: DecodeContext) -> PartialSum:
        """x [T, H] -> this rank's addend [T, H]; writes the token into the caches in place."""
        ops, spec, tokens = ctx.ops, self.spec, x.shape[0]
        q_low, kv = split(ops.fp8_linear(x, self.down.weight, self.down.scale), [spec.q_lora, spec.kv_lora])
        q_low = ops.rmsnorm(q_low, self.q_norm, spec.rms_eps)
        ops.cache_write(self.kv_cache, ops.rmsnorm(kv, self.kv_norm, spec.rms_eps), self.last)
        chosen = self._choose_pools(x, q_low, ctx)
        q = ops.fp8_linear(q_low, self.q_up.weight, self.q_up.scale)
        q_lat = ops.batched_heads(reshaped(q, tokens, self.heads, spec.qk_dim), self.k_absorb)
        o_lat = ops.mla_decode(q_lat, self.kv_cache, chosen, spec.index_kpool, spec.qk_dim**-0.5)
        o = reshaped(ops.batched_heads(o_lat, self.v_up), tokens, self.heads * spec.v_dim)
        return PartialSum(ops.fp8_linear(o, self.out.weight, self.out.scale), ctx.group, f"{self.name}.out")

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
