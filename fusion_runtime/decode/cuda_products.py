"""CUDA operations: matrix products, dense and of a mixture of experts. See reference_ops for shapes and meaning."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F

from fusionscope.fusion_runtime.comm.channel import power_of_two
from fusionscope.fusion_runtime.decode.cuda_grid import COLUMNS, WAVE, counters, cover, new
from fusionscope.fusion_runtime.decode.reference_ops import BLOCK, moe_blocks
from fusionscope.fusion_runtime.errors import RuntimeContractError
from fusionscope.fusion_runtime.kernels import gemm, moe
from fusionscope.fusion_runtime.quant import FP8_TOKEN_GROUP_128, InputQuant, QuantisedActivation, expect

Tensor = Any


# --- matrix products --------------------------------------------------------------------------------------------


def linear(x: Tensor, w: Tensor) -> Tensor:
    return F.linear(x, w)


def per_token_group_quant_fp8(x: Tensor) -> tuple[Tensor, Tensor]:
    rows, columns = x.shape
    groups = cover(columns, BLOCK)
    q = new(x, rows, columns, dtype=torch.float8_e4m3fn)
    scale = new(x, rows, groups, dtype=torch.float32)
    block_g = min(4, power_of_two(groups))
    gemm.per_token_group_quant_fp8_kernel[(rows, cover(groups, block_g))](
        x, q, scale, x.stride(0), columns, groups, block_g=block_g
    )
    return q, scale


def fp8_linear(x: Tensor, w: Tensor, w_scale: Tensor | None) -> Tensor:
    expect(x, InputQuant(FP8_TOKEN_GROUP_128) if w_scale is not None else None, "fp8_linear")
    if w_scale is None:
        return F.linear(x, w)
    q, scale = (x.data, x.scale) if isinstance(x, QuantisedActivation) else per_token_group_quant_fp8(x)
    return grouped_linear(q, scale, w, w_scale, x.dtype)


def grouped_linear(x: Tensor, x_scale: Tensor | None, w: Tensor, w_scale: Tensor | None, dtype: Any) -> Tensor:
    """The product of fp8_linear: x and w in FP8 with scales, or both in the storage dtype with None."""
    rows, (n, k) = x.shape[0], w.shape
    groups = cover(k, BLOCK)
    block_m, block_n = 16, 32 if n <= 2048 else 64
    tiles_n, tiles_m = cover(n, block_n), cover(rows, block_m)
    splits = max(1, min(groups // 4, 8, cover(WAVE, tiles_n * tiles_m)))
    out = new(x, rows, n, dtype=dtype)
    partial = new(x, splits, rows, n, dtype=torch.float32) if splits > 1 else out
    gemm.fp8_gemm_kernel[(tiles_n, splits, tiles_m)](
        x,
        x if x_scale is None else x_scale,
        w,
        w if w_scale is None else w_scale,
        out,
        partial,
        counters(x.device),
        rows,
        n,
        k,
        groups,
        x.stride(0),
        quantised=w_scale is not None,
        splits=splits,
        steps=cover(groups, splits),
        block_m=block_m,
        block_n=block_n,
        num_stages=4,
    )
    return out


def silu_mul_clamp(gu: Tensor, limit: float) -> Tensor:
    rows, inner = gu.shape[0], gu.shape[1] // 2
    out = new(gu, rows, inner)
    grid = (rows, cover(inner, COLUMNS))
    moe.silu_mul_clamp_kernel[grid](gu, out, inner, limit, block=COLUMNS)
    return out


# --- mixture of experts -----------------------------------------------------------------------------------------


def router_gemm(x: Tensor, w: Tensor) -> Tensor:
    rows, (n, k) = x.shape[0], w.shape
    out = new(w, rows, n)
    block_m, block_n = min(4, power_of_two(rows)), 2
    gemm.tiny_n_gemm_kernel[(cover(n, block_n), cover(rows, block_m))](
        x, w, out, rows, n, k, block_m=block_m, block_n=block_n, block_k=min(2048, power_of_two(k)), num_warps=8
    )
    return out


def router(
    logits: Tensor, bias: Tensor, k: int, groups: int = 1, kept: int = 1, softmax: bool = False
) -> tuple[Tensor, Tensor]:
    tokens, experts = logits.shape
    if groups > 1 and (power_of_two(experts) != experts or power_of_two(groups) != groups):
        raise RuntimeContractError(f"{experts} experts in {groups} groups: the kernel takes powers of two alone.")
    ids, weights = new(logits, tokens, k, dtype=torch.int32), new(logits, tokens, k)
    moe._router_triton_kernel[(tokens,)](
        logits,
        bias,
        ids,
        weights,
        experts,
        k=k,
        groups=groups,
        kept_groups=kept,
        softmax=softmax,
        block_e=power_of_two(experts),
        block_k=power_of_two(k),
    )
    return ids, weights


def moe_align(ids: Tensor, experts: int, block: int) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    slots = ids.numel()
    blocks = moe_blocks(slots, experts, block)
    sorted_ids, expert_of_block, num_padded = new(ids, blocks * block), new(ids, blocks), new(ids, 1)
    idx, first_block = torch.empty_like(ids), new(ids, experts)
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
    out = new(x, sorted_ids.shape[0], n)
    moe.fused_moe_kernel[(cover(n, block_n), blocks)](
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
        cover(k, BLOCK),
        cover(n, BLOCK),
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
    gemm2, idx, w = gemm2.contiguous(), idx.contiguous(), w.contiguous()
    out = new(gemm2, tokens, hidden)
    grid = (tokens, cover(hidden, COLUMNS))
    moe._moe_sum_reduce_kernel[grid](gemm2, idx, w, gemm2, out, hidden, scale, k=k, has_shared=False, block=COLUMNS)
    return out
