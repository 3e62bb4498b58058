"""One decoder layer: an attention half-layer and a feed-forward half-layer, each read from and written to streams."""

from __future__ import annotations

from typing import Any

from fusionscope.fusion_runtime.boundaries import mhc_post, moe_finalize
from fusionscope.fusion_runtime.context import DecodeContext
from fusionscope.fusion_runtime.decode.layers.ffn import Mlp, MoeFfn
from fusionscope.fusion_runtime.decode.layers.kda import KdaAttention
from fusionscope.fusion_runtime.decode.layers.mhc import HyperConnection
from fusionscope.fusion_runtime.decode.layers.mla import MlaAttention
from fusionscope.fusion_runtime.decode.spec import ModelSpec
from fusionscope.fusion_runtime.decode.weights import WeightSource

Tensor = Any


class DecoderLayer:
    """Layer `index` of the model, of the kinds that the spec says."""

    def __init__(self, spec: ModelSpec, weights: WeightSource, index: int, batch: int, context: int) -> None:
        name = f"layer{index}"
        attention, ffn = spec.layer_kind(index)
        self.index = index
        self.attention_mhc = HyperConnection(spec, weights, f"{name}.attention_mhc")
        self.attention: KdaAttention | MlaAttention = (
            MlaAttention(spec, weights, f"{name}.mla", batch, context)
            if attention == "mla"
            else KdaAttention(spec, weights, f"{name}.kda", batch)
        )
        self.ffn_mhc = HyperConnection(spec, weights, f"{name}.ffn_mhc")
        self.ffn: Mlp | MoeFfn = (
            MoeFfn(spec, weights, f"{name}.moe")
            if ffn == "moe"
            else Mlp(spec, weights, f"{name}.dense", spec.dense_intermediate)
        )

    def forward(self, streams: Tensor, ctx: DecodeContext) -> Tensor:
        """streams [T, 4, H] -> new streams."""
        x, post, comb = self.attention_mhc.read(streams, ctx)
        owed = self.attention.forward(x, ctx)
        streams = mhc_post.run(owed, streams, post, comb, subtype="attn_exit", layer=self.index, ctx=ctx)
        x, post, comb = self.ffn_mhc.read(streams, ctx)
        if isinstance(self.ffn, MoeFfn):
            deferred = self.ffn.forward(x, ctx)
            return moe_finalize.run_mhc(deferred, streams, post, comb, layer=self.index, ctx=ctx)
        owed = self.ffn.forward(x, ctx)
        return mhc_post.run(owed, streams, post, comb, subtype="ffn_exit", layer=self.index, ctx=ctx)
