"""Launches of the exchange kernels over a channel: grids, outputs and epochs, for one rank or for all at once.

One rank's launch (a group's own) takes x [T, W]. A channel with the epochs of several ranks takes the ranks' x
[ranks, T, W] and gives every rank's result: one launch holds them all and must fit the GPU as a whole, as waiting is
real. stages (15,) is one launch, (1, 2, 4, 8) waits for nothing within one. delays [ranks] int32: reads
of memory by which a rank pushes late.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
import triton.language as tl

from fusionscope.fusion_runtime.comm.channel import Channel, power_of_two
from fusionscope.fusion_runtime.errors import RuntimeContractError
from fusionscope.fusion_runtime.kernels import allreduce as kernels
from fusionscope.fusion_runtime.kernels.launch_norm import normed_output
from fusionscope.fusion_runtime.norms import Norm
from fusionscope.fusion_runtime.ownership import FinalizeOperands
from fusionscope.fusion_runtime.quant import Activation, InputQuant

Tensor = Any

ONE_LAUNCH = (15,)

_RESIDENT_THREADS = 256
"""Threads of a multiprocessor that certainly fit: with 255 registers each, the most there are, they fill its 65,536.
A larger program is compiled to fit alone."""


def warps(block: int) -> int:
    """Warps of a program: sixteen bytes of two-byte elements a thread, sixteen warps at most."""
    return min(16, max(1, block // 256))


def _run(kernel: Any, channel: Channel, operands: Sequence[Any], scalars: Sequence[Any], stages: Sequence[int],
         delays: Tensor | None, **constants: Any) -> None:  # fmt: skip
    ranks = channel.epochs.shape[0]
    grid = (channel.blocks, channel.tokens, ranks)
    if ranks > 1 and tuple(stages) == ONE_LAUNCH:
        check_resident(channel.programs * ranks, warps(channel.block), channel.epochs.device)
    for stage in stages:
        kernel[grid](
            *operands,
            channel.inboxes,
            channel.epochs,
            channel.sums,
            delays,
            channel.width,
            channel.elements,
            *scalars,
            **constants,
            **compiled_for(channel),
            stage=stage,
            blocks=channel.blocks,
            padded=power_of_two(channel.blocks),
            num_warps=warps(channel.block),
        )


def compiled_for(channel: Channel) -> dict[str, Any]:
    """What every kernel that exchanges over a channel is compiled for."""
    return {
        "size": channel.size,
        "first_rank": channel.first_rank,
        "ranks": channel.epochs.shape[0],
        "emulate": channel.emulate,
        "word": tl.int16 if channel.dtype.itemsize == 2 else tl.int32,
        "block": channel.block,
    }


def check_resident(programs: int, warps_each: int, device: Any) -> None:
    """Raises RuntimeContractError where so many programs, which wait for each other, may not run at once."""
    if device.type != "cuda":
        return
    each = max(1, _RESIDENT_THREADS // (32 * warps_each))
    fitting = torch.cuda.get_device_properties(device).multi_processor_count * each
    if programs > fitting:
        raise RuntimeContractError(
            f"{programs} programs do not run at once on this GPU ({fitting} do), so that waiting would not end: use "
            "fewer tokens or wider blocks."
        )


def _whole(*operands: Tensor | None) -> list[Any]:
    """The operands as the kernels read them, each one block of memory; nothing is launched where they are."""
    return [None if one is None else one.contiguous() for one in operands]


def _like(x: Tensor, channel: Channel, *shape: int) -> Tensor:
    ranks = channel.epochs.shape[0]
    return torch.empty(shape if ranks == 1 else (ranks, *shape), dtype=x.dtype, device=x.device)


def all_reduce(x: Tensor, channel: Channel, stages: Sequence[int] = ONE_LAUNCH, delays: Tensor | None = None) -> Tensor:
    """x [T, W] -> the sum over the ranks [T, W]."""
    (x,) = _whole(x)
    out = torch.empty_like(x)
    _run(kernels.one_shot_all_reduce_kernel, channel, (x, out), (), stages, delays)
    return out


def all_gather_last(
    x: Tensor, channel: Channel, stages: Sequence[int] = ONE_LAUNCH, delays: Tensor | None = None
) -> Tensor:
    """x [T, W] -> [T, size * W]."""
    (x,) = _whole(x)
    out = _like(x, channel, channel.tokens, channel.size * channel.width)
    _run(kernels.allgather_lastdim_kernel, channel, (x, out), (), stages, delays)
    return out


def ar_hc_post(
    x: Tensor,
    streams: Tensor,
    post: Tensor,
    comb: Tensor,
    channel: Channel,
    stages: Sequence[int] = ONE_LAUNCH,
    delays: Tensor | None = None,
) -> Tensor:
    """x [T, H], streams [T, 4, H], post [T, 4], comb [T, 4, 4] f32 -> new streams."""
    x, streams, post, comb = _whole(x, streams, post, comb)
    out = _like(streams, channel, *streams.shape)
    _run(kernels.ar_hc_post_oneshot_kernel, channel, (x, streams, post, comb, out), (), stages, delays)
    return out


def moe_finalize_ar_hc_post(
    parts: FinalizeOperands,
    streams: Tensor,
    post: Tensor,
    comb: Tensor,
    channel: Channel,
    stages: Sequence[int] = ONE_LAUNCH,
    delays: Tensor | None = None,
) -> Tensor:
    """The operands of a finalize, then as ar_hc_post -> new streams."""
    gemm2, idx, weights, shared = _whole(parts.gemm2_out, parts.idx, parts.weights, parts.shared)
    streams, post, comb = _whole(streams, post, comb)
    out = _like(streams, channel, *streams.shape)
    stride = gemm2.shape[-2] * channel.width
    _run(
        kernels.moe_finalize_ar_hc_post_oneshot_kernel,
        channel,
        (gemm2, idx, weights, gemm2 if shared is None else shared, streams, post, comb, out),
        (stride, parts.scale),
        stages,
        delays,
        k=idx.shape[-1],
        has_shared=shared is not None,
    )
    return out


def all_reduce_norm(
    x: Tensor,
    residual: Tensor | None,
    norm: Norm,
    channel: Channel,
    quant: InputQuant | None = None,
    stages: Sequence[int] = ONE_LAUNCH,
    delays: Tensor | None = None,
) -> tuple[Activation, Tensor]:
    """x, residual [T, W] -> (normed [T, W] or quantised, sum + residual)."""
    x, residual, weight = _whole(x, residual, norm.weight)
    total = torch.empty_like(x)
    made = normed_output(x, quant)
    operands = (x, residual, weight, made.data, total, made.scales, made.scale)
    scalars = (norm.eps, norm.weight_bias)
    _run(kernels.all_reduce_push_norm_kernel, channel, operands, scalars, stages, delays, quant=made.mode)
    return made.activation(x), total


def moe_finalize_ar_norm(
    parts: FinalizeOperands,
    residual: Tensor,
    norm: Norm,
    channel: Channel,
    quant: InputQuant | None = None,
    stages: Sequence[int] = ONE_LAUNCH,
    delays: Tensor | None = None,
) -> tuple[Activation, Tensor]:
    """The operands of a finalize, then as all_reduce_norm."""
    gemm2, idx, weights, shared = _whole(parts.gemm2_out, parts.idx, parts.weights, parts.shared)
    residual, weight = _whole(residual, norm.weight)
    total = _like(residual, channel, *residual.shape)
    made = normed_output(total, quant)
    stride = gemm2.shape[-2] * channel.width
    _run(
        kernels.moe_finalize_ar_norm_oneshot_kernel,
        channel,
        (
            gemm2,
            idx,
            weights,
            gemm2 if shared is None else shared,
            residual,
            weight,
            made.data,
            total,
            made.scales,
            made.scale,
        ),
        (stride, parts.scale, norm.eps, norm.weight_bias),
        stages,
        delays,
        k=idx.shape[-1],
        has_shared=shared is not None,
        quant=made.mode,
    )
    return made.activation(residual), total
