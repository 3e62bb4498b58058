"""ar_norm: all-reduce, residual add and RMSNorm, the boundary of models with an ordinary residual stream."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import torch

from fusionscope.fusion_runtime.boundaries.dispatch import choose
from fusionscope.fusion_runtime.ownership import PartialSum
from fusionscope.fusion_runtime.paths.base import Norm, SiteShape

if TYPE_CHECKING:
    from fusionscope.fusion_runtime.context import DecodeContext

NAME = "ar_norm"

gates = (
    "the sum is rounded to the storage dtype before the residual is added, so the residual is bit-exact",
    "weight_bias is 1 for a Gemma norm with raw weights, else 0; never both a folded weight and a bias",
)
"""What every path of this boundary may rely on; each path's own gates are in its `declines`."""


def reference(partials: Sequence[Any], residual: Any, norm: Norm) -> tuple[Any, Any]:
    """Plain torch on every rank's partial sum [T, H]: (normed, new residual), both [T, H]."""
    summed = torch.stack([p.float() for p in partials]).sum(0).to(residual.dtype)
    r = summed.float() + residual.float()
    y = r * torch.rsqrt(r.square().mean(-1, keepdim=True) + norm.eps) * (norm.weight.float() + norm.weight_bias)
    return y.to(residual.dtype), r.to(residual.dtype)


def run(
    owed: PartialSum, residual: Any, norm: Norm, *, subtype: str, layer: int, ctx: DecodeContext
) -> tuple[Any, Any]:
    """(normed, new residual) [T, H] from owed [T, H] and residual [T, H]; does the one all-reduce that is owed."""
    tokens, hidden = owed.shape
    shape = SiteShape(tokens, hidden, owed.dtype, residual.device)
    path, declined = choose(NAME, subtype, owed, shape, ctx)
    with ctx.recorder.site(NAME, subtype, layer, path.name, declined):
        return path.ar_norm(owed, residual, norm, ctx)
