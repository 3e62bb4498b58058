"""mhc_post: all-reduce of a half-layer's output, then its write into the four residual streams.

The write is affine in x, not linear, so it may only see the complete sum: on a partial sum every rank would add
the residual term. `apply` therefore takes a `Full` and nothing else.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import torch

from fusionscope.fusion_runtime.boundaries.dispatch import check_beside, check_shape, check_taken, choose
from fusionscope.fusion_runtime.decode.model_spec import STREAMS
from fusionscope.fusion_runtime.errors import NotReduced
from fusionscope.fusion_runtime.ownership import Full, PartialSum
from fusionscope.fusion_runtime.paths.base import SiteShape

if TYPE_CHECKING:
    from fusionscope.fusion_runtime.context import DecodeContext

Tensor = Any

NAME = "mhc_post"

gates = (
    "the four streams, post and comb come from the mHC pre of the same half-layer",
    "streams [T, 4, H] and the partial sum [T, H] have one dtype; post and comb are float32",
)
"""What every path of this boundary may rely on; each path's own gates are in its `declines`."""


def reference(partials: Sequence[Any], streams: Any, post: Any, comb: Any) -> Any:
    """Plain torch on every rank's partial sum [T, H]: fp32 sum rounded to the storage dtype, fp32 mix, rounded."""
    summed = torch.stack([p.float() for p in partials]).sum(0).to(partials[0].dtype)
    return apply(Full(summed), streams, post, comb)


def apply(full: Full, streams: Any, post: Any, comb: Any) -> Any:
    """R'[t,j] = post[t,j] * x[t] + sum_k comb[t,k,j] * R[t,k]. Raises NotReduced on anything but a Full."""
    if not isinstance(full, Full):
        raise NotReduced(f"mhc_post needs the complete sum, not {type(full).__name__}: call .complete() first.")
    mixed = torch.einsum("tkj,tkh->tjh", comb.float(), streams.float())
    return (post.float()[:, :, None] * full.tensor.float()[:, None, :] + mixed).to(streams.dtype)


def check_coefficients(streams: Tensor, post: Tensor, comb: Tensor) -> None:
    """Raises BadOperands unless streams [T, 4, H] come with post [T, 4] and comb [T, 4, 4]."""
    tokens, hidden = int(streams.shape[0]), int(streams.shape[-1])
    check_shape(streams, (tokens, STREAMS, hidden), "the streams")
    check_shape(post, (tokens, STREAMS), "post")
    check_shape(comb, (tokens, STREAMS, STREAMS), "comb")


def run(
    owed: PartialSum | Full,
    streams: Tensor,
    post: Tensor,
    comb: Tensor,
    *,
    subtype: str,
    layer: int,
    ctx: DecodeContext,
) -> Tensor:
    """New streams [T, 4, H] from owed [T, H], streams [T, 4, H], post [T, 4] f32, comb [T, 4, 4] f32.

    Takes the chosen path, or split where it declines; records the site. Does the one all-reduce that is owed. A Full
    owes nothing: the write runs and no site is recorded. Raises NotReduced for a bare tensor, WrongGroup,
    MixedWithScattered.
    """
    if not isinstance(owed, PartialSum | Full):
        raise NotReduced(f"mhc_post needs a PartialSum or a Full, not {type(owed).__name__}: let an Exit hand it on.")
    value = owed.tensor if isinstance(owed, Full) else owed
    check_beside(owed, tuple(value.shape), value.dtype, streams, "streams")
    check_coefficients(streams, post, comb)
    if isinstance(owed, Full):
        return ctx.ops.mhc_post(owed.tensor, streams, post, comb)
    tokens, hidden = owed.shape
    shape = SiteShape(tokens, hidden, owed.dtype, owed.device, contiguous=owed.contiguous and streams.is_contiguous())
    choice = choose(NAME, subtype, layer, owed, shape, ctx)
    with ctx.recorder.site(NAME, subtype, layer, choice.path.name, choice.declined):
        new = choice.path.mhc_post(owed, streams, post, comb, ctx)
        check_taken(owed, choice.path)
        return new
