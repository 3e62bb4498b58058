"""What a family says, and the one forward that all of them share."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from fusionscope.fusion_runtime.boundaries import moe_finalize
from fusionscope.fusion_runtime.context import DecodeContext
from fusionscope.fusion_runtime.norms import Norm
from fusionscope.fusion_runtime.ownership import Exit, FinalizeOperands, ForwardScope
from fusionscope.fusion_runtime.residual_stream import AddStream, Consumer, ResidualStream, Update

Tensor = Any


class Family:
    """Which modules, which weight and epsilon, which streams. The defaults are those of a dense Llama.

    norm_class: the model's RMSNorm. Only modules of exactly this class are handed to fused paths; any other (an
    Identity in a draft model, say) is run as it is.
    """

    weight_bias = 0.0
    """1 where the norms of the family store w and mean 1 + w."""

    def __init__(self, norm_class: type[Any]) -> None:
        self.norm_class = norm_class

    def stream(self, ctx: DecodeContext, layers: int) -> ResidualStream:
        return AddStream(ctx, layers)

    def layers(self, model: Any) -> Sequence[Any]:
        return list(model.layers)

    def norm(self, module: Any) -> Any:
        """The module as the paths take it, or the module itself."""
        # Exactly this class: a subclass may norm in another way.
        if type(module) is not self.norm_class:
            return module
        own: Any = module
        return Norm(own.weight, own.variance_epsilon, self.weight_bias)

    def attention_read(self, layer: Any) -> Any:
        return self.norm(layer.input_layernorm)

    def ffn_read(self, layer: Any) -> Any:
        return self.norm(layer.post_attention_layernorm)

    def final_norm(self, model: Any) -> Any:
        return self.norm(model.norm)

    def attention_consumer(self, layer: Any) -> Consumer | None:
        """The linear that alone reads the attention's input, if it declares a quantised one."""
        return None

    def ffn_consumer(self, layer: Any) -> Consumer | None:
        """The linear that alone reads the feed-forward's input, if it declares a quantised one."""
        return None

    def attention(self, layer: Any, x: Any) -> Tensor:
        """x -> this rank's addend [T, H]."""
        return layer.self_attn(x)

    def feed_forward(self, layer: Any, x: Any) -> Tensor | FinalizeOperands:
        """x -> this rank's addend [T, H], or what is left of a mixture of experts."""
        return layer.mlp(x)


def forward(family: Family, model: Any, embedding: Tensor, ctx: DecodeContext) -> Tensor:
    """This rank's share of the embedding [T, H] -> the normed hidden state [T, H], complete on every rank."""
    with ForwardScope():
        layers = family.layers(model)
        stream = family.stream(ctx, len(layers))
        update: Update = Exit(ctx.group, "embedding", tokens=int(embedding.shape[0])).hand_on(embedding)
        for index, layer in enumerate(layers):
            x = stream.prepare_attn(update, family.attention_read(layer), family.attention_consumer(layer))
            exit = stream.exit(f"layer{index}.attention")
            update = exit.hand_on(family.attention(layer, x))
            x = stream.prepare_mlp(update, family.ffn_read(layer), family.ffn_consumer(layer))
            exit = stream.exit(f"layer{index}.ffn")
            left = family.feed_forward(layer, x)
            experts = isinstance(left, FinalizeOperands)
            update = moe_finalize.hand_on(exit, left, ctx) if experts else exit.hand_on(left)
        return stream.finalize(update, family.final_norm(model))
