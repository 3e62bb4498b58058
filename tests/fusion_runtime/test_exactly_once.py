"""Whatever the path, the gate that fails, the batch and the layout: every owed sum is reduced exactly once."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from counting import Counting
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from fusionscope.fusion_runtime.boundaries import moe_finalize
from fusionscope.fusion_runtime.context import DecodeContext, PathChoice
from fusionscope.fusion_runtime.decode import reference_ops
from fusionscope.fusion_runtime.gates import Decline, Gate
from fusionscope.fusion_runtime.hyper import HyperWeights
from fusionscope.fusion_runtime.norms import GemmaRmsNorm, Norm, RmsNorm
from fusionscope.fusion_runtime.ownership import Exit, FinalizeOperands, ForwardScope, Full
from fusionscope.fusion_runtime.paths import registry
from fusionscope.fusion_runtime.paths.inductor import no_compiler
from fusionscope.fusion_runtime.paths.split import SplitPath
from fusionscope.fusion_runtime.quant import FP8_TOKEN_GROUP_128, QUANT_KEYS, InputQuant
from fusionscope.fusion_runtime.residual_stream import AddStream, HyperStream

H, K, SIZE = 32, 2, 3


class Fused(SplitPath):
    """A path that does each boundary in one piece, over its own reduction, and declines as it is told."""

    name = "fused"
    decline: Decline | None = None
    machine: Decline | None = None
    through: tuple[str, ...] = ()

    def unavailable(self, group: Any, device: Any) -> Decline | None:
        return self.machine

    def declines(self, boundary: str, *, shape: Any, group: Any) -> Decline | None:
        if self.decline is not None and self.decline.gate is Gate.QUANT_UNSUPPORTED and shape.quant is None:
            return None
        return self.decline

    def finalizes_through(self, ends: str) -> bool:
        return ends in self.through

    def joins_read(self) -> bool:
        return "mhc" in self.through

    def mhc_post_pre(self, owed: Any, streams: Any, post: Any, comb: Any, read: Any, ctx: Any) -> Any:
        new = self.mhc_post(owed, streams, post, comb, ctx)
        return new, lambda: read.read(new, ctx)

    def finalize_post(self, owed: Any, streams: Any, post: Any, comb: Any, ctx: Any) -> Any:
        return self.mhc_post(self.finalize(owed, ctx), streams, post, comb, ctx)

    def finalize_norm(self, owed: Any, residual: Any, norm: Any, ctx: Any, quant: Any = None) -> Any:
        return self.ar_norm(self.finalize(owed, ctx), residual, norm, ctx, quant)


class Consumer:
    def __init__(self, input_quant: InputQuant | None) -> None:
        self.input_quant = input_quant


class Read:
    """A hyper-connection read with coefficients that keep the streams apart."""

    def read(self, streams: Any, ctx: Any) -> tuple[Any, Any, Any]:
        tokens = streams.shape[0]
        return streams.mean(1), torch.full((tokens, 4), 0.5), torch.eye(4).expand(tokens, 4, 4).contiguous()


def plain_read() -> HyperWeights:
    """The weights of a read, handed over as they are."""
    return HyperWeights(torch.ones(24, 4 * H) / H, torch.ones(3), torch.zeros(24), torch.ones(H), 1e-5)


paths = ["split", "fused"] if no_compiler() else ["split", "fused", "inductor"]
norms = st.sampled_from([Norm, RmsNorm, GemmaRmsNorm, lambda w, eps: torch.nn.LayerNorm(H)])
quants = st.sampled_from([None, *QUANT_KEYS])
declines = st.sampled_from([None, *Gate])


@pytest.fixture
def fused() -> Any:
    registry.register_path("fused", Fused)
    yield registry.get_path("fused")
    registry.forget_path("fused")


def operands(tokens: int, replicated: bool, shared: bool) -> FinalizeOperands:
    idx = torch.arange(tokens * K, dtype=torch.int32).view(tokens, K) % 5 - 1
    extra = torch.ones(tokens, H) if shared else None
    return FinalizeOperands(torch.ones(6, H), idx, torch.ones(tokens, K), 2.5, extra, replicated)


def produce(exit: Exit, tokens: int, moe: bool, replicated: bool, shared: bool, ctx: DecodeContext) -> Any:
    if not moe:
        return exit.hand_on(torch.full((tokens, H), 0.5))
    return moe_finalize.hand_on(exit, operands(tokens, replicated, shared), ctx)


def sums(ctx: DecodeContext, group: Counting, run: Callable[[], None]) -> int:
    before = group.reductions
    with ForwardScope():
        run()
    return group.reductions - before


@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    path=st.sampled_from(paths),
    gate=declines,
    machine=st.booleans(),
    through=st.booleans(),
    tokens=st.sampled_from([0, 1, 5]),
    moe=st.booleans(),
    replicated=st.booleans(),
    shared=st.booleans(),
    final=st.booleans(),
    scattered=st.booleans(),
    own=st.booleans(),
    norm=norms,
    key=quants,
)
def test_an_ordinary_residual(fused: Any, path: str, gate: Any, machine: bool, through: bool, tokens: int, moe: bool,
                              replicated: bool, shared: bool, final: bool, scattered: bool, own: bool, norm: Any,
                              key: Any) -> None:  # fmt: skip
    """Embedding, attention and feed-forward of two layers, final norm: five sums, five reductions (no rows: none)."""
    fused.decline = None if gate is None else Decline(gate, "told to")
    fused.machine = Decline(Gate.LIBRARY_MISSING, "told to") if machine else None
    fused.through = ("norm",) if through else ()
    group = Counting(SIZE)
    ctx = DecodeContext(group, reference_ops, PathChoice.parse(f"ar_norm={path},moe_finalize={path}"))
    completion = group.all_reduce if own else None
    consumer = Consumer(None if key is None else InputQuant(key, torch.ones(1) if key.needs_scale else None))

    def forward() -> None:
        stream = AddStream(ctx, 2, final=final)
        module = norm(torch.ones(H), 1e-5)
        update = Exit(group, "embedding", tokens=tokens).hand_on(torch.ones(tokens, H))
        for layer in range(2):
            stream.prepare_attn(update, module, consumer)
            exit = stream.exit(f"{layer}.out", scattered=scattered, completion=completion)
            update = produce(exit, tokens, False, False, False, ctx)
            stream.prepare_mlp(update, module, consumer)
            exit = stream.exit(f"{layer}.down", scattered=scattered, completion=completion)
            update = produce(exit, tokens, moe, replicated, shared, ctx)
        if final:
            assert stream.finalize(update, module) is not None
        else:
            assert isinstance(update, Full)

    assert sums(ctx, group, forward) == (5 if tokens else 0)
    assert set(group.reduced) <= {(tokens, H)}


@settings(max_examples=80, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    path=st.sampled_from(paths),
    gate=declines,
    through=st.booleans(),
    tokens=st.sampled_from([0, 1, 5]),
    moe=st.booleans(),
    shared=st.booleans(),
    final=st.booleans(),
    own=st.booleans(),
    joined=st.sampled_from(paths),
    plain=st.booleans(),
)
def test_four_streams(fused: Any, path: str, gate: Any, through: bool, tokens: int, moe: bool, shared: bool,
                      final: bool, own: bool, joined: str, plain: bool) -> None:  # fmt: skip
    """Whether the attention's exit is joined to the read behind it or not."""
    fused.decline = None if gate is None else Decline(gate, "told to")
    fused.through = ("mhc",) if through else ()
    fused.machine = None
    group = Counting(SIZE)
    ctx = DecodeContext(
        group, reference_ops, PathChoice.parse(f"mhc_post={path},moe_finalize={path},mhc_post_pre={joined}")
    )
    completion = group.all_reduce if own else None

    def forward() -> None:
        stream, read = HyperStream(ctx, 2, final=final), plain_read() if plain else Read()
        update = Exit(group, "embedding", tokens=tokens).hand_on(torch.ones(tokens, H))
        for layer in range(2):
            stream.prepare_attn(update, read)
            exit = stream.exit(f"{layer}.out", completion=completion)
            update = produce(exit, tokens, False, False, False, ctx)
            stream.prepare_mlp(update, read)
            exit = stream.exit(f"{layer}.down", completion=completion)
            update = produce(exit, tokens, moe, False, shared, ctx)
        stream.finalize(update, Norm(torch.ones(H), 1e-5))

    assert sums(ctx, group, forward) == (5 if tokens else 0)
    assert set(group.reduced) <= {(tokens, H)}
    exits = [row for row in ctx.recorder.rows if row.subtype == "attn_exit"]
    assert [row.boundary for row in exits] == (["mhc_post_pre", "mhc_post"] * 2 if tokens else [])
    if joined == "fused" and not plain:
        assert all(row.declined.endswith("[read_unsupported]") for row in exits[::2])


def test_quantising_is_left_out_of_a_path_that_cannot(fused: Any) -> None:
    """AR and norm stay fused, quantising follows: the second of the four ways."""
    fused.decline, fused.machine = Decline(Gate.QUANT_UNSUPPORTED, "no kernel"), None
    group = Counting(SIZE)
    ctx = DecodeContext(group, reference_ops, PathChoice.parse("ar_norm=fused"))
    stream = AddStream(ctx, 1)
    stream.prepare_attn(Exit(group, "embedding", tokens=2).hand_on(torch.ones(2, H)), Norm(torch.ones(H), 1e-5))
    update = stream.exit("0.out").hand_on(torch.ones(2, H))
    q = stream.prepare_mlp(update, Norm(torch.ones(H), 1e-5), Consumer(InputQuant(FP8_TOKEN_GROUP_128)))
    assert q.key == FP8_TOKEN_GROUP_128
    row = ctx.recorder.rows[-1]
    assert (row.path, row.declined) == ("fused", "fused: no kernel [quant_unsupported]")
