"""The residual stream: the one object that a model's forward touches between its layers.

A forward is the same three calls whatever the architecture, the path, the gate or the number of ranks:

    x = stream.prepare_attn(update, layer.attention_read, consumer)
    update = layer.attention.forward(x, ctx, stream.exit("layer0.out"))
    x = stream.prepare_mlp(update, layer.ffn_read, consumer)
    update = layer.ffn.forward(x, ctx, stream.exit("layer0.down"))
    x = stream.finalize(update, final_norm)

Modules come in as arguments; nothing is looked up by name. `AddStream` is the ordinary residual, `HyperStream` the four
streams of hyper-connections. An update is what an Exit handed on: it consumes what is owed, exactly once.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any, Protocol

from fusionscope.fusion_runtime.boundaries import ar_norm, mhc_post, mhc_post_pre, moe_finalize
from fusionscope.fusion_runtime.context import DecodeContext
from fusionscope.fusion_runtime.decode.model_spec import STREAMS
from fusionscope.fusion_runtime.errors import NotReduced
from fusionscope.fusion_runtime.ownership import Completion, DeferredFinalize, Exit, Full, Owed, PartialSum
from fusionscope.fusion_runtime.quant import Activation, InputQuant

Tensor = Any

Update = PartialSum | DeferredFinalize | Full
"""What a half-layer hands on."""


class Consumer(Protocol):
    """A linear that says which quantised input it takes (None: the storage dtype)."""

    @property
    def input_quant(self) -> InputQuant | None: ...


class HyperRead(Protocol):
    """The mHC read of a half-layer: streams [T, 4, H] -> (normed input [T, H], post [T, 4], comb [T, 4, 4]).

    One that is a HyperWeights hands its weights over, so that a path can join it to the attention's exit before it.
    """

    def read(self, streams: Tensor, ctx: DecodeContext) -> tuple[Tensor, Tensor, Tensor]: ...


class ResidualStream(ABC):
    """One forward's residual. `layers`: how many the stream runs through, of which the first is `first_layer`.

    final: a final norm in this process consumes the last layer's sum. Where it does not (a pipeline stage in the
    middle), the last exit reduces at once.
    """

    def __init__(self, ctx: DecodeContext, layers: int, *, first_layer: int = 0, final: bool = True) -> None:
        self.ctx = ctx
        self.layer = first_layer - 1
        self._first, self._last, self._final = first_layer, first_layer + layers - 1, final
        self._in_mlp = True

    def exit(self, what: str, *, scattered: bool = False, completion: Completion | None = None) -> Exit:
        """The exit of the half-layer that the last prepare was for: decided now, before its producer runs."""
        consumer = self._final or not (self._in_mlp and self.layer == self._last)
        return Exit(
            self.ctx.group, what, tokens=self.tokens, consumer=consumer, scattered=scattered, completion=completion
        )

    def prepare_attn(self, update: Update | None, read: Any, consumer: Consumer | None = None) -> Activation:
        """Takes the update of the layer before (or the embedding's) -> the input of this layer's attention [T, H].

        None stands for no update: only in the first layer of a pipeline stage, right after `resume`.
        """
        x = self._advance(update, read, consumer, self.layer, "ffn_exit")
        self.layer += 1
        self._in_mlp = False
        return x

    def prepare_mlp(self, update: Update, read: Any, consumer: Consumer | None = None) -> Activation:
        """Takes the attention's update -> the input of this layer's feed-forward [T, H]."""
        x = self._advance(update, read, consumer, self.layer, "attn_exit")
        self._in_mlp = True
        return x

    @abstractmethod
    def resume(self, state: Tensor) -> None:
        """Takes over the residual [T, H] or the streams [T, 4, H] that the pipeline stage before has sent."""

    @property
    @abstractmethod
    def tokens(self) -> int:
        """Tokens of the batch; known from the first prepare on."""

    @abstractmethod
    def finalize(self, update: Update, norm: Any, consumer: Consumer | None = None) -> Activation:
        """Takes the last layer's update -> the normed hidden state [T, H] for the head (the trailing site)."""

    @abstractmethod
    def _advance(
        self, update: Update | None, read: Any, consumer: Consumer | None, layer: int, exit_kind: str
    ) -> Activation: ...


class AddStream(ResidualStream):
    """r <- r + update, x = RMSNorm(r): boundaries ar_norm and moe_finalize. A read is a norm module or a Norm."""

    def __init__(self, ctx: DecodeContext, layers: int, *, first_layer: int = 0, final: bool = True) -> None:
        super().__init__(ctx, layers, first_layer=first_layer, final=final)
        self.residual: Tensor | None = None

    @property
    def tokens(self) -> int:
        if self.residual is None:
            raise NotReduced("the stream holds nothing yet: call prepare_attn with the embedding's update first.")
        return int(self.residual.shape[0])

    def finalize(self, update: Update, norm: Any, consumer: Consumer | None = None) -> Activation:
        return self._norm(update, norm, consumer, self.layer, "trailing")

    def _advance(
        self, update: Update | None, read: Any, consumer: Consumer | None, layer: int, exit_kind: str
    ) -> Activation:
        start = layer < self._first and self.residual is None
        return self._norm(update, read, consumer, max(layer, self._first), "no_residual" if start else "residual")

    def resume(self, state: Tensor) -> None:
        self.residual = state

    def _norm(
        self, update: Update | None, norm: Any, consumer: Consumer | None, layer: int, subtype: str
    ) -> Activation:
        quant = None if consumer is None else consumer.input_quant
        where: dict[str, Any] = {"subtype": subtype, "layer": layer, "ctx": self.ctx, "quant": quant}
        if isinstance(update, DeferredFinalize):
            x, self.residual = moe_finalize.run_norm(update, self.residual, norm, **where)
        elif update is None:
            if self.residual is None:
                raise NotReduced("there is no update and nothing to resume: pass the embedding's update first.")
            x, _ = ar_norm.after_sum(self.residual, None, norm, self.ctx, quant)
        else:
            x, self.residual = ar_norm.run(update, self.residual, norm, **where)
        return x


class HyperStream(ResidualStream):
    """Four streams under hyper-connections: boundaries mhc_post, moe_finalize, and mhc_post_pre, which joins the
    attention's exit to the read behind it. A read is a HyperRead.

    The coefficients of a write come from the read before it and are gone after it.
    """

    def __init__(self, ctx: DecodeContext, layers: int, *, first_layer: int = 0, final: bool = True) -> None:
        super().__init__(ctx, layers, first_layer=first_layer, final=final)
        self.streams: Tensor | None = None
        self._coefficients: tuple[Tensor, Tensor] | None = None

    def resume(self, state: Tensor) -> None:
        self.streams = state

    @property
    def tokens(self) -> int:
        if self.streams is None:
            raise NotReduced("the streams hold nothing yet: call prepare_attn with the embedding's update first.")
        return int(self.streams.shape[0])

    def finalize(self, update: Update, norm: Any, consumer: Consumer | None = None) -> Activation:
        """The mean of the streams, normed: no all-reduce is left for the norm, so that there is no trailing site."""
        self._write(update, self.layer, "ffn_exit")
        ops = self.ctx.ops
        quant = None if consumer is None else consumer.input_quant
        return ar_norm.after_sum(ops.stream_mean(self.streams), None, norm, self.ctx, quant)[0]

    def _advance(
        self, update: Update | None, read: Any, consumer: Consumer | None, layer: int, exit_kind: str
    ) -> Activation:
        if self.streams is None:
            if not isinstance(update, PartialSum | Full):
                raise NotReduced(
                    f"the streams start with what the embedding's exit handed on, not {type(update).__name__}: "
                    "pass that first."
                )
            full = update.complete() if isinstance(update, PartialSum) else update
            self.streams = self.ctx.ops.expand_streams(full.tensor, STREAMS)
        elif isinstance(update, PartialSum) and exit_kind == mhc_post_pre.SUBTYPE:
            written = self._write_coefficients(update)
            self.streams, x, *read_next = mhc_post_pre.run(
                update, self.streams, *written, read, layer=layer, ctx=self.ctx
            )
            self._coefficients = (read_next[0], read_next[1])
            return x
        elif update is not None:
            self._write(update, layer, exit_kind)
        x, post, comb = read.read(self.streams, self.ctx)
        self._coefficients = (post, comb)
        return x

    def _write_coefficients(self, update: Update) -> tuple[Tensor, Tensor]:
        """Those of the read before, which are gone now."""
        if self._coefficients is None:
            what = update.what if isinstance(update, Owed) else "an update"
            raise NotReduced(f"{what} has no read before it whose coefficients it could be written with.")
        coefficients, self._coefficients = self._coefficients, None
        return coefficients

    def _write(self, update: Update, layer: int, exit_kind: str) -> None:
        post, comb = self._write_coefficients(update)
        if isinstance(update, DeferredFinalize):
            self.streams = moe_finalize.run_mhc(update, self.streams, post, comb, layer=layer, ctx=self.ctx)
        else:
            self.streams = mhc_post.run(update, self.streams, post, comb, subtype=exit_kind, layer=layer, ctx=self.ctx)
