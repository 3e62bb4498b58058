"""moe_finalize: weighted sum over the experts, shared expert, all-reduce, then the mHC write or the residual norm.

It contains the layer's mhc_post:ffn_exit or ar_norm site, which is recorded inside it whatever path is taken.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from fusionscope.fusion_runtime.boundaries import ar_norm, mhc_post
from fusionscope.fusion_runtime.boundaries.dispatch import Choice, check_beside, check_shape, check_taken, choose
from fusionscope.fusion_runtime.errors import NoResidual
from fusionscope.fusion_runtime.norms import Norm, as_norm
from fusionscope.fusion_runtime.ownership import DeferredFinalize, Exit, FinalizeOperands, Full, PartialSum
from fusionscope.fusion_runtime.paths.base import SiteShape, weighted_sum
from fusionscope.fusion_runtime.quant import Activation, InputQuant

if TYPE_CHECKING:
    from fusionscope.fusion_runtime.context import DecodeContext

Tensor = Any

NAME = "moe_finalize"
SUBTYPE = "ffn_exit"

gates = (
    "idx is two-dimensional [T, K]: top-k is read from its last dimension",
    "scale multiplies the routed part once, and not the shared expert",
    "a shared expert is an addend on every rank; a replicated one is there on rank 0 alone",
)
"""What every path of this boundary may rely on; each path's own gates are in its `declines`."""


def partial(parts: FinalizeOperands) -> Tensor:
    """One rank's y[t] = scale * sum_k w[t,k] * gemm2_out[idx[t,k]] + shared[t] in fp32, rounded; -1 is skipped."""
    rows = parts.gemm2_out.float()[parts.idx.clamp(min=0).long()]
    rows = rows.masked_fill((parts.idx < 0)[..., None], 0)
    y = parts.scale * (parts.weights.float()[..., None] * rows).sum(1)
    if parts.shared is not None:
        y = y + parts.shared.float()
    return y.to(parts.gemm2_out.dtype)


def partials(ranks: Sequence[FinalizeOperands]) -> list[Tensor]:
    """`partial` of every rank, in rank order: a replicated shared expert counts on the first alone."""
    return [partial(parts.of_rank(rank)) for rank, parts in enumerate(ranks)]


def reference(ranks: Sequence[FinalizeOperands], streams: Tensor, post: Tensor, comb: Tensor) -> Tensor:
    """Plain torch over every rank's operands, ending in the mHC write: [T, 4, H]."""
    return mhc_post.reference(partials(ranks), streams, post, comb)


def reference_norm(
    ranks: Sequence[FinalizeOperands], residual: Tensor, norm: Norm, quant: InputQuant | None = None
) -> tuple[Activation, Tensor]:
    """Plain torch over every rank's operands, ending in the norm: (normed, new residual), both [T, H]."""
    return ar_norm.reference(partials(ranks), residual, norm, quant)


def hand_on(exit: Exit, operands: FinalizeOperands, ctx: DecodeContext) -> DeferredFinalize | PartialSum | Full:
    """What a mixture of experts hands on: the whole finalize where the exit defers, else the complete sum."""
    if exit.deferred:
        return exit.hand_on_finalize(operands)
    return exit.hand_on(weighted_sum(operands.of_rank(exit.group.rank), ctx))


def run_mhc(
    owed: DeferredFinalize, streams: Tensor, post: Tensor, comb: Tensor, *, layer: int, ctx: DecodeContext
) -> Tensor:
    """New streams [T, 4, H]; see FinalizeOperands for what is owed and mhc_post.run for the other operands."""
    check_beside(owed, (owed.tokens, owed.hidden), owed.dtype, streams, "streams")
    mhc_post.check_coefficients(streams, post, comb)
    choice = choose(NAME, SUBTYPE, layer, owed, _shape(owed, streams, "mhc"), ctx)
    with ctx.recorder.site(NAME, SUBTYPE, layer, choice.path.name, choice.declined):
        if choice.path.finalizes_through("mhc"):
            with ctx.recorder.site(mhc_post.NAME, SUBTYPE, layer, choice.path.name):
                new = choice.path.finalize_post(owed, streams, post, comb, ctx)
            check_taken(owed, choice.path)
            return new
        summed = choice.path.finalize(owed, ctx)
        check_taken(owed, choice.path)
        return mhc_post.run(summed, streams, post, comb, subtype=SUBTYPE, layer=layer, ctx=ctx)


def run_norm(
    owed: DeferredFinalize,
    residual: Tensor | None,
    norm: Any,
    *,
    subtype: str,
    layer: int,
    ctx: DecodeContext,
    quant: InputQuant | None = None,
) -> tuple[Activation, Tensor]:
    """(normed, new residual) [T, H] of the layer's own ar_norm site, whose subtype is `subtype`; see ar_norm.run."""
    if residual is None:
        raise NoResidual(f"{owed.what} reached the {subtype} norm of layer {layer} without a residual: pass it.")
    check_beside(owed, (owed.tokens, owed.hidden), owed.dtype, residual, "residual")
    known = as_norm(norm)
    if known is not None:
        check_shape(known.weight, (owed.hidden,), "the norm's weight")
    choice = choose(NAME, SUBTYPE, layer, owed, _shape(owed, residual, "norm", known, quant), ctx)
    with ctx.recorder.site(NAME, SUBTYPE, layer, choice.path.name, choice.declined):
        if known is not None and choice.path.finalizes_through("norm"):
            with ctx.recorder.site(ar_norm.NAME, subtype, layer, choice.path.name):
                result = _through_norm(choice, owed, residual, known, ctx, quant)
            check_taken(owed, choice.path)
            return result
        summed: PartialSum = choice.path.finalize(owed, ctx)
        check_taken(owed, choice.path)
        return ar_norm.run(summed, residual, norm, subtype=subtype, layer=layer, ctx=ctx, quant=quant)


def _through_norm(
    choice: Choice, owed: DeferredFinalize, residual: Tensor, norm: Norm, ctx: DecodeContext, quant: InputQuant | None
) -> tuple[Activation, Tensor]:
    if quant is None or not choice.quantise_after:
        return choice.path.finalize_norm(owed, residual, norm, ctx, quant)
    normed, total = choice.path.finalize_norm(owed, residual, norm, ctx)
    return ctx.ops.quantise(normed, quant), total


def _shape(
    owed: DeferredFinalize, beside: Tensor, ends: str, norm: Norm | None = None, quant: InputQuant | None = None
) -> SiteShape:
    return SiteShape(
        owed.tokens,
        owed.hidden,
        owed.dtype,
        beside.device,
        owed.top_k,
        ends,
        quant=None if quant is None else quant.key,
        gamma_dtype=None if norm is None else norm.weight.dtype,
        eps=None if norm is None else norm.eps,
        contiguous=owed.contiguous and beside.is_contiguous(),
    )
