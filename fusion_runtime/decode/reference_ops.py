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

import math
from typing import Any

import torch
import torch.nn.functional as F

from fusionscope.fusion_runtime import quant
from fusionscope.fusion_runtime.decode.one_launch import one_launch
from fusionscope.fusion_runtime.decode.reference_attention import (
    concat,
    gate_mul,
    gdn_update,
    gqa_decode,
    qk_norm_rope,
)
from fusionscope.fusion_runtime.decode.reference_mhc import hc_coefficients
from fusionscope.fusion_runtime.quant import FP8_TOKEN_GROUP_128, InputQuant, QuantisedActivation

Tensor = Any

__all__ = [
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
    "moe_gemm",
    "moe_sum_reduce",
    "qk_norm_rope",
    "quantise",
    "rmsnorm",
    "router",
    "router_gemm",
    "silu_mul_clamp",
    "stream_mean",
    "topk_blocks",
]

FP8_MAX = 448.0
BLOCK = 128


def _f32(x: Tensor) -> Tensor:
    return x if x.dtype == torch.float32 else x.float()


def _as(x: Tensor, like: Tensor) -> Tensor:
    return x if x.dtype == like.dtype else x.to(like.dtype)


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
    return _as(_f32(R).mean(1), R)


@one_launch
def rmsnorm(x: Tensor, w: Tensor, eps: float, weight_bias: float = 0.0) -> Tensor:
    """x [T, D] (token stride), w [D] -> [T, D]: x * rsqrt(mean(x^2) + eps) * (w + weight_bias), w in x's dtype."""
    xf = _f32(x)
    gain = _f32(w) + weight_bias if weight_bias else w
    return _as(xf * torch.rsqrt(xf.square().mean(-1, keepdim=True) + eps) * gain, x)


@one_launch
def add_rmsnorm(x: Tensor, residual: Tensor, w: Tensor, eps: float, weight_bias: float) -> tuple[Tensor, Tensor]:
    """x, residual [T, H], w [H] -> (normed, x + residual), both [T, H]; the norm sees the float32 sum."""
    total = _f32(x) + _f32(residual)
    gain = _f32(w) + weight_bias if weight_bias else _f32(w)
    normed = total * torch.rsqrt(total.square().mean(-1, keepdim=True) + eps) * gain
    return _as(normed, x), _as(total, x)


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
    flat = _f32(R.flatten(1))
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
    mixed = torch.bmm(pre[:, None, :], _f32(R)).squeeze(1)
    return rmsnorm(_as(mixed, R), norm_w, rms_eps), post, comb


def mhc_post(x: Tensor, R: Tensor, post: Tensor, comb: Tensor) -> Tensor:
    """x [T, H] (complete sum), R [T, 4, H], post [T, 4] f32, comb [T, 4, 4] f32 -> new R [T, 4, H].

    R'[t,j] = post[t,j] * x[t] + sum_k comb[t,k,j] * R[t,k].
    """
    return mhc_write(mhc_mix(R, comb), x, post)


@one_launch
def mhc_mix(R: Tensor, comb: Tensor) -> Tensor:
    """First half of mhc_post as eager torch has it: sum_k comb[t,k,j] * R[t,k], [T, 4, H] float32."""
    return torch.bmm(comb.transpose(1, 2), _f32(R))


@one_launch
def mhc_write(mixed: Tensor, x: Tensor, post: Tensor) -> Tensor:
    """Second half: mixed [T, 4, H] f32 (used up) + post[t,j] * x[t], in x's dtype."""
    return _as(mixed.addcmul_(post[:, :, None], _f32(x)[:, None, :]), x)


# --- matrix products --------------------------------------------------------------------------------------------


@one_launch
def linear(x: Tensor, w: Tensor) -> Tensor:
    """x [T, K] (token stride), w [N, K] in x's dtype -> [T, N]."""
    return F.linear(x, w)


def per_token_group_quant_fp8(x: Tensor) -> tuple[Tensor, Tensor]:
    """x [M, K] -> (q [M, K] float8_e4m3fn, scale [M, ceil(K/128)] f32): scale = amax/448 of each 128 columns."""
    rows, columns = x.shape
    groups = math.ceil(columns / BLOCK)
    padded = F.pad(x.float(), (0, groups * BLOCK - columns)).view(rows, groups, BLOCK)
    scale = padded.abs().amax(-1).clamp(min=1e-10) / FP8_MAX
    q = (padded / scale[..., None]).clamp(-FP8_MAX, FP8_MAX).view(rows, -1)[:, :columns]
    return q.to(torch.float8_e4m3fn), scale


def dequantise(q: Tensor, scale: Tensor, block: tuple[int, int]) -> Tensor:
    """q [..., N, K], scale [..., ceil(N/block0), ceil(K/block1)] -> float32 [..., N, K]."""
    n, k = q.shape[-2:]
    wide = scale.repeat_interleave(block[0], -2)[..., :n, :].repeat_interleave(block[1], -1)[..., :k]
    return q.float() * wide


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
    gate, up = _f32(gu).chunk(2, -1)
    return _as(F.silu(gate.clamp(max=limit)) * up.clamp(-limit, limit), gu)


# --- KDA: gated delta rule --------------------------------------------------------------------------------------


@one_launch
def causal_conv1d_update(x: Tensor, state: Tensor, w: Tensor) -> Tensor:
    """x [T, C] (token stride), w [C, 4] in x's dtype; state [T, C, 3] in place: the last three inputs, oldest first.

    -> silu(sum_i w[:, i] * window[i]) [T, C] contiguous, where window = state then x; the state shifts by one.
    """
    window = torch.cat([state, x[:, :, None]], -1)
    state.copy_(window[:, :, 1:])
    return _as(F.silu((_f32(window) * _f32(w)).sum(-1)), x)


@one_launch
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
    """One step of the gated delta rule. d = head size (128 in GLM), k and v dimensions alike.

    q, k, v [T, h, d], f [T, h, d] decay logits, beta [T, h] logits (all token stride, x's dtype); A_log [h] f32,
    dt_bias [h*d] f32; state [T, h, d_k, d_v] float32 in place -> o [T, h, d] in q's dtype, contiguous.
    q and k are L2-normalised over d (x * rsqrt(sum(x^2) + 1e-6)), q is scaled by d**-0.5;
    g = lower_bound * sigmoid(exp(A_log) * (f + dt_bias)); S *= exp(g) along d_k;
    S += k (x) sigmoid(beta) * (v - k.S); o = q.S.
    """
    tokens, heads, d = q.shape
    qf, kf = (_f32(y) * torch.rsqrt(_f32(y).square().sum(-1, keepdim=True) + 1e-6) for y in (q, k))
    g = lower_bound * torch.sigmoid(A_log.exp()[:, None] * (_f32(f) + dt_bias.view(heads, d)))
    state.mul_(g.exp()[..., None])
    delta = (_f32(v) - torch.einsum("thk,thkv->thv", kf, state)) * torch.sigmoid(_f32(beta))[..., None]
    flat = state.view(tokens * heads, d, d)
    flat.baddbmm_(kf.reshape(-1, d, 1), delta.reshape(-1, 1, d))
    return _as(torch.bmm(qf.reshape(-1, 1, d) * d**-0.5, flat).view(tokens, heads, d), q)


@one_launch
def gated_rmsnorm(o: Tensor, gate: Tensor, w: Tensor, eps: float, silu: bool = False) -> Tensor:
    """o, gate [T, h, d] (gate: token stride), w [d] -> rmsnorm(o over d) * w * sigmoid(gate), [T, h, d].

    silu: times silu(gate) in its place.
    """
    of = _f32(o)
    normed = of * torch.rsqrt(of.square().mean(-1, keepdim=True) + eps) * w
    return _as(normed * (F.silu(_f32(gate)) if silu else torch.sigmoid(_f32(gate))), o)


# --- MLA with the top-k indexer ---------------------------------------------------------------------------------


@one_launch
def cache_write(cache: Tensor, x: Tensor, position: int) -> None:
    """cache [T, C, D] in place: cache[:, position] = x [T, D] (token stride)."""
    cache[:, position].copy_(x)


@one_launch
def batched_heads(x: Tensor, w: Tensor) -> Tensor:
    """x [T, h, a], w [h, a, b] -> [T, h, b] contiguous: one matrix per head."""
    return torch.einsum("tha,hab->thb", x, w).contiguous()


@one_launch
def indexer_logits(q: Tensor, k_cache: Tensor, head_w: Tensor) -> Tensor:
    """q [T, ih, d], k_cache [T, P, d] (one key per pool), head_w [T, ih] f32 -> [T, P] f32.

    sum_h head_w * relu(q_h . k)
    """
    scores = torch.bmm(_f32(q), _f32(k_cache).transpose(1, 2)).relu_()
    return torch.bmm(head_w[:, None, :], scores).squeeze(1)


@one_launch
def topk_blocks(logits: Tensor, n: int) -> Tensor:
    """logits [T, P] f32 -> [T, n] int32: the n highest-scoring pools, in any order."""
    return logits.topk(n, dim=-1, sorted=False).indices.int()


@one_launch
def mla_decode(
    q_lat: Tensor, kv_cache: Tensor, block_idx: Tensor | None, kpool: int, sm_scale: float, latent: int
) -> Tensor:
    """q_lat [T, h, D], kv_cache [T, C, D], block_idx [T, n] int32 or None (all pools) -> o_lat [T, h, latent].

    Softmax attention of every head over the tokens of the chosen pools; pool p holds cache rows p*kpool to
    (p+1)*kpool - 1. Keys are whole rows, values their first `latent` columns.
    """
    tokens, context, width = kv_cache.shape
    rows = kv_cache
    if block_idx is not None:
        pools = kv_cache.view(tokens * (context // kpool), kpool * width)
        first = torch.arange(tokens, device=kv_cache.device)[:, None] * (context // kpool)
        rows = pools[(block_idx + first).view(-1)].view(tokens, -1, width)
    scores = torch.bmm(_f32(q_lat), _f32(rows).transpose(1, 2)).mul_(sm_scale)
    return _as(torch.bmm(torch.softmax(scores, -1), _f32(rows[..., :latent])), q_lat)


# --- mixture of experts -----------------------------------------------------------------------------------------


@one_launch
def router_gemm(x: Tensor, w: Tensor) -> Tensor:
    """x [T, H], w [E, H] float32 -> logits [T, E] float32."""
    return F.linear(_f32(x), w)


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
    rows = _f32(gemm2[idx.clamp(min=0).view(-1)]).view(tokens, k, gemm2.shape[1])
    rows = rows.masked_fill_((idx < 0)[:, :, None], 0)
    return _as(torch.bmm((w * scale)[:, None, :], rows).squeeze(1), gemm2)
