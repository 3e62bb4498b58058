"""The aiter path against fake libraries: gates, arguments by version, and who writes over what.

The fakes take what the real operations take: amd-aiter 0.1.7.post2.dev18 ("wheel") and ROCm/aiter's main. No GPU: they
compute with torch.
"""

from __future__ import annotations

import importlib.machinery
from dataclasses import replace
from types import SimpleNamespace

import pytest

torch = pytest.importorskip("torch")

from fake_libraries import BF16, JOINED, SHAPE, H, OverGloo, T, library, read_of, tensors

from fusionscope.fusion_runtime.boundaries import ar_norm, mhc_post, mhc_post_pre
from fusionscope.fusion_runtime.comm.single import SingleGroup
from fusionscope.fusion_runtime.gates import Gate
from fusionscope.fusion_runtime.hyper import HyperWeights
from fusionscope.fusion_runtime.norms import Norm
from fusionscope.fusion_runtime.ownership import PartialSum
from fusionscope.fusion_runtime.paths import aiter as aiter_path
from fusionscope.fusion_runtime.quant import FP8_STATIC_TENSOR

pytestmark = pytest.mark.usefixtures("hopper")


def communicator_of(seen, has_stage):
    class CustomAllreduce:
        def __init__(self, group, device, max_size=8192 * 8192):
            self._ptr, self.buffer = 7, torch.zeros(64, dtype=torch.uint8)

        def _fused(self, inp, res_inp, res_out, out, w, eps, **rest):
            seen.append(rest)
            y, total = ar_norm.reference([inp] * 2, res_inp, Norm(w, eps))
            out.copy_(y)
            res_out.copy_(total)
            return res_out, out

    def wheel(self, inp, res_inp, *, res_out=None, out=None, w, eps, registered=False):
        return self._fused(inp, res_inp, res_out, out, w, eps, registered=registered)

    def staged(self, inp, res_inp, *, res_out=None, out=None, w, eps, registered=False, use_1stage=False):
        return self._fused(inp, res_inp, res_out, out, w, eps, registered=registered, use_1stage=use_1stage)

    CustomAllreduce.fused_ar_rms = staged if has_stage else wheel
    return CustomAllreduce


def posts_of_main(seen):
    """Every operation of aiter hides its signature so."""

    def fused_allreduce_mhc_post_only(*operands, **named):
        def operation(_fa, inp, next_residual, residual_in, post_layer_mix, comb_res_mix, use_new=True,
                      open_fp8_quant=False, reg_ptr=0, reg_bytes=0):  # fmt: skip
            seen.append({"_fa": _fa, "reg_ptr": reg_ptr, "reg_bytes": reg_bytes})
            assert post_layer_mix.shape == (T, 4, 1) and not open_fp8_quant
            next_residual.copy_(mhc_post.reference([inp] * 2, residual_in, post_layer_mix[..., 0], comb_res_mix))

        return operation(*operands, **named)

    return {"fused_allreduce_mhc_post_only": fused_allreduce_mhc_post_only}


def joined_of_main():
    def mhc_fused_post_pre(layer_input, residual_in, post_layer_mix, comb_res_mix, fn, hc_scale, hc_base,
                           rms_eps=1e-6, hc_pre_eps=1e-6, hc_sinkhorn_eps=1e-6, hc_post_mult_value=1.0,
                           sinkhorn_repeat=20, norm_weight=None, norm_eps=1e-6, force_fused=False):  # fmt: skip
        assert layer_input.is_contiguous() and post_layer_mix.shape == (T, 4, 1) and norm_eps == rms_eps
        read = HyperWeights(
            fn, hc_scale, hc_base, norm_weight, rms_eps, hc_pre_eps, sinkhorn_repeat, hc_post_mult_value
        )
        made = mhc_post_pre.reference([layer_input], residual_in, post_layer_mix[..., 0], comb_res_mix, read)
        return made.post[..., None], made.comb, made.x, made.streams

    return dict(locals())


def aiter_norms():
    def rmsnorm2d_fwd_with_add(out, input, residual_in, residual_out, weight, epsilon, use_model_sensitive_rmsnorm=0):
        y, total = ar_norm.reference([input], residual_in, Norm(weight, epsilon))
        out.copy_(y)
        residual_out.copy_(total)

    return dict(locals())


@pytest.fixture(params=["wheel", "main"])
def aiter(request, monkeypatch):
    seen, main = [], request.param == "main"
    made = communicator_of(seen, main)
    library(
        monkeypatch,
        aiter={},
        aiter__ops={},
        aiter__ops__custom_all_reduce=posts_of_main(seen) if main else {},
        aiter__ops__rmsnorm=aiter_norms(),
        aiter__ops__mhc=joined_of_main() if main else {},
        aiter__dist__device_communicators__custom_all_reduce={"CustomAllreduce": made},
    )
    monkeypatch.setattr(aiter_path.AiterPath, "_communicator", lambda self, group: made(None, None))
    return SimpleNamespace(seen=seen, main=main, communicator=made)


def test_the_other_package_of_that_name_is_named(monkeypatch, tmp_path):
    found = importlib.machinery.ModuleSpec("aiter", None, is_package=True)
    found.submodule_search_locations = [str(tmp_path)]
    monkeypatch.setattr(aiter_path.importlib.util, "find_spec", lambda name: found)
    decline = aiter_path.AiterPath().unavailable(SingleGroup(), "cuda")
    assert decline.gate is Gate.LIBRARY_MISSING and "asyncio iterator package" in decline.reason
    (tmp_path / "ops").mkdir()
    assert aiter_path.AiterPath().unavailable(SingleGroup(), "cuda").gate is Gate.NO_DEVICE
    monkeypatch.setattr(aiter_path.importlib.util, "find_spec", lambda name: None)
    assert "not installed" in aiter_path.AiterPath().unavailable(SingleGroup(), "cuda").reason


AITER_GATES = [
    ("mhc_post_pre", replace(JOINED, tokens=0), OverGloo(), Gate.NO_TOKENS),
    ("mhc_post_pre", replace(JOINED, dtype=torch.float16), OverGloo(), Gate.DTYPE),
    ("mhc_post_pre", replace(JOINED, gamma_dtype=torch.float32), OverGloo(), Gate.GAMMA_DTYPE),
    ("mhc_post_pre", replace(JOINED, hidden=4096 + 128), OverGloo(), Gate.HIDDEN_WIDTH),
    ("mhc_post_pre", replace(JOINED, hidden=256), OverGloo(), Gate.HIDDEN_WIDTH),
    ("mhc_post_pre", replace(JOINED, tokens=128), OverGloo(), Gate.TOKENS_OVER_CAP),
    ("ar_norm", SHAPE, OverGloo(), None),
    ("ar_norm", SHAPE, SingleGroup(), None),
    ("moe_finalize", SHAPE, OverGloo(), Gate.NOT_COVERED),
    ("ar_norm", replace(SHAPE, tokens=0), OverGloo(), Gate.NO_TOKENS),
    ("ar_norm", replace(SHAPE, dtype=torch.float32), OverGloo(), Gate.DTYPE),
    ("ar_norm", replace(SHAPE, residual=False), OverGloo(), Gate.NO_RESIDUAL),
    ("ar_norm", replace(SHAPE, quant=FP8_STATIC_TENSOR), OverGloo(), Gate.QUANT_UNSUPPORTED),
    ("ar_norm", replace(SHAPE, gamma_dtype=torch.float32), OverGloo(), Gate.GAMMA_DTYPE),
    ("ar_norm", replace(SHAPE, hidden=16400), OverGloo(), Gate.HIDDEN_WIDTH),
    ("ar_norm", SHAPE, OverGloo(6), Gate.WORLD_SIZE),
    ("ar_norm", replace(SHAPE, tokens=8193, hidden=4096), OverGloo(), Gate.BYTES_OVER_CAP),
    ("ar_norm", replace(SHAPE, tokens=1, hidden=12), OverGloo(), Gate.ALIGNMENT),
    ("mhc_post", SHAPE, SingleGroup(), Gate.ONE_RANK),
    ("mhc_post", replace(SHAPE, hidden=5120), OverGloo(), Gate.HIDDEN_WIDTH),
]


@pytest.mark.parametrize(("boundary", "shape", "group", "gate"), AITER_GATES)
def test_gates_of_aiter(aiter, boundary, shape, group, gate):
    decline = aiter_path.AiterPath().declines(boundary, shape=shape, group=group)
    assert (decline and decline.gate) == gate


def test_the_wheel_lacks_post_and_pre_in_one_and_main_has_it(aiter):
    path = aiter_path.AiterPath()
    decline = path.declines("mhc_post_pre", shape=JOINED, group=OverGloo())
    if not aiter.main:
        assert decline.gate is Gate.OP_MISSING and "aiter.ops.mhc.mhc_fused_post_pre" in decline.reason
        return
    assert decline is None and path.joins_read()
    x, streams, read = torch.randn(T, 512).to(BF16), torch.randn(T, 4, 512).to(BF16), read_of(512)
    post, comb = torch.rand(T, 4), torch.rand(T, 4, 4)
    new, rest = path.mhc_post_pre(PartialSum(x.T.contiguous().T, OverGloo()), streams, post, comb, read, None)
    want = mhc_post_pre.reference([x] * 2, streams, post, comb, read)
    assert all(torch.equal(mine, other) for mine, other in zip((new, *rest()), want, strict=True))


def test_the_wheel_lacks_mhc_post_and_main_has_it(aiter):
    decline = aiter_path.AiterPath().declines("mhc_post", shape=SHAPE, group=OverGloo())
    if aiter.main:
        assert decline is None
    else:
        assert decline.gate is Gate.OP_MISSING and decline.reason.startswith("op missing")


def test_an_aiter_whose_communicator_is_another_declines(monkeypatch, aiter):
    monkeypatch.setattr(aiter.communicator, "fused_ar_rms", lambda self, *operands, **named: None)
    decline = aiter_path.AiterPath().declines("ar_norm", shape=SHAPE, group=OverGloo())
    assert decline.gate is Gate.LIBRARY_SIGNATURE


@pytest.mark.parametrize("size", [1, 2])
def test_aiter_norms_in_the_order_it_has_its_outputs(aiter, size):
    group = SingleGroup() if size == 1 else OverGloo()
    x, residual, weight = tensors()
    before, norm = residual.clone(), Norm(weight, 1e-5)
    want = ar_norm.reference([x] * size, residual, norm)
    got = aiter_path.AiterPath().ar_norm(PartialSum(x, group), residual, norm, None)
    assert torch.equal(residual, before)
    for mine, other in zip(got, want, strict=True):
        assert torch.equal(mine, other)
    if size == 2:
        assert aiter.seen == [{"registered": False, "use_1stage": True} if aiter.main else {"registered": False}]


def test_aiter_posts_over_its_registered_buffer(aiter):
    if not aiter.main:
        pytest.skip("the wheel has no such operation")
    x, streams = torch.randn(T, H).to(BF16), torch.randn(T, 4, H).to(BF16)
    post, comb = torch.rand(T, 4), torch.rand(T, 4, 4)
    got = aiter_path.AiterPath().mhc_post(PartialSum(x, OverGloo()), streams, post, comb, None)
    assert torch.equal(got, mhc_post.reference([x] * 2, streams, post, comb))
    assert aiter.seen[0]["reg_bytes"] == 64
