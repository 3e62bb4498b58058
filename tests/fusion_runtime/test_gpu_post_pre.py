"""mhc_post_pre on a GPU: the joined kernels against the reference, and in the streams bit for bit the separate ones."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("triton")

from gpus import needs_gpu

from fusionscope.fusion_runtime.boundaries import mhc_post_pre
from fusionscope.fusion_runtime.comm.loopback import Loopback, sync_channel
from fusionscope.fusion_runtime.context import PathChoice
from fusionscope.fusion_runtime.decode.model import make_context
from fusionscope.fusion_runtime.hyper import HyperWeights
from fusionscope.fusion_runtime.kernels import launch, launch_mhc_pre, launch_norm
from fusionscope.fusion_runtime.measuring import captured
from fusionscope.fusion_runtime.ownership import PartialSum
from fusionscope.fusion_runtime.paths.triton import MAX_JOINED_TOKENS

pytestmark = needs_gpu

H = 4096
TOKENS = (1, 2, 4, 15, 16, 17, 64, 65)
TILES = [(block, rows, warps) for block in (16, 32, 64) for rows, warps in ((1, 4), (4, 4), (4, 8))]


def weights(seed=0):
    draw = torch.Generator("cuda").manual_seed(seed)

    def normal(*shape, std=1.0):
        return torch.randn(shape, generator=draw, device="cuda") * std

    fn, norm = normal(24, 4 * H, std=(4 * H) ** -0.5), (1 + normal(H, std=0.1)).bfloat16()
    return HyperWeights(fn, normal(3, std=0.1) + 0.5, normal(24, std=0.5), norm, 1e-5)


def operands(tokens):
    x, streams = torch.randn(tokens, H, device="cuda").bfloat16(), torch.randn(tokens, 4, H, device="cuda").bfloat16()
    return x, streams, torch.rand(tokens, 4, device="cuda"), torch.rand(tokens, 4, 4, device="cuda").softmax(1)


def bits(tensor):
    return tensor.view(torch.int16).int()


def near(got, want):
    """float32 sums in another order: coefficients to 1e-4, the normed input to two steps of bfloat16."""
    torch.testing.assert_close(got[1], want[1], rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(got[2], want[2], rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(got[0].float(), want[0].float(), rtol=1.6e-2, atol=1e-2)


@pytest.mark.parametrize("tokens", TOKENS)
def test_joined_against_the_reference_and_split(tokens):
    group, read = Loopback(4, "cuda"), weights()
    joined = make_context(group, "cuda", PathChoice.parse("mhc_post_pre=triton"))
    split = make_context(group, "cuda", PathChoice.parse(""))
    x, streams, post, comb = operands(tokens)
    before = streams.clone()
    got = mhc_post_pre.run(PartialSum(x.clone(), group), streams, post, comb, read, layer=0, ctx=joined)
    apart = mhc_post_pre.run(PartialSum(x.clone(), group), streams, post, comb, read, layer=0, ctx=split)
    want = mhc_post_pre.reference(group.partials(x), streams, post, comb, read)
    assert torch.equal(streams, before)
    assert torch.equal(bits(got.streams), bits(apart.streams))
    near(got[1:], apart[1:])
    # Of the streams as they were stored: theirs may differ from the reference's in the last bit.
    near(got[1:], mhc_post_pre.HyperWeights.read(read, got.streams, split))
    torch.testing.assert_close(got.streams.float(), want.streams.float(), rtol=1e-2, atol=3e-2)
    torch.testing.assert_close(got.x.float(), want.x.float(), rtol=3e-2, atol=5e-2)
    rows = [(row.boundary, row.path) for row in joined.recorder.rows]
    taken = "triton" if tokens <= MAX_JOINED_TOKENS else "split"
    assert rows == [("mhc_post_pre", taken), ("mhc_post", taken)]


@pytest.mark.parametrize(("block", "rows", "warps"), TILES)
def test_every_tile_writes_the_same_streams(block, rows, warps):
    read, group = weights(1), Loopback(4, "cuda")
    for tokens in (1, 5, 16):
        x, streams, post, comb = operands(tokens)
        apart = launch_norm.mhc_post(group.all_reduce(x), streams, post, comb)
        channel = group.channel(tokens, H, x.dtype, block)
        tile = launch_mhc_pre.Tile(block, rows, warps)
        new, sums = launch_mhc_pre.post_and_project(x, streams, post, comb, read.fn, channel, tile)
        assert torch.equal(bits(new), bits(apart))
        near(
            launch_mhc_pre.read(new, sums, read),
            launch_mhc_pre.read(apart, launch_mhc_pre.project(apart, read.fn), read),
        )
        flat = new.flatten(1).float()
        exact = torch.cat([flat.double() @ read.fn.double().T, flat.double().square().sum(1, keepdim=True)], 1)
        torch.testing.assert_close(sums.sum(1)[:, :25].double(), exact, rtol=1e-4, atol=1e-4)


def test_late_ranks_in_one_launch():
    """Four ranks whose programs run at once and wait for each other, 50 sites of a chain, in a graph."""
    tokens, tile = 4, launch_mhc_pre.Tile(64, 4, 4)
    channel = sync_channel(4, tokens, H, torch.bfloat16, "cuda", tile.block)
    plain = sync_channel(4, tokens, H, torch.bfloat16, "cuda")
    read, (_, streams, post, comb) = weights(2), operands(tokens)
    x = torch.randn(4, tokens, H, device="cuda").bfloat16()
    delays = torch.randint(0, 200, (50, 4), device="cuda", dtype=torch.int32)

    def chain():
        new = streams
        for site in range(50):
            everywhere, sums = launch_mhc_pre.post_and_project(
                x, new, post, comb, read.fn, channel, tile, delays=delays[site]
            )
            new = everywhere[site % 4]
        return everywhere, launch_mhc_pre.read(everywhere, sums, read)

    graph = captured(chain)
    for _ in range(3):
        x.copy_(torch.randn_like(x))
        graph.replay()
        want = streams
        for _ in range(50):
            want = launch.ar_hc_post(x, want, post, comb, plain)[0]
        everywhere, (normed, _, _) = graph.kept
        for rank in range(4):
            assert torch.equal(bits(everywhere[rank]), bits(want))
            assert torch.equal(bits(normed[rank]), bits(normed[0]))


def test_nothing_waits_for_a_zero_or_a_nan():
    group, read = Loopback(4, "cuda"), weights(3)
    ctx = make_context(group, "cuda", PathChoice.parse("mhc_post_pre=triton"))
    x, streams, post, comb = operands(4)
    x[0], x[1, :8] = -0.0, float("nan")
    x.view(torch.int16)[2, :8] = -1
    got = mhc_post_pre.run(PartialSum(x, group), streams, post, comb, read, layer=0, ctx=ctx)
    assert got.x[1].isnan().all() and got.x[2].isnan().all()
    assert not got.x[0].isnan().any() and not got.x[3].isnan().any()
