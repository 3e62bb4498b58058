"""Llama: dense, one residual, plain norms; each norm feeds one projection, which may take its input quantised."""

from __future__ import annotations

from typing import Any

from fusionscope.fusion_runtime.families.base import Family
from fusionscope.fusion_runtime.residual_stream import Consumer


class Llama(Family):
    """`qkv_proj` and `gate_up_proj` are the stacked projections of serving engines."""

    def attention_consumer(self, layer: Any) -> Consumer | None:
        consumer: Consumer = layer.self_attn.qkv_proj
        return consumer

    def ffn_consumer(self, layer: Any) -> Consumer | None:
        consumer: Consumer = layer.mlp.gate_up_proj
        return consumer
