"""Launches of the mHC read, alone or joined to the exit before it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import torch

from fusionscope.fusion_runtime.comm.channel import Channel, power_of_two
from fusionscope.fusion_runtime.hyper import HyperWeights
from fusionscope.fusion_runtime.kernels import mhc
from fusionscope.fusion_runtime.kernels.launch import check_resident, compiled_for
from fusionscope.fusion_runtime.kernels.mhc_post_pre import ar_hc_post_pre_oneshot_kernel

Tensor = Any

ONE_LAUNCH = (11,)
"""All of it in one; (1, 2, 8) waits for nothing within a launch."""


class Tile(NamedTuple):
    """What one program of the joined kernel has: columns, tokens and warps."""

    block: int
    rows: int
    warps: int


SLICES = 128
"""Programs that a row is cut into, about as many as a GPU has multiprocessors: each reads its share of the 24 rows of
the projection, which are most of the bytes at few tokens."""


def tile_for(tokens: int, hidden: int) -> Tile:
    """SLICES programs a row, each with up to four tokens, for which it reads its share of the projection once.

    At hidden 4096 and 1 to 64 tokens the fastest of 13 on an H200, or within 1.2 % of it (benchmarks/mhc_post_pre.py).
    """
    block = min(64, max(16, power_of_two(hidden) // SLICES))
    return Tile(block, min(4, power_of_two(tokens)), 4)


def post_and_project(
    x: Tensor,
    streams: Tensor,
    post: Tensor,
    comb: Tensor,
    fn: Tensor,
    channel: Channel,
    tile: Tile,
    stages: Sequence[int] = ONE_LAUNCH,
    delays: Tensor | None = None,
) -> tuple[Tensor, Tensor]:
    """The exit and the projection of the next read in one launch, over a channel whose blocks are the tile's.

    x [T, H], streams [T, 4, H], post [T, 4], comb [T, 4, 4], fn [24, 4H] f32 -> (new streams, partial sums
    [T, blocks, 32] f32); with the epochs of several ranks x is [ranks, T, H] and so are the results.
    """
    x, streams, post, comb, fn = (one.contiguous() for one in (x, streams, post, comb, fn))
    ranks = channel.epochs.shape[0]
    lead = () if ranks == 1 else (ranks,)
    out = torch.empty((*lead, *streams.shape), dtype=streams.dtype, device=streams.device)
    sums = (*lead, channel.tokens, channel.blocks, mhc.PARTIAL_WIDTH)
    partial = torch.empty(sums, dtype=torch.float32, device=streams.device)
    grid = (channel.blocks, -(-channel.tokens // tile.rows), ranks)
    if ranks > 1 and tuple(stages) == ONE_LAUNCH:
        check_resident(grid[0] * grid[1] * ranks, tile.warps, streams.device)
    for stage in stages:
        ar_hc_post_pre_oneshot_kernel[grid](
            x,
            streams,
            post,
            comb,
            fn,
            out,
            partial,
            channel.inboxes,
            channel.epochs,
            delays,
            channel.tokens,
            channel.width,
            channel.elements,
            **compiled_for(channel),
            stage=stage,
            rows=tile.rows,
            num_warps=tile.warps,
        )
    return out, partial


def project(streams: Tensor, fn: Tensor) -> Tensor:
    """The projection of a read alone: streams [T, 4, H], fn [24, 4H] f32 -> partial sums [T, splits, 32] f32."""
    tokens, _, hidden = streams.shape
    wide = 4 * hidden
    block_k = min(128, power_of_two(wide))
    splits = min(128, -(-wide // block_k))
    per_split = -(-wide // (splits * block_k)) * block_k
    partial = torch.empty((tokens, splits, mhc.PARTIAL_WIDTH), dtype=torch.float32, device=streams.device)
    block_t = min(4, power_of_two(tokens))
    mhc.mhc_pre_gemm_sqrsum_kernel[(splits, -(-tokens // block_t))](
        streams, fn, partial, tokens, wide, splits, per_split=per_split, block_t=block_t, block_k=block_k, num_warps=8
    )
    return partial


def read(streams: Tensor, partial: Tensor, weights: HyperWeights) -> tuple[Tensor, Tensor, Tensor]:
    """What a projection left of a read, in one launch: streams [..., 4, H], partial sums [..., splits, 32] ->
    (x [..., H], post [..., 4] f32, comb [..., 4, 4] f32)."""
    *lead, count, hidden = streams.shape
    splits = int(partial.shape[-2])
    x = torch.empty((*lead, hidden), dtype=streams.dtype, device=streams.device)
    post = torch.empty((*lead, count), dtype=torch.float32, device=streams.device)
    comb = torch.empty((*lead, count, count), dtype=torch.float32, device=streams.device)
    mhc.mhc_pre_big_fuse_with_norm_kernel[(x.numel() // hidden,)](
        streams,
        partial,
        weights.scale,
        weights.base,
        weights.norm,
        x,
        post,
        comb,
        hidden,
        splits,
        weights.rms_eps,
        weights.hc_eps,
        weights.post_multiplier,
        weights.iterations,
        block_s=power_of_two(splits),
        block_h=power_of_two(hidden),
        num_warps=8,
    )
    return x, post, comb
