"""The stream's own rules: order, layers, pipeline stages, and what it refuses."""

from __future__ import annotations

from typing import Any

import pytest

torch = pytest.importorskip("torch")

from counting import Counting

from fusionscope.fusion_runtime.context import DecodeContext
from fusionscope.fusion_runtime.decode import reference_ops
from fusionscope.fusion_runtime.errors import NotReduced
from fusionscope.fusion_runtime.norms import Norm
from fusionscope.fusion_runtime.ownership import DeferredFinalize, Exit, FinalizeOperands, Full, PartialSum
from fusionscope.fusion_runtime.quant import FP8_TOKEN_GROUP_128, InputQuant
from fusionscope.fusion_runtime.residual_stream import AddStream, HyperStream

T, H = 2, 8
NORM = Norm(torch.ones(H), 1e-5)


class Consumer:
    input_quant = InputQuant(FP8_TOKEN_GROUP_128)


class Read:
    def __init__(self, post: float) -> None:
        self.post = post

    def read(self, streams: Any, ctx: Any) -> tuple[Any, Any, Any]:
        tokens = streams.shape[0]
        return streams.sum(1), torch.full((tokens, 4), self.post), torch.eye(4).expand(tokens, 4, 4).contiguous()


@pytest.fixture
def ctx() -> DecodeContext:
    return DecodeContext(Counting(2), reference_ops)


def experts(group: Any) -> DeferredFinalize:
    idx = torch.zeros(T, 1, dtype=torch.int32)
    return DeferredFinalize(FinalizeOperands(torch.ones(1, H), idx, torch.ones(T, 1), 3.0, None), group, "experts")


def test_layers_are_those_whose_output_is_summed(ctx: DecodeContext) -> None:
    stream = AddStream(ctx, 2, first_layer=5)
    update: Any = Full(torch.ones(T, H))
    for _ in range(2):
        x = stream.prepare_attn(update, NORM)
        x = stream.prepare_mlp(stream.exit("out").hand_on(x), NORM)
        update = stream.exit("down").hand_on(x)
    stream.finalize(update, NORM)
    rows = [(row.subtype, row.layer) for row in ctx.recorder.rows]
    assert rows == [("residual", 5), ("residual", 5), ("residual", 6), ("trailing", 6)]


def test_a_stage_in_the_middle_takes_over_and_reduces_at_its_end(ctx: DecodeContext) -> None:
    stream = AddStream(ctx, 1, first_layer=3, final=False)
    stream.resume(torch.full((T, H), 4.0))
    x = stream.prepare_attn(None, NORM)
    torch.testing.assert_close(x, torch.ones(T, H), atol=1e-4, rtol=0)
    assert ctx.recorder.rows == [] and stream.residual.eq(4).all()
    stream.prepare_mlp(stream.exit("out").hand_on(torch.ones(T, H)), NORM)
    exit = stream.exit("down")
    assert not exit.deferred and isinstance(exit.hand_on(torch.ones(T, H)), Full)
    assert ctx.group.reductions == 2 and stream.residual.eq(6).all()  # type: ignore[attr-defined]


def test_the_last_exit_defers_where_a_final_norm_is_installed(ctx: DecodeContext) -> None:
    stream = AddStream(ctx, 1)
    stream.prepare_attn(Full(torch.ones(T, H)), NORM)
    stream.prepare_mlp(Full(torch.ones(T, H)), NORM)
    assert stream.exit("down").deferred


def test_the_write_takes_the_coefficients_of_the_read_before_it(ctx: DecodeContext) -> None:
    stream = HyperStream(ctx, 1)
    stream.prepare_attn(Full(torch.zeros(T, H)), Read(1.0))
    stream.prepare_mlp(stream.exit("out").hand_on(torch.ones(T, H)), Read(10.0))
    assert stream.streams.eq(2).all(), "post 1 times the sum over two ranks"
    hidden = stream.finalize(experts(ctx.group), NORM)
    assert stream.streams.eq(2 + 10 * 6).all()
    torch.testing.assert_close(hidden, torch.ones(T, H), atol=1e-4, rtol=0)
    sites = [(row.boundary, row.subtype) for row in ctx.recorder.rows]
    assert sites[0] == ("mhc_post_pre", "attn_exit")
    assert sites[1:] == [("mhc_post", "attn_exit"), ("moe_finalize", "ffn_exit"), ("mhc_post", "ffn_exit")]


def test_a_second_write_has_no_coefficients_left(ctx: DecodeContext) -> None:
    stream = HyperStream(ctx, 1)
    stream.prepare_attn(Full(torch.zeros(T, H)), Read(1.0))
    stream.finalize(Full(torch.ones(T, H)), NORM)
    with pytest.raises(NotReduced, match=r"0\.down has no read before it"):
        stream.finalize(PartialSum(torch.ones(T, H), ctx.group, "0.down"), NORM)


def test_a_read_of_streams_quantises_nothing(ctx: DecodeContext) -> None:
    x = HyperStream(ctx, 1).prepare_attn(Full(torch.ones(T, H)), Read(1.0), Consumer())
    assert isinstance(x, torch.Tensor)


@pytest.mark.parametrize("kind", [AddStream, HyperStream])
def test_nothing_is_known_before_the_first_update(ctx: DecodeContext, kind: Any) -> None:
    with pytest.raises(NotReduced, match="call prepare_attn with the embedding"):
        kind(ctx, 1).exit("out")


def test_streams_start_with_the_embedding(ctx: DecodeContext) -> None:
    for first in (experts(ctx.group), None):
        with pytest.raises(NotReduced, match="the embedding's"):
            HyperStream(ctx, 1).prepare_attn(first, Read(1.0))  # type: ignore[arg-type]


def test_no_update_needs_something_to_resume(ctx: DecodeContext) -> None:
    with pytest.raises(NotReduced, match="nothing to resume"):
        AddStream(ctx, 1).prepare_attn(None, NORM)


def test_a_bare_tensor_is_no_update(ctx: DecodeContext) -> None:
    with pytest.raises(NotReduced, match="not Tensor"):
        AddStream(ctx, 1).prepare_attn(torch.ones(T, H), NORM)  # type: ignore[arg-type]
    stream = HyperStream(ctx, 1)
    stream.prepare_attn(Full(torch.ones(T, H)), Read(1.0))
    with pytest.raises(NotReduced, match="not Tensor"):
        stream.prepare_mlp(torch.ones(T, H), Read(1.0))  # type: ignore[arg-type]
    with pytest.raises(NotReduced, match="not Tensor"):
        HyperStream(ctx, 1).prepare_attn(torch.ones(T, H), Read(1.0))  # type: ignore[arg-type]


def test_an_empty_batch_runs_without_a_reduction(ctx: DecodeContext) -> None:
    stream = AddStream(ctx, 1)
    x = stream.prepare_attn(Exit(ctx.group, "embedding", tokens=0).hand_on(torch.ones(0, H)), NORM)
    x = stream.prepare_mlp(stream.exit("out").hand_on(x), NORM)
    assert stream.finalize(stream.exit("down").hand_on(x), NORM).shape == (0, H)
    assert ctx.group.reductions == 0 and ctx.recorder.rows == []  # type: ignore[attr-defined]
