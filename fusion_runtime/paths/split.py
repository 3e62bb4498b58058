"""The split path: the group's all-reduce and one operation of the ops module after the other."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from fusionscope.fusion_runtime.comm.base import Group
from fusionscope.fusion_runtime.ownership import DeferredFinalize, PartialSum
from fusionscope.fusion_runtime.paths.base import Norm, Path, SiteShape

if TYPE_CHECKING:
    from fusionscope.fusion_runtime.context import DecodeContext


class SplitPath(Path):
    """Never declines: it is what every other path falls back to."""

    name = "split"

    def declines(self, boundary: str, *, shape: SiteShape, group: Group) -> str | None:
        return None

    def mhc_post(self, owed: PartialSum, streams: Any, post: Any, comb: Any, ctx: DecodeContext) -> Any:
        full = owed.complete()
        return ctx.ops.mhc_post(full.tensor, streams, post, comb)

    def finalize(self, owed: DeferredFinalize, ctx: DecodeContext) -> PartialSum:
        parts = owed.take()
        y = ctx.ops.moe_sum_reduce(parts.gemm2_out, parts.idx, parts.weights, parts.scale)
        if parts.shared is not None:
            y = ctx.ops.add(y, parts.shared)
        return PartialSum(y, owed.group, owed.what)

    def ar_norm(self, owed: PartialSum, residual: Any, norm: Norm, ctx: DecodeContext) -> tuple[Any, Any]:
        full = owed.complete()
        normed, total = ctx.ops.add_rmsnorm(full.tensor, residual, norm.weight, norm.eps, norm.weight_bias)
        return normed, total
