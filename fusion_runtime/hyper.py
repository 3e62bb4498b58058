"""The weights of an mHC read, handed over as they are, so that a path can join the read to the exit before it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from fusionscope.fusion_runtime.context import DecodeContext

Tensor = Any

COEFFICIENTS = 24
"""Of a read of four streams: 4 to mix its input, 4 and 4 x 4 of the write that follows."""


@dataclass(frozen=True)
class HyperWeights:
    """A half-layer's hyper-connection and the norm behind it: all that its read needs besides the streams.

    fn [24, 4H], scale [3], base [24] float32; norm [H] is the RMSNorm's weight, in the streams' dtype. rms_eps counts
    in the projection and in the norm, hc_eps in the coefficients; iterations of the sinkhorn; post_multiplier of post.
    """

    fn: Tensor
    scale: Tensor
    base: Tensor
    norm: Tensor
    rms_eps: float
    hc_eps: float = 1e-6
    iterations: int = 20
    post_multiplier: float = 2.0

    @property
    def constants(self) -> tuple[float, float, int, float]:
        """(rms_eps, hc_eps, iterations, post_multiplier): what some libraries have compiled into their kernels."""
        return self.rms_eps, self.hc_eps, self.iterations, self.post_multiplier

    def read(self, streams: Tensor, ctx: DecodeContext) -> tuple[Tensor, Tensor, Tensor]:
        """streams [T, 4, H] -> (normed input [T, H], post [T, 4] f32, comb [T, 4, 4] f32) for the write."""
        x, post, comb = ctx.ops.hc_pre(
            streams,
            self.fn,
            self.scale,
            self.base,
            self.norm,
            self.rms_eps,
            self.hc_eps,
            self.iterations,
            self.post_multiplier,
        )
        return x, post, comb
