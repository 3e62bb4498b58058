"""GLM-5.3-Flash: four streams under hyper-connections; the norm of a half-layer sits in its read."""

from __future__ import annotations

from typing import Any

from fusionscope.fusion_runtime.context import DecodeContext
from fusionscope.fusion_runtime.families.deepseek_v3 import DeepseekV3
from fusionscope.fusion_runtime.hyper import HyperWeights
from fusionscope.fusion_runtime.residual_stream import HyperStream, ResidualStream


class Glm53Flash(DeepseekV3):
    """A layer keeps two hyper-connections, `attn_hc` and `ffn_hc`, beside its two norms."""

    def stream(self, ctx: DecodeContext, layers: int) -> ResidualStream:
        return HyperStream(ctx, layers)

    def attention_read(self, layer: Any) -> HyperWeights:
        return self._read(layer.attn_hc, layer.input_layernorm)

    def ffn_read(self, layer: Any) -> HyperWeights:
        return self._read(layer.ffn_hc, layer.post_attention_layernorm)

    @staticmethod
    def _read(hc: Any, norm: Any) -> HyperWeights:
        return HyperWeights(hc.hc_fn, hc.hc_scale, hc.hc_base, norm.weight, norm.variance_epsilon)
