"""The CUDA decode forward of the tiny model on a GPU: paths agree, graphs replay, nodes have provenance."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("triton")

from gpus import needs_gpu

from fusionscope.fusion_runtime.boundaries import mhc_post
from fusionscope.fusion_runtime.comm.loopback import Loopback, sync_channel
from fusionscope.fusion_runtime.context import PathChoice
from fusionscope.fusion_runtime.decode import graph
from fusionscope.fusion_runtime.decode.model import DecodeModel, make_context
from fusionscope.fusion_runtime.decode.spec import MODELS
from fusionscope.fusion_runtime.errors import RuntimeContractError
from fusionscope.fusion_runtime.kernels import launch

pytestmark = needs_gpu

TP, BATCH, CONTEXT = 4, 2, 256
FUSED = "mhc_post=triton,moe_finalize=triton"


def model_with(paths):
    group = Loopback(TP, "cuda")
    ctx = make_context(group, "cuda", PathChoice.parse(paths))
    return DecodeModel(MODELS["tiny"], group, BATCH, CONTEXT, "cuda", ctx)


def states(model):
    return [s for layer in model.layers if (s := getattr(layer.attention, "state", None)) is not None]


@pytest.fixture(scope="module")
def captured():
    arms = {"split": "", "post": "mhc_post=triton", "triton": FUSED}
    return {name: (model := model_with(paths), graph.capture(model)) for name, paths in arms.items()}


def test_split_and_triton_agree_over_replays(captured):
    for model, forward in captured.values():
        forward.replay()
        forward.replay()
        torch.cuda.synchronize()
        assert all(s.isfinite().all() for s in states(model))
    split, post, fused = (states(captured[name][0]) for name in ("split", "post", "triton"))
    assert all(torch.equal(a, b) for a, b in zip(split, post, strict=True))
    # The fused finalize rounds once where the split one rounds twice.
    assert all((a - b).norm() <= 0.05 * a.norm() for a, b in zip(split, fused, strict=True))


def test_fusing_removes_the_launches_it_should(captured):
    spec = MODELS["tiny"]
    moe = spec.layers - spec.dense_layers
    split, fused = (captured[name][1] for name in ("split", "triton"))
    # A post was two launches; a finalize with its post was four (sum, shared add, all-reduce, post).
    assert split.node_count - fused.node_count == (2 * spec.layers - moe) + 3 * moe


@pytest.mark.parametrize("name", ["split", "triton"])
def test_sites_bracket_nodes_and_edges_connect_them(captured, name):
    forward = captured[name][1]
    rows = forward.site_rows
    assert [(r.boundary, r.subtype, r.layer) for r in rows] == [site[:3] for site in MODELS["tiny"].boundary_map()]
    assert all(0 < r.first_node < r.last_node <= forward.node_count for r in rows)
    # Where the read is not joined, the site that would join it is split, whatever its write is.
    assert {r.path for r in rows if r.boundary != "mhc_post_pre"} == {name}
    assert forward.kernel_nodes == list(range(forward.node_count))
    assert len(forward.edges) >= forward.node_count - 1
    assert all(a != b and 0 <= a < forward.node_count and 0 <= b < forward.node_count for a, b, _ in forward.edges)


def test_all_ranks_in_one_launch_wait_for_each_other():
    hidden = 4096
    channel = sync_channel(TP, BATCH, hidden, torch.bfloat16, "cuda")
    for _ in range(50):
        x = torch.randn(TP, BATCH, hidden, device="cuda").bfloat16()
        R = torch.randn(BATCH, 4, hidden, device="cuda").bfloat16()
        post, comb = torch.rand(BATCH, 4, device="cuda"), torch.rand(BATCH, 4, 4, device="cuda")
        got = launch.ar_hc_post(x, R, post, comb, channel)
        want = mhc_post.reference(list(x), R, post, comb)
        for rank in range(TP):
            torch.testing.assert_close(got[rank].float(), want.float(), rtol=2e-2, atol=2e-2)


def test_loopback_buffers_must_be_there_before_a_capture():
    group = Loopback(TP, "cuda")
    x = torch.randn(BATCH, 64, device="cuda").bfloat16()
    recording = torch.cuda.CUDAGraph()
    with torch.cuda.graph(recording):
        y = x + 1
        with pytest.raises(RuntimeContractError, match="before capturing"):
            group.all_reduce(y)
