"""Launches of the exchange kernels over a channel: grids, outputs and flags, for one rank or for all at once.

ranks 1: timing mode, rank 0 alone. ranks = size: every rank's programs in one launch that stays resident as a whole
(ranks * tokens * blocks programs must fit the GPU at once), where waiting is real; x then has a leading rank
dimension and so has the result. stages (3,) is one launch, (1, 2) publishes and reads in two.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from fusionscope.fusion_runtime.comm.loopback import Channel
from fusionscope.fusion_runtime.kernels import allreduce as kernels
from fusionscope.fusion_runtime.ownership import FinalizeOperands

Tensor = Any

ONE_LAUNCH = (3,)
SCOPE = "gpu"
"""All buffers lie on one GPU."""


def _run(kernel: Any, channel: Channel, operands: Sequence[Any], scalars: Sequence[Any], size: int, ranks: int,
         stages: Sequence[int], **constants: Any) -> None:  # fmt: skip
    grid = (channel.tokens, channel.blocks, ranks)
    for stage in stages:
        kernel[grid](
            *operands,
            channel.data,
            channel.pads,
            channel.epochs,
            channel.width,
            channel.elements,
            *scalars,
            **constants,
            size=size,
            stage=stage,
            emulate=ranks == 1,
            scope=SCOPE,
            block=channel.block,
            num_warps=8 if channel.block > 1024 else 4,
        )


def _like(x: Tensor, ranks: int, *shape: int) -> Tensor:
    return torch.empty(shape if ranks == 1 else (ranks, *shape), dtype=x.dtype, device=x.device)


def all_reduce(x: Tensor, channel: Channel, size: int, ranks: int = 1, stages: Sequence[int] = ONE_LAUNCH) -> Tensor:
    """x [T, W] -> the sum over the ranks [T, W]."""
    out = torch.empty_like(x)
    _run(kernels.one_shot_all_reduce_kernel, channel, (x, out), (), size, ranks, stages)
    return out


def all_gather_last(
    x: Tensor, channel: Channel, size: int, ranks: int = 1, stages: Sequence[int] = ONE_LAUNCH
) -> Tensor:
    """x [T, W] -> [T, size * W]."""
    out = _like(x, ranks, channel.tokens, size * channel.width)
    _run(kernels.allgather_lastdim_kernel, channel, (x, out), (), size, ranks, stages)
    return out


def ar_hc_post(x: Tensor, streams: Tensor, post: Tensor, comb: Tensor, channel: Channel, size: int, ranks: int = 1,
               stages: Sequence[int] = ONE_LAUNCH) -> Tensor:  # fmt: skip
    """x [T, H], streams [T, 4, H], post [T, 4], comb [T, 4, 4] f32 -> new streams."""
    out = _like(streams, ranks, *streams.shape)
    _run(kernels.ar_hc_post_oneshot_kernel, channel, (x, streams, post, comb, out), (), size, ranks, stages)
    return out


def moe_finalize_ar_hc_post(parts: FinalizeOperands, streams: Tensor, post: Tensor, comb: Tensor, channel: Channel,
                            size: int, ranks: int = 1, stages: Sequence[int] = ONE_LAUNCH) -> Tensor:  # fmt: skip
    """The operands of a finalize, then as ar_hc_post -> new streams."""
    out = _like(streams, ranks, *streams.shape)
    has_shared = parts.shared is not None
    shared = parts.shared if has_shared else parts.gemm2_out
    stride = parts.gemm2_out.shape[-2] * channel.width
    _run(
        kernels.moe_finalize_ar_hc_post_oneshot_kernel,
        channel,
        (parts.gemm2_out, parts.idx, parts.weights, shared, streams, post, comb, out),
        (stride, parts.scale),
        size,
        ranks,
        stages,
        k=parts.idx.shape[-1],
        has_shared=has_shared,
    )
    return out


def all_reduce_norm(
    x: Tensor,
    residual: Tensor,
    weight: Tensor,
    eps: float,
    weight_bias: float,
    channel: Channel,
    size: int,
    ranks: int = 1,
    stages: Sequence[int] = ONE_LAUNCH,
) -> tuple[Tensor, Tensor]:
    """x, residual [T, W] -> (normed, sum + residual); the channel's block must cover a row."""
    out, total = torch.empty_like(x), torch.empty_like(x)
    operands = (x, residual, weight, out, total)
    _run(kernels.all_reduce_pull_norm_kernel, channel, operands, (eps, weight_bias), size, ranks, stages)
    return out, total
