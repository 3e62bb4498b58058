"""The split path: the group's all-reduce and one operation of the ops module after the other."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from fusionscope.fusion_runtime.boundaries import ar_norm
from fusionscope.fusion_runtime.comm.base import Group
from fusionscope.fusion_runtime.gates import Decline
from fusionscope.fusion_runtime.norms import Norm
from fusionscope.fusion_runtime.ownership import PartialSum
from fusionscope.fusion_runtime.paths.base import Path, SiteShape
from fusionscope.fusion_runtime.quant import Activation, InputQuant

if TYPE_CHECKING:
    from fusionscope.fusion_runtime.context import DecodeContext

Tensor = Any


class SplitPath(Path):
    """Never declines: it is what every other path falls back to."""

    name = "split"

    def declines(self, boundary: str, *, shape: SiteShape, group: Group) -> Decline | None:
        return None

    def mhc_post(self, owed: PartialSum, streams: Tensor, post: Tensor, comb: Tensor, ctx: DecodeContext) -> Tensor:
        return ctx.ops.mhc_post(owed.complete().tensor, streams, post, comb)

    def ar_norm(
        self,
        owed: PartialSum,
        residual: Tensor | None,
        norm: Norm,
        ctx: DecodeContext,
        quant: InputQuant | None = None,
    ) -> tuple[Activation, Tensor]:
        return ar_norm.after_sum(owed.complete().tensor, residual, norm, ctx, quant)
