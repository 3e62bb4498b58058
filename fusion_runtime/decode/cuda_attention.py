"""CUDA operations: KDA and MLA attention of one decode step. See reference_ops for shapes and meaning."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F

from fusionscope.fusion_runtime.comm.channel import power_of_two
from fusionscope.fusion_runtime.decode.cuda_grid import COLUMNS, WAVE, cover, new
from fusionscope.fusion_runtime.kernels import attention, kda, mla, norms
from fusionscope.fusion_runtime.kernels import streams as stream_kernels

Tensor = Any


# --- KDA: gated delta rule --------------------------------------------------------------------------------------


def causal_conv1d_update(x: Tensor, state: Tensor, w: Tensor) -> Tensor:
    tokens, channels = x.shape
    out = new(x, tokens, channels)
    grid = (tokens, cover(channels, COLUMNS))
    kda._causal_conv1d_update_kernel[grid](x, state, w, out, x.stride(0), channels, block=COLUMNS)
    return out


def kda_update(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    f: Tensor,
    beta: Tensor,
    A_log: Tensor,
    dt_bias: Tensor,
    lower_bound: float,
    state: Tensor,
) -> Tensor:
    return _delta_rule(q, k, v, f, beta, A_log, dt_bias, lower_bound, state, per_head=False)


def gdn_update(
    q: Tensor, k: Tensor, v: Tensor, a: Tensor, beta: Tensor, A_log: Tensor, dt_bias: Tensor, state: Tensor
) -> Tensor:
    return _delta_rule(q, k, v, a, beta, A_log, dt_bias, 0.0, state, per_head=True)


def _delta_rule(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    f: Tensor,
    beta: Tensor,
    A_log: Tensor,
    dt_bias: Tensor,
    lower_bound: float,
    state: Tensor,
    per_head: bool,
) -> Tensor:
    tokens, heads, d = v.shape
    block_v = min(32, d)
    out = new(q, tokens, heads, d)
    kda.fused_recurrent_gated_delta_rule_update_kernel[(tokens, heads, d // block_v)](
        q,
        k,
        v,
        f,
        beta,
        A_log,
        dt_bias,
        state,
        out,
        q.stride(0),
        k.stride(0),
        v.stride(0),
        f.stride(0),
        beta.stride(0),
        heads,
        lower_bound,
        d=d,
        block_v=block_v,
        each=heads // q.shape[1],
        per_head=per_head,
    )
    return out


def gated_rmsnorm(o: Tensor, gate: Tensor, w: Tensor, eps: float, silu: bool = False) -> Tensor:
    tokens, heads, d = o.shape
    out = torch.empty_like(o)
    norms.layer_norm_gated_fwd_kernel[(tokens, heads)](
        o, gate, w, out, gate.stride(0), d, eps, heads, silu=silu, block=power_of_two(d), num_warps=1
    )
    return out


# --- MLA with the top-k indexer ---------------------------------------------------------------------------------


def cache_write(cache: Tensor, x: Tensor, position: int) -> None:
    tokens, width = x.shape
    stream_kernels.cache_write_kernel[(tokens,)](
        x, cache, x.stride(0), cache.stride(0), position, width, block=power_of_two(width)
    )


def batched_heads(x: Tensor, w: Tensor) -> Tensor:
    out = new(x, x.shape[0], w.shape[0], w.shape[2])
    torch.bmm(x.transpose(0, 1), w, out=out.transpose(0, 1))
    return out


def indexer_logits(q: Tensor, k_cache: Tensor, head_w: Tensor) -> Tensor:
    tokens, heads, width = q.shape
    pools = k_cache.shape[1]
    out = new(head_w, tokens, pools)
    block_h, block_d = max(16, power_of_two(heads)), max(16, power_of_two(width))
    mla.mqa_logits_kernel[(tokens, cover(pools, 64))](
        q, k_cache, head_w, out, heads, pools, width, block_h=block_h, block_p=64, block_d=block_d
    )
    return out


def topk_blocks(logits: Tensor, n: int) -> Tensor:
    tokens, pools = logits.shape
    out = new(logits, tokens, n, dtype=torch.int32)
    block = power_of_two(pools)
    mla.topk_select_kernel[(tokens,)](logits, out, pools, n, block=block, num_warps=4 if block <= 2048 else 16)
    return out


MOST_HEADS = 64
"""Heads of one program of the MLA decode: more would not fit its registers at a latent width of 512."""


def mla_decode(
    q_lat: Tensor, kv_cache: Tensor, block_idx: Tensor | None, kpool: int, sm_scale: float, latent: int
) -> Tensor:
    tokens, heads, wide = q_lat.shape
    context = kv_cache.shape[1]
    chosen = context if block_idx is None else block_idx.shape[1] * kpool
    block_n = 32
    splits = max(1, min(cover(chosen, block_n), cover(WAVE // 2, tokens)))
    per_split = cover(cover(chosen, splits), block_n) * block_n
    splits = cover(chosen, per_split)
    part = new(q_lat, tokens, splits, heads, latent, dtype=torch.float32)
    part_lse = new(part, tokens, splits, heads)
    block_d = max(16, power_of_two(latent))
    block_h = min(MOST_HEADS, max(16, power_of_two(heads)))
    mla.mla_decode_kernel[(tokens, splits, cover(heads, block_h))](
        q_lat,
        kv_cache,
        kv_cache if block_idx is None else block_idx,
        part,
        part_lse,
        heads,
        context,
        latent,
        chosen,
        per_split,
        sm_scale,
        kpool=kpool,
        indexed=block_idx is not None,
        rotated=wide - latent,
        block_h=block_h,
        block_n=block_n,
        block_d=block_d,
        num_warps=8,
        num_stages=2,
    )
    out = new(q_lat, tokens, heads, latent)
    block_c = min(128, block_d)
    mla.mla_decode_combine_kernel[(tokens, heads, cover(latent, block_c))](
        part, part_lse, out, heads, latent, splits, block_s=power_of_two(splits), block_d=block_c
    )
    return out


# --- softmax attention with cached keys and values --------------------------------------------------------------


def qk_norm_rope(
    q: Tensor,
    k: Tensor,
    q_weight: Tensor | None,
    k_weight: Tensor | None,
    eps: float,
    weight_bias: float,
    cos: Tensor,
    sin: Tensor,
) -> None:
    tokens, heads, d = q.shape
    normed = q_weight is not None
    attention.qk_norm_rope_kernel[(tokens, heads + k.shape[1])](
        q,
        k,
        q_weight if normed else cos,
        k_weight if normed else cos,
        cos,
        sin,
        heads,
        d,
        q.stride(0),
        q.stride(1),
        k.stride(0),
        k.stride(1),
        eps,
        weight_bias,
        normed=normed,
        half=cos.shape[0],
        block=power_of_two(d),
        num_warps=1,
    )


def gqa_decode(q: Tensor, cache: Tensor, kv_heads: int) -> Tensor:
    tokens, heads, d = q.shape
    k, v = cache.view(tokens, -1, 2, kv_heads, d).permute(2, 0, 3, 1, 4)
    o = F.scaled_dot_product_attention(q[:, :, None], k, v, enable_gqa=heads != kv_heads)
    return o.view(tokens, heads, d)


def gate_mul(x: Tensor, gate: Tensor) -> Tensor:
    tokens, width = x.shape
    out = new(x, tokens, width)
    column = 0 if gate.shape[1] == 1 else 1
    attention.sigmoid_gate_mul_kernel[(tokens, cover(width, COLUMNS))](
        x, gate, out, x.stride(0), gate.stride(0), column, width, block=COLUMNS
    )
    return out


def concat(a: Tensor, b: Tensor) -> Tensor:
    return torch.cat([a, b], -1)
