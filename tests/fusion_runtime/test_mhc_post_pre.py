"""mhc_post_pre: who joins write and read, who steps back and why, and that the result is the same."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from counting import Counting
from ranks import run_ranks

from fusionscope.fusion_runtime.boundaries import mhc_post, mhc_post_pre
from fusionscope.fusion_runtime.context import DecodeContext, PathChoice
from fusionscope.fusion_runtime.decode import reference_ops
from fusionscope.fusion_runtime.decode.model_spec import STREAMS
from fusionscope.fusion_runtime.errors import BadOperands, BadPathChoice, NotReduced
from fusionscope.fusion_runtime.hyper import HyperWeights
from fusionscope.fusion_runtime.ownership import Exit, ForwardScope, Full, PartialSum
from fusionscope.fusion_runtime.residual_stream import HyperStream

H, SIZE = 16, 3


def drawn(seed: int, *shape: int) -> Any:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


def read(seed: int = 5) -> HyperWeights:
    fn = drawn(seed, 24, 4 * H) / H
    return HyperWeights(fn, torch.ones(3), drawn(seed + 1, 24), 1 + drawn(seed + 2, H) / 9, 1e-5)


def operands(tokens: int) -> tuple[Any, Any, Any]:
    return drawn(1, tokens, 4, H), drawn(2, tokens, 4).sigmoid(), drawn(3, tokens, 4, 4).softmax(1)


def context(paths: str = "") -> DecodeContext:
    return DecodeContext(Counting(SIZE), reference_ops, PathChoice.parse(paths))


def said(ctx: DecodeContext) -> list[tuple[str, str]]:
    return [(row.boundary, row.path) for row in ctx.recorder.rows]


def test_split_runs_the_separate_operations_bit_for_bit() -> None:
    ctx, known, (streams, post, comb) = context(), read(), operands(2)
    x, before = drawn(4, 2, H), streams.clone()
    made = mhc_post_pre.run(PartialSum(x.clone(), ctx.group), streams, post, comb, known, layer=3, ctx=ctx)
    new = reference_ops.mhc_post(x * SIZE, streams, post, comb)
    apart = known.read(new, ctx)
    assert torch.equal(made.streams, new) and torch.equal(streams, before)
    assert all(torch.equal(mine, other) for mine, other in zip(made[1:], apart, strict=True))
    assert said(ctx) == [("mhc_post_pre", "split"), ("mhc_post", "split")]
    assert {row.layer for row in ctx.recorder.rows} == {3}
    assert ctx.group.reductions == 1  # type: ignore[attr-defined]


@pytest.mark.parametrize("tokens", [1, 2, 4, 15, 16, 17])
def test_split_is_the_reference(tokens: int) -> None:
    ctx, known, beside = context(), read(), operands(tokens)
    x = drawn(4, tokens, H)
    made = mhc_post_pre.run(PartialSum(x, ctx.group), *beside, known, layer=0, ctx=ctx)
    for mine, want in zip(made, mhc_post_pre.reference([x] * SIZE, *beside, known), strict=True):
        torch.testing.assert_close(mine, want, rtol=1e-5, atol=1e-5)


def test_the_reference_reads_what_was_rounded() -> None:
    known, (streams, post, comb), x = read(), operands(2), drawn(4, 2, H).bfloat16()
    known = replace(known, norm=known.norm.bfloat16())
    made = mhc_post_pre.reference([x, x], streams.bfloat16(), post, comb, known)
    want = mhc_post.reference([x, x], streams.bfloat16(), post, comb)
    assert torch.equal(made.streams, want)
    assert all(torch.equal(a, b) for a, b in zip(made[1:], known.read(want, context()), strict=True))


def test_a_full_owes_nothing_and_leaves_no_site() -> None:
    ctx, known, beside = context("mhc_post_pre=inductor"), read(), operands(2)
    x = drawn(4, 2, H)
    made = mhc_post_pre.run(Full(x), *beside, known, layer=0, ctx=ctx)
    assert torch.equal(made.streams, reference_ops.mhc_post(x, *beside))
    assert said(ctx) == [] and ctx.group.reductions == 0  # type: ignore[attr-defined]


def test_a_bare_sum_is_refused() -> None:
    with pytest.raises(NotReduced, match="mhc_post_pre needs a PartialSum or a Full"):
        mhc_post_pre.run(drawn(4, 2, H), *operands(2), read(), layer=0, ctx=context())


@pytest.mark.parametrize("name", ["fn", "scale", "base", "norm"])
def test_weights_of_another_shape_are_refused_before_anything_is_reduced(name: str) -> None:
    ctx = context()
    owed, wrong = PartialSum(drawn(4, 2, H), ctx.group), replace(read(), **{name: torch.ones(5)})
    with pytest.raises(BadOperands, match=f"the read's {name} is"):
        mhc_post_pre.run(owed, *operands(2), wrong, layer=0, ctx=ctx)
    assert not owed.consumed


class Mine(HyperWeights):
    """Reads in a way of its own."""

    def read(self, streams: Any, ctx: Any) -> tuple[Any, Any, Any]:
        tokens = streams.shape[0]
        return streams.mean(1), torch.ones(tokens, 4), torch.eye(4).expand(tokens, 4, 4).contiguous()


def test_a_read_that_no_path_knows_is_run_as_it_is() -> None:
    ctx, own = context("mhc_post_pre=inductor,mhc_post=split"), Mine(*(None,) * 4, 1e-5)
    made = mhc_post_pre.run(PartialSum(drawn(4, 2, H), ctx.group), *operands(2), own, layer=0, ctx=ctx)
    assert torch.equal(made.x, made.streams.mean(1))
    assert ctx.recorder.rows[0].declined == "inductor: the read is Mine and no HyperWeights [read_unsupported]"
    assert said(ctx) == [("mhc_post_pre", "split"), ("mhc_post", "split")]


def test_a_path_without_the_joined_form_declines_and_the_post_takes_its_own() -> None:
    ctx = context("mhc_post_pre=inductor,mhc_post=inductor")
    if ctx.unavailable:
        pytest.skip(str(ctx.unavailable))
    known, beside, x = read(), operands(2), drawn(4, 2, H)
    made = mhc_post_pre.run(PartialSum(x, ctx.group), *beside, known, layer=0, ctx=ctx)
    outer, inner = ctx.recorder.rows
    assert (outer.path, outer.declined) == ("split", "inductor: there is no compiled mhc_post_pre [not_covered]")
    assert (inner.boundary, inner.path, inner.declined) == ("mhc_post", "inductor", "")
    want = mhc_post_pre.reference([x] * SIZE, *beside, known)
    torch.testing.assert_close(made.x, want.x, rtol=1e-4, atol=1e-5)
    assert ctx.group.reductions == 1  # type: ignore[attr-defined]


def test_what_is_chosen_for_the_post_says_nothing_of_the_joined_form() -> None:
    paths = PathChoice.parse("mhc_post:attn_exit=triton,mhc_post_pre@3=inductor")
    assert paths.path_for("mhc_post_pre", "attn_exit", 2) == "split"
    assert paths.path_for("mhc_post_pre", "attn_exit", 3) == "inductor"
    assert paths.path_for("mhc_post", "attn_exit", 3) == "triton"
    with pytest.raises(BadPathChoice, match="no subtype 'ffn_exit': choose from attn_exit"):
        PathChoice.parse("mhc_post_pre:ffn_exit=split")


@pytest.mark.parametrize("tokens", [0, 1, 2, 4, 15, 16, 17])
def test_a_stream_joins_at_the_attentions_exit_alone(tokens: int) -> None:
    ctx, group = context(), Counting(SIZE)
    ctx.group = group
    stream, first, second = HyperStream(ctx, 1), read(20), read(30)
    with ForwardScope():
        stream.prepare_attn(Exit(group, "embedding", tokens=tokens).hand_on(drawn(1, tokens, H)), first)
        before, (post, comb) = stream.streams, stream._coefficients  # type: ignore[misc]
        out = drawn(2, tokens, H)
        x = stream.prepare_mlp(stream.exit("out").hand_on(out), second)
        new = reference_ops.mhc_post(out * SIZE if tokens else out, before, post, comb)
        assert torch.equal(stream.streams, new)
        assert torch.equal(x, second.read(new, ctx)[0])
        assert all(map(torch.equal, stream._coefficients, second.read(new, ctx)[1:]))  # type: ignore[arg-type]
        stream.prepare_attn(stream.exit("down").hand_on(out), first)
    sites = ["mhc_post_pre", "mhc_post", "mhc_post"] if tokens else []
    assert [row.boundary for row in ctx.recorder.rows] == sites
    assert group.reductions == (3 if tokens else 0)


RANKS = """
from fusionscope.fusion_runtime.boundaries import mhc_post_pre
from fusionscope.fusion_runtime.context import DecodeContext, PathChoice
from fusionscope.fusion_runtime.decode import reference_ops
from fusionscope.fusion_runtime.hyper import HyperWeights
from fusionscope.fusion_runtime.ownership import ForwardScope, PartialSum

H, T = 16, 3
draw = torch.Generator().manual_seed(7)
fn, scale, base = torch.randn(24, 4 * H, generator=draw) / H, torch.ones(3), torch.randn(24, generator=draw)
read = HyperWeights(fn, scale, base, torch.rand(H, generator=draw) + 0.5, 1e-5)
streams = torch.randn(T, 4, H, generator=draw)
post, comb = torch.rand(T, 4, generator=draw), torch.rand(T, 4, 4, generator=draw).softmax(1)
for paths in ("", "mhc_post_pre=triton", "mhc_post_pre=inductor,mhc_post=split"):
    ctx, now, coefficients = DecodeContext(group, reference_ops, PathChoice.parse(paths)), streams, (post, comb)
    for layer in range(3):
        # Rank r brings r + 1 times as much, so that a missing or a second sum shows.
        x = torch.randn(T, H, generator=torch.Generator().manual_seed(layer)) * (rank + 1)
        parts = [x / (rank + 1) * (r + 1) for r in range(size)]
        want = mhc_post_pre.reference(parts, now, *coefficients, read)
        with ForwardScope():
            made = mhc_post_pre.run(PartialSum(x, group), now, *coefficients, read, layer=layer, ctx=ctx)
        for mine, other in zip(made, want):
            torch.testing.assert_close(mine, other, rtol=1e-4, atol=1e-5)
        now, coefficients = made.streams, (made.post, made.comb)
    outer = [row for row in ctx.recorder.rows if row.boundary == "mhc_post_pre"]
    assert len(outer) == 3 and all(bool(row.declined) == bool(paths) for row in outer), outer
print("done")
"""


def test_real_ranks_write_and_read_the_same() -> None:
    assert [answer.strip() for answer in run_ranks(2, RANKS)] == ["done"] * 2


def test_weights_of_a_family_are_handed_over(monkeypatch: pytest.MonkeyPatch) -> None:
    """A model author's forward has no branch: the read that it passes is the weights."""
    from types import SimpleNamespace

    from fusionscope.fusion_runtime.families.glm_5_3_flash import Glm53Flash

    known = read()
    layer = SimpleNamespace(
        ffn_hc=SimpleNamespace(hc_fn=known.fn, hc_scale=known.scale, hc_base=known.base),
        post_attention_layernorm=SimpleNamespace(weight=known.norm, variance_epsilon=1e-5),
    )
    handed = Glm53Flash(object).ffn_read(layer)
    assert type(handed) is HyperWeights and handed.constants == (1e-5, 1e-6, 20, 2.0)
    assert handed.fn.shape == (24, STREAMS * H)
