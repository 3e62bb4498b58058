"""What the reference operations share: float32 in, the storage dtype out, FP8 with block scales."""

from __future__ import annotations

from typing import Any

from fusionscope.fusion_runtime import quant

Tensor = Any

BLOCK = 128
"""Columns, and rows of a weight, that share a scale."""


def f32(x: Tensor) -> Tensor:
    """x in float32."""
    return x.float()


def like(x: Tensor, other: Tensor) -> Tensor:
    """x in other's dtype."""
    return x.to(other.dtype)


def per_token_group_quant_fp8(x: Tensor) -> tuple[Tensor, Tensor]:
    """x [M, K] -> (q [M, K] float8_e4m3fn, scale [M, ceil(K/128)] f32); see quant.fp8_groups."""
    return quant.fp8_groups(x)


def dequantise(q: Tensor, scale: Tensor, block: tuple[int, int]) -> Tensor:
    """q [..., N, K], scale [..., ceil(N/block0), ceil(K/block1)] -> float32 [..., N, K]."""
    n, k = q.shape[-2:]
    wide = scale.repeat_interleave(block[0], -2)[..., :n, :].repeat_interleave(block[1], -1)[..., :k]
    return q.float() * wide
