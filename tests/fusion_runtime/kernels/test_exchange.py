"""The one-shot exchanges: arithmetic, slots and epochs, in Triton's interpreter."""

from __future__ import annotations

import os

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("triton")
if os.environ.get("TRITON_INTERPRET") != "1":
    pytest.skip("triton was imported before its interpreter was chosen", allow_module_level=True)

from fusionscope.fusion_runtime.boundaries import ar_norm, mhc_post, moe_finalize
from fusionscope.fusion_runtime.comm.loopback import Loopback, sync_channel
from fusionscope.fusion_runtime.context import DecodeContext, PathChoice
from fusionscope.fusion_runtime.decode import cuda_ops
from fusionscope.fusion_runtime.errors import RuntimeContractError
from fusionscope.fusion_runtime.kernels import launch
from fusionscope.fusion_runtime.norms import Norm
from fusionscope.fusion_runtime.ownership import (
    DeferredFinalize,
    FinalizeOperands,
    ForwardScope,
    PartialSum,
)
from fusionscope.fusion_runtime.quant import FP8_TOKEN_GROUP_128, MXFP4, InputQuant

SIZE, T, H = 4, 2, 24
STAGES = (1, 2, 4, 8)


@pytest.fixture(autouse=True)
def seed():
    torch.manual_seed(0)


def operands():
    return torch.randn(T, 4, H), torch.rand(T, 4), torch.rand(T, 4, 4)


def close(got, want):
    torch.testing.assert_close(got, want, rtol=1e-5, atol=1e-5)


def channel_of(block=16, dtype=torch.float32, size=SIZE):
    return sync_channel(size, T, H, dtype, "cpu", block)


def context(paths):
    return DecodeContext(Loopback(SIZE, "cpu"), cuda_ops, PathChoice.parse(paths))


def emptied(channel):
    """Nothing is left in a slot that was read."""
    return bool((channel.memory == -1).all())


def summed_over_rows(channel, x, residual, norm, want, quant=None):
    """Norms of rows that several programs share, one exchange after the other."""
    for turn in range(3):
        normed, total = launch.all_reduce_norm(x, residual, norm, channel, quant, STAGES)
        for rank in range(SIZE):
            close(normed[rank], want[0])
            close(total[rank], want[1])
        # The other slot is empty again, this one still has what the programs told each other.
        told = channel.sums[..., : channel.blocks]
        assert (told[:, :, (turn + 1) % 2] == -1).all() and (told[:, :, turn % 2] != -1).all()
        assert (channel.sums[..., channel.blocks :] == -1).all()


def test_all_ranks_reduce_round_after_round():
    channel = channel_of()
    for turn in range(5):
        x = torch.randn(SIZE, T, H)
        got = launch.all_reduce(x, channel, STAGES)
        for rank in range(SIZE):
            close(got[rank], x.sum(0))
            assert torch.equal(got[rank], got[0])
        assert (channel.epochs == turn + 1).all()
        assert emptied(channel)


def test_a_part_goes_to_the_slot_of_its_epoch():
    channel = channel_of()
    x = torch.randn(SIZE, T, H)
    launch.all_reduce(x, channel, (1,))
    parts = channel.memory.view(SIZE, 2, SIZE, T, H)
    for owner in range(SIZE):
        for writer in range(SIZE):
            want = x[writer].view(torch.int32) if writer != owner else torch.full((T, H), -1, dtype=torch.int32)
            assert torch.equal(parts[owner, 0, writer], want)
    assert (parts[:, 1] == -1).all()
    launch.all_reduce(x, channel, (2, 4, 8))
    launch.all_reduce(x, channel, (1,))
    assert (channel.memory.view(SIZE, 2, -1)[:, 0] == -1).all()


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32])
def test_zeros_keep_their_sign_and_no_nan_looks_empty(dtype):
    channel = channel_of(dtype=dtype, size=2)
    x = torch.randn(2, T, H).to(dtype)
    x[:, 0, :4] = -0.0
    x[0, 0, 4] = float("nan")
    words = torch.int16 if dtype.itemsize == 2 else torch.int32
    x.view(words)[1, 1, :8] = -1  # the very bits that mean "nothing here yet"
    x[0, 0, 5] = float("inf")
    launch.all_reduce(x, channel, (1,))
    sent = channel.memory.view(2, 2, 2, T, H)[1, 0, 0]
    assert not (sent == -1).any()
    assert (sent[0, :4] == torch.tensor([-0.0], dtype=dtype).view(words)).all()
    got = launch.all_reduce(x, channel, (2, 4, 8))
    want = x.float().sum(0)
    assert torch.equal(got[0].isnan(), want.isnan()) and got[0].isnan().sum() == 9
    torch.testing.assert_close(got[0].float(), want, rtol=1e-2, atol=1e-2, equal_nan=True)
    assert emptied(channel)


def test_a_delayed_rank_sends_the_same():
    x = torch.randn(SIZE, T, H)
    delays = torch.tensor([0, 3, 1, 7], dtype=torch.int32)
    prompt = launch.all_reduce(x, channel_of(), STAGES)
    assert torch.equal(launch.all_reduce(x, channel_of(), STAGES, delays), prompt)


def test_all_ranks_gather():
    channel = channel_of()
    x = torch.randn(SIZE, T, H)
    for _ in range(3):
        got = launch.all_gather_last(x, channel, STAGES)
        for rank in range(SIZE):
            assert torch.equal(got[rank], torch.cat(list(x), -1))
        assert emptied(channel)


def test_all_ranks_post():
    channel = channel_of()
    x, (R, post, comb) = torch.randn(SIZE, T, H), operands()
    got = launch.ar_hc_post(x, R, post, comb, channel, STAGES)
    for rank in range(SIZE):
        close(got[rank], mhc_post.reference(list(x), R, post, comb))


def moe_parts():
    gemm2, shared = torch.randn(SIZE, 6, H), torch.randn(SIZE, T, H)
    idx, weights = torch.tensor([[0, 5, -1], [2, 1, 4]], dtype=torch.int32), torch.rand(T, 3)
    each = [FinalizeOperands(gemm2[r], idx, weights, 2.5, shared[r]) for r in range(SIZE)]
    return FinalizeOperands(gemm2, idx, weights, 2.5, shared), each


def test_all_ranks_finalize_and_post():
    parts, each = moe_parts()
    R, post, comb = operands()
    got = launch.moe_finalize_ar_hc_post(parts, R, post, comb, channel_of(), STAGES)
    for rank in range(SIZE):
        close(got[rank], moe_finalize.reference(each, R, post, comb))


def test_all_ranks_finalize_and_norm():
    parts, each = moe_parts()
    residual, norm = torch.randn(T, H), Norm(torch.randn(H), 1e-5)
    normed, total = launch.moe_finalize_ar_norm(parts, residual, norm, channel_of(128), stages=STAGES)
    want = moe_finalize.reference_norm(each, residual, norm)
    for rank in range(SIZE):
        close(normed[rank], want[0])
        close(total[rank], want[1])


@pytest.mark.parametrize("bias", [0.0, 1.0])
@pytest.mark.parametrize("added", [True, False])
def test_all_ranks_norm(bias, added):
    x, residual = torch.randn(SIZE, T, H), torch.randn(T, H) if added else None
    norm = Norm(torch.randn(H), 1e-5, bias)
    normed, total = launch.all_reduce_norm(x, residual, norm, channel_of(32), stages=STAGES)
    want = ar_norm.reference(list(x), residual, norm)
    for rank in range(SIZE):
        close(normed[rank], want[0])
        close(total[rank], want[1])


@pytest.mark.parametrize("block", [8, 16])
def test_programs_of_a_row_sum_its_squares_together(block):
    x, residual, norm = torch.randn(SIZE, T, H), torch.randn(T, H), Norm(torch.randn(H), 1e-5)
    summed_over_rows(channel_of(block), x, residual, norm, ar_norm.reference(list(x), residual, norm))


def test_a_row_of_nan_is_normed_and_not_waited_for():
    x, norm = torch.randn(SIZE, T, H), Norm(torch.randn(H), 1e-5)
    x.view(torch.int32)[0, 1, 3] = -1
    normed, _ = launch.all_reduce_norm(x, None, norm, channel_of(8), stages=STAGES)
    assert normed[:, 1].isnan().all() and not normed[:, 0].isnan().any()


def test_scales_of_a_row_of_several_programs():
    x, residual, norm = torch.randn(2, T, 320), torch.randn(T, 320), Norm(torch.randn(320), 1e-5)
    wanted = InputQuant(FP8_TOKEN_GROUP_128)
    channel = sync_channel(2, T, 320, torch.float32, "cpu", 128)
    got, _ = launch.all_reduce_norm(x, residual, norm, channel, wanted, STAGES)
    want, _ = ar_norm.reference(list(x), residual, norm, wanted)
    for rank in range(2):
        close(got.scale[rank], want.scale)


def test_fp4_of_a_row_of_several_programs():
    x, residual, norm = torch.randn(2, T, 320), torch.randn(T, 320), Norm(torch.randn(320), 1e-5)
    one, several = (sync_channel(2, T, 320, torch.float32, "cpu", block) for block in (512, 128))
    whole, _ = launch.all_reduce_norm(x, residual, norm, one, InputQuant(MXFP4), STAGES)
    shared, _ = launch.all_reduce_norm(x, residual, norm, several, InputQuant(MXFP4), STAGES)
    assert shared.scale.shape == (2, T, 10) and shared.data.shape == (2, T, 160)
    assert torch.equal(shared.scale, whole.scale)
    assert (shared.data != whole.data).float().mean() < 0.01


def test_the_sum_is_rounded_before_the_residual_is_added():
    # In float16, as the interpreter cuts float32 off where it should round it to bfloat16.
    x, residual = torch.randn(SIZE, T, H).half(), torch.randn(T, H).half()
    norm = Norm(torch.randn(H).half(), 1e-5)
    channel = channel_of(32, torch.float16)
    normed, total = launch.all_reduce_norm(x, residual, norm, channel, stages=STAGES)
    want = ar_norm.reference(list(x), residual, norm)
    for rank in range(SIZE):
        assert torch.equal(total[rank], want[1])
        torch.testing.assert_close(normed[rank], want[0], rtol=2e-3, atol=2e-3)


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


def one_rank_of_a_moe(has_shared):
    idx, weights = torch.tensor([[0, 5], [2, -1]], dtype=torch.int32), torch.rand(T, 2)
    return FinalizeOperands(torch.randn(6, H), idx, weights, 2.5, torch.randn(T, H) if has_shared else None)


@pytest.mark.parametrize("path", ["split", "triton"])
@pytest.mark.parametrize("has_shared", [True, False])
def test_timing_mode_finalize(path, has_shared):
    ctx = context(f"moe_finalize={path}")
    parts = one_rank_of_a_moe(has_shared)
    R, post, comb = operands()
    own = moe_finalize.partial(parts)
    want = mhc_post.reference(ctx.group.partials(own), R, post, comb)
    got = moe_finalize.run_mhc(DeferredFinalize(parts, ctx.group), R, post, comb, layer=3, ctx=ctx)
    close(got, want)
    assert [(row.boundary, row.path) for row in ctx.recorder.rows] == [("moe_finalize", path), ("mhc_post", path)]


@pytest.mark.parametrize("path", ["split", "triton"])
def test_timing_mode_finalize_through_the_norm(path):
    ctx = context(f"moe_finalize={path}")
    parts, residual, norm = one_rank_of_a_moe(True), torch.randn(T, H), Norm(torch.randn(H), 1e-5)
    summed = ctx.group.partials(moe_finalize.partial(parts), 128 if path == "triton" else None)
    owed = DeferredFinalize(parts, ctx.group)
    got = moe_finalize.run_norm(owed, residual, norm, subtype="residual", layer=3, ctx=ctx)
    for mine, want in zip(got, ar_norm.reference(summed, residual, norm), strict=True):
        close(mine, want)
    assert [(row.boundary, row.path) for row in ctx.recorder.rows] == [("moe_finalize", path), ("ar_norm", path)]


@pytest.mark.parametrize("path", ["split", "triton"])
def test_timing_mode_norm(path):
    ctx = context(f"ar_norm={path}")
    x, residual, norm = torch.randn(T, H), torch.randn(T, H), Norm(torch.randn(H), 1e-5)
    parts = ctx.group.partials(x, 128 if path == "triton" else None)
    got = ar_norm.run(PartialSum(x, ctx.group), residual, norm, subtype="residual", layer=0, ctx=ctx)
    for mine, want in zip(got, ar_norm.reference(parts, residual, norm), strict=True):
        close(mine, want)


def test_timing_mode_leaves_the_peers_parts_where_they_are():
    group = Loopback(SIZE, "cpu")
    x = torch.randn(T, H)
    first = group.all_reduce(x)
    assert torch.equal(group.all_reduce(x), first)
    close(first, sum(group.partials(x)))


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
    launch._run(launch.kernels.ar_hc_post_oneshot_kernel, channel, (x, R, post, comb, R), (), (15,), None)
    close(R, want)


def test_loopback_names_the_sizes_it_can_emulate():
    with pytest.raises(RuntimeContractError, match="not 3"):
        Loopback(3, "cpu")
