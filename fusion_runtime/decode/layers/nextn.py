"""What a NextN draft layer starts from: the token's embedding and the target model's last hidden state, joined."""

from __future__ import annotations

from typing import Any

from fusionscope.fusion_runtime.boundaries import ar_norm
from fusionscope.fusion_runtime.context import DecodeContext
from fusionscope.fusion_runtime.decode.layers.decoder import norm_for
from fusionscope.fusion_runtime.decode.spec import ModelSpec
from fusionscope.fusion_runtime.decode.weights import WeightSource
from fusionscope.fusion_runtime.ownership import Full, PartialSum

Tensor = Any


class NextnEntry:
    """Norms both inputs and projects them, side by side, to the hidden size; replicated, so that nothing is owed."""

    def __init__(self, spec: ModelSpec, weights: WeightSource, batch: int) -> None:
        self.embedding_norm = norm_for(spec, weights, "nextn.embedding_norm")
        self.hidden_norm = norm_for(spec, weights, "nextn.hidden_norm")
        self.projection = weights.matrix("nextn.projection", spec.hidden, 2 * spec.hidden)
        self.hidden = weights.normal("nextn.hidden", (batch, spec.hidden))
        """[T, H]: stands for the target model's last hidden state, a static input buffer."""

    def forward(self, embedding: PartialSum | Full, ctx: DecodeContext) -> Full:
        """The embedding's sum [T, H] -> the draft layer's first residual [T, H], complete."""
        ops, norm = ctx.ops, self.hidden_norm
        e, _ = ar_norm.run(embedding, None, self.embedding_norm, subtype="no_residual", layer=0, ctx=ctx)
        h = ops.rmsnorm(self.hidden, norm.weight, norm.eps, norm.weight_bias)
        return Full(ops.linear(ops.concat(e, h), self.projection))
