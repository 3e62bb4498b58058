"""GLM-5.3-Flash: four streams under hyper-connections; the norm of a half-layer sits in its read."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from fusionscope.fusion_runtime.context import DecodeContext
from fusionscope.fusion_runtime.families.deepseek_v3 import DeepseekV3
from fusionscope.fusion_runtime.residual_stream import HyperStream, ResidualStream

Tensor = Any


@dataclass(frozen=True)
class Read:
    """A half-layer's hyper-connection (hc_fn [24, 4H], hc_scale [3], hc_base [24], float32) and the norm behind it."""

    fn: Tensor
    scale: Tensor
    base: Tensor
    norm: Tensor
    rms_eps: float
    hc_eps: float = 1e-6
    iterations: int = 20
    post_multiplier: float = 2.0

    def read(self, streams: Tensor, ctx: DecodeContext) -> tuple[Tensor, Tensor, Tensor]:
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


class Glm53Flash(DeepseekV3):
    """A layer keeps two hyper-connections, `attn_hc` and `ffn_hc`, beside its two norms."""

    def stream(self, ctx: DecodeContext, layers: int) -> ResidualStream:
        return HyperStream(ctx, layers)

    def attention_read(self, layer: Any) -> Read:
        return self._read(layer.attn_hc, layer.input_layernorm)

    def ffn_read(self, layer: Any) -> Read:
        return self._read(layer.ffn_hc, layer.post_attention_layernorm)

    @staticmethod
    def _read(hc: Any, norm: Any) -> Read:
        return Read(hc.hc_fn, hc.hc_scale, hc.hc_base, norm.weight, norm.variance_epsilon)
