"""The weights of a half-layer's mHC read, replicated on every rank; its write is the boundary mhc_post."""

from __future__ import annotations

import torch

from fusionscope.fusion_runtime.decode.spec import STREAMS, ModelSpec
from fusionscope.fusion_runtime.decode.weights import WeightSource
from fusionscope.fusion_runtime.hyper import COEFFICIENTS, HyperWeights

STAY = 2.0
"""Bias of a stream towards itself in the mixing matrix, so that streams stay apart over 90 half-layers."""


def hyper_connection(spec: ModelSpec, weights: WeightSource, name: str) -> HyperWeights:
    """One half-layer's mHC with random parameters."""
    fn = weights.matrix(f"{name}.fn", COEFFICIENTS, STREAMS * spec.hidden, dtype=torch.float32)
    scale = weights.normal(f"{name}.scale", (3,), std=0.1, dtype=torch.float32).add_(0.5)
    base = weights.normal(f"{name}.base", (COEFFICIENTS,), std=0.5, dtype=torch.float32)
    base[2 * STREAMS :].view(STREAMS, STREAMS).diagonal().add_(STAY)
    norm = weights.normal(f"{name}.norm", (spec.hidden,), std=0.1).add_(1)
    return HyperWeights(fn, scale, base, norm, spec.rms_eps, spec.hc_eps, spec.hc_iters, spec.hc_post_mult)
