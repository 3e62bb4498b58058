"""Operations of softmax attention and Gated DeltaNet in plain torch; see reference_ops for the rules."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F

from fusionscope.fusion_runtime.decode.one_launch import one_launch

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
