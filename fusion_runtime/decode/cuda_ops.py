"""The decode forward's operations on CUDA: Triton kernels, and cuBLAS where a product is in bfloat16.

The same functions as `reference_ops`, which documents shapes and meaning. They launch on the current stream, take no
decision on the host from device data, and can be captured once every shape has run (Triton compiles at first use).
"""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F

from fusionscope.fusion_runtime.comm.loopback import power_of_two
from fusionscope.fusion_runtime.decode.reference_ops import BLOCK, moe_blocks
from fusionscope.fusion_runtime.kernels import gemm, kda, mhc, mla, moe, norms
from fusionscope.fusion_runtime.kernels import streams as stream_kernels

Tensor = Any

COLUMNS = 512
"""Columns of one program where every element is on its own."""

WAVE = 264
"""Programs that fill a large GPU twice (132 multiprocessors): what K is split for."""

TILES_COUNTED = 1 << 16

__all__ = ["BLOCK", "moe_blocks"]

_arrived: dict[Any, Tensor] = {}


def _cover(n: int, block: int) -> int:
    return -(-n // block)


def _new(like: Tensor, *shape: int, dtype: Any = None) -> Tensor:
    return torch.empty(shape, dtype=dtype or like.dtype, device=like.device)


def _counters(device: Any) -> Tensor:
    """Arrival counters of split-K tiles; kernels leave them at zero, so launches of one stream share them."""
    if device not in _arrived:
        _arrived[device] = torch.zeros(TILES_COUNTED, dtype=torch.int32, device=device)
    return _arrived[device]


# --- prologue and tail ------------------------------------------------------------------------------------------


def embed(ids: Tensor, table: Tensor, vocab_start: int) -> Tensor:
    rows, hidden = table.shape
    out = _new(table, ids.shape[0], hidden)
    grid = (ids.shape[0], _cover(hidden, COLUMNS))
    stream_kernels.vocab_embedding_kernel[grid](ids, table, out, vocab_start, rows, hidden, block=COLUMNS)
    return out


def expand_streams(x: Tensor, streams: int) -> Tensor:
    tokens, hidden = x.shape
    out = _new(x, tokens, streams, hidden)
    grid = (tokens, _cover(hidden, COLUMNS))
    stream_kernels.expand_streams_kernel[grid](x, out, hidden, streams=streams, block=COLUMNS)
    return out


def stream_mean(R: Tensor) -> Tensor:
    tokens, count, hidden = R.shape
    out = _new(R, tokens, hidden)
    grid = (tokens, _cover(hidden, COLUMNS))
    stream_kernels._mhc_stream_mean_kernel[grid](R, out, hidden, streams=count, block=COLUMNS)
    return out


def rmsnorm(x: Tensor, w: Tensor, eps: float) -> Tensor:
    rows, width = x.shape
    out = _new(x, rows, width)
    norms.rmsnorm_kernel[(rows,)](x, w, out, x.stride(0), width, eps, block=power_of_two(width))
    return out


def add_rmsnorm(x: Tensor, residual: Tensor, w: Tensor, eps: float, weight_bias: float) -> tuple[Tensor, Tensor]:
    rows, width = x.shape
    out, total = torch.empty_like(x), torch.empty_like(x)
    norms.fused_add_rmsnorm_kernel[(rows,)](
        x, residual, w, out, total, width, eps, weight_bias, block=power_of_two(width), num_warps=8
    )
    return out, total


def add(a: Tensor, b: Tensor) -> Tensor:
    out = torch.empty_like(a)
    moe.shared_expert_add_kernel[(_cover(a.numel(), COLUMNS),)](a, b, out, a.numel(), block=COLUMNS)
    return out


def argmax(logits: Tensor) -> Tensor:
    tokens, width = logits.shape
    out = _new(logits, tokens, dtype=torch.int64)
    stream_kernels.argmax_kernel[(tokens,)](logits, out, width, block=min(8192, power_of_two(width)), num_warps=16)
    return out


# --- mHC --------------------------------------------------------------------------------------------------------


def hc_pre(
    R: Tensor,
    fn: Tensor,
    scale: Tensor,
    base: Tensor,
    norm_w: Tensor,
    rms_eps: float,
    hc_eps: float,
    iters: int,
    post_mult: float,
) -> tuple[Tensor, Tensor, Tensor]:
    tokens, _, hidden = R.shape
    wide = 4 * hidden
    block_k = min(128, power_of_two(wide))
    splits = min(128, _cover(wide, block_k))
    per_split = _cover(wide, splits * block_k) * block_k
    partial = _new(fn, tokens, splits, mhc.PARTIAL_WIDTH)
    block_t = min(4, power_of_two(tokens))
    mhc.mhc_pre_gemm_sqrsum_kernel[(splits, _cover(tokens, block_t))](
        R, fn, partial, tokens, wide, splits, per_split=per_split, block_t=block_t, block_k=block_k, num_warps=8
    )
    out, post, comb = _new(R, tokens, hidden), _new(fn, tokens, 4), _new(fn, tokens, 4, 4)
    mhc.mhc_pre_big_fuse_with_norm_kernel[(tokens,)](
        R,
        partial,
        scale,
        base,
        norm_w,
        out,
        post,
        comb,
        hidden,
        splits,
        rms_eps,
        hc_eps,
        post_mult,
        iters,
        block_s=power_of_two(splits),
        block_h=power_of_two(hidden),
        num_warps=8,
    )
    return out, post, comb


def mhc_post(x: Tensor, R: Tensor, post: Tensor, comb: Tensor) -> Tensor:
    tokens, hidden = x.shape
    out = torch.empty_like(R)
    grid = (tokens, _cover(hidden, COLUMNS))
    mhc.mhc_post_kernel[grid](x, R, post, comb, out, hidden, block=COLUMNS)
    return out


# --- matrix products --------------------------------------------------------------------------------------------


def linear(x: Tensor, w: Tensor) -> Tensor:
    return F.linear(x, w)


def per_token_group_quant_fp8(x: Tensor) -> tuple[Tensor, Tensor]:
    rows, columns = x.shape
    groups = _cover(columns, BLOCK)
    q = _new(x, rows, columns, dtype=torch.float8_e4m3fn)
    scale = _new(x, rows, groups, dtype=torch.float32)
    block_g = min(4, power_of_two(groups))
    gemm.per_token_group_quant_fp8_kernel[(rows, _cover(groups, block_g))](
        x, q, scale, x.stride(0), columns, groups, block_g=block_g
    )
    return q, scale


def fp8_linear(x: Tensor, w: Tensor, w_scale: Tensor | None) -> Tensor:
    if w_scale is None:
        return F.linear(x, w)
    q, scale = per_token_group_quant_fp8(x)
    return grouped_linear(q, scale, w, w_scale, x.dtype)


def grouped_linear(x: Tensor, x_scale: Tensor | None, w: Tensor, w_scale: Tensor | None, dtype: Any) -> Tensor:
    """The product of fp8_linear: x and w in FP8 with scales, or both in the storage dtype with None."""
    rows, (n, k) = x.shape[0], w.shape
    groups = _cover(k, BLOCK)
    block_m, block_n = 16, 32 if n <= 2048 else 64
    tiles_n, tiles_m = _cover(n, block_n), _cover(rows, block_m)
    splits = max(1, min(groups // 4, 8, _cover(WAVE, tiles_n * tiles_m)))
    out = _new(x, rows, n, dtype=dtype)
    partial = _new(x, splits, rows, n, dtype=torch.float32) if splits > 1 else out
    gemm.fp8_gemm_kernel[(tiles_n, splits, tiles_m)](
        x,
        x if x_scale is None else x_scale,
        w,
        w if w_scale is None else w_scale,
        out,
        partial,
        _counters(x.device),
        rows,
        n,
        k,
        groups,
        x.stride(0),
        quantised=w_scale is not None,
        splits=splits,
        steps=_cover(groups, splits),
        block_m=block_m,
        block_n=block_n,
        num_stages=4,
    )
    return out


def silu_mul_clamp(gu: Tensor, limit: float) -> Tensor:
    rows, inner = gu.shape[0], gu.shape[1] // 2
    out = _new(gu, rows, inner)
    grid = (rows, _cover(inner, COLUMNS))
    moe.silu_mul_clamp_kernel[grid](gu, out, inner, limit, block=COLUMNS)
    return out


# --- KDA: gated delta rule --------------------------------------------------------------------------------------


def causal_conv1d_update(x: Tensor, state: Tensor, w: Tensor) -> Tensor:
    tokens, channels = x.shape
    out = _new(x, tokens, channels)
    grid = (tokens, _cover(channels, COLUMNS))
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
    tokens, heads, d = q.shape
    block_v = min(32, d)
    out = _new(q, tokens, heads, d)
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
    )
    return out


def gated_rmsnorm(o: Tensor, gate: Tensor, w: Tensor, eps: float) -> Tensor:
    tokens, heads, d = o.shape
    out = torch.empty_like(o)
    norms.layer_norm_gated_fwd_kernel[(tokens, heads)](
        o, gate, w, out, gate.stride(0), d, eps, heads, block=power_of_two(d), num_warps=1
    )
    return out


# --- MLA with the top-k indexer ---------------------------------------------------------------------------------


def cache_write(cache: Tensor, x: Tensor, position: int) -> None:
    tokens, width = x.shape
    stream_kernels.cache_write_kernel[(tokens,)](
        x, cache, x.stride(0), cache.stride(0), position, width, block=power_of_two(width)
    )


def batched_heads(x: Tensor, w: Tensor) -> Tensor:
    out = _new(x, x.shape[0], w.shape[0], w.shape[2])
    torch.bmm(x.transpose(0, 1), w, out=out.transpose(0, 1))
    return out


def indexer_logits(q: Tensor, k_cache: Tensor, head_w: Tensor) -> Tensor:
    tokens, heads, width = q.shape
    pools = k_cache.shape[1]
    out = _new(head_w, tokens, pools)
    block_h, block_d = max(16, power_of_two(heads)), max(16, power_of_two(width))
    mla.mqa_logits_kernel[(tokens, _cover(pools, 64))](
        q, k_cache, head_w, out, heads, pools, width, block_h=block_h, block_p=64, block_d=block_d
    )
    return out


def topk_blocks(logits: Tensor, n: int) -> Tensor:
    tokens, pools = logits.shape
    out = _new(logits, tokens, n, dtype=torch.int32)
    block = power_of_two(pools)
    mla.topk_select_kernel[(tokens,)](logits, out, pools, n, block=block, num_warps=4 if block <= 2048 else 16)
    return out


def mla_decode(q_lat: Tensor, kv_cache: Tensor, block_idx: Tensor | None, kpool: int, sm_scale: float) -> Tensor:
    tokens, heads, width = q_lat.shape
    context = kv_cache.shape[1]
    chosen = context if block_idx is None else block_idx.shape[1] * kpool
    block_n = 32
    splits = max(1, min(_cover(chosen, block_n), _cover(WAVE // 2, tokens)))
    per_split = _cover(_cover(chosen, splits), block_n) * block_n
    splits = _cover(chosen, per_split)
    part = _new(q_lat, tokens, splits, heads, width, dtype=torch.float32)
    part_lse = _new(part, tokens, splits, heads)
    block_d = max(16, power_of_two(width))
    mla.mla_decode_kernel[(tokens, splits)](
        q_lat,
        kv_cache,
        kv_cache if block_idx is None else block_idx,
        part,
        part_lse,
        heads,
        context,
        width,
        chosen,
        per_split,
        sm_scale,
        kpool=kpool,
        indexed=block_idx is not None,
        block_h=max(16, power_of_two(heads)),
        block_n=block_n,
        block_d=block_d,
        num_warps=8,
        num_stages=2,
    )
    out = torch.empty_like(q_lat)
    block_c = min(128, block_d)
    mla.mla_decode_combine_kernel[(tokens, heads, _cover(width, block_c))](
        part, part_lse, out, heads, width, splits, block_s=power_of_two(splits), block_d=block_c
    )
    return out


# --- mixture of experts -----------------------------------------------------------------------------------------


def router_gemm(x: Tensor, w: Tensor) -> Tensor:
    rows, (n, k) = x.shape[0], w.shape
    out = _new(w, rows, n)
    block_m, block_n = min(4, power_of_two(rows)), 2
    gemm.tiny_n_gemm_kernel[(_cover(n, block_n), _cover(rows, block_m))](
        x, w, out, rows, n, k, block_m=block_m, block_n=block_n, block_k=min(2048, power_of_two(k)), num_warps=8
    )
    return out


def router(logits: Tensor, bias: Tensor, k: int) -> tuple[Tensor, Tensor]:
    tokens, experts = logits.shape
    ids, weights = _new(logits, tokens, k, dtype=torch.int32), _new(logits, tokens, k)
    moe._router_triton_kernel[(tokens,)](
        logits, bias, ids, weights, experts, k=k, block_e=power_of_two(experts), block_k=power_of_two(k)
    )
    return ids, weights


def moe_align(ids: Tensor, experts: int, block: int) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    slots = ids.numel()
    blocks = moe_blocks(slots, experts, block)
    sorted_ids, expert_of_block, num_padded = _new(ids, blocks * block), _new(ids, blocks), _new(ids, 1)
    idx, first_block = torch.empty_like(ids), _new(ids, experts)
    moe.moe_align_kernel[(1,)](
        ids,
        sorted_ids,
        expert_of_block,
        num_padded,
        idx,
        first_block,
        slots,
        experts,
        blocks,
        block=block,
        block_e=power_of_two(experts),
        block_s=min(64, power_of_two(slots)),
        num_warps=8,
    )
    return sorted_ids, expert_of_block, num_padded, idx


def moe_gemm(
    x: Tensor,
    w: Tensor,
    w_scale: Tensor | None,
    sorted_ids: Tensor,
    expert_of_block: Tensor,
    num_padded: Tensor,
    top_k: int,
) -> Tensor:
    q, scale = (x, None) if w_scale is None else per_token_group_quant_fp8(x)
    _, n, k = w.shape
    blocks = expert_of_block.shape[0]
    block_m = sorted_ids.shape[0] // blocks
    block_n = 64
    # Padding rows are marked T*K, which the first product skips; the second cannot tell them and computes them too.
    slots = x.shape[0] * top_k if top_k else sorted_ids.shape[0] + 1
    out = _new(x, sorted_ids.shape[0], n)
    moe.fused_moe_kernel[(_cover(n, block_n), blocks)](
        q,
        q if scale is None else scale,
        w,
        w if w_scale is None else w_scale,
        out,
        sorted_ids,
        expert_of_block,
        num_padded,
        slots,
        n,
        k,
        _cover(k, BLOCK),
        _cover(n, BLOCK),
        max(top_k, 1),
        gather=top_k > 0,
        quantised=w_scale is not None,
        block_m=block_m,
        block_n=block_n,
        num_stages=4,
    )
    return out


def moe_sum_reduce(gemm2: Tensor, idx: Tensor, w: Tensor, scale: float) -> Tensor:
    tokens, k = idx.shape
    hidden = gemm2.shape[1]
    out = _new(gemm2, tokens, hidden)
    grid = (tokens, _cover(hidden, COLUMNS))
    moe._moe_sum_reduce_kernel[grid](gemm2, idx, w, gemm2, out, hidden, scale, k=k, has_shared=False, block=COLUMNS)
    return out
