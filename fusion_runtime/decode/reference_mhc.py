"""The mHC coefficients: sigmoids and the sinkhorn projection."""

from __future__ import annotations

from typing import Any

import torch

Tensor = Any


def sinkhorn(logits: Tensor, eps: float, iters: int) -> Tensor:
    """logits [T, 4, 4] f32 -> comb [T, 4, 4] f32, which mixes the streams.

    A softmax over each row, + eps, divided by (column sum + eps); then iters - 1 times rows by (row sum + eps) and
    columns by (column sum + eps). Columns end with sum 1, rows nearly.
    """
    comb = logits.softmax(-1).add_(eps)
    comb.div_(comb.sum(-2, keepdim=True).add_(eps))
    for _ in range(iters - 1):
        comb.div_(comb.sum(-1, keepdim=True).add_(eps))
        comb.div_(comb.sum(-2, keepdim=True).add_(eps))
    return comb


def hc_coefficients(
    m: Tensor, scale: Tensor, base: Tensor, hc_eps: float, iters: int, post_mult: float
) -> tuple[Tensor, Tensor, Tensor]:
    """m [T, 24] f32, scale [3], base [24] f32 -> (pre [T, 4], post [T, 4], comb [T, 4, 4]), all float32."""
    pre = torch.sigmoid(m[:, :4] * scale[0] + base[:4]) + hc_eps
    post = post_mult * torch.sigmoid(m[:, 4:8] * scale[1] + base[4:8])
    comb = sinkhorn((m[:, 8:] * scale[2] + base[8:]).view(-1, 4, 4), hc_eps, iters)
    return pre, post, comb
