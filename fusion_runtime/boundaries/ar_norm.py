"""ar_norm: all-reduce, residual add and RMSNorm, the boundary of models with an ordinary residual stream."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import torch

from fusionscope.fusion_runtime.boundaries.dispatch import Choice, check_beside, check_shape, check_taken, choose
from fusionscope.fusion_runtime.errors import NoResidual, NotReduced
from fusionscope.fusion_runtime.gates import Decline, Gate
from fusionscope.fusion_runtime.norms import Norm, apply, as_norm
from fusionscope.fusion_runtime.ownership import Full, PartialSum
from fusionscope.fusion_runtime.paths.base import SiteShape
from fusionscope.fusion_runtime.paths.registry import get_path
from fusionscope.fusion_runtime.quant import Activation, InputQuant, quantise

if TYPE_CHECKING:
    from fusionscope.fusion_runtime.context import DecodeContext

Tensor = Any

NAME = "ar_norm"

gates = (
    "the sum is rounded to the storage dtype before the residual is added, so the residual is bit-exact",
    "weight_bias is 1 for a Gemma norm with raw weights, else 0; never both a folded weight and a bias",
    "a quantised output starts from the normed value rounded to the storage dtype",
)
"""What every path of this boundary may rely on; each path's own gates are in its `declines`."""


def reference(
    partials: Sequence[Tensor], residual: Tensor | None, norm: Norm, quant: InputQuant | None = None
) -> tuple[Activation, Tensor]:
    """Plain torch on every rank's partial sum [T, H]: (normed, new residual), both [T, H]."""
    dtype = partials[0].dtype
    summed = torch.stack([p.float() for p in partials]).sum(0).to(dtype)
    r = summed.float() if residual is None else summed.float() + residual.float()
    y = apply(norm, r).to(dtype)
    return (y if quant is None else quantise(y, quant)), r.to(dtype)


def run(
    owed: PartialSum | Full,
    residual: Tensor | None,
    norm: Any,
    *,
    subtype: str,
    layer: int,
    ctx: DecodeContext,
    quant: InputQuant | None = None,
) -> tuple[Activation, Tensor]:
    """(normed, new residual) [T, H] from owed [T, H] and residual [T, H]; does the one all-reduce that is owed.

    residual None stands for an embedding's sum, which becomes the residual. norm is a Norm or a module: one that
    `norms.as_norm` does not know runs as it is, after the sum and the add. quant: the normed value comes as a
    QuantisedActivation. A Full owes nothing: the norm runs and no site is recorded.
    Raises NoResidual for a trailing site without one, NotReduced for a bare tensor, WrongGroup, MixedWithScattered.
    """
    if not isinstance(owed, PartialSum | Full):
        raise NotReduced(f"ar_norm needs a PartialSum or a Full, not {type(owed).__name__}: let an Exit hand it on.")
    if residual is None and subtype != "no_residual":
        raise NoResidual(
            f"{getattr(owed, 'what', 'an update')} reached the {subtype} norm of layer {layer} without a residual: "
            "pass the residual stream, or its sum would replace it."
        )
    value = owed.tensor if isinstance(owed, Full) else owed
    if residual is not None:
        check_beside(owed, tuple(value.shape), value.dtype, residual, "residual")
    known = as_norm(norm)
    if known is not None:
        check_shape(known.weight, (value.shape[1],), "the norm's weight")
    if isinstance(owed, Full):
        return after_sum(owed.tensor, residual, norm, ctx, quant)
    choice = _choice(owed, residual, norm, known, subtype, layer, ctx, quant)
    with ctx.recorder.site(NAME, subtype, layer, choice.path.name, choice.declined):
        if known is None:
            return after_sum(owed.complete().tensor, residual, norm, ctx, quant)
        asked = None if choice.quantise_after else quant
        normed, total = choice.path.ar_norm(owed, residual, known, ctx, asked)
        check_taken(owed, choice.path)
        if choice.quantise_after and quant is not None:
            normed = ctx.ops.quantise(normed, quant)
        return normed, total


def _choice(
    owed: PartialSum,
    residual: Tensor | None,
    module: Any,
    norm: Norm | None,
    subtype: str,
    layer: int,
    ctx: DecodeContext,
    quant: InputQuant | None,
) -> Choice:
    if norm is None:
        wanted = ctx.paths.path_for(NAME, subtype, layer)
        why = Decline(Gate.NORM_UNSUPPORTED, f"the norm is {type(module).__name__} and no RMSNorm that a path knows")
        return Choice(get_path("split"), "" if wanted == "split" else f"{wanted}: {why}")
    return choose(NAME, subtype, layer, owed, shape_of(owed, residual, norm, quant), ctx)


def shape_of(owed: PartialSum, residual: Tensor | None, norm: Norm, quant: InputQuant | None) -> SiteShape:
    """What the gates of this boundary look at."""
    tokens, hidden = owed.shape
    return SiteShape(
        tokens,
        hidden,
        owed.dtype,
        owed.device,
        quant=None if quant is None else quant.key,
        gamma_dtype=norm.weight.dtype,
        eps=norm.eps,
        residual=residual is not None,
        contiguous=owed.contiguous and (residual is None or residual.is_contiguous()),
    )


def after_sum(
    full: Tensor, residual: Tensor | None, norm: Any, ctx: DecodeContext, quant: InputQuant | None = None
) -> tuple[Activation, Tensor]:
    """The rest of the boundary once the sum is complete: full [T, H], which may become the new residual."""
    known = as_norm(norm)
    if known is None:
        total = full if residual is None else ctx.ops.add(full, residual)
        normed = norm(total)
    elif residual is None:
        total = full
        normed = ctx.ops.rmsnorm(full, known.weight, known.eps, known.weight_bias)
    else:
        normed, total = ctx.ops.add_rmsnorm(full, residual, known.weight, known.eps, known.weight_bias)
    return (normed if quant is None else ctx.ops.quantise(normed, quant)), total
