"""One decoder layer: an attention half-layer and a feed-forward half-layer around the residual stream."""

from __future__ import annotations

from typing import Any

from fusionscope.fusion_runtime.context import DecodeContext
from fusionscope.fusion_runtime.decode.layers.ffn import Mlp, MoeFfn
from fusionscope.fusion_runtime.decode.layers.gdn import GdnAttention
from fusionscope.fusion_runtime.decode.layers.gqa import GqaAttention
from fusionscope.fusion_runtime.decode.layers.kda import KdaAttention
from fusionscope.fusion_runtime.decode.layers.mhc import hyper_connection
from fusionscope.fusion_runtime.decode.layers.mla import MlaAttention
from fusionscope.fusion_runtime.decode.spec import ModelSpec
from fusionscope.fusion_runtime.decode.weights import WeightSource
from fusionscope.fusion_runtime.hyper import HyperWeights
from fusionscope.fusion_runtime.norms import Norm
from fusionscope.fusion_runtime.residual_stream import AddStream, HyperStream, ResidualStream, Update

Attention = KdaAttention | MlaAttention | GdnAttention | GqaAttention


def stream_for(spec: ModelSpec, ctx: DecodeContext) -> ResidualStream:
    """The residual stream of one forward of the model."""
    return HyperStream(ctx, spec.layers) if spec.residual == "mhc" else AddStream(ctx, spec.layers)


def norm_for(spec: ModelSpec, weights: WeightSource, name: str) -> Norm:
    """An RMSNorm over the hidden size in the model's flavour."""
    drawn = weights.normal(name, (spec.hidden,), std=0.1)
    return Norm(drawn, spec.rms_eps, 1.0) if spec.gemma else Norm(drawn.add_(1), spec.rms_eps)


def read_for(spec: ModelSpec, weights: WeightSource, name: str) -> HyperWeights | Norm:
    """How a half-layer reads its input from the stream."""
    if spec.residual == "mhc":
        return hyper_connection(spec, weights, f"{name}_mhc")
    return norm_for(spec, weights, f"{name}_norm")


def attention_for(spec: ModelSpec, weights: WeightSource, kind: str, name: str, batch: int, context: int) -> Attention:
    """The attention of one layer, of the kind that the spec says."""
    if kind == "mla":
        return MlaAttention(spec, weights, f"{name}.mla", batch, context)
    if kind == "gqa":
        return GqaAttention(spec, weights, f"{name}.gqa", batch, context)
    if kind == "gdn":
        return GdnAttention(spec, weights, f"{name}.gdn", batch)
    return KdaAttention(spec, weights, f"{name}.kda", batch)


class DecoderLayer:
    """Layer `index` of the model, of the kinds that the spec says."""

    def __init__(self, spec: ModelSpec, weights: WeightSource, index: int, batch: int, context: int) -> None:
        name = f"layer{index}"
        attention, ffn = spec.layer_kind(index)
        self.index = index
        self.attention_read = read_for(spec, weights, f"{name}.attention")
        self.attention = attention_for(spec, weights, attention, name, batch, context)
        self.ffn_read = read_for(spec, weights, f"{name}.ffn")
        self.ffn: Mlp | MoeFfn = (
            MoeFfn(spec, weights, f"{name}.moe")
            if ffn == "moe"
            else Mlp(spec, weights, f"{name}.dense", spec.dense_intermediate)
        )

    def forward(self, update: Update | None, stream: ResidualStream, ctx: DecodeContext) -> Update:
        """The update of the layer before (the embedding's in the first) -> this layer's."""
        x: Any = stream.prepare_attn(update, self.attention_read, self.attention)
        update = self.attention.forward(x, ctx, stream.exit(f"{self.attention.name}.out"))
        x = stream.prepare_mlp(update, self.ffn_read, self.ffn)
        return self.ffn.forward(x, ctx, stream.exit(f"{self.ffn.name}.down"))
