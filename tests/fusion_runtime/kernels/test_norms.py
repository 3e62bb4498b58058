"""Add and RMSNorm with a quantised output, against the references, in Triton's interpreter."""

from __future__ import annotations

import os

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("triton")
if os.environ.get("TRITON_INTERPRET") != "1":
    pytest.skip("triton was imported before its interpreter was chosen", allow_module_level=True)

from triton.runtime import interpreter

from fusionscope.fusion_runtime.decode import cuda_ops
from fusionscope.fusion_runtime.kernels import launch_norm, norms
from fusionscope.fusion_runtime.norms import Norm, apply
from fusionscope.fusion_runtime.quant import (
    FP8_MAX,
    FP8_STATIC_TENSOR,
    FP8_TOKEN_GROUP_128,
    MXFP4,
    NVFP4_LINEAR,
    NVFP4_SWIZZLED,
    InputQuant,
    fp8_groups,
)


@pytest.fixture(autouse=True)
def seed():
    torch.manual_seed(0)


def launched(x, residual, norm, quant, scale, width):
    """The kernel with its e4m3 output still in float32: the interpreter's own conversion to FP8 drops a carry."""
    out, total = torch.full_like(x, float("nan")), torch.full_like(x, float("nan"))
    scales = torch.full((x.shape[0], -(-width // 128)), float("nan"))
    norms.fused_add_rmsnorm_kernel[(x.shape[0],)](
        x, residual, norm.weight, out, total, scales, scale, width, norm.eps, norm.weight_bias,
        quant=quant, block=max(128, launch_norm.power_of_two(width)),
    )  # fmt: skip
    return out, total, scales


@pytest.mark.parametrize("bias", [0.0, 1.0])
@pytest.mark.parametrize("width", [72, 128, 200, 640])
def test_static_fp8_divides_by_the_consumers_scale(width, bias):
    x, residual, norm = torch.randn(3, width), torch.randn(3, width), Norm(torch.randn(width), 1e-5, bias)
    scale = torch.tensor([0.003])
    out, total, _ = launched(x, residual, norm, 1, scale, width)
    want = (apply(norm, x + residual) / scale).clamp(-FP8_MAX, FP8_MAX)
    assert torch.equal(total, x + residual)
    torch.testing.assert_close(out, want, rtol=1e-5, atol=1e-4)
    assert (want.abs() == FP8_MAX).any(), "something has to be clamped"


@pytest.mark.parametrize("width", [72, 128, 200, 640])
def test_groups_of_128_bring_their_scales(width):
    x, residual, norm = torch.randn(3, width), torch.randn(3, width), Norm(torch.randn(width), 1e-5)
    x[1] = residual[1] = 0
    out, total, scales = launched(x, residual, norm, 2, None, width)
    want, want_scales = fp8_groups(apply(norm, x + residual))
    assert torch.equal(total, x + residual)
    torch.testing.assert_close(scales, want_scales, rtol=1e-5, atol=0)
    torch.testing.assert_close(out.to(torch.float8_e4m3fn).float(), want.float(), rtol=0.13, atol=0)
    assert (out.to(torch.float8_e4m3fn).float() != want.float()).float().mean() < 0.01


def test_the_activation_carries_its_key_and_scales():
    x, norm = torch.randn(2, 256), Norm(torch.ones(256), 1e-5)
    wanted = InputQuant(FP8_TOKEN_GROUP_128)
    q, total = launch_norm.add_rmsnorm(x, torch.zeros_like(x), norm, wanted)
    assert (q.key, q.shape, q.dtype) == (FP8_TOKEN_GROUP_128, (2, 256), torch.float32)
    assert q.data.dtype == torch.float8_e4m3fn and q.scale.shape == (2, 2) and torch.equal(total, x)
    scale = torch.tensor([0.5])
    q, _ = launch_norm.add_rmsnorm(x, torch.zeros_like(x), norm, InputQuant(FP8_STATIC_TENSOR, scale))
    assert q.key == FP8_STATIC_TENSOR and q.scale is scale


def test_a_program_has_no_more_threads_than_a_gpu_takes(monkeypatch):
    assert [launch_norm.row_warps(width) for width in (64, 4096, 7168, 16384)] == [4, 16, 16, 16]
    assert [launch_norm.row_warps(width, 1) for width in (64, 4096, 7168, 16384)] == [4, 16, 32, 32]
    monkeypatch.setattr(torch.version, "hip", "7.0")
    assert [launch_norm.row_warps(width, 2) * 64 for width in (4096, 7168, 16384)] == [1024] * 3


def test_a_format_without_a_kernel_is_no_silent_bf16():
    with pytest.raises(KeyError):
        launch_norm.normed_output(torch.randn(2, 64), InputQuant(NVFP4_SWIZZLED, torch.tensor([1.0])))


@pytest.mark.parametrize("width", [96, 128, 320])
@pytest.mark.parametrize("key", [MXFP4, NVFP4_LINEAR], ids=str)
def test_fp4_is_what_the_launch_of_its_own_makes_of_the_norm(key, width):
    x, residual, norm = torch.randn(3, width), torch.randn(3, width), Norm(torch.randn(width), 1e-5)
    x[1] = residual[1] = 0
    wanted = InputQuant(key, torch.tensor([37.0]) if key.needs_scale else None)
    got, total = launch_norm.add_rmsnorm(x, residual, norm, wanted)
    normed, _ = launch_norm.add_rmsnorm(x, residual, norm)
    want = cuda_ops.quantise(normed, wanted)
    assert torch.equal(total, x + residual)
    assert (got.key, got.shape, got.dtype, got.tensor_scale) == (want.key, want.shape, want.dtype, want.tensor_scale)
    assert torch.equal(got.data, want.data)
    assert torch.equal(got.scale.view(torch.uint8), want.scale.view(torch.uint8))


def test_the_launch_of_its_own_divides_alike():
    x, scale, out = torch.randn(3, 200), torch.tensor([0.003]), torch.full((3, 200), float("nan"))
    norms.static_quant_fp8_kernel[(5,)](x, out, scale, x.numel(), block=128)
    x[0, :4] = torch.tensor([0.0, 1e30, float("nan"), -0.0])
    norms.static_quant_fp8_kernel[(5,)](x, out, scale, x.numel(), block=128)
    want = (x / scale).clamp(-FP8_MAX, FP8_MAX)
    # A GPU's fma rounds once. The interpreter's does since Triton 3.9; before, it multiplies, rounds, adds and rounds.
    once = hasattr(interpreter._interpreter, "fma_fp32")
    torch.testing.assert_close(out, want, rtol=0 if once else 2**-22, atol=0, equal_nan=True)
    assert torch.equal(torch.signbit(out), torch.signbit(want)), "a zero keeps its sign"
    assert out[0, 3].signbit() and not out[0, 0].signbit()
