"""The one-shot exchanges: arithmetic, flags and epochs, in Triton's interpreter."""

from __future__ import annotations

import os

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("triton")
if os.environ.get("TRITON_INTERPRET") != "1":
    pytest.skip("triton was imported before its interpreter was chosen", allow_module_level=True)

from fusionscope.fusion_runtime.boundaries import ar_norm, mhc_post, moe_finalize
from fusionscope.fusion_runtime.comm.loopback import Loopback, make_channel
from fusionscope.fusion_runtime.context import DecodeContext, PathChoice
from fusionscope.fusion_runtime.decode import cuda_ops
from fusionscope.fusion_runtime.errors import RuntimeContractError
from fusionscope.fusion_runtime.kernels import launch
from fusionscope.fusion_runtime.ownership import (
    DeferredFinalize,
    FinalizeOperands,
    ForwardScope,
    PartialSum,
)
from fusionscope.fusion_runtime.paths.base import Norm
from fusionscope.fusion_runtime.paths.triton import TritonPath

SIZE, T, H = 4, 2, 24
TWO_LAUNCHES = (1, 2)


@pytest.fixture(autouse=True)
def seed():
    torch.manual_seed(0)


def operands():
    return torch.randn(T, 4, H), torch.rand(T, 4), torch.rand(T, 4, 4)


def close(got, want):
    torch.testing.assert_close(got, want, rtol=1e-5, atol=1e-5)


def context(paths):
    return DecodeContext(Loopback(SIZE, "cpu"), cuda_ops, PathChoice.parse(paths))


def test_all_ranks_reduce_round_after_round():
    channel = make_channel(SIZE, T, H, 16, torch.float32, "cpu")
    for turn in range(5):
        x = torch.randn(SIZE, T, H)
        got = launch.all_reduce(x, channel, SIZE, ranks=SIZE, stages=TWO_LAUNCHES)
        for rank in range(SIZE):
            close(got[rank], x.sum(0))
            assert torch.equal(got[rank], got[0])
        assert (channel.epochs == turn + 1).all()
        off_diagonal = ~torch.eye(SIZE, dtype=torch.bool)
        assert (channel.pads[off_diagonal] == turn + 1).all()


def test_all_ranks_gather():
    channel = make_channel(SIZE, T, H, 16, torch.float32, "cpu")
    x = torch.randn(SIZE, T, H)
    got = launch.all_gather_last(x, channel, SIZE, ranks=SIZE, stages=TWO_LAUNCHES)
    for rank in range(SIZE):
        assert torch.equal(got[rank], torch.cat(list(x), -1))


def test_all_ranks_post():
    channel = make_channel(SIZE, T, H, 16, torch.float32, "cpu")
    x, (R, post, comb) = torch.randn(SIZE, T, H), operands()
    got = launch.ar_hc_post(x, R, post, comb, channel, SIZE, ranks=SIZE, stages=TWO_LAUNCHES)
    for rank in range(SIZE):
        close(got[rank], mhc_post.reference(list(x), R, post, comb))


def test_all_ranks_finalize_and_post():
    channel = make_channel(SIZE, T, H, 16, torch.float32, "cpu")
    gemm2, shared = torch.randn(SIZE, 6, H), torch.randn(SIZE, T, H)
    idx, weights = torch.tensor([[0, 5, -1], [2, 1, 4]], dtype=torch.int32), torch.rand(T, 3)
    R, post, comb = operands()
    parts = FinalizeOperands(gemm2, idx, weights, 2.5, shared)
    got = launch.moe_finalize_ar_hc_post(parts, R, post, comb, channel, SIZE, ranks=SIZE, stages=TWO_LAUNCHES)
    each = [FinalizeOperands(gemm2[r], idx, weights, 2.5, shared[r]) for r in range(SIZE)]
    for rank in range(SIZE):
        close(got[rank], moe_finalize.reference(each, R, post, comb))


@pytest.mark.parametrize("bias", [0.0, 1.0])
def test_all_ranks_norm(bias):
    channel = make_channel(SIZE, T, H, 32, torch.float32, "cpu")
    x, residual, w = torch.randn(SIZE, T, H), torch.randn(T, H), torch.randn(H)
    normed, total = launch.all_reduce_norm(x, residual, w, 1e-5, bias, channel, SIZE, ranks=SIZE, stages=TWO_LAUNCHES)
    want = ar_norm.reference(list(x), residual, Norm(w, 1e-5, bias))
    for rank in range(SIZE):
        close(normed[rank], want[0])
        close(total[rank], want[1])


@pytest.mark.parametrize("path", ["split", "triton"])
def test_timing_mode_of_a_chain_of_posts(path):
    ctx = context(f"mhc_post={path}")
    R, post, comb = operands()
    want = R
    for layer in range(3):
        x = torch.randn(T, H)
        want = mhc_post.reference(ctx.group.partials(x), want, post, comb)
        with ForwardScope():
            R = mhc_post.run(PartialSum(x, ctx.group), R, post, comb, subtype="attn_exit", layer=layer, ctx=ctx)
        close(R, want)
    assert [(row.path, row.declined) for row in ctx.recorder.rows] == [(path, "")] * 3


@pytest.mark.parametrize("path", ["split", "triton"])
@pytest.mark.parametrize("has_shared", [True, False])
def test_timing_mode_finalize(path, has_shared):
    ctx = context(f"moe_finalize={path}")
    idx, weights = torch.tensor([[0, 5], [2, -1]], dtype=torch.int32), torch.rand(T, 2)
    parts = FinalizeOperands(torch.randn(6, H), idx, weights, 2.5, torch.randn(T, H) if has_shared else None)
    R, post, comb = operands()
    own = moe_finalize.partial(parts)
    want = mhc_post.reference(ctx.group.partials(own), R, post, comb)
    got = moe_finalize.run(DeferredFinalize(parts, ctx.group), R, post, comb, layer=3, ctx=ctx)
    close(got, want)
    assert [(row.boundary, row.path) for row in ctx.recorder.rows] == [("moe_finalize", path), ("mhc_post", path)]


@pytest.mark.parametrize("path", ["split", "triton"])
def test_timing_mode_norm(path):
    ctx = context(f"ar_norm={path}")
    x, residual, norm = torch.randn(T, H), torch.randn(T, H), Norm(torch.randn(H), 1e-5)
    parts = ctx.group.partials(x, 32 if path == "triton" else None)
    got = ar_norm.run(PartialSum(x, ctx.group), residual, norm, subtype="residual", layer=0, ctx=ctx)
    for mine, want in zip(got, ar_norm.reference(parts, residual, norm), strict=True):
        close(mine, want)


def test_timing_mode_gather():
    group = Loopback(SIZE, "cpu")
    x = torch.randn(T, 10)
    got = group.all_gather_last(x)
    assert torch.equal(got[:, :10], x)
    assert got.shape == (T, 40) and got[:, 10:].all()


def test_a_post_may_write_over_the_streams_it_read():
    group = Loopback(SIZE, "cpu")
    x, (R, post, comb) = torch.randn(T, H), operands()
    want = mhc_post.reference(group.partials(x), R, post, comb)
    channel = group.channel(T, H, x.dtype)
    launch._run(launch.kernels.ar_hc_post_oneshot_kernel, channel, (x, R, post, comb, R), (), SIZE, 1, (3,))
    close(R, want)


def test_the_triton_path_declines_a_process_group_and_one_rank():
    from types import SimpleNamespace

    from fusionscope.fusion_runtime.comm.single import SingleGroup

    shape = SimpleNamespace(tokens=T, hidden=H, dtype=torch.float32, device=torch.device("cpu"), top_k=0)
    path = TritonPath()
    assert path.declines("mhc_post", shape=shape, group=Loopback(SIZE, "cpu")) is None
    assert "nothing to reduce" in path.declines("mhc_post", shape=shape, group=SingleGroup())
    other = SimpleNamespace(size=4, kind="gloo")
    assert "symmetric memory" in path.declines("mhc_post", shape=shape, group=other)
    shape.tokens = 129
    assert "129 tokens" in path.declines("mhc_post", shape=shape, group=Loopback(SIZE, "cpu"))


def test_loopback_names_the_sizes_it_can_emulate():
    with pytest.raises(RuntimeContractError, match="not 3"):
        Loopback(3, "cpu")
