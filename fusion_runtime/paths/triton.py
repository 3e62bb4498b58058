"""The triton path: each boundary as one fused launch over a loopback group's buffers."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

from fusionscope.fusion_runtime.comm.base import Group
from fusionscope.fusion_runtime.comm.loopback import Channel, Loopback, power_of_two
from fusionscope.fusion_runtime.errors import RuntimeContractError
from fusionscope.fusion_runtime.kernels import launch
from fusionscope.fusion_runtime.ownership import DeferredFinalize, PartialSum
from fusionscope.fusion_runtime.paths.base import Norm, Path, SiteShape

if TYPE_CHECKING:
    from fusionscope.fusion_runtime.context import DecodeContext

Tensor = Any

MAX_TOKENS = 128
"""A one-shot exchange reads every rank's part: past this a two-shot one would move less."""

MAX_NORM_WIDTH = 16384
"""ar_norm keeps a whole row in one program."""


class TritonPath(Path):
    """Declines where a peer's memory cannot be read (a process group) and outside the kernels' shapes."""

    name = "triton"
    finalizes_through_post = True

    def declines(self, boundary: str, *, shape: SiteShape, group: Group) -> str | None:
        if group.size == 1:
            return "one rank has nothing to reduce"
        if not isinstance(group, Loopback):
            return f"a {group.kind} group needs symmetric memory, which this path does not have yet"
        if shape.device.type != group.device.type:
            return f"tensors are on {shape.device.type} and the group on {group.device.type}"
        if shape.device.type == "cuda" and shape.dtype is not torch.bfloat16:
            return f"the dtype is {shape.dtype} and not bfloat16"
        if shape.tokens > MAX_TOKENS:
            return f"{shape.tokens} tokens are over the one-shot cap of {MAX_TOKENS}"
        if shape.hidden % 8:
            return f"hidden {shape.hidden} is not a multiple of 8"
        if boundary == "ar_norm" and shape.hidden > MAX_NORM_WIDTH:
            return f"hidden {shape.hidden} is over {MAX_NORM_WIDTH}, which one program can norm"
        return None

    def mhc_post(self, owed: PartialSum, streams: Tensor, post: Tensor, comb: Tensor, ctx: DecodeContext) -> Tensor:
        group = _loopback(owed.group)
        x = owed.take().contiguous()
        return launch.ar_hc_post(x, streams, post, comb, _channel(group, x), group.size)

    def finalize(self, owed: DeferredFinalize, ctx: DecodeContext) -> PartialSum:
        parts = owed.take()
        y = ctx.ops.moe_sum_reduce(parts.gemm2_out, parts.idx, parts.weights, parts.scale)
        if parts.shared is not None:
            y = ctx.ops.add(y, parts.shared)
        return PartialSum(y, owed.group, owed.what)

    def finalize_post(
        self, owed: DeferredFinalize, streams: Tensor, post: Tensor, comb: Tensor, ctx: DecodeContext
    ) -> Tensor:
        group = _loopback(owed.group)
        parts = owed.take()
        channel = group.channel(streams.shape[0], streams.shape[-1], streams.dtype)
        return launch.moe_finalize_ar_hc_post(parts, streams, post, comb, channel, group.size)

    def ar_norm(self, owed: PartialSum, residual: Tensor, norm: Norm, ctx: DecodeContext) -> tuple[Tensor, Tensor]:
        group = _loopback(owed.group)
        x = owed.take().contiguous()
        channel = group.channel(x.shape[0], x.shape[1], x.dtype, power_of_two(x.shape[1]))
        return launch.all_reduce_norm(x, residual, norm.weight, norm.eps, norm.weight_bias, channel, group.size)


def _loopback(group: Group) -> Loopback:
    if not isinstance(group, Loopback):
        raise RuntimeContractError(f"the triton path cannot run over a {group.kind} group: ask declines() first.")
    return group


def _channel(group: Loopback, x: Tensor) -> Channel:
    return group.channel(x.shape[0], x.shape[1], x.dtype)
