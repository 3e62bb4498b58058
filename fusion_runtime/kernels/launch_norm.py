"""Launches of the kernels that need no peer: add and RMSNorm, whose output may be quantised, and mHC post."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch

from fusionscope.fusion_runtime.comm.channel import power_of_two
from fusionscope.fusion_runtime.kernels import mhc, norms
from fusionscope.fusion_runtime.norms import Norm
from fusionscope.fusion_runtime.quant import (
    FP8_STATIC_TENSOR,
    FP8_TOKEN_GROUP_128,
    MXFP4,
    NVFP4_LINEAR,
    Activation,
    InputQuant,
    QuantisedActivation,
    QuantKey,
)

Tensor = Any

QUANT_MODES: dict[QuantKey | None, int] = {
    None: 0,
    FP8_STATIC_TENSOR: 1,
    FP8_TOKEN_GROUP_128: 2,
    MXFP4: 3,
    NVFP4_LINEAR: 4,
}
"""The formats that norms.store_normed can write."""


@dataclass(frozen=True)
class NormedOutput:
    """What a norm kernel writes into: `mode` as store_normed has it, scales and scale where the mode needs them."""

    mode: int
    data: Tensor
    scales: Tensor | None
    scale: Tensor | None
    quant: InputQuant | None

    def activation(self, like: Tensor) -> Activation:
        """The written output as its consumer takes it; `like` gives dtype and width."""
        if self.quant is None:
            return self.data
        width = int(like.shape[-1])
        shape = (int(self.data.shape[0]), width)
        if self.mode == 1:
            return QuantisedActivation(self.quant.key, self.data, self.scale, shape, like.dtype)
        return QuantisedActivation(self.quant.key, self.data, self.scales, shape, like.dtype, self.quant.scale)


def normed_output(x: Tensor, quant: InputQuant | None) -> NormedOutput:
    """Empty outputs for x [..., T, W]; KeyError where the kernels cannot write quant's format."""
    mode = QUANT_MODES[quant.key if quant else None]
    if quant is None:
        return NormedOutput(mode, torch.empty_like(x), None, None, None)
    *rows, width = x.shape
    if quant.key in (MXFP4, NVFP4_LINEAR):
        data = torch.empty((*rows, width // 2), dtype=torch.uint8, device=x.device)
        kind = torch.uint8 if quant.key == MXFP4 else torch.float8_e4m3fn
        scales = torch.empty((*rows, width // quant.key.group), dtype=kind, device=x.device)
        return NormedOutput(mode, data, scales, quant.scale, quant)
    data = torch.empty_like(x, dtype=torch.float8_e4m3fn)
    scales = None
    if quant.key == FP8_TOKEN_GROUP_128:
        scales = torch.empty((*rows, -(-width // 128)), dtype=torch.float32, device=x.device)
    return NormedOutput(mode, data, scales, quant.scale, quant)


def row_warps(width: int, mode: int = 0) -> int:
    """Warps of a program that holds a row: sixteen bytes a thread where it is long enough, 1,024 threads at most.

    FP8 (modes 1 and 2) is faster with as many as there may be, other outputs with half of them (measured,
    benchmarks/kernels.py; a warp of an AMD GPU has 64 threads).
    """
    most = 32 if mode in (1, 2) and not torch.version.hip else 16
    return min(most, max(4, power_of_two(width) // 256))


def add_rmsnorm(
    x: Tensor, residual: Tensor, norm: Norm, quant: InputQuant | None = None, warps: int = 0
) -> tuple[Activation, Tensor]:
    """x, residual [T, W] -> (normed [T, W] or quantised, x + residual), one launch."""
    rows, width = x.shape
    # The kernel reads rows that follow each other.
    x, residual = x.contiguous(), residual.contiguous()
    total, made = torch.empty_like(x), normed_output(x, quant)
    norms.fused_add_rmsnorm_kernel[(rows,)](
        x,
        residual,
        norm.weight.contiguous(),
        made.data,
        total,
        made.scales,
        made.scale,
        width,
        norm.eps,
        norm.weight_bias,
        quant=made.mode,
        block=max(128, power_of_two(width)),
        num_warps=warps or row_warps(width, made.mode),
    )
    return made.activation(x), total


POST_BLOCK, POST_WARPS = 512, 2
"""Columns and warps of one program of mhc_post: sixteen bytes a thread (measured, benchmarks/kernels.py)."""


def mhc_post(
    x: Tensor, streams: Tensor, post: Tensor, comb: Tensor, block: int = POST_BLOCK, warps: int = POST_WARPS
) -> Tensor:
    """x [T, H] complete, streams [T, 4, H], post [T, 4], comb [T, 4, 4] f32 -> new streams, one launch."""
    tokens, hidden = x.shape
    x, streams, post, comb = x.contiguous(), streams.contiguous(), post.contiguous(), comb.contiguous()
    out = torch.empty_like(streams)
    grid = (tokens, -(-hidden // block))
    mhc.mhc_post_kernel[grid](x, streams, post, comb, out, hidden, block=block, num_warps=warps)
    return out
