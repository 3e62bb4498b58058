"""The flashinfer path against fake libraries: gates, arguments by version, and who writes over what.

The fakes take what the real operations take: flashinfer-python 0.6.8, 0.6.13 and 0.7.4. No GPU: they compute with
torch.
"""

from __future__ import annotations

import sys
from dataclasses import replace

import pytest

torch = pytest.importorskip("torch")

from fake_libraries import BF16, JOINED, SHAPE, H, OverGloo, Peers, T, library, read_of, tensors

from fusionscope.fusion_runtime.boundaries import ar_norm, mhc_post, mhc_post_pre, moe_finalize
from fusionscope.fusion_runtime.comm.single import SingleGroup
from fusionscope.fusion_runtime.gates import Gate
from fusionscope.fusion_runtime.hyper import HyperWeights
from fusionscope.fusion_runtime.norms import Norm, apply
from fusionscope.fusion_runtime.ownership import DeferredFinalize, FinalizeOperands, PartialSum
from fusionscope.fusion_runtime.paths import flashinfer as flashinfer_path
from fusionscope.fusion_runtime.quant import (
    FP8_STATIC_TENSOR,
    FP8_TOKEN_GROUP_128,
    InputQuant,
    quantise,
)

pytestmark = pytest.mark.usefixtures("hopper")


def norms_of_one_rank():
    def write(x, residual, weight, eps, bias):
        total = x.float() + residual.float()
        residual.copy_(total)
        return apply(Norm(weight, eps, bias), total)

    def fused_add_rmsnorm(input, residual, weight, eps=1e-6, enable_pdl=None):
        input.copy_(write(input, residual, weight, eps, 0.0))

    def gemma_fused_add_rmsnorm(input, residual, weight, eps=1e-6, enable_pdl=None):
        input.copy_(write(input, residual, weight, eps, 1.0))

    def rmsnorm(input, weight, eps=1e-6, out=None, enable_pdl=None):
        return apply(Norm(weight, eps), input)

    def fused_add_rmsnorm_quant(out, input, residual, weight, scale, eps=1e-6, enable_pdl=None):
        y = write(input, residual, weight, eps, 0.0).to(input.dtype)
        out.copy_((y.float() / scale).clamp(-448, 448).to(out.dtype))

    return dict(locals())


class Patterns:
    kARResidualRMSNorm = 1
    kARResidualRMSNormFP8Quant = 2
    kMoEFinalizeARResidualRMSNorm = 7


def fused(seen, input, workspace, pattern, residual_in, residual_out, norm_out, rms_gamma, rms_eps, weight_bias=0.0,
          quant_out=None, scale_factor=None, expanded_idx_to_permuted_idx=None, expert_scale_factor=None,
          shared_expert_output=None, **rest):  # fmt: skip
    """What the operation does, for peers that all have the same part."""
    seen.append({"pattern": pattern, "workspace": workspace, "weight_bias": weight_bias, **rest})
    x = input
    if pattern == 7:
        parts = FinalizeOperands(
            input, expanded_idx_to_permuted_idx, expert_scale_factor.float(), 1.0, shared_expert_output
        )
        x = moe_finalize.partial(parts)
    norm = Norm(rms_gamma, rms_eps, weight_bias)
    y, total = ar_norm.reference([x] * workspace["world_size"], residual_in, norm)
    norm_out.copy_(y)
    residual_out.copy_(total)
    if quant_out is not None:
        quant_out.copy_(quantise(y, InputQuant(FP8_STATIC_TENSOR, scale_factor)).data)


def fusions_0_6_13(seen):
    def create_allreduce_fusion_workspace(backend="auto", world_size=None, rank=None, max_token_num=None,
                                          hidden_dim=None, dtype=None, gpus_per_node=None, comm_backend=None,
                                          force_oneshot_support=False, group=None):  # fmt: skip
        return dict(locals())

    def allreduce_fusion(input, workspace, pattern, launch_with_pdl=False, trigger_completion_at_end=True, output=None,
                         residual_out=None, norm_out=None, quant_out=None, scale_out=None, residual_in=None,
                         rms_gamma=None, rms_eps=1e-6, scale_factor=None, layout_code=None, use_oneshot=None,
                         fp32_acc=False, expanded_idx_to_permuted_idx=None, expert_scale_factor=None,
                         shared_expert_output=None, block_quant_group_size=None, weight_bias=0.0):  # fmt: skip
        fused(**{"seen": seen, **locals()})

    return {**locals(), "AllReduceFusionPattern": Patterns}


def fusions_0_7_4(seen):
    def create_allreduce_fusion_workspace(backend="auto", world_size=None, rank=None, max_token_num=None,
                                          hidden_dim=None, dtype=None, gpus_per_node=None, comm_backend=None,
                                          force_oneshot_support=False, group=None, *, top_k=None, rms_eps=None,
                                          weight_bias=None, routed_scaling_factor=None, config=None):  # fmt: skip
        assert top_k is rms_eps is weight_bias is None, "another backend's arguments raise"
        return dict(locals())

    def allreduce_fusion(input, workspace, pattern, launch_with_pdl=False, trigger_completion_at_end=True, output=None,
                         residual_out=None, norm_out=None, quant_out=None, scale_out=None, residual_in=None,
                         rms_gamma=None, rms_eps=1e-6, scale_factor=None, layout_code=None, use_oneshot=None,
                         fp32_acc=False, expanded_idx_to_permuted_idx=None, expert_scale_factor=None,
                         shared_expert_output=None, block_quant_group_size=None, weight_bias=0.0, *,
                         moe_finalize_backend="trtllm"):  # fmt: skip
        fused(**{"seen": seen, **{k: v for k, v in locals().items() if k != "moe_finalize_backend"}})

    return {**locals(), "AllReduceFusionPattern": Patterns}


def fusions_0_6_8(seen):
    def create_allreduce_fusion_workspace(backend="auto", world_size=None, rank=None, max_token_num=None,
                                          hidden_dim=None, dtype=None):  # fmt: skip
        return dict(locals())

    def allreduce_fusion(input, workspace, pattern, launch_with_pdl=False, residual_out=None, norm_out=None,
                         residual_in=None, rms_gamma=None, rms_eps=1e-6):  # fmt: skip
        raise AssertionError("a version that cannot add Gemma's 1 is not called")

    return {**locals(), "AllReduceFusionPattern": Patterns}


def mhc_of_flashinfer():
    def mhc_post_(x, residual, post_layer_mix, comb_res_mix):
        assert all(one.is_contiguous() for one in (x, residual, post_layer_mix, comb_res_mix))
        return mhc_post.reference([x], residual, post_layer_mix, comb_res_mix)

    return {"mhc_post": mhc_post_}


@pytest.fixture(params=[fusions_0_6_13, fusions_0_7_4])
def flashinfer(request, monkeypatch):
    seen = []
    library(
        monkeypatch,
        flashinfer={},
        flashinfer__comm=request.param(seen),
        flashinfer__norm=norms_of_one_rank(),
        flashinfer__mhc=mhc_of_flashinfer(),
    )
    return seen


def test_flashinfer_is_missing_or_has_no_gpu(monkeypatch, flashinfer):
    path = flashinfer_path.FlashinferPath()
    assert path.unavailable(SingleGroup(), "cuda") is None
    assert path.unavailable(SingleGroup(), "cpu").gate is Gate.NO_DEVICE
    monkeypatch.setattr(flashinfer_path.probing, "has_library", lambda name: False)
    assert path.unavailable(SingleGroup(), "cuda").gate is Gate.LIBRARY_MISSING


FLASHINFER_GATES = [
    ("ar_norm", SHAPE, Peers(), None),
    ("ar_norm", SHAPE, SingleGroup(), None),
    ("mhc_post", SHAPE, Peers(), None),
    ("moe_finalize", replace(SHAPE, ends="norm", top_k=2), Peers(), None),
    ("moe_finalize", replace(SHAPE, ends="mhc", top_k=2), Peers(), Gate.NOT_COVERED),
    ("moe_finalize", replace(SHAPE, ends="norm"), Peers(), Gate.TOP_K),
    ("moe_finalize", replace(SHAPE, ends="norm", top_k=2, tokens=129), Peers(), Gate.TOKENS_OVER_CAP),
    ("moe_finalize", replace(SHAPE, ends="norm", top_k=2), SingleGroup(), Gate.ONE_RANK),
    ("add_norm", SHAPE, Peers(), Gate.NOT_COVERED),
    ("ar_norm", replace(SHAPE, tokens=0), Peers(), Gate.NO_TOKENS),
    ("ar_norm", replace(SHAPE, dtype=torch.float32), Peers(), Gate.DTYPE),
    ("mhc_post", replace(SHAPE, dtype=torch.float16), Peers(), Gate.DTYPE),
    ("ar_norm", replace(SHAPE, hidden=36), Peers(), Gate.ALIGNMENT),
    ("ar_norm", replace(SHAPE, gamma_dtype=torch.float32), Peers(), Gate.GAMMA_DTYPE),
    ("ar_norm", SHAPE, Peers(6), Gate.WORLD_SIZE),
    ("ar_norm", SHAPE, Peers(16), Gate.WORLD_SIZE),
    ("ar_norm", SHAPE, OverGloo(), Gate.PEER_MEMORY),
    ("ar_norm", replace(SHAPE, residual=False), Peers(), Gate.NO_RESIDUAL),
    ("ar_norm", replace(SHAPE, residual=False), SingleGroup(), None),
    ("ar_norm", replace(SHAPE, contiguous=False), Peers(), Gate.NOT_CONTIGUOUS),
    ("ar_norm", replace(SHAPE, contiguous=False), SingleGroup(), Gate.NOT_CONTIGUOUS),
    ("mhc_post", replace(SHAPE, contiguous=False), Peers(), Gate.NOT_CONTIGUOUS),
    ("moe_finalize", replace(SHAPE, ends="norm", top_k=2, contiguous=False), Peers(), Gate.NOT_CONTIGUOUS),
    ("ar_norm", replace(SHAPE, tokens=2048, hidden=16384), Peers(), None),
    ("ar_norm", replace(SHAPE, tokens=2049, hidden=4096), Peers(), Gate.TOKENS_OVER_CAP),
    ("ar_norm", replace(SHAPE, tokens=256, hidden=4096), Peers(4), None),
    ("ar_norm", replace(SHAPE, tokens=257, hidden=4096), Peers(4), Gate.BYTES_OVER_CAP),
    ("ar_norm", replace(SHAPE, tokens=64, hidden=4096), Peers(8), None),
    ("ar_norm", replace(SHAPE, tokens=65, hidden=4096), Peers(8), Gate.BYTES_OVER_CAP),
    ("ar_norm", replace(SHAPE, quant=FP8_STATIC_TENSOR), Peers(), None),
    ("ar_norm", replace(SHAPE, quant=FP8_TOKEN_GROUP_128), Peers(), Gate.QUANT_UNSUPPORTED),
    ("ar_norm", replace(SHAPE, quant=FP8_STATIC_TENSOR), SingleGroup(), None),
    ("ar_norm", replace(SHAPE, quant=FP8_TOKEN_GROUP_128), SingleGroup(), Gate.QUANT_UNSUPPORTED),
]


@pytest.mark.parametrize(("boundary", "shape", "group", "gate"), FLASHINFER_GATES)
def test_gates_of_flashinfer(flashinfer, boundary, shape, group, gate):
    decline = flashinfer_path.FlashinferPath().declines(boundary, shape=shape, group=group)
    assert (decline and decline.gate) == gate


def test_another_gpu_or_version_of_flashinfer(monkeypatch):
    path = flashinfer_path.FlashinferPath()
    library(monkeypatch, flashinfer={}, flashinfer__comm=fusions_0_6_8([]), flashinfer__norm={})
    monkeypatch.setitem(sys.modules, "flashinfer.mhc", None)
    ask = lambda boundary, group: path.declines(boundary, shape=SHAPE, group=group).gate  # noqa: E731
    assert ask("ar_norm", Peers()) is Gate.LIBRARY_SIGNATURE
    assert ask("ar_norm", SingleGroup()) is Gate.OP_MISSING
    assert ask("mhc_post", Peers()) is Gate.OP_MISSING
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device=None: (12, 0))
    assert ask("ar_norm", Peers()) is Gate.ARCH_UNSUPPORTED


@pytest.mark.parametrize("bias", [0.0, 1.0])
@pytest.mark.parametrize("group", [SingleGroup(), Peers()])
def test_flashinfer_norms_and_leaves_the_residual_alone(flashinfer, group, bias):
    x, residual, weight = tensors()
    before = residual.clone()
    norm = Norm(weight, 1e-5, bias)
    want = ar_norm.reference([x.clone()] * group.size, residual, norm)
    got = flashinfer_path.FlashinferPath().ar_norm(PartialSum(x, group), residual, norm, None)
    assert torch.equal(residual, before)
    for mine, other in zip(got, want, strict=True):
        assert torch.equal(mine, other)


@pytest.mark.parametrize("group", [SingleGroup(), Peers()])
def test_flashinfer_quantises_by_the_consumers_scale(flashinfer, group):
    x, residual, weight = tensors()
    norm, wanted = Norm(weight, 1e-5), InputQuant(FP8_STATIC_TENSOR, torch.tensor([0.02]))
    want, _ = ar_norm.reference([x.clone()] * group.size, residual, norm, wanted)
    got, _ = flashinfer_path.FlashinferPath().ar_norm(PartialSum(x, group), residual, norm, None, wanted)
    assert (got.key, got.shape, got.scale) == (want.key, want.shape, want.scale)
    assert torch.equal(got.data.float(), want.data.float())


def test_flashinfer_makes_one_workspace_a_width_and_waits_with_its_trigger(flashinfer):
    path, group = flashinfer_path.FlashinferPath(), Peers(4)
    for hidden in (H, H, 2 * H):
        x, weight = torch.randn(T, hidden).to(BF16), torch.ones(hidden, dtype=BF16)
        path.ar_norm(PartialSum(x, group), torch.zeros_like(x), Norm(weight, 1e-5), None)
    first, again, wide = (call["workspace"] for call in flashinfer)
    assert first is again and wide is not first
    assert (first["backend"], first["world_size"], first["max_token_num"]) == ("trtllm", 4, 2048)
    assert all(call["trigger_completion_at_end"] and not call["launch_with_pdl"] for call in flashinfer)


def test_flashinfer_scales_the_routed_part_once(flashinfer):
    group, idx = Peers(), torch.tensor([[0, 4], [2, -1], [3, 1]], dtype=torch.int32)
    parts = FinalizeOperands(torch.randn(6, H).to(BF16), idx, torch.rand(T, 2), 2.5, torch.randn(T, H).to(BF16))
    residual, norm = torch.randn(T, H).to(BF16), Norm(torch.randn(H).to(BF16), 1e-5)
    path = flashinfer_path.FlashinferPath()
    got = path.finalize_norm(DeferredFinalize(parts, group), residual, norm, None)
    want = moe_finalize.reference_norm([parts] * 2, residual, norm)
    for mine, other in zip(got, want, strict=True):
        torch.testing.assert_close(mine.float(), other.float(), rtol=2e-2, atol=6e-2)
    assert path.finalizes_through("norm") and not path.finalizes_through("mhc")


def test_flashinfer_posts_the_complete_sum(flashinfer):
    x, streams = torch.randn(T, H).to(BF16), torch.randn(T, 4, H).to(BF16)
    post, comb = torch.rand(4, T).T, torch.rand(T, 4, 4).mT
    got = flashinfer_path.FlashinferPath().mhc_post(PartialSum(x, Peers()), streams, post, comb, None)
    assert torch.equal(got, mhc_post.reference([x] * 2, streams, post, comb))


def post_pre_0_7_4(x, residual, post_layer_mix, comb_res_mix, fn, hc_scale, hc_base, norm_weight, rms_eps=1e-5,
                   hc_pre_eps=1e-6, hc_sinkhorn_eps=1e-6, hc_post_mult_value=2.0, sinkhorn_repeat=20, norm_eps=1e-5,
                   out=None, fallback=True):  # fmt: skip
    assert all(one.is_contiguous() for one in (x, residual, post_layer_mix, comb_res_mix, fn, hc_scale, hc_base))
    read = HyperWeights(fn, hc_scale, hc_base, norm_weight, rms_eps, hc_pre_eps, sinkhorn_repeat, hc_post_mult_value)
    made = mhc_post_pre.reference([x], residual, post_layer_mix, comb_res_mix, read)
    return made.streams, made.post[..., None], made.comb, made.x


BLACKWELL = replace(JOINED, tokens=33)
POST_PRE_GATES = [
    (BLACKWELL, (10, 3), None),
    (replace(BLACKWELL, tokens=32), (10, 3), Gate.TOKENS_UNDER_FLOOR),
    (replace(BLACKWELL, tokens=16385), (10, 3), Gate.TOKENS_OVER_CAP),
    (replace(BLACKWELL, hidden=5120), (10, 3), Gate.HIDDEN_WIDTH),
    (replace(BLACKWELL, read=(1e-6, 1e-6, 20, 2.0)), (10, 3), Gate.READ_UNSUPPORTED),
    (replace(BLACKWELL, gamma_dtype=torch.float32), (10, 3), Gate.GAMMA_DTYPE),
    (replace(BLACKWELL, dtype=torch.float16), (10, 3), Gate.DTYPE),
    (replace(BLACKWELL, contiguous=False), (10, 3), Gate.NOT_CONTIGUOUS),
    (BLACKWELL, (10, 0), Gate.ARCH_UNSUPPORTED),
    (BLACKWELL, (9, 0), Gate.ARCH_UNSUPPORTED),
]


@pytest.mark.parametrize(("shape", "capability", "gate"), POST_PRE_GATES)
def test_gates_of_post_and_pre_in_one(monkeypatch, shape, capability, gate):
    library(monkeypatch, flashinfer={}, flashinfer__mhc={"mhc_fused_post_pre": post_pre_0_7_4})
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device=None: capability)
    decline = flashinfer_path.FlashinferPath().declines("mhc_post_pre", shape=shape, group=Peers())
    assert (decline and decline.gate) == gate


def test_a_flashinfer_without_post_and_pre_in_one(monkeypatch):
    library(monkeypatch, flashinfer={}, flashinfer__mhc={})
    decline = flashinfer_path.FlashinferPath().declines("mhc_post_pre", shape=BLACKWELL, group=Peers())
    assert decline.gate is Gate.OP_MISSING and "0.7.4" in decline.reason


def test_flashinfer_joins_post_and_pre_over_the_complete_sum(monkeypatch):
    library(monkeypatch, flashinfer={}, flashinfer__mhc={"mhc_fused_post_pre": post_pre_0_7_4})
    x, streams, read = torch.randn(T, H).to(BF16), torch.randn(T, 4, H).to(BF16), read_of(H)
    post, comb = torch.rand(4, T).T, torch.rand(T, 4, 4).mT
    path, strided = flashinfer_path.FlashinferPath(), replace(read, fn=read.fn.T.contiguous().T)
    new, rest = path.mhc_post_pre(PartialSum(x, Peers()), streams, post, comb, strided, None)
    want = mhc_post_pre.reference([x] * 2, streams, post.contiguous(), comb.contiguous(), read)
    assert path.joins_read()
    assert all(torch.equal(mine, other) for mine, other in zip((new, *rest()), want, strict=True))
