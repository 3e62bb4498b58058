"""The exit joined to the next read, in Triton's interpreter: arithmetic, slots, epochs, and the streams bit for bit."""

from __future__ import annotations

import os

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("triton")
if os.environ.get("TRITON_INTERPRET") != "1":
    pytest.skip("triton was imported before its interpreter was chosen", allow_module_level=True)

from fusionscope.fusion_runtime.boundaries import mhc_post, mhc_post_pre
from fusionscope.fusion_runtime.comm.loopback import Loopback, sync_channel
from fusionscope.fusion_runtime.context import DecodeContext, PathChoice
from fusionscope.fusion_runtime.decode import cuda_ops, reference_ops
from fusionscope.fusion_runtime.hyper import HyperWeights
from fusionscope.fusion_runtime.kernels import launch, launch_mhc_pre
from fusionscope.fusion_runtime.kernels.launch_mhc_pre import Tile, post_and_project, read, tile_for
from fusionscope.fusion_runtime.ownership import ForwardScope, PartialSum

SIZE, H = 2, 40
APART = (1, 2, 8)
#: Columns and tokens of a program, tokens: rows that are not full, columns that are not, both.
TILES = [(Tile(32, 1, 4), 1), (Tile(16, 2, 4), 2), (Tile(64, 4, 4), 4), (Tile(32, 4, 8), 5)]


@pytest.fixture(autouse=True)
def seed():
    torch.manual_seed(0)


def operands(tokens, dtype=torch.float32):
    streams = torch.randn(tokens, 4, H).to(dtype)
    return streams, torch.rand(tokens, 4), torch.rand(tokens, 4, 4).softmax(1)


def weights(hidden=H, dtype=torch.float32):
    fn = torch.randn(24, 4 * hidden) / (4 * hidden) ** 0.5
    return HyperWeights(fn, torch.rand(3), torch.randn(24), (1 + torch.randn(hidden) / 9).to(dtype), 1e-5)


def reading(streams, known):
    ctx = DecodeContext(Loopback(SIZE, "cpu"), reference_ops)
    return known.read(streams, ctx)


def close(got, want, tolerance=1e-5):
    for mine, other in zip(got, want, strict=True):
        torch.testing.assert_close(mine, other, rtol=10 * tolerance, atol=tolerance)


@pytest.mark.parametrize(("tile", "tokens"), TILES)
def test_all_ranks_write_and_read_site_after_site(tile, tokens):
    """A chain of sites over one channel: every site's streams and coefficients are the next one's."""
    channel, known = sync_channel(SIZE, tokens, H, torch.float32, "cpu", tile.block), weights()
    streams, post, comb = operands(tokens)
    for site in range(3):
        x = torch.randn(SIZE, tokens, H)
        new, sums = post_and_project(x, streams, post, comb, known.fn, channel, tile, APART)
        got = read(new, sums, known)
        want = mhc_post_pre.reference(list(x), streams, post, comb, known)
        for rank in range(SIZE):
            close((new[rank], *(part[rank] for part in got)), want)
            assert torch.equal(new[rank], new[0]) and torch.equal(got[0][rank], got[0][0])
        assert (channel.memory == -1).all() and (channel.epochs == site + 1).all()
        streams, post, comb = new[0], got[1][0], got[2][0]


@pytest.mark.parametrize("tokens", [15, 16, 17])
def test_streams_are_bit_for_bit_those_of_the_post_alone(tokens):
    channel, plain = (sync_channel(SIZE, tokens, H, torch.float16, "cpu", block) for block in (64, 64))
    x, known, beside = torch.randn(SIZE, tokens, H).half(), weights(dtype=torch.float16), operands(tokens, torch.half)
    new, sums = post_and_project(x, *beside, known.fn, channel, Tile(64, 8, 4), APART)
    assert torch.equal(new, launch.ar_hc_post(x, *beside, plain, (1, 2, 4, 8)))
    # What is read is what is stored: rounded.
    close(
        [part[1] for part in read(new, sums, known)][1:],
        read(new[1], launch_mhc_pre.project(new[1], known.fn), known)[1:],
    )
    flat = new[1].flatten(1).double()
    torch.testing.assert_close(sums[1].sum(1)[:, 24].double(), flat.square().sum(1), rtol=1e-5, atol=1e-5)


def test_a_channel_is_shared_with_kernels_of_one_program_a_token():
    """Epochs of all tokens go on together, whatever a program has."""
    tokens, tile = 3, Tile(64, 2, 4)
    channel, known, beside = sync_channel(SIZE, tokens, H, torch.float32, "cpu", 64), weights(), operands(3)
    for turn in range(4):
        x = torch.randn(SIZE, tokens, H)
        if turn % 2:
            got = launch.all_reduce(x, channel, (1, 2, 4, 8))
            torch.testing.assert_close(got[1], x.sum(0))
        else:
            new, _ = post_and_project(x, *beside, known.fn, channel, tile, APART)
            torch.testing.assert_close(new[1], mhc_post.reference(list(x), *beside), rtol=1e-4, atol=1e-5)
        assert (channel.memory == -1).all()


def test_zeros_keep_their_sign_and_no_nan_looks_empty():
    tokens, channel = 3, sync_channel(2, 3, H, torch.float16, "cpu", 32)
    x, known = torch.randn(2, tokens, H).half(), weights(dtype=torch.float16)
    streams, post, comb = operands(tokens, torch.half)
    x[:, 0], streams[0], post[0] = -0.0, -0.0, 1.0
    x[0, 1, 4] = float("nan")
    x.view(torch.int16)[1, 2, :8] = -1  # the very bits that mean "nothing here yet"
    post_and_project(x, streams, post, comb, known.fn, channel, Tile(32, 2, 4), (1,))
    sent = channel.memory.view(2, 2, 2, tokens, H)[1, 0, 0]
    assert not (sent == -1).any()
    assert (sent[0] == torch.tensor([-0.0], dtype=torch.half).view(torch.int16)).all()
    new, sums = post_and_project(x, streams, post, comb, known.fn, channel, Tile(32, 2, 4), (2, 8))
    x_next = read(new, sums, known)[0][0]
    assert not x_next[0].isnan().any() and x_next[1].isnan().all() and x_next[2].isnan().all()
    assert new[0, 1].isnan().sum() == 4 and new[0, 2].isnan().sum() == 4 * 8
    assert (channel.memory == -1).all()


def test_a_delayed_rank_sends_the_same():
    known, beside, x = weights(), operands(2), torch.randn(SIZE, 2, H)
    made = []
    for delays in (None, torch.tensor([0, 3], dtype=torch.int32)):
        channel = sync_channel(SIZE, 2, H, torch.float32, "cpu", 64)
        made.append(post_and_project(x, *beside, known.fn, channel, Tile(64, 2, 4), APART, delays))
    assert torch.equal(made[0][0], made[1][0]) and torch.equal(made[0][1], made[1][1])


@pytest.mark.parametrize(("path", "tokens"), [("split", 2), *(("triton", t) for t in (1, 2, 4, 15, 16, 17))])
def test_timing_mode_of_a_chain(path, tokens, monkeypatch):
    monkeypatch.setattr(launch_mhc_pre, "tile_for", lambda tokens, hidden: Tile(64, 8, 4))
    ctx = DecodeContext(Loopback(SIZE, "cpu"), cuda_ops, PathChoice.parse(f"mhc_post_pre={path}"))
    known, (streams, post, comb) = weights(), operands(tokens)
    for layer in range(2):
        x = torch.randn(tokens, H)
        want = mhc_post_pre.reference(ctx.group.partials(x), streams, post, comb, known)
        with ForwardScope():
            owed = PartialSum(x, ctx.group)
            made = mhc_post_pre.run(owed, streams, post, comb, known, layer=layer, ctx=ctx)
        close(made, want)
        streams, _, post, comb = made
    rows = [(row.boundary, row.subtype, row.path, row.declined) for row in ctx.recorder.rows]
    assert rows == [("mhc_post_pre", "attn_exit", path, ""), ("mhc_post", "attn_exit", path, "")] * 2


def test_views_are_read_as_what_they_show():
    ctx = DecodeContext(Loopback(SIZE, "cpu"), cuda_ops, PathChoice.parse("mhc_post_pre=triton"))
    known, (streams, post, comb) = weights(), operands(3)
    x = torch.randn(H, 3).T
    turned = streams.transpose(0, 2).contiguous().transpose(0, 2)
    made = mhc_post_pre.run(PartialSum(x, ctx.group), turned, post.T.contiguous().T, comb, known, layer=0, ctx=ctx)
    close(made, mhc_post_pre.reference(ctx.group.partials(x), streams, post, comb, known))


@pytest.mark.parametrize("hidden", [64, 1024, 4096, 7168])
def test_a_tile_fits_every_size(hidden):
    for tokens in (1, 2, 3, 16, 64):
        tile = tile_for(tokens, hidden)
        assert tile.block & (tile.block - 1) == 0 and tile.rows & (tile.rows - 1) == 0
        assert tile.block >= 16 and tile.rows <= max(1, 2 * tokens - 1)
