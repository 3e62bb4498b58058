"""mhc_post_pre: the attention's mhc_post joined to the read of the feed-forward half-layer behind it.

All-reduce, write into the four streams, then the read of the new streams: their projection and RMS statistic, the
coefficients with the sinkhorn, the mixed input and its norm. It contains the layer's mhc_post:attn_exit site, which is
recorded inside it whatever path is taken. As in mhc_post, nothing but the complete sum may be written.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from fusionscope.fusion_runtime.boundaries import mhc_post
from fusionscope.fusion_runtime.boundaries.dispatch import Choice, check_beside, check_shape, check_taken, choose
from fusionscope.fusion_runtime.decode.model_spec import STREAMS
from fusionscope.fusion_runtime.errors import NotReduced
from fusionscope.fusion_runtime.gates import Decline, Gate
from fusionscope.fusion_runtime.hyper import COEFFICIENTS, HyperWeights
from fusionscope.fusion_runtime.ownership import Full, PartialSum
from fusionscope.fusion_runtime.paths.base import SiteShape
from fusionscope.fusion_runtime.paths.registry import get_path

if TYPE_CHECKING:
    from fusionscope.fusion_runtime.context import DecodeContext

Tensor = Any

NAME = "mhc_post_pre"
SUBTYPE = "attn_exit"


class Joined(NamedTuple):
    """New streams [T, 4, H]; the next half-layer's input x [T, H]; post [T, 4] and comb [T, 4, 4] f32 of its write."""

    streams: Tensor
    x: Tensor
    post: Tensor
    comb: Tensor


def reference(partials: Sequence[Tensor], streams: Tensor, post: Tensor, comb: Tensor, read: HyperWeights) -> Joined:
    """Plain torch on every rank's partial sum [T, H]: mhc_post.reference, then the read of what it stored."""
    from fusionscope.fusion_runtime.decode import reference_ops

    new = mhc_post.reference(partials, streams, post, comb)
    return Joined(
        new,
        *reference_ops.hc_pre(
            new,
            read.fn,
            read.scale,
            read.base,
            read.norm,
            read.rms_eps,
            read.hc_eps,
            read.iterations,
            read.post_multiplier,
        ),
    )


def run(
    owed: PartialSum | Full,
    streams: Tensor,
    post: Tensor,
    comb: Tensor,
    read: Any,
    *,
    layer: int,
    ctx: DecodeContext,
) -> Joined:
    """Owed [T, H], streams [T, 4, H] and the coefficients of this write, then `read`: the next half-layer's.

    Takes the chosen path where it joins write and read; else mhc_post runs on the path of its own, and the read
    follows. A read that is no HyperWeights is never joined. A Full owes nothing: write and read run and no site is
    recorded. Raises as mhc_post.run does, and BadOperands where the read's weights have other shapes.
    """
    if not isinstance(owed, PartialSum | Full):
        raise NotReduced(
            f"mhc_post_pre needs a PartialSum or a Full, not {type(owed).__name__}: let an Exit hand it on."
        )
    value = owed.tensor if isinstance(owed, Full) else owed
    check_beside(owed, tuple(value.shape), value.dtype, streams, "streams")
    mhc_post.check_coefficients(streams, post, comb)
    # Exactly this class: a subclass may read in another way.
    known = read if type(read) is HyperWeights else None
    if known is not None:
        _check_weights(known, int(streams.shape[-1]))
    if isinstance(owed, Full):
        new = ctx.ops.mhc_post(owed.tensor, streams, post, comb)
        return Joined(new, *read.read(new, ctx))
    choice = _choice(owed, streams, read, known, layer, ctx)
    with ctx.recorder.site(NAME, SUBTYPE, layer, choice.path.name, choice.declined):
        if known is None or not choice.path.joins_read():
            new = mhc_post.run(owed, streams, post, comb, subtype=SUBTYPE, layer=layer, ctx=ctx)
            return Joined(new, *read.read(new, ctx))
        with ctx.recorder.site(mhc_post.NAME, SUBTYPE, layer, choice.path.name):
            new, rest = choice.path.mhc_post_pre(owed, streams, post, comb, known, ctx)
        check_taken(owed, choice.path)
        return Joined(new, *rest())


def _check_weights(read: HyperWeights, hidden: int) -> None:
    check_shape(read.fn, (COEFFICIENTS, STREAMS * hidden), "the read's fn")
    check_shape(read.scale, (3,), "the read's scale")
    check_shape(read.base, (COEFFICIENTS,), "the read's base")
    check_shape(read.norm, (hidden,), "the read's norm")


def _choice(
    owed: PartialSum, streams: Tensor, read: Any, known: HyperWeights | None, layer: int, ctx: DecodeContext
) -> Choice:
    if known is None:
        wanted = ctx.paths.path_for(NAME, SUBTYPE, layer)
        why = Decline(Gate.READ_UNSUPPORTED, f"the read is {type(read).__name__} and no HyperWeights")
        return Choice(get_path("split"), "" if wanted == "split" else f"{wanted}: {why}")
    tokens, hidden = owed.shape
    shape = SiteShape(
        tokens,
        hidden,
        owed.dtype,
        owed.device,
        gamma_dtype=known.norm.dtype,
        eps=known.rms_eps,
        contiguous=owed.contiguous and streams.is_contiguous(),
        read=known.constants,
    )
    return choose(NAME, SUBTYPE, layer, owed, shape, ctx)
