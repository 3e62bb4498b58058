"""The triton path: each boundary as one fused launch over a loopback group's buffers."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

from fusionscope.fusion_runtime.comm.base import Group
from fusionscope.fusion_runtime.comm.loopback import Channel, Loopback, power_of_two
from fusionscope.fusion_runtime.errors import RuntimeContractError
from fusionscope.fusion_runtime.gates import Decline, Gate
from fusionscope.fusion_runtime.kernels import launch
from fusionscope.fusion_runtime.norms import Norm
from fusionscope.fusion_runtime.ownership import DeferredFinalize, PartialSum
from fusionscope.fusion_runtime.paths.base import Path, SiteShape
from fusionscope.fusion_runtime.quant import Activation, InputQuant

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

    def finalizes_through(self, ends: str) -> bool:
        return ends == "mhc"

    def declines(self, boundary: str, *, shape: SiteShape, group: Group) -> Decline | None:
        if boundary not in ("ar_norm", "moe_finalize", "mhc_post"):
            return Decline(Gate.NOT_COVERED, f"there is no kernel for {boundary}")
        if group.size == 1:
            return Decline(Gate.ONE_RANK, "one rank has nothing to reduce")
        if not isinstance(group, Loopback):
            why = f"a {group.kind} group needs symmetric memory, which this path does not have yet"
            return Decline(Gate.GROUP_KIND, why)
        if shape.device.type != group.device.type:
            return Decline(Gate.GROUP_KIND, f"tensors are on {shape.device.type} and the group on {group.device.type}")
        return self._shape_declines(boundary, shape)

    @staticmethod
    def _shape_declines(boundary: str, shape: SiteShape) -> Decline | None:
        normed = boundary == "ar_norm"
        if shape.device.type == "cuda" and shape.dtype is not torch.bfloat16:
            return Decline(Gate.DTYPE, f"the dtype is {shape.dtype} and not bfloat16")
        if shape.tokens > MAX_TOKENS:
            return Decline(Gate.TOKENS_OVER_CAP, f"{shape.tokens} tokens are over the one-shot cap of {MAX_TOKENS}")
        if shape.hidden % 8:
            return Decline(Gate.ALIGNMENT, f"hidden {shape.hidden} is not a multiple of 8")
        if normed and shape.hidden > MAX_NORM_WIDTH:
            return Decline(
                Gate.HIDDEN_WIDTH, f"hidden {shape.hidden} is over {MAX_NORM_WIDTH}, which one program can norm"
            )
        if normed and not shape.residual:
            return Decline(Gate.NO_RESIDUAL, "the kernel adds a residual and there is none")
        if normed and shape.quant is not None:
            return Decline(Gate.QUANT_UNSUPPORTED, f"there is no kernel that ends in {shape.quant}")
        return None

    def mhc_post(self, owed: PartialSum, streams: Tensor, post: Tensor, comb: Tensor, ctx: DecodeContext) -> Tensor:
        group = _loopback(owed.group)
        x = owed.take().contiguous()
        return launch.ar_hc_post(x, streams, post, comb, _channel(group, x), group.size)

    def finalize(self, owed: DeferredFinalize, ctx: DecodeContext) -> PartialSum:
        parts = owed.take()
        y = ctx.ops.moe_sum_reduce(parts.gemm2_out, parts.idx, parts.weights, parts.scale)
        return owed.summed(y if parts.shared is None else ctx.ops.add(y, parts.shared))

    def finalize_post(
        self, owed: DeferredFinalize, streams: Tensor, post: Tensor, comb: Tensor, ctx: DecodeContext
    ) -> Tensor:
        group = _loopback(owed.group)
        parts = owed.take()
        channel = group.channel(streams.shape[0], streams.shape[-1], streams.dtype)
        return launch.moe_finalize_ar_hc_post(parts, streams, post, comb, channel, group.size)

    def ar_norm(
        self,
        owed: PartialSum,
        residual: Tensor | None,
        norm: Norm,
        ctx: DecodeContext,
        quant: InputQuant | None = None,
    ) -> tuple[Activation, Tensor]:
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
