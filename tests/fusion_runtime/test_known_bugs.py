"""Faults that serving engines have shipped around these boundaries, each with the value that is right.

The numbers are those of docs/gates.md, where those that need a GPU or a library are listed with their own tests.
"""

from __future__ import annotations

from typing import Any

import pytest

torch = pytest.importorskip("torch")

from compilers import needs_compiler
from counting import Counting

from fusionscope.fusion_runtime.boundaries import ar_norm, mhc_post, moe_finalize
from fusionscope.fusion_runtime.comm.single import SingleGroup
from fusionscope.fusion_runtime.context import DecodeContext, PathChoice
from fusionscope.fusion_runtime.decode import reference_ops
from fusionscope.fusion_runtime.decode.model import DecodeModel, make_context
from fusionscope.fusion_runtime.decode.spec import MODELS
from fusionscope.fusion_runtime.errors import (
    BadNorm,
    BadOperands,
    MixedWithScattered,
    NoResidual,
    NotReduced,
    Unconsumed,
    WrongGroup,
)
from fusionscope.fusion_runtime.gates import Decline, Gate
from fusionscope.fusion_runtime.norms import GemmaRmsNorm, Norm, RmsNorm
from fusionscope.fusion_runtime.ownership import (
    DeferredFinalize,
    Exit,
    FinalizeOperands,
    ForwardScope,
    Full,
    PartialSum,
    Scattered,
)
from fusionscope.fusion_runtime.paths import registry
from fusionscope.fusion_runtime.paths.split import SplitPath
from fusionscope.fusion_runtime.residual_stream import AddStream

T, H = 3, 16
NORM = Norm(torch.ones(H), 1e-5)
both = pytest.mark.parametrize("path", ["split", pytest.param("inductor", marks=needs_compiler)])


def draw(seed: int, *shape: int, dtype: Any = torch.float32) -> Any:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed)).to(dtype)


def context(group: Any = None, paths: str = "") -> DecodeContext:
    return DecodeContext(group or SingleGroup(), reference_ops, PathChoice.parse(paths))


def normed(owed: Any, residual: Any, ctx: DecodeContext, norm: Any = NORM, subtype: str = "residual") -> Any:
    return ar_norm.run(owed, residual, norm, subtype=subtype, layer=0, ctx=ctx)


@pytest.fixture
def cautious() -> Any:
    """A path that declines as it is told."""

    class Cautious(SplitPath):
        name = "cautious"
        decline: Decline | None = None

        def declines(self, boundary: str, *, shape: Any, group: Any) -> Decline | None:
            return self.decline

    registry.register_path("cautious", Cautious)
    yield registry.get_path("cautious")
    registry.forget_path("cautious")


def test_b1_the_final_norm_does_not_reduce_again_what_the_decoder_reduced() -> None:
    group = Counting(2)
    stream = AddStream(context(group), 1)
    stream.resume(torch.zeros(T, H))
    stream.prepare_attn(Full(torch.zeros(T, H)), NORM)
    stream.prepare_mlp(Full(torch.zeros(T, H)), NORM)
    reduced = Exit(group, "0.down", tokens=T, consumer=False).hand_on(torch.ones(T, H))
    stream.finalize(reduced, NORM)
    assert group.reductions == 1 and torch.equal(stream.residual, torch.full((T, H), 2.0))


def test_b2_the_last_partial_sum_is_not_forgotten() -> None:
    group = Counting(2)
    stream = AddStream(context(group), 1)
    with pytest.raises(Unconsumed, match=r"0\.down"), ForwardScope():
        x = stream.prepare_attn(Full(torch.ones(T, H)), NORM)
        stream.prepare_mlp(stream.exit("0.out").hand_on(x), NORM)
        stream.exit("0.down").hand_on(x)


def test_b3_no_consumer_is_looked_for_by_name() -> None:
    """A feed-forward without the projection that another model has under that name: the caller passes None."""
    stream = AddStream(context(), 1)
    assert isinstance(stream.prepare_attn(Full(torch.ones(T, H)), NORM, None), torch.Tensor)


@pytest.mark.parametrize("module", [torch.nn.Identity(), torch.nn.LayerNorm(H), GemmaRmsNorm(draw(1, H), 1e-5)])
@both
def test_b4_a_norm_that_is_no_rms_norm_runs_as_it_is(path: str, module: Any) -> None:
    x, residual, ctx = draw(2, T, H), draw(3, T, H), context(paths=f"ar_norm={path}")
    y, total = normed(PartialSum(x.clone(), ctx.group), residual, ctx, module)
    torch.testing.assert_close(total, x + residual)
    torch.testing.assert_close(y, module(x + residual))
    known = isinstance(module, GemmaRmsNorm)
    assert ctx.recorder.rows[0].path == (path if known else "split")
    assert ("norm_unsupported" in ctx.recorder.rows[0].declined) == (not known and path != "split")


@both
def test_b5_gemma_s_one_is_added_once(path: str) -> None:
    x, weight, ctx = draw(1, T, H), draw(2, H), context(paths=f"ar_norm={path}")
    unit = x / (x.square().mean(-1, keepdim=True) + 1e-5).sqrt()
    for norm in (Norm(weight, 1e-5, 1.0), Norm(weight + 1, 1e-5, folded=True)):
        y, _ = normed(PartialSum(x.clone(), ctx.group), torch.zeros(T, H), ctx, norm)
        torch.testing.assert_close(y, unit * (1 + weight))
    with pytest.raises(BadNorm):
        Norm(weight + 1, 1e-5, 1.0, folded=True)


@both
def test_b6_the_sum_is_rounded_before_the_residual_is_added(path: str) -> None:
    group = Counting(1)
    group.all_reduce = lambda x: (x.float() * 1.001).to(x.dtype)  # type: ignore[method-assign]
    x, residual = draw(1, T, 512, dtype=torch.bfloat16), draw(2, T, 512, dtype=torch.bfloat16)
    ctx = context(group, f"ar_norm={path}")
    norm = Norm(torch.ones(512, dtype=torch.bfloat16), 1e-5)
    _, total = normed(PartialSum(x.clone(), group), residual, ctx, norm)
    rounded = ((x.float() * 1.001).bfloat16().float() + residual.float()).bfloat16()
    kept = (x.float() * 1.001 + residual.float()).bfloat16()
    assert torch.equal(total, rounded) and not torch.equal(rounded, kept)


def test_b7_a_batch_over_the_workspace_falls_back_and_is_reduced(cautious: Any) -> None:
    cautious.decline = Decline(Gate.WORKSPACE_TOO_SMALL, "4096 tokens need more than was made for decode")
    group = Counting(2)
    ctx = context(group, "ar_norm=cautious")
    _, total = normed(PartialSum(torch.ones(T, H), group), torch.zeros(T, H), ctx)
    assert group.reductions == 1 and total.eq(2).all()
    assert ctx.recorder.rows[0].declined.endswith("[workspace_too_small]")


def test_b9_a_replicated_shared_expert_counts_once() -> None:
    parts = []
    for rank in range(4):
        group = Counting(4)
        group.rank = rank
        idx, weights = torch.zeros(T, 1, dtype=torch.int32), torch.zeros(T, 1)
        operands = FinalizeOperands(torch.ones(1, H), idx, weights, 1.0, torch.full((T, H), 5.0), replicated=True)
        parts.append(SplitPath().finalize(DeferredFinalize(operands, group), context(group)).take())
    assert sum(parts).eq(5).all()


def test_b10_a_hybrid_sum_is_completed_over_both_groups(cautious: Any) -> None:
    inner, outer = Counting(2), Counting(4)
    ctx = context(inner, "ar_norm=cautious")
    owed = PartialSum(torch.ones(T, H), inner, "moe", lambda x: outer.all_reduce(inner.all_reduce(x)))
    _, total = normed(owed, torch.zeros(T, H), ctx)
    assert total.eq(8).all() and (inner.reductions, outer.reductions) == (1, 1)
    row = ctx.recorder.rows[0]
    assert row.path == "split" and row.declined.endswith("[own_completion]"), "a kernel over one group would be wrong"


def test_b11_a_scattered_residual_meets_no_owed_sum() -> None:
    group = Counting(2)
    exit = Exit(group, "0.out", tokens=4, scattered=True)
    assert isinstance(exit.hand_on(torch.ones(4, H)), Full) and group.reductions == 1
    owed = PartialSum(torch.ones(4, H), group, "0.out")
    for residual in (Scattered(torch.ones(2, H), group), torch.ones(2, H)):
        with pytest.raises(MixedWithScattered, match=r"0\.out is a sum for 4 tokens and the residual holds 2"):
            normed(owed, residual, context(group))
    assert not owed.consumed


@needs_compiler
@pytest.mark.parametrize("name", ["glm-5.3-flash-nextn", "deepseek-v3-nextn"])
def test_b15_a_draft_layer_computes_the_same_on_every_path(name: str) -> None:
    group = SingleGroup()
    spec = MODELS[name].scaled()
    logits = [
        DecodeModel(spec, group, 4, 256, "cpu", make_context(group, "cpu", PathChoice.parse(paths))).logits()
        for paths in ("", "ar_norm=inductor,moe_finalize=inductor")
    ]
    torch.testing.assert_close(*logits, atol=1e-5, rtol=1e-5)
    assert torch.equal(logits[0].argmax(-1), logits[1].argmax(-1)), "the same draft tokens"


def test_b17_a_flat_expert_index_is_refused() -> None:
    with pytest.raises(BadOperands, match=r"idx \(6,\)"):
        FinalizeOperands(torch.ones(4, H), torch.zeros(6, dtype=torch.int32), torch.ones(6), 1.0, None)


@both
def test_b20_norms_of_one_shape_keep_their_own_epsilon(path: str) -> None:
    ctx, x = context(paths=f"ar_norm={path}"), torch.full((T, H), 1e-3)
    for eps in (1e-5, 1e-6, 1e-2):
        y, _ = normed(PartialSum(x.clone(), ctx.group), torch.zeros(T, H), ctx, RmsNorm(torch.ones(H), eps))
        torch.testing.assert_close(y, x / (1e-6 + eps) ** 0.5)


@pytest.mark.parametrize("subtype", ["residual", "trailing"])
def test_b21_a_partial_sum_without_residual_fails_loudly(subtype: str) -> None:
    ctx = context()
    owed = PartialSum(torch.ones(T, H), ctx.group, "60.down")
    with pytest.raises(NoResidual, match=rf"60\.down reached the {subtype} norm of layer 0 without a residual"):
        normed(owed, None, ctx, subtype=subtype)
    idx = torch.zeros(T, 1, dtype=torch.int32)
    experts = DeferredFinalize(FinalizeOperands(torch.ones(1, H), idx, torch.ones(T, 1), 1.0, None), ctx.group)
    with pytest.raises(NoResidual):
        moe_finalize.run_norm(experts, None, NORM, subtype=subtype, layer=0, ctx=ctx)
    assert not owed.consumed and not experts.consumed


def test_b22_an_affine_write_refuses_a_partial_sum() -> None:
    streams, post, comb = draw(1, T, 4, H), torch.ones(T, 4), torch.eye(4).expand(T, 4, 4)
    with pytest.raises(NotReduced):
        mhc_post.apply(PartialSum(draw(2, T, H), SingleGroup()), streams, post, comb)  # type: ignore[arg-type]
    group = Counting(4)
    new = mhc_post.run(
        PartialSum(torch.ones(T, H), group), streams, post, comb, subtype="ffn_exit", layer=0, ctx=context(group)
    )
    torch.testing.assert_close(new, streams + 4)


@both
def test_b23_a_sum_that_is_not_contiguous_is_reduced(path: str) -> None:
    group = Counting(2)
    ctx = context(group, f"ar_norm={path}")
    x = draw(1, H, T).t()
    _, total = normed(PartialSum(x, group), torch.zeros(T, H), ctx)
    torch.testing.assert_close(total, 2 * x)
    assert group.reductions == 1


def test_b23_a_decline_for_the_layout_reduces_over_the_same_group(cautious: Any) -> None:
    cautious.decline = Decline(Gate.NOT_CONTIGUOUS, "the sum is not contiguous")
    group = Counting(2)
    ctx = context(group, "ar_norm=cautious")
    _, total = normed(PartialSum(draw(1, H, T).t(), group), torch.zeros(T, H), ctx)
    torch.testing.assert_close(total, 2 * draw(1, H, T).t())
    assert group.reductions == 1 and ctx.recorder.rows[0].path == "split"


def test_b24_a_sum_of_the_attention_s_group_is_not_reduced_over_the_tensor_parallel_group() -> None:
    attention, everyone = Counting(2), Counting(8)
    owed = PartialSum(torch.ones(T, H), attention, "0.out")
    with pytest.raises(WrongGroup, match=r"0\.out belongs to another group \(counting, 2 ranks\)"):
        normed(owed, torch.zeros(T, H), context(everyone))
    assert everyone.reductions == 0 and owed.complete().tensor.eq(2).all()


@both
def test_b26_the_routed_scale_is_applied_once_and_not_to_the_shared_expert(path: str) -> None:
    ctx = context(paths=f"moe_finalize={path}")
    idx, weights = torch.zeros(T, 2, dtype=torch.int32), torch.full((T, 2), 0.5)
    for scale, share in ((2.5, weights), (1.0, weights * 2.5)):
        parts = FinalizeOperands(torch.ones(1, H), idx, share, scale, torch.full((T, H), 10.0))
        owed = DeferredFinalize(parts, ctx.group)
        _, total = moe_finalize.run_norm(owed, torch.zeros(T, H), NORM, subtype="residual", layer=0, ctx=ctx)
        torch.testing.assert_close(total, torch.full((T, H), 12.5))


@both
def test_b27_negative_zeros_and_nans_pass_through(path: str) -> None:
    ctx = context(paths=f"ar_norm={path}")
    x = torch.zeros(T, H)
    x[0], x[1, 3] = -0.0, float("nan")
    y, total = normed(PartialSum(x.clone(), ctx.group), torch.full((T, H), -0.0), ctx)
    assert torch.signbit(total[0]).all() and total[1].isnan().sum() == 1
    assert y[1].isnan().all() and y[0].eq(0).all() and y[2].eq(0).all()


@needs_compiler
def test_b28_many_steps_over_many_layers_do_not_drift() -> None:
    group = SingleGroup()
    spec = MODELS["tiny"]
    models = [
        DecodeModel(spec, group, 2, 256, "cpu", make_context(group, "cpu", PathChoice.parse(paths)))
        for paths in ("", "mhc_post=inductor,moe_finalize=inductor")
    ]
    for _ in range(20):
        for model in models:
            model.ids.add_(1).remainder_(spec.vocab)
            model.step()
    torch.testing.assert_close(models[1].logits(), models[0].logits(), atol=1e-4, rtol=1e-4)


def test_b29_a_site_that_fell_back_says_so(cautious: Any) -> None:
    """An A/B of a path that stepped back would compare split with itself."""
    cautious.decline = Decline(Gate.PEER_MEMORY, "no peer memory")
    ctx = context(paths="ar_norm=cautious")
    normed(PartialSum(torch.ones(T, H), ctx.group), torch.zeros(T, H), ctx)
    row = ctx.recorder.rows[0]
    assert (row.path, row.declined) == ("split", "cautious: no peer memory [peer_memory]")
