"""moe_finalize: weighted sum over the experts, shared expert, all-reduce, then the mHC write of the FFN.

It contains the layer's mhc_post:ffn_exit site, which is recorded inside it whatever path is taken.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from fusionscope.fusion_runtime.boundaries import mhc_post
from fusionscope.fusion_runtime.boundaries.dispatch import choose
from fusionscope.fusion_runtime.ownership import DeferredFinalize, FinalizeOperands
from fusionscope.fusion_runtime.paths.base import SiteShape

if TYPE_CHECKING:
    from fusionscope.fusion_runtime.context import DecodeContext

NAME = "moe_finalize"
SUBTYPE = "ffn_exit"

gates = (
    "idx is two-dimensional [T, K]: top-k is read from its last dimension",
    "scale multiplies the routed part once; a shared expert is sharded over the ranks",
)
"""What every path of this boundary may rely on; each path's own gates are in its `declines`."""


def partial(parts: FinalizeOperands) -> Any:
    """One rank's y[t] = scale * sum_k w[t,k] * gemm2_out[idx[t,k]] + shared[t] in fp32, rounded; -1 is skipped."""
    rows = parts.gemm2_out.float()[parts.idx.clamp(min=0).long()]
    rows = rows.masked_fill((parts.idx < 0)[..., None], 0)
    y = parts.scale * (parts.weights.float()[..., None] * rows).sum(1)
    if parts.shared is not None:
        y = y + parts.shared.float()
    return y.to(parts.gemm2_out.dtype)


def reference(ranks: Sequence[FinalizeOperands], streams: Any, post: Any, comb: Any) -> Any:
    """Plain torch over every rank's operands: partial of each, then mhc_post.reference; [T, 4, H]."""
    return mhc_post.reference([partial(parts) for parts in ranks], streams, post, comb)


def run(owed: DeferredFinalize, streams: Any, post: Any, comb: Any, *, layer: int, ctx: DecodeContext) -> Any:
    """New streams [T, 4, H]; see FinalizeOperands for what is owed and mhc_post.run for the other operands."""
    shape = SiteShape(owed.tokens, streams.shape[-1], owed.dtype, streams.device, owed.top_k)
    path, declined = choose(NAME, SUBTYPE, owed, shape, ctx)
    with ctx.recorder.site(NAME, SUBTYPE, layer, path.name, declined):
        if path.finalizes_through_post:
            with ctx.recorder.site(mhc_post.NAME, SUBTYPE, layer, path.name):
                return path.finalize_post(owed, streams, post, comb, ctx)
        summed = path.finalize(owed, ctx)
        return mhc_post.run(summed, streams, post, comb, subtype=SUBTYPE, layer=layer, ctx=ctx)
