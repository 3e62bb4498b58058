from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from compilers import needs_compiler
from counting import Counting

from fusionscope.fusion_runtime.boundaries import ar_norm, mhc_post, moe_finalize
from fusionscope.fusion_runtime.comm.single import SingleGroup
from fusionscope.fusion_runtime.context import DecodeContext, PathChoice
from fusionscope.fusion_runtime.decode import reference_ops
from fusionscope.fusion_runtime.errors import BadOperands, ConsumedTwice, NotReduced, WrongGroup
from fusionscope.fusion_runtime.gates import Decline, Gate
from fusionscope.fusion_runtime.norms import Norm
from fusionscope.fusion_runtime.ownership import (
    DeferredFinalize,
    Exit,
    FinalizeOperands,
    ForwardScope,
    Full,
    PartialSum,
)
from fusionscope.fusion_runtime.paths import inductor, registry
from fusionscope.fusion_runtime.paths.base import Path, UnavailablePath
from fusionscope.fusion_runtime.paths.split import SplitPath
from fusionscope.fusion_runtime.quant import QUANT_KEYS, InputQuant, dequantise

T, H, K, P = 3, 32, 2, 8


def draw(seed: int, *shape: int, dtype: Any = torch.float32) -> Any:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed)).to(dtype)


def mhc_operands(dtype: Any) -> tuple[Any, Any, Any]:
    return draw(1, T, 4, H, dtype=dtype), draw(2, T, 4).sigmoid() * 2, draw(3, T, 4, 4).softmax(1)


def moe_operands(rank: int, dtype: Any, shared: bool = True) -> FinalizeOperands:
    idx = torch.tensor([[2, 5], [-1, 3], [7, -1]], dtype=torch.int32)
    extra = draw(20 + rank, T, H, dtype=dtype) if shared else None
    return FinalizeOperands(draw(10 + rank, P, H, dtype=dtype), idx, draw(4, T, K).abs(), 2.5, extra)


def context(group: Any, paths: str = "") -> DecodeContext:
    return DecodeContext(group, reference_ops, PathChoice.parse(paths))


dtypes = pytest.mark.parametrize(("dtype", "close"), [(torch.float32, 1e-6), (torch.bfloat16, 2e-2)])
both_paths = pytest.mark.parametrize("path", ["split", pytest.param("inductor", marks=needs_compiler)])


def naive_post(x: Any, streams: Any, post: Any, comb: Any) -> Any:
    new = torch.zeros(T, 4, H, dtype=torch.float64)
    for t in range(T):
        for j in range(4):
            new[t, j] = post[t, j].double() * x[t].double()
            for k in range(4):
                new[t, j] += comb[t, k, j].double() * streams[t, k].double()
    return new


def naive_finalize(parts: FinalizeOperands) -> Any:
    y = torch.zeros(T, H, dtype=torch.float64)
    for t in range(T):
        for k in range(K):
            if parts.idx[t, k] >= 0:
                y[t] += parts.scale * parts.weights[t, k].double() * parts.gemm2_out[parts.idx[t, k]].double()
        if parts.shared is not None:
            y[t] += parts.shared[t].double()
    return y


@dtypes
def test_references_agree_with_loops(dtype: Any, close: float) -> None:
    streams, post, comb = mhc_operands(dtype)
    partials = [draw(30 + rank, T, H, dtype=dtype) for rank in range(4)]
    summed = sum(p.double() for p in partials)
    got = mhc_post.reference(partials, streams, post, comb)
    assert got.dtype == dtype
    torch.testing.assert_close(got.double(), naive_post(summed, streams, post, comb), atol=close, rtol=close)
    ranks = [moe_operands(rank, dtype) for rank in range(4)]
    want = naive_post(sum(naive_finalize(parts) for parts in ranks), streams, post, comb)
    torch.testing.assert_close(
        moe_finalize.reference(ranks, streams, post, comb).double(), want, atol=8 * close, rtol=close
    )


@both_paths
@dtypes
def test_mhc_post_paths_equal_the_reference(
    path: str, dtype: Any, close: float, lockstep: Callable[..., list[Any]]
) -> None:
    streams, post, comb = mhc_operands(dtype)
    # Rank r's addend is r + 1 times as big, so that a missing or a double reduction shows.
    partials = [draw(30, T, H, dtype=dtype) * (rank + 1) for rank in range(2)]
    before = streams.clone()

    def work(group: Any) -> Any:
        ctx = context(group, f"mhc_post={path}")
        with ForwardScope():
            owed = PartialSum(partials[group.rank].clone(), group)
            new = mhc_post.run(owed, streams, post, comb, subtype="attn_exit", layer=7, ctx=ctx)
        return new, [(r.boundary, r.subtype, r.layer, r.path, r.declined) for r in ctx.recorder.rows]

    # The compiler keeps thread-local state: compile before the ranks' threads start.
    work(SingleGroup())
    for new, rows in lockstep(2, work):
        want = mhc_post.reference(partials, streams, post, comb)
        torch.testing.assert_close(new, want, atol=close, rtol=close)
        assert rows == [("mhc_post", "attn_exit", 7, path, "")]
    assert torch.equal(streams, before)


@both_paths
@pytest.mark.parametrize("shared", [True, False])
@dtypes
def test_moe_finalize_paths_equal_the_reference(path: str, shared: bool, dtype: Any, close: float) -> None:
    streams, post, comb = mhc_operands(dtype)
    parts = moe_operands(0, dtype, shared)
    # A dropped slot must not be read into the sum, whatever stands in row 0.
    parts.gemm2_out[0] = float("nan")
    group = SingleGroup()
    ctx = context(group, f"moe_finalize={path}")
    with ForwardScope():
        new = moe_finalize.run_mhc(DeferredFinalize(parts, group), streams, post, comb, layer=3, ctx=ctx)
    want = moe_finalize.reference([parts], streams, post, comb)
    torch.testing.assert_close(new, want, atol=4 * close, rtol=close)
    assert [(r.boundary, r.subtype, r.path) for r in ctx.recorder.rows] == [
        ("moe_finalize", "ffn_exit", path),
        ("mhc_post", "ffn_exit", "split"),
    ]


@both_paths
@pytest.mark.parametrize("bias", [0.0, 1.0])
@dtypes
def test_ar_norm_paths_equal_the_reference(path: str, bias: float, dtype: Any, close: float) -> None:
    x, residual = draw(5, T, H, dtype=dtype), draw(6, T, H, dtype=dtype)
    norm = Norm(draw(7, H, dtype=dtype), 1e-5, bias)
    group = SingleGroup()
    ctx = context(group, f"ar_norm={path}")
    normed, total = ar_norm.run(PartialSum(x.clone(), group), residual, norm, subtype="residual", layer=0, ctx=ctx)
    want_normed, want_total = ar_norm.reference([x], residual, norm)
    assert torch.equal(total, want_total)
    torch.testing.assert_close(normed, want_normed, atol=close, rtol=close)
    exact = x.double() + residual.double()
    exact = exact / (exact.square().mean(-1, keepdim=True) + 1e-5).sqrt() * (norm.weight.double() + bias)
    torch.testing.assert_close(normed.double(), exact, atol=3 * close, rtol=close)
    assert ctx.recorder.rows[0].path == path


def test_post_on_a_partial_sum_is_refused_by_type() -> None:
    streams, post, comb = mhc_operands(torch.float32)
    owed = PartialSum(draw(1, T, H), SingleGroup())
    with pytest.raises(NotReduced, match="not PartialSum"):
        mhc_post.apply(owed, streams, post, comb)  # type: ignore[arg-type]
    with pytest.raises(NotReduced, match="not Tensor"):
        mhc_post.apply(draw(1, T, H), streams, post, comb)
    assert mhc_post.apply(owed.complete(), streams, post, comb).shape == (T, 4, H)


def test_post_of_partials_would_add_the_streams_once_per_rank() -> None:
    """Why `apply` takes a Full: the write is affine in x."""
    streams, post, _ = mhc_operands(torch.float32)
    comb = torch.eye(4).expand(T, 4, 4)
    partials = [draw(rank, T, H) for rank in range(4)]
    right = mhc_post.reference(partials, streams, post, comb)
    wrong = sum(mhc_post.apply(Full(p), streams, post, comb) for p in partials)
    torch.testing.assert_close(wrong - right, 3 * streams, atol=1e-4, rtol=1e-4)


def test_a_sum_of_another_group_is_refused_and_stays_owed() -> None:
    streams, post, comb = mhc_operands(torch.float32)
    owed = PartialSum(draw(1, T, H), SingleGroup(), "layer0.out")
    with pytest.raises(WrongGroup, match=r"layer0\.out belongs to another group"):
        mhc_post.run(owed, streams, post, comb, subtype="attn_exit", layer=0, ctx=context(SingleGroup()))
    assert not owed.consumed


def test_a_boundary_consumes_what_it_is_given() -> None:
    streams, post, comb = mhc_operands(torch.float32)
    group = SingleGroup()
    owed = PartialSum(draw(1, T, H), group)
    mhc_post.run(owed, streams, post, comb, subtype="attn_exit", layer=0, ctx=context(group))
    with pytest.raises(ConsumedTwice):
        mhc_post.run(owed, streams, post, comb, subtype="attn_exit", layer=0, ctx=context(group))


def test_without_a_compiler_inductor_declines_and_split_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "/nowhere")
    monkeypatch.delenv("CXX", raising=False)
    inductor.no_compiler.cache_clear()
    streams, post, comb = mhc_operands(torch.float32)
    group = SingleGroup()
    ctx = context(group, "mhc_post=inductor,moe_finalize=inductor")
    try:
        parts = moe_operands(0, torch.float32)
        moe_finalize.run_mhc(DeferredFinalize(parts, group), streams, post, comb, layer=3, ctx=ctx)
    finally:
        inductor.no_compiler.cache_clear()
    assert [row.path for row in ctx.recorder.rows] == ["split", "split"]
    assert {row.declined for row in ctx.recorder.rows} == {
        "inductor: no C++ compiler found: install g++ or clang++, or name one in CXX [no_compiler]"
    }


def test_a_wrong_cxx_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CXX", "/nowhere/g++")
    inductor.no_compiler.cache_clear()
    try:
        assert "CXX is '/nowhere/g++'" in (inductor.no_compiler() or "")
    finally:
        inductor.no_compiler.cache_clear()


@pytest.mark.skipif(torch.cuda.is_available(), reason="this machine has a CUDA GPU, so triton does not decline")
def test_triton_without_a_gpu_declines_with_a_reason(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("TRITON_INTERPRET", raising=False)
    registry.forget_path("triton")
    try:
        path = registry.get_path("triton")
        assert isinstance(path, UnavailablePath)
        assert str(path.why) == "Triton needs a GPU and this process sees none [no_device]"
        streams, post, comb = mhc_operands(torch.float32)
        group = SingleGroup()
        ctx = context(group, "mhc_post=triton")
        mhc_post.run(PartialSum(draw(1, T, H), group), streams, post, comb, subtype="attn_exit", layer=0, ctx=ctx)
        assert (ctx.recorder.rows[0].path, ctx.recorder.rows[0].declined) == ("split", f"triton: {path.why}")
    finally:
        registry.forget_path("triton")


def test_a_path_that_covers_all_records_both_sites(monkeypatch: pytest.MonkeyPatch) -> None:
    class Wide(Path):
        name = "triton"

        def finalizes_through(self, ends: str) -> bool:
            return ends == "mhc"

        def declines(self, boundary: str, *, shape: Any, group: Any) -> None:
            assert (boundary, shape.tokens, shape.hidden, shape.top_k) == ("moe_finalize", T, H, K)
            return None

        def finalize_post(self, owed: Any, streams: Any, post: Any, comb: Any, ctx: Any) -> Any:
            return moe_finalize.reference([owed.take()], streams, post, comb)

        def mhc_post(self, *operands: Any) -> Any:
            raise AssertionError("the nested boundary must not run again")

        finalize = ar_norm = mhc_post

    wide = Wide()
    monkeypatch.setattr("fusionscope.fusion_runtime.boundaries.dispatch.get_path", lambda name: wide)
    monkeypatch.setattr("fusionscope.fusion_runtime.context.get_path", lambda name: wide)
    streams, post, comb = mhc_operands(torch.float32)
    group = SingleGroup()
    ctx = context(group, "moe_finalize=triton")
    with ForwardScope():
        parts = moe_operands(0, torch.float32)
        new = moe_finalize.run_mhc(DeferredFinalize(parts, group), streams, post, comb, layer=4, ctx=ctx)
    torch.testing.assert_close(new, moe_finalize.reference([parts], streams, post, comb))
    assert [(r.boundary, r.layer, r.path) for r in ctx.recorder.rows] == [
        ("moe_finalize", 4, "triton"),
        ("mhc_post", 4, "triton"),
    ]


@needs_compiler
def test_inductor_takes_more_shapes_than_the_compiler_recompiles_for() -> None:
    group = SingleGroup()
    ctx = context(group, "ar_norm=inductor")
    counts = (1, 2, 4, 15, 16, 17, 64, 129)
    for tokens, eps in [(tokens, 1e-5) for tokens in counts] + [(4, 1e-2), (4, 1e-3)]:
        x, residual = draw(5, tokens, H), draw(6, tokens, H)
        norm = Norm(draw(7, H), eps)
        y, total = ar_norm.run(PartialSum(x.clone(), group), residual, norm, subtype="residual", layer=0, ctx=ctx)
        want = ar_norm.reference([x], residual, norm)
        torch.testing.assert_close((y, total), want)
    assert {row.path for row in ctx.recorder.rows} == {"inductor"}


def test_a_path_that_only_chooses_names_the_ones_to_try() -> None:
    class Chooser(UnavailablePath):
        def chooses_from(self, names: Any) -> Any:
            return [name for name in names if name in ("picky", "split")]

        def order(self, boundary: str, subtype: str, shape: Any, group: Any) -> Any:
            return ("picky", "split") if shape.tokens < 4 else ("split",)

    class Picky(SplitPath):
        name = "picky"

        def declines(self, boundary: str, *, shape: Any, group: Any) -> Decline | None:
            return Decline(Gate.TOKENS_OVER_CAP, "more than two") if shape.tokens > 2 else None

    registry.register_path("chooser", lambda: Chooser("chooser", Decline(Gate.NOT_COVERED, "it only chooses")))
    registry.register_path("picky", Picky)
    group = SingleGroup()
    try:
        ctx = context(group, "ar_norm=chooser")
        for tokens in (2, 3, 4):
            owed = PartialSum(draw(1, tokens, H), group)
            ar_norm.run(owed, None, Norm(draw(7, H), 1e-5), subtype="no_residual", layer=0, ctx=ctx)
    finally:
        registry.forget_path("chooser")
        registry.forget_path("picky")
    rows = [(row.path, row.declined) for row in ctx.recorder.rows]
    assert rows == [("picky", ""), ("split", "picky: more than two [tokens_over_cap]"), ("split", "")]


def test_no_path_is_loaded_that_nobody_chose() -> None:
    def never() -> Path:
        raise AssertionError("this path was not chosen")

    registry.register_path("unwanted", never)
    try:
        context(SingleGroup(), "ar_norm=triton")
    finally:
        registry.forget_path("unwanted")


@both_paths
@pytest.mark.parametrize("key", QUANT_KEYS, ids=str)
@pytest.mark.parametrize(("with_residual", "width"), [(True, 256), (False, 256), (True, 160)])
def test_ar_norm_ends_in_what_the_consumer_takes(path: str, key: Any, with_residual: bool, width: int) -> None:
    """Bit for bit, in bfloat16: the normed value is rounded, then quantised; whoever does not compile it says so."""
    x, norm = draw(5, T, width, dtype=torch.bfloat16), Norm(draw(7, width, dtype=torch.bfloat16), 1e-5)
    residual = draw(6, T, width, dtype=torch.bfloat16) if with_residual else None
    quant = InputQuant(key, torch.tensor([0.5]) if key.needs_scale else None)
    group = SingleGroup()
    ctx = context(group, f"ar_norm={path}")
    subtype = "residual" if with_residual else "no_residual"
    q, total = ar_norm.run(PartialSum(x.clone(), group), residual, norm, subtype=subtype, layer=0, ctx=ctx, quant=quant)
    want, want_total = ar_norm.reference([x], residual, norm, quant)
    assert torch.equal(total, want_total) and q.key == key
    assert torch.equal(dequantise(q), dequantise(want))
    row = ctx.recorder.rows[0]
    assert row.path == path
    whole = "fp8" in key.name and (width == 256 or key.group != 128)
    assert ("quant_unsupported" in row.declined) == (path == "inductor" and not whole)


def test_operands_of_another_width_are_refused() -> None:
    """Kernels do not notice: they would read past the end."""
    group = SingleGroup()
    ctx, norm = context(group), Norm(draw(7, H), 1e-5)
    streams, post, comb = mhc_operands(torch.float32)
    where: dict[str, Any] = {"layer": 0, "ctx": ctx}

    def owed() -> PartialSum:
        return PartialSum(draw(5, T, H), group, "o_proj")

    def moe() -> DeferredFinalize:
        return DeferredFinalize(moe_operands(0, torch.float32), group, "experts")

    with pytest.raises(BadOperands, match="o_proj is 32 wide and the residual 40"):
        ar_norm.run(owed(), draw(6, T, 40), norm, subtype="residual", **where)
    with pytest.raises(BadOperands, match=r"the norm's weight is \(40,\) and must be \(32,\)"):
        ar_norm.run(owed(), draw(6, T, H), Norm(draw(7, 40), 1e-5), subtype="residual", **where)
    with pytest.raises(BadOperands, match="experts is 32 wide and the residual 40"):
        moe_finalize.run_norm(moe(), draw(6, T, 40), norm, subtype="residual", **where)
    with pytest.raises(BadOperands, match="the norm's weight"):
        moe_finalize.run_norm(moe(), draw(6, T, H), Norm(draw(7, 40), 1e-5), subtype="residual", **where)
    for wrong in (
        (streams[..., :24], post, comb),
        (streams[:, :3], post, comb),
        (streams, post[:, :3], comb),
        (streams, post, comb[:2]),
    ):
        with pytest.raises(BadOperands):
            mhc_post.run(owed(), *wrong, subtype="ffn_exit", **where)
        with pytest.raises(BadOperands):
            moe_finalize.run_mhc(moe(), *wrong, **where)
    assert not ctx.recorder.rows
    parts = moe_operands(0, torch.float32)
    with pytest.raises(BadOperands, match=r"shared \(3, 40\) must be \[tokens, hidden\]"):
        replace(parts, shared=draw(9, T, 40))


@pytest.mark.parametrize("consumer", [True, False])
@pytest.mark.parametrize("rank", [0, 1])
def test_experts_are_handed_on_whole_or_summed_at_once(rank: int, consumer: bool) -> None:
    group = Counting(2)
    group.rank = rank
    parts = replace(moe_operands(0, torch.float32), replicated=True)
    exit = Exit(group, "experts", tokens=T, consumer=consumer)
    left = moe_finalize.hand_on(exit, parts, context(group))
    assert isinstance(left, DeferredFinalize) == consumer and group.reductions == (not consumer)
    want = moe_finalize.partials([parts, parts])[rank]
    assert torch.equal(want, moe_finalize.partial(parts)) == (rank == 0)
    if isinstance(left, Full):
        torch.testing.assert_close(left.tensor, want * 2)
