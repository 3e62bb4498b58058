"""The decode forward's operations on CUDA: Triton kernels, and cuBLAS where a product is in bfloat16.

The same functions as `reference_ops`, which documents shapes and meaning. They launch on the current stream, take no
decision on the host from device data, and can be captured once every shape has run (Triton compiles at first use).
"""

from __future__ import annotations

from typing import Any

import torch

from fusionscope.fusion_runtime import quant
from fusionscope.fusion_runtime.comm.channel import power_of_two
from fusionscope.fusion_runtime.decode.cuda_attention import (
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
from fusionscope.fusion_runtime.decode.cuda_grid import COLUMNS, cover, new
from fusionscope.fusion_runtime.decode.cuda_products import (
    fp8_linear,
    linear,
    moe_align,
    moe_gemm,
    moe_sum_reduce,
    per_token_group_quant_fp8,
    router,
    router_gemm,
    silu_mul_clamp,
)
from fusionscope.fusion_runtime.decode.reference_ops import BLOCK, moe_blocks
from fusionscope.fusion_runtime.errors import WrongQuantisation
from fusionscope.fusion_runtime.hyper import HyperWeights
from fusionscope.fusion_runtime.kernels import launch_mhc_pre, launch_norm, moe, norms
from fusionscope.fusion_runtime.kernels import quant as quant_kernels
from fusionscope.fusion_runtime.kernels import streams as stream_kernels
from fusionscope.fusion_runtime.norms import Norm
from fusionscope.fusion_runtime.quant import (
    FP8_STATIC_TENSOR,
    FP8_TOKEN_GROUP_128,
    MXFP4,
    NVFP4_SWIZZLED,
    InputQuant,
    QuantisedActivation,
)

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


def embed(ids: Tensor, table: Tensor, vocab_start: int) -> Tensor:
    rows, hidden = table.shape
    out = new(table, ids.shape[0], hidden)
    grid = (ids.shape[0], cover(hidden, COLUMNS))
    stream_kernels.vocab_embedding_kernel[grid](ids, table, out, vocab_start, rows, hidden, block=COLUMNS)
    return out


def expand_streams(x: Tensor, streams: int) -> Tensor:
    tokens, hidden = x.shape
    out = new(x, tokens, streams, hidden)
    grid = (tokens, cover(hidden, COLUMNS))
    stream_kernels.expand_streams_kernel[grid](x, out, hidden, streams=streams, block=COLUMNS)
    return out


def stream_mean(R: Tensor) -> Tensor:
    tokens, count, hidden = R.shape
    out = new(R, tokens, hidden)
    grid = (tokens, cover(hidden, COLUMNS))
    stream_kernels._mhc_stream_mean_kernel[grid](R, out, hidden, streams=count, block=COLUMNS)
    return out


def rmsnorm(x: Tensor, w: Tensor, eps: float, weight_bias: float = 0.0) -> Tensor:
    rows, width = x.shape
    # Rows may lie apart, columns may not.
    x = x if x.stride(1) == 1 else x.contiguous()
    out = new(x, rows, width)
    norms.rmsnorm_kernel[(rows,)](x, w, out, x.stride(0), width, eps, weight_bias, block=power_of_two(width))
    return out


def add_rmsnorm(x: Tensor, residual: Tensor, w: Tensor, eps: float, weight_bias: float) -> tuple[Tensor, Tensor]:
    return launch_norm.add_rmsnorm(x, residual, Norm(w, eps, weight_bias))


def quantise(x: Tensor, wanted: InputQuant) -> QuantisedActivation:
    if wanted.key == FP8_TOKEN_GROUP_128:
        data, scale = per_token_group_quant_fp8(x)
    elif wanted.key == FP8_STATIC_TENSOR:
        x = x.contiguous()
        data, scale = torch.empty_like(x, dtype=torch.float8_e4m3fn), wanted.scale
        grid = (cover(x.numel(), COLUMNS),)
        norms.static_quant_fp8_kernel[grid](x, data, scale, x.numel(), block=COLUMNS)
    else:
        return _quantise_fp4(x, wanted)
    return QuantisedActivation(wanted.key, data, scale, (int(x.shape[0]), int(x.shape[1])), x.dtype)


def _quantise_fp4(x: Tensor, wanted: InputQuant) -> QuantisedActivation:
    key, (rows, columns) = wanted.key, x.shape
    problem = quant.refusal(columns, key)
    if problem:
        raise WrongQuantisation(f"{problem}: choose another key or pad the width.")
    groups, swizzled = columns // key.group, key == NVFP4_SWIZZLED
    padded_rows, padded_groups = (cover(rows, 128) * 128, cover(groups, 4) * 4) if swizzled else (rows, groups)
    data = new(x, rows, columns // 2, dtype=torch.uint8)
    scale_dtype = torch.uint8 if key == MXFP4 else torch.float8_e4m3fn
    scale = new(x, *((padded_rows * padded_groups,) if swizzled else (rows, groups)), dtype=scale_dtype)
    block = min(32, power_of_two(padded_groups))
    quant_kernels.fp4_quant_kernel[(padded_rows, cover(padded_groups, block))](
        x,
        data if wanted.scale is None else wanted.scale,
        data,
        scale,
        rows,
        groups,
        x.stride(0),
        padded_groups,
        size=key.group,
        mx=key == MXFP4,
        swizzled=swizzled,
        block=block,
    )
    return QuantisedActivation(key, data, scale, (int(rows), int(columns)), x.dtype, wanted.scale)


def add(a: Tensor, b: Tensor) -> Tensor:
    a, b = a.contiguous(), b.contiguous()
    out = torch.empty_like(a)
    moe.shared_expert_add_kernel[(cover(a.numel(), COLUMNS),)](a, b, out, a.numel(), block=COLUMNS)
    return out


def argmax(logits: Tensor) -> Tensor:
    tokens, width = logits.shape
    out = new(logits, tokens, dtype=torch.int64)
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
    weights = HyperWeights(fn, scale, base, norm_w, rms_eps, hc_eps, iters, post_mult)
    return launch_mhc_pre.read(R, launch_mhc_pre.project(R, fn), weights)


def mhc_post(x: Tensor, R: Tensor, post: Tensor, comb: Tensor) -> Tensor:
    return launch_norm.mhc_post(x, R, post, comb)
