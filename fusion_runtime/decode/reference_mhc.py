"""The mHC coefficients: sigmoids and the sinkhorn projection, in torch, and as one CPU operator.

A sinkhorn of 20 iterations is about 80 tiny operators; on the CPU they would be most of the launches of a forward
and say nothing. As in the GPU kernel they are one launch there: the operator `fusionscope::hc_coefficients`.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

from fusionscope.fusion_runtime.decode.one_launch import hidden_inside

Tensor = Any


def sinkhorn(logits: Tensor, eps: float, iters: int) -> Tensor:
    """logits [T, 4, 4] f32 -> comb: a softmax over each row + eps, divided by (column sum + eps); then iters - 1
    times rows by (row sum + eps) and columns by (column sum + eps). Columns end with sum 1, rows nearly."""
    comb = logits.softmax(-1) + eps
    comb = comb / (comb.sum(-2, keepdim=True) + eps)
    for _ in range(iters - 1):
        comb = comb / (comb.sum(-1, keepdim=True) + eps)
        comb = comb / (comb.sum(-2, keepdim=True) + eps)
    return comb


def hc_coefficients_torch(
    m: Tensor, scale: Tensor, base: Tensor, hc_eps: float, iters: int, post_mult: float
) -> tuple[Tensor, Tensor, Tensor]:
    """m [T, 24] f32, scale [3], base [24] f32 -> (pre [T, 4], post [T, 4], comb [T, 4, 4]), all float32."""
    pre = torch.sigmoid(m[:, :4] * scale[0] + base[:4]) + hc_eps
    post = post_mult * torch.sigmoid(m[:, 4:8] * scale[1] + base[4:8])
    comb = sinkhorn((m[:, 8:] * scale[2] + base[8:]).view(-1, 4, 4), hc_eps, iters)
    return pre, post, comb


def _on_cpu(
    m: Tensor, scale: Tensor, base: Tensor, hc_eps: float, iters: int, post_mult: float
) -> tuple[Tensor, Tensor, Tensor]:
    logits = m.numpy() * np.repeat(scale.numpy(), (4, 4, 16)) + base.numpy()
    gate = 0.5 * (1 + np.tanh(0.5 * logits[:, :8]))  # the sigmoid, without overflow
    comb = logits[:, 8:].reshape(-1, 4, 4)
    comb = np.exp(comb - comb.max(-1, keepdims=True))
    comb /= comb.sum(-1, keepdims=True)
    comb += np.float32(hc_eps)
    eps = np.float32(hc_eps)
    comb /= comb.sum(-2, keepdims=True) + eps
    for _ in range(iters - 1):
        comb /= comb.sum(-1, keepdims=True) + eps
        comb /= comb.sum(-2, keepdims=True) + eps
    pre, post = gate[:, :4] + eps, gate[:, 4:] * np.float32(post_mult)
    return torch.from_numpy(pre), torch.from_numpy(post), torch.from_numpy(comb)


_library = torch.library.Library("fusionscope", "FRAGMENT")
_library.define(
    "hc_coefficients(Tensor m, Tensor scale, Tensor base, float hc_eps, int iters, float post_mult)"
    " -> (Tensor, Tensor, Tensor)"
)
_library.impl("hc_coefficients", hidden_inside(_on_cpu), "CPU")
_library.impl("hc_coefficients", hc_coefficients_torch, "CUDA")


def hc_coefficients(
    m: Tensor, scale: Tensor, base: Tensor, hc_eps: float, iters: int, post_mult: float
) -> tuple[Tensor, Tensor, Tensor]:
    """As hc_coefficients_torch; one operator on the CPU."""
    answer: tuple[Tensor, Tensor, Tensor] = torch.ops.fusionscope.hc_coefficients(
        m, scale, base, hc_eps, iters, post_mult
    )
    return answer
