"""The decode forward's operations in plain torch: what the CPU runs, and what the CUDA versions are checked against.

This file is the source of truth for signatures; `cuda_ops` has the same functions. T = tokens of the batch (one per
sequence), H = hidden size, h = heads of this rank. "x's dtype" is the storage dtype (bfloat16 on CUDA). Arithmetic is
float32, results are rounded to x's dtype. Inputs are never changed unless "in place" is said. Inputs are contiguous
unless "token stride" is said: then only the first dimension may have a stride of its own.
Weights in FP8 come with block scales [ceil(N/128), ceil(K/128)] float32; a scale of None means that the weight is
in x's dtype and is used as it is.

On the CPU every function is one operator of a profile, where a GPU has one kernel (hc_pre: two), except mhc_post:
it is the two operators that eager torch needs, which the inductor path makes one.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F

from fusionscope.fusion_runtime import quant
from fusionscope.fusion_runtime.decode.one_launch import one_launch
from fusionscope.fusion_runtime.decode.reference_attention import (
    batched_heads,
    cache_write,
    causal_conv1d_update,
    concat,
    gate_mul,
    gated_rmsnorm,
    gdn_update,
    gqa_decode,
    indexer_logits,
    kda_update,
    mla_decode,
    qk_norm_rope,
    topk_blocks,
)
from fusionscope.fusion_runtime.decode.reference_mhc import hc_coefficients
from fusionscope.fusion_runtime.decode.reference_moe import (
    moe_align,
    moe_blocks,
    moe_gemm,
    moe_sum_reduce,
    router,
    router_gemm,
)
from fusionscope.fusion_runtime.decode.reference_numbers import BLOCK, dequantise, f32, like, per_token_group_quant_fp8
from fusionscope.fusion_runtime.quant import FP8_TOKEN_GROUP_128, InputQuant, QuantisedActivation

Tensor = Any

__all__ = [
    "BLOCK",
    "add",
    "add_rmsnorm",
    "argmax",
    "batched_heads",
    "cache_write",
    "causal_conv1d_update",
    "concat",
    "dequantise",
    "embed",
    "expand_streams",
    "fp8_linear",
    "gate_mul",
    "gated_rmsnorm",
    "gdn_update",
    "gqa_decode",
    "hc_pre",
    "indexer_logits",
    "kda_update",
    "linear",
    "mhc_post",
    "mla_decode",
    "moe_align",
    "moe_blocks",
    "moe_gemm",
    "moe_sum_reduce",
    "per_token_group_quant_fp8",
    "qk_norm_rope",
    "quantise",
    "rmsnorm",
    "router",
    "router_gemm",
    "silu_mul_clamp",
    "stream_mean",
    "topk_blocks",
]


# --- prologue and tail ------------------------------------------------------------------------------------------


@one_launch
def embed(ids: Tensor, table: Tensor, vocab_start: int) -> Tensor:
    """ids [T] int64, table [V/tp, H] -> [T, H]: this rank's rows, zero where the id lies in another rank's shard."""
    local = ids - vocab_start
    outside = (local < 0) | (local >= table.shape[0])
    return F.embedding(local.masked_fill(outside, 0), table).masked_fill_(outside[:, None], 0)


@one_launch
def expand_streams(x: Tensor, streams: int) -> Tensor:
    """x [T, H] -> [T, streams, H], the same row in every stream."""
    return x[:, None, :].expand(-1, streams, -1).contiguous()


@one_launch
def stream_mean(R: Tensor) -> Tensor:
    """R [T, S, H] -> [T, H]: unweighted mean of the streams."""
    return like(f32(R).mean(1), R)


@one_launch
def rmsnorm(x: Tensor, w: Tensor, eps: float, weight_bias: float = 0.0) -> Tensor:
    """x [T, D] (token stride), w [D] -> [T, D]: x * rsqrt(mean(x^2) + eps) * (w + weight_bias), w in x's dtype."""
    xf = f32(x)
    gain = f32(w) + weight_bias if weight_bias else w
    return like(xf * torch.rsqrt(xf.square().mean(-1, keepdim=True) + eps) * gain, x)


@one_launch
def add_rmsnorm(x: Tensor, residual: Tensor, w: Tensor, eps: float, weight_bias: float) -> tuple[Tensor, Tensor]:
    """x, residual [T, H], w [H] -> (normed, x + residual), both [T, H]; the norm sees the float32 sum."""
    total = f32(x) + f32(residual)
    gain = f32(w) + weight_bias if weight_bias else f32(w)
    normed = total * torch.rsqrt(total.square().mean(-1, keepdim=True) + eps) * gain
    return like(normed, x), like(total, x)


@one_launch
def quantise(x: Tensor, wanted: InputQuant) -> QuantisedActivation:
    """x [T, H] -> what the consumer asks for; see quant.quantise."""
    return quant.quantise(x, wanted)


@one_launch
def add(a: Tensor, b: Tensor) -> Tensor:
    """a, b [T, H] -> a + b (the shared expert's add of the split path)."""
    return a + b


@one_launch
def argmax(logits: Tensor) -> Tensor:
    """logits [T, V] -> [T] int64."""
    return logits.argmax(-1)


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
    """The read of a half-layer: R [T, 4, H]; fn [24, 4H], scale [3], base [24] float32; norm_w [H] in R's dtype.

    -> (x [T, H] normed with norm_w, post [T, 4] float32, comb [T, 4, 4] float32).
    m = (R_flat . fn^T) * rsqrt(mean(R_flat^2) + rms_eps); pre = sigmoid(m[:4] * scale0 + base) + hc_eps;
    post = post_mult * sigmoid(m[4:8] * scale1 + base); comb = sinkhorn(m[8:24] * scale2 + base), see reference_mhc.
    The mixed input sum_j pre_j R_j is rounded to R's dtype before its norm.
    """
    m = hc_pre_gemm_sqrsum(R, fn, rms_eps)
    return hc_pre_big_fuse_with_norm(R, m, scale, base, norm_w, rms_eps, hc_eps, iters, post_mult)


@one_launch
def hc_pre_gemm_sqrsum(R: Tensor, fn: Tensor, rms_eps: float) -> Tensor:
    """First half of hc_pre: R [T, 4, H], fn [24, 4H] f32 -> m [T, 24] f32."""
    flat = f32(R.flatten(1))
    return F.linear(flat, fn) * torch.rsqrt(flat.square().mean(-1, keepdim=True) + rms_eps)


@one_launch
def hc_pre_big_fuse_with_norm(
    R: Tensor,
    m: Tensor,
    scale: Tensor,
    base: Tensor,
    norm_w: Tensor,
    rms_eps: float,
    hc_eps: float,
    iters: int,
    post_mult: float,
) -> tuple[Tensor, Tensor, Tensor]:
    """Second half of hc_pre: coefficients from m [T, 24], the mixed input and its norm."""
    pre, post, comb = hc_coefficients(m, scale, base, hc_eps, iters, post_mult)
    mixed = torch.bmm(pre[:, None, :], f32(R)).squeeze(1)
    return rmsnorm(like(mixed, R), norm_w, rms_eps), post, comb


def mhc_post(x: Tensor, R: Tensor, post: Tensor, comb: Tensor) -> Tensor:
    """x [T, H] (complete sum), R [T, 4, H], post [T, 4] f32, comb [T, 4, 4] f32 -> new R [T, 4, H].

    R'[t,j] = post[t,j] * x[t] + sum_k comb[t,k,j] * R[t,k].
    """
    return mhc_write(mhc_mix(R, comb), x, post)


@one_launch
def mhc_mix(R: Tensor, comb: Tensor) -> Tensor:
    """First half of mhc_post as eager torch has it: sum_k comb[t,k,j] * R[t,k], [T, 4, H] float32."""
    return torch.bmm(comb.transpose(1, 2), f32(R))


@one_launch
def mhc_write(mixed: Tensor, x: Tensor, post: Tensor) -> Tensor:
    """Second half: mixed [T, 4, H] f32 (used up) + post[t,j] * x[t], in x's dtype."""
    return like(mixed.addcmul_(post[:, :, None], f32(x)[:, None, :]), x)


# --- matrix products --------------------------------------------------------------------------------------------


@one_launch
def linear(x: Tensor, w: Tensor) -> Tensor:
    """x [T, K] (token stride), w [N, K] in x's dtype -> [T, N]."""
    return F.linear(x, w)


@one_launch
def fp8_linear(x: Tensor, w: Tensor, w_scale: Tensor | None) -> Tensor:
    """x [T, K] (token stride); w [N, K] FP8 with w_scale [N/128, K/128], or in x's dtype with None -> [T, N].

    With FP8 weights x is quantised per token and 128 columns first (two launches on CUDA), or comes quantised so.
    """
    quant.expect(x, InputQuant(FP8_TOKEN_GROUP_128) if w_scale is not None else None, "fp8_linear")
    if w_scale is None:
        return F.linear(x, w)
    q, scale = (x.data, x.scale) if isinstance(x, QuantisedActivation) else per_token_group_quant_fp8(x)
    return (dequantise(q, scale, (1, BLOCK)) @ dequantise(w, w_scale, (BLOCK, BLOCK)).T).to(x.dtype)


@one_launch
def silu_mul_clamp(gu: Tensor, limit: float) -> Tensor:
    """gu [T, 2I], gate columns first -> [T, I]: silu(min(gate, limit)) * clamp(up, -limit, limit)."""
    gate, up = f32(gu).chunk(2, -1)
    return like(F.silu(gate.clamp(max=limit)) * up.clamp(-limit, limit), gu)
