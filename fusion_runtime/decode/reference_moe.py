"""Operations of a mixture of experts in plain torch; see reference_ops for the rules."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F

from fusionscope.fusion_runtime.decode.one_launch import one_launch
from fusionscope.fusion_runtime.decode.reference_numbers import BLOCK, dequantise, f32, like, per_token_group_quant_fp8

Tensor = Any


@one_launch
def router_gemm(x: Tensor, w: Tensor) -> Tensor:
    """x [T, H], w [E, H] float32 -> logits [T, E] float32."""
    return F.linear(f32(x), w)


@one_launch
def router(
    logits: Tensor, bias: Tensor, k: int, groups: int = 1, kept: int = 1, softmax: bool = False
) -> tuple[Tensor, Tensor]:
    """logits [T, E] f32, bias [E] f32 -> (ids [T, k] int32, weights [T, k] f32).

    Scores are sigmoids, or a softmax over the experts; the k highest score + bias are chosen (best first, the lower
    id first on a tie); weights are their scores without bias, normalised to sum 1. groups > 1: only experts of the
    `kept` best groups can be chosen, a group being E / groups neighbours and as good as its two best score + bias.
    """
    scores = torch.softmax(logits, -1) if softmax else torch.sigmoid(logits)
    biased = scores + bias
    if groups > 1:
        grouped = biased.unflatten(-1, (groups, -1))
        worth = grouped.topk(2, -1).values.sum(-1)
        best = worth.sort(stable=True, dim=-1, descending=True).indices[:, :kept]
        out = torch.ones_like(worth, dtype=torch.bool).scatter_(-1, best, False)
        biased = grouped.masked_fill(out[..., None], float("-inf")).flatten(-2)
    ids = biased.sort(stable=True, dim=-1, descending=True).indices[:, :k]
    weights = scores.gather(-1, ids)
    return ids.int(), weights / weights.sum(-1, keepdim=True)


def moe_blocks(slots: int, experts: int, block: int) -> int:
    """The most blocks of `block` rows that `slots` = T*K chosen experts can need: the static size under capture."""
    return min(slots, experts + slots // block)


@one_launch
def moe_align(ids: Tensor, experts: int, block: int) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Sorts the chosen (token, expert) slots by expert and pads every expert to whole blocks of rows.

    ids [T, K] int32 -> (sorted_ids [P] int32: the slot t*K + k at each permuted row, T*K where padding;
    expert_of_block [P/block] int32: -1 past the last used block; num_padded [1] int32: rows in used blocks;
    idx [T, K] int32: the permuted row of each slot). P = moe_blocks(T*K, experts, block) * block, whatever the ids.
    Slots of one expert keep their order.
    """
    flat = ids.reshape(-1).long()
    slots = flat.numel()
    blocks = moe_blocks(slots, experts, block)
    order = flat.argsort(stable=True)
    if block == 1:
        idx = torch.empty_like(order).scatter_(0, order, torch.arange(slots, device=ids.device))
        padded = torch.full((1,), slots, dtype=torch.int32, device=ids.device)
        return order.int(), flat[order].int(), padded, idx.int().view_as(ids)
    counts = torch.bincount(flat, minlength=experts)
    used = (counts + block - 1) // block
    first_block = used.cumsum(0) - used
    ranked = flat[order]
    within = torch.arange(slots, device=ids.device) - (counts.cumsum(0) - counts)[ranked]
    row = first_block[ranked] * block + within
    sorted_ids = torch.full((blocks * block,), slots, dtype=torch.int32, device=ids.device)
    sorted_ids[row] = order.int()
    expert_of_block = torch.full((blocks,), -1, dtype=torch.int32, device=ids.device)
    total = int(used.sum())
    expert_of_block[:total] = torch.arange(experts, device=ids.device).repeat_interleave(used).int()
    idx = torch.empty(slots, dtype=torch.int32, device=ids.device)
    idx[order] = row.int()
    return sorted_ids, expert_of_block, (used.sum() * block).int().view(1), idx.view_as(ids)


@one_launch
def moe_gemm(
    x: Tensor,
    w: Tensor,
    w_scale: Tensor | None,
    sorted_ids: Tensor,
    expert_of_block: Tensor,
    num_padded: Tensor,
    top_k: int,
) -> Tensor:
    """One grouped product: out[p] = w[expert of row p] . x[row], [P, N] in x's dtype.

    w [E, N, K], FP8 with w_scale [E, N/128, K/128] or x's dtype with None. top_k > 0: x is [T, K] and row p reads
    token sorted_ids[p] // top_k (first product); top_k = 0: x is [P, K] and row p reads row p (second product).
    Padding rows hold anything. With FP8 weights x is quantised per token and 128 columns (two launches on CUDA).
    """
    rows = sorted_ids.shape[0]
    block = rows // expert_of_block.shape[0]
    expert = expert_of_block.clamp(min=0) if block == 1 else expert_of_block.clamp(min=0).repeat_interleave(block)
    taken = x
    if w_scale is not None:
        q, scale = per_token_group_quant_fp8(x)
        taken = dequantise(q, scale, (1, BLOCK))
    if top_k:
        taken = taken[(sorted_ids // top_k).clamp(max=x.shape[0] - 1)]
    weights = w[expert]
    if w_scale is not None:
        weights = dequantise(weights, w_scale[expert], (BLOCK, BLOCK))
    return torch.bmm(weights, taken[:, :, None]).squeeze(-1).to(x.dtype)


@one_launch
def moe_sum_reduce(gemm2: Tensor, idx: Tensor, w: Tensor, scale: float) -> Tensor:
    """gemm2 [P, H] permuted, idx [T, K] int32 (-1: dropped, skipped), w [T, K] f32 -> [T, H] in gemm2's dtype.

    scale * sum_k w[t,k] * gemm2[idx[t,k]], accumulated in float32. What stands at a skipped row is never read into
    the sum.
    """
    tokens, k = idx.shape
    rows = f32(gemm2[idx.clamp(min=0).reshape(-1)]).view(tokens, k, gemm2.shape[1])
    rows = rows.masked_fill_((idx < 0)[:, :, None], 0)
    return like(torch.bmm((w * scale)[:, None, :], rows).squeeze(1), gemm2)
