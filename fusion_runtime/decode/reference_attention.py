"""Operations of attention in plain torch: softmax (GQA, MLA) and linear (KDA, GDN); see reference_ops for the rules."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F

from fusionscope.fusion_runtime.decode.one_launch import one_launch
from fusionscope.fusion_runtime.decode.reference_numbers import f32, like

Tensor = Any


@one_launch
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
    """q [T, h, d], k [T, hk, d], both in place and with strides of their own in the first two dimensions.

    Every head is normed over d where weights [d] are given (times weight + weight_bias), rounded, then its first
    2 * R columns are rotated, cos and sin [R] float32: (a, b) -> (a cos - b sin, b cos + a sin), a the first R
    columns and b the next R.
    """
    half = cos.shape[0]
    for x, weight in ((q, q_weight), (k, k_weight)):
        y = x.float()
        if weight is not None:
            y = y * torch.rsqrt(y.square().mean(-1, keepdim=True) + eps) * (weight.float() + weight_bias)
            y = y.to(x.dtype).float()
        a, b = y[..., :half], y[..., half : 2 * half]
        x.copy_(torch.cat([a * cos - b * sin, b * cos + a * sin, y[..., 2 * half :]], -1))


@one_launch
def gqa_decode(q: Tensor, cache: Tensor, kv_heads: int) -> Tensor:
    """q [T, h, d] (token stride), cache [T, C, 2 * kv_heads * d], a row all keys then all values -> [T, h, d].

    Softmax attention at scale d**-0.5; query head i reads key-value head i // (h / kv_heads).
    """
    tokens, heads, d = q.shape
    k, v = cache.view(tokens, -1, 2, kv_heads, d).permute(2, 0, 3, 1, 4)
    o = F.scaled_dot_product_attention(q[:, :, None], k, v, enable_gqa=heads != kv_heads)
    return o.reshape(tokens, heads, d)


@one_launch
def gate_mul(x: Tensor, gate: Tensor) -> Tensor:
    """x [T, D], gate [T, D] or [T, 1] logits (both token stride) -> x * sigmoid(gate), contiguous."""
    return (x.float() * torch.sigmoid(gate.float())).to(x.dtype)


@one_launch
def concat(a: Tensor, b: Tensor) -> Tensor:
    """a [..., m] and b [..., n] of one leading shape, any strides -> [..., m + n] contiguous."""
    return torch.cat([a, b], -1)


@one_launch
def gdn_update(
    q: Tensor, k: Tensor, v: Tensor, a: Tensor, beta: Tensor, A_log: Tensor, dt_bias: Tensor, state: Tensor
) -> Tensor:
    """One step of the gated delta rule with one decay a head.

    q, k [T, hk, d], v [T, h, d], a [T, h] decay logits, beta [T, h] logits (all token stride, x's dtype); A_log and
    dt_bias [h] f32; state [T, h, d_k, d_v] float32 in place -> o [T, h, d] in q's dtype, contiguous. As kda_update,
    with g = -exp(A_log) * softplus(a + dt_bias) for the whole head; value head i reads key head i // (h / hk).
    """
    tokens, heads, d = v.shape
    each = heads // q.shape[1]
    qf, kf = (
        (x.float() * torch.rsqrt(x.float().square().sum(-1, keepdim=True) + 1e-6)).repeat_interleave(each, 1)
        for x in (q, k)
    )
    g = -A_log.exp() * F.softplus(a.float() + dt_bias)
    state.mul_(g.exp()[..., None, None])
    delta = (v.float() - torch.einsum("thk,thkv->thv", kf, state)) * torch.sigmoid(beta.float())[..., None]
    flat = state.view(tokens * heads, d, d)
    flat.baddbmm_(kf.reshape(-1, d, 1), delta.reshape(-1, 1, d))
    return torch.bmm(qf.reshape(-1, 1, d) * d**-0.5, flat).view(tokens, heads, d).to(q.dtype)


@one_launch
def causal_conv1d_update(x: Tensor, state: Tensor, w: Tensor) -> Tensor:
    """x [T, C] (token stride), w [C, 4] in x's dtype; state [T, C, 3] in place: the last three inputs, oldest first.

    -> silu(sum_i w[:, i] * window[i]) [T, C] contiguous, where window = state then x; the state shifts by one.
    """
    window = torch.cat([state, x[:, :, None]], -1)
    state.copy_(window[:, :, 1:])
    return like(F.silu((f32(window) * f32(w)).sum(-1)), x)


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
    qf, kf = (f32(y) * torch.rsqrt(f32(y).square().sum(-1, keepdim=True) + 1e-6) for y in (q, k))
    g = lower_bound * torch.sigmoid(A_log.exp()[:, None] * (f32(f) + dt_bias.view(heads, d)))
    state.mul_(g.exp()[..., None])
    delta = (f32(v) - torch.einsum("thk,thkv->thv", kf, state)) * torch.sigmoid(f32(beta))[..., None]
    flat = state.view(tokens * heads, d, d)
    flat.baddbmm_(kf.reshape(-1, d, 1), delta.reshape(-1, 1, d))
    return like(torch.bmm(qf.reshape(-1, 1, d) * d**-0.5, flat).view(tokens, heads, d), q)


@one_launch
def gated_rmsnorm(o: Tensor, gate: Tensor, w: Tensor, eps: float, silu: bool = False) -> Tensor:
    """o, gate [T, h, d] (gate: token stride), w [d] -> rmsnorm(o over d) * w * sigmoid(gate), [T, h, d].

    silu: times silu(gate) in its place.
    """
    of = f32(o)
    normed = of * torch.rsqrt(of.square().mean(-1, keepdim=True) + eps) * w
    return like(normed * (F.silu(f32(gate)) if silu else torch.sigmoid(f32(gate))), o)


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
    scores = torch.bmm(f32(q), f32(k_cache).transpose(1, 2)).relu_()
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
    scores = torch.bmm(f32(q_lat), f32(rows).transpose(1, 2)).mul_(sm_scale)
    return like(torch.bmm(torch.softmax(scores, -1), f32(rows[..., :latent])), q_lat)
