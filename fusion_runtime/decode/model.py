"""The decode forward of a whole model: static buffers, random weights, one step for a batch."""

from __future__ import annotations

import importlib
from contextlib import AbstractContextManager, nullcontext
from types import ModuleType
from typing import Any

import torch

from fusionscope.fusion_runtime.comm.base import Group
from fusionscope.fusion_runtime.context import DecodeContext, PathChoice
from fusionscope.fusion_runtime.decode.layers.decoder import DecoderLayer, norm_for, stream_for
from fusionscope.fusion_runtime.decode.layers.nextn import NextnEntry
from fusionscope.fusion_runtime.decode.recorder import FORWARD_RANGE
from fusionscope.fusion_runtime.decode.spec import ModelSpec
from fusionscope.fusion_runtime.decode.weights import WeightSource
from fusionscope.fusion_runtime.errors import RuntimeContractError
from fusionscope.fusion_runtime.ownership import Exit, ForwardScope
from fusionscope.fusion_runtime.residual_stream import Update

Tensor = Any


def ops_for(device: Any) -> ModuleType:
    """The module of operations for a device: `reference_ops` on the CPU, `cuda_ops` on CUDA."""
    if torch.device(device).type == "cpu":
        from fusionscope.fusion_runtime.decode import reference_ops

        return reference_ops
    return importlib.import_module("fusionscope.fusion_runtime.decode.cuda_ops")


def make_context(group: Group, device: Any, paths: PathChoice | None = None) -> DecodeContext:
    """A context with the device's operations; paths come from FUSIONSCOPE_PATHS if none are given."""
    return DecodeContext(
        group, ops_for(device), PathChoice.from_environment() if paths is None else paths, device=device
    )


class DecodeModel:
    """One rank of a model on one device.

    `batch` sequences, each with a full cache of `context` tokens. `ids` [batch] is a static input buffer. Raises
    BadSpec if the sizes do not fit.
    """

    def __init__(
        self, spec: ModelSpec, group: Group, batch: int, context: int, device: Any, ctx: DecodeContext, seed: int = 0
    ) -> None:
        spec.check(group.size, batch, context)
        if ctx.group is not group:
            raise RuntimeContractError("the context belongs to another group: make it with the model's group.")
        weights = WeightSource(group, device, seed)
        self.spec, self.group, self.ctx = spec, group, ctx
        self.batch, self.context, self.device = batch, context, weights.device
        self.table = weights.normal("embedding", (spec.vocab, spec.hidden), shard=0)
        self.vocab_start = group.rank * (spec.vocab // group.size)
        self.layers = [DecoderLayer(spec, weights, index, batch, context) for index in range(spec.layers)]
        self.nextn = NextnEntry(spec, weights, batch) if spec.nextn else None
        self.final_norm = norm_for(spec, weights, "final_norm")
        self.lm_head = weights.matrix("lm_head", spec.vocab, spec.hidden, shard=0)
        chooser = torch.Generator().manual_seed(seed)
        self.ids = torch.randint(spec.vocab, (batch,), generator=chooser).to(self.device)

    def step(self) -> Tensor:
        """One forward -> the next token of each sequence [batch] int64, the same on every rank.

        The input tokens and positions stay, recurrent states move on: every step does the same work. Leaves one row
        per boundary site in ctx.recorder. Raises Unconsumed if a reduction was lost.
        """
        self.ctx.recorder.start()
        with torch.no_grad(), self._range(), ForwardScope():
            return self.ctx.ops.argmax(self.logits())

    def logits(self) -> Tensor:
        """One forward's logits [batch, vocab], gathered from the ranks."""
        ops, ctx = self.ctx.ops, self.ctx
        exit = Exit(self.group, "embedding", tokens=self.batch)
        embedding = exit.hand_on(ops.embed(self.ids, self.table, self.vocab_start))
        update: Update = embedding if self.nextn is None else self.nextn.forward(embedding, ctx)
        stream = stream_for(self.spec, ctx)
        for layer in self.layers:
            update = layer.forward(update, stream, ctx)
        x = stream.finalize(update, self.final_norm)
        return self.group.all_gather_last(ops.linear(x, self.lm_head))

    def _range(self) -> AbstractContextManager[Any]:
        capturing = self.device.type == "cuda" and torch.cuda.is_current_stream_capturing()
        return nullcontext() if capturing else torch.profiler.record_function(FORWARD_RANGE)
