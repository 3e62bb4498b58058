"""The triton path: each boundary as one launch of our own kernels, over memory that the ranks reach directly."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

from fusionscope.fusion_runtime.comm.base import Group
from fusionscope.fusion_runtime.comm.channel import Channel, ExchangeGroup, row_block
from fusionscope.fusion_runtime.errors import RuntimeContractError
from fusionscope.fusion_runtime.gates import Decline, Gate
from fusionscope.fusion_runtime.hyper import HyperWeights
from fusionscope.fusion_runtime.kernels import launch, launch_mhc_pre, launch_norm
from fusionscope.fusion_runtime.norms import Norm
from fusionscope.fusion_runtime.ownership import DeferredFinalize, PartialSum
from fusionscope.fusion_runtime.paths.base import Path, Rest, SiteShape
from fusionscope.fusion_runtime.quant import Activation, InputQuant, refusal

if TYPE_CHECKING:
    from fusionscope.fusion_runtime.context import DecodeContext

Tensor = Any

MAX_TOKENS = 128
"""A one-shot exchange moves every rank's part to every rank: past this a two-shot one would move less."""

MAX_NORM_WIDTH = 16384
"""At one rank, a norm keeps a whole row in one program."""

MAX_JOINED_TOKENS = 64
"""mhc_post_pre: the most that was measured (benchmarks/mhc_post_pre.py)."""

BOUNDARIES = ("ar_norm", "moe_finalize", "mhc_post", "mhc_post_pre")

DTYPES = (torch.bfloat16, torch.float16)
"""What the kernels are for on a GPU; the interpreter takes float32 too."""


class TritonPath(Path):
    """Runs where the group is an ExchangeGroup (loopback, symmetric memory), and at one rank where a norm is left."""

    name = "triton"

    def finalizes_through(self, ends: str) -> bool:
        return True

    def declines(self, boundary: str, *, shape: SiteShape, group: Group) -> Decline | None:
        if boundary not in BOUNDARIES:
            return Decline(Gate.NOT_COVERED, f"there is no kernel for {boundary}")
        if shape.tokens == 0:
            return Decline(Gate.NO_TOKENS, "there are no tokens")
        normed = boundary == "ar_norm" or shape.ends == "norm"
        return _shape_declines(shape, normed) or _group_declines(boundary, shape, group, normed)

    def mhc_post(self, owed: PartialSum, streams: Tensor, post: Tensor, comb: Tensor, ctx: DecodeContext) -> Tensor:
        x = owed.take()
        return launch.ar_hc_post(x, streams, post, comb, _channel(owed.group, x))

    def joins_read(self) -> bool:
        return True

    def mhc_post_pre(
        self, owed: PartialSum, streams: Tensor, post: Tensor, comb: Tensor, read: HyperWeights, ctx: DecodeContext
    ) -> tuple[Tensor, Rest]:
        x = owed.take()
        tile = launch_mhc_pre.tile_for(*x.shape)
        channel = _exchange(owed.group).channel(x.shape[0], x.shape[1], x.dtype, tile.block)
        new, sums = launch_mhc_pre.post_and_project(x, streams, post, comb, read.fn, channel, tile)
        return new, lambda: launch_mhc_pre.read(new, sums, read)

    def finalize_post(
        self, owed: DeferredFinalize, streams: Tensor, post: Tensor, comb: Tensor, ctx: DecodeContext
    ) -> Tensor:
        parts = owed.take()
        return launch.moe_finalize_ar_hc_post(parts, streams, post, comb, _channel(owed.group, streams[:, 0]))

    def finalize_norm(
        self, owed: DeferredFinalize, residual: Tensor, norm: Norm, ctx: DecodeContext, quant: InputQuant | None = None
    ) -> tuple[Activation, Tensor]:
        parts = owed.take()
        return launch.moe_finalize_ar_norm(parts, residual, norm, _row_channel(owed.group, residual), quant)

    def ar_norm(
        self,
        owed: PartialSum,
        residual: Tensor | None,
        norm: Norm,
        ctx: DecodeContext,
        quant: InputQuant | None = None,
    ) -> tuple[Activation, Tensor]:
        x = owed.take()
        if owed.group.size == 1 and residual is not None:
            return launch_norm.add_rmsnorm(x, residual, norm, quant)
        return launch.all_reduce_norm(x, residual, norm, _row_channel(owed.group, x), quant)


def _shape_declines(shape: SiteShape, normed: bool) -> Decline | None:
    if shape.device.type == "cuda" and shape.dtype not in DTYPES:
        return Decline(Gate.DTYPE, f"the dtype is {shape.dtype} and neither bfloat16 nor float16")
    if shape.hidden % 8:
        return Decline(Gate.ALIGNMENT, f"hidden {shape.hidden} is not a multiple of 8")
    if normed and shape.quant is not None:
        problem = refusal(shape.hidden, shape.quant)
        if shape.quant not in launch_norm.QUANT_MODES or problem:
            return Decline(Gate.QUANT_UNSUPPORTED, problem or f"there is no kernel that ends in {shape.quant}")
    return None


def _group_declines(boundary: str, shape: SiteShape, group: Group, normed: bool) -> Decline | None:
    if group.size == 1:
        if boundary != "ar_norm" or not shape.residual:
            return Decline(Gate.ONE_RANK, "one rank has nothing to reduce")
        if shape.hidden > MAX_NORM_WIDTH:
            why = f"hidden {shape.hidden} is over {MAX_NORM_WIDTH}, which one program can norm"
            return Decline(Gate.HIDDEN_WIDTH, why)
        return None
    joined = boundary == "mhc_post_pre"
    if joined and shape.tokens > MAX_JOINED_TOKENS:
        why = f"{shape.tokens} tokens are over the {MAX_JOINED_TOKENS} up to which post and read are joined"
        return Decline(Gate.TOKENS_OVER_CAP, why)
    if shape.tokens > MAX_TOKENS:
        return Decline(Gate.TOKENS_OVER_CAP, f"{shape.tokens} tokens are over the one-shot cap of {MAX_TOKENS}")
    if not isinstance(group, ExchangeGroup):
        why = f"a {group.kind} group has no memory that its ranks reach directly: make it a SymmetricGroup"
        return Decline(Gate.PEER_MEMORY, why)
    if shape.device.type != group.device.type:
        return Decline(Gate.GROUP_KIND, f"tensors are on {shape.device.type} and the group on {group.device.type}")
    block = None
    if normed:
        block = row_block(shape.hidden)
    elif joined:
        block = launch_mhc_pre.tile_for(shape.tokens, shape.hidden).block
    lacking = group.no_room(shape.tokens, shape.hidden, shape.dtype, block)
    return None if lacking is None else Decline(Gate.WORKSPACE_TOO_SMALL, lacking)


def _exchange(group: Group) -> ExchangeGroup:
    if not isinstance(group, ExchangeGroup):
        raise RuntimeContractError(f"the triton path cannot run over a {group.kind} group: ask declines() first.")
    return group


def _channel(group: Group, x: Tensor) -> Channel:
    return _exchange(group).channel(x.shape[0], x.shape[1], x.dtype)


def _row_channel(group: Group, x: Tensor) -> Channel:
    return _exchange(group).channel(x.shape[0], x.shape[1], x.dtype, row_block(x.shape[1]))
