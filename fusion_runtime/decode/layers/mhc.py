"""The mHC read of a half-layer; its write is the boundary mhc_post."""

from __future__ import annotations

from typing import Any

import torch

from fusionscope.fusion_runtime.context import DecodeContext
from fusionscope.fusion_runtime.decode.spec import STREAMS, ModelSpec
from fusionscope.fusion_runtime.decode.weights import WeightSource

Tensor = Any

COEFFICIENTS = (2 + STREAMS) * STREAMS
STAY = 2.0
"""Bias of a stream towards itself in the mixing matrix, so that streams stay apart over 90 half-layers."""


class HyperConnection:
    """Parameters of one half-layer's mHC, replicated on every rank."""

    def __init__(self, spec: ModelSpec, weights: WeightSource, name: str) -> None:
        self.spec = spec
        wide = STREAMS * spec.hidden
        self.fn = weights.matrix(f"{name}.fn", COEFFICIENTS, wide, dtype=torch.float32)
        self.scale = weights.normal(f"{name}.scale", (3,), std=0.1, dtype=torch.float32).add_(0.5)
        self.base = weights.normal(f"{name}.base", (COEFFICIENTS,), std=0.5, dtype=torch.float32)
        self.base[2 * STREAMS :].view(STREAMS, STREAMS).diagonal().add_(STAY)
        self.norm = weights.normal(f"{name}.norm", (spec.hidden,), std=0.1).add_(1)

    def read(self, streams: Tensor, ctx: DecodeContext) -> tuple[Tensor, Tensor, Tensor]:
        """streams [T, 4, H] -> (normed input [T, H], post [T, 4] f32, comb [T, 4, 4] f32) for the write."""
        spec = self.spec
        x, post, comb = ctx.ops.hc_pre(
            streams,
            self.fn,
            self.scale,
            self.base,
            self.norm,
            spec.rms_eps,
            spec.hc_eps,
            spec.hc_iters,
            spec.hc_post_mult,
        )
        return x, post, comb
