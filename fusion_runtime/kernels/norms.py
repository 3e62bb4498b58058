"""RMS norms: plain, with the residual added first, and gated by a sigmoid. One program a row, float32 inside."""

from __future__ import annotations

import triton
import triton.language as tl

from fusionscope.fusion_runtime.kernels.quant import store_fp4


@triton.jit
def rmsnorm_kernel(x, weight, out, x_stride, width, eps, weight_bias, block: tl.constexpr):
    """x * rsqrt(mean(x^2) + eps) * (weight + weight_bias)."""
    row = tl.program_id(0)
    cols = tl.arange(0, block)
    mask = cols < width
    value = tl.load(x + row * x_stride + cols, mask=mask, other=0.0).to(tl.float32)
    inverse = tl.rsqrt(tl.sum(value * value, 0) / width + eps)
    gain = tl.load(weight + cols, mask=mask, other=0.0).to(tl.float32) + weight_bias
    tl.store(out + row * width + cols, value * inverse * gain, mask=mask)


@triton.jit
def to_fp8(y, by, inverse):
    """y / by within what e4m3 holds; inverse = 1 / by, correctly rounded.

    The product is put right by its remainder, which gives the bits of a division in three operations.
    """
    q = y * inverse
    exact = tl.fma(tl.fma(-q, by, y), inverse, q)
    # Past the largest e4m3 the remainder may overflow, and only the clamp counts; a zero's remainder has no sign.
    kept = (tl.abs(q) < 512.0) & (q != 0.0)
    return tl.clamp(tl.where(kept, exact, q), -448.0, 448.0, propagate_nan=tl.PropagateNan.ALL)


@triton.jit
def given_scale(scale, quant: tl.constexpr):
    """(scale[0], its reciprocal) where the consumer brings a scale, else ones; asked for early, so that it is there."""
    by = 1.0
    inverse = 1.0
    if quant == 1:
        by = tl.load(scale)
        inverse = tl.div_rn(1.0, by)
    if quant == 4:
        by = tl.load(scale)
    return by, inverse


@triton.jit
def store_normed(y, out, scales, given, row, first, cols, mask, width, quant: tl.constexpr, block: tl.constexpr):
    """Stores the columns `first` to first + block of a row y, rounded to storage already: as they are, or quantised as
    quant.py says; given: what given_scale gave.

    quant 0: out [T, W]. 1 (fp8_static_tensor): out e4m3, y / scale[0]. 2 (fp8_token_group_128): out e4m3 and
    scales [T, ceil(W / 128)], the largest magnitude of 128 columns / 448; `first` is a multiple of 128.
    3 (mxfp4), 4 (nvfp4, linear): out uint8 [T, W / 2], scales [T, W / 32] or [T, W / 16].
    """
    at = row * width + cols
    if quant == 0:
        tl.store(out + at, y, mask=mask)
    if quant == 1:
        q = to_fp8(y.to(tl.float32), given[0] + tl.zeros((block,), tl.float32), given[1])
        tl.store(out + at, q.to(out.dtype.element_ty), mask=mask)
    if quant == 2:
        groups = tl.reshape(y.to(tl.float32), (block // 128, 128))
        largest = tl.maximum(tl.max(tl.abs(groups), 1), 1e-10)
        by = tl.div_rn(largest, tl.zeros_like(largest) + 448.0)
        inverse = tl.div_rn(tl.zeros_like(by) + 1.0, by)
        q = tl.reshape(to_fp8(groups, by[:, None] + tl.zeros_like(groups), inverse[:, None]), (block,))
        tl.store(out + at, q.to(out.dtype.element_ty), mask=mask)
        group = first // 128 + tl.arange(0, block // 128)
        count = (width + 127) // 128
        tl.store(scales + row * count + group, by, mask=group < count)
    if quant == 3:
        store_fp4(y, given[0], out, scales, row, first, width, 32, True, block)
    if quant == 4:
        store_fp4(y, given[0], out, scales, row, first, width, 16, False, block)


@triton.jit
def static_quant_fp8_kernel(x, out, scale, elements, block: tl.constexpr):
    """Program (block,): out e4m3 = x / scale[0], clamped: what quant 1 of store_normed does, as a launch of its own."""
    at = tl.program_id(0) * block + tl.arange(0, block)
    mask = at < elements
    by = tl.load(scale)
    x = tl.load(x + at, mask=mask, other=0.0).to(tl.float32)
    q = to_fp8(x, by + tl.zeros((block,), tl.float32), tl.div_rn(1.0, by))
    tl.store(out + at, q.to(out.dtype.element_ty), mask=mask)


@triton.jit
def fused_add_rmsnorm_kernel(
    x,
    residual,
    weight,
    out,
    total_out,
    scales,
    scale,
    width,
    eps,
    weight_bias,
    quant: tl.constexpr,
    block: tl.constexpr,
):
    """total = x + residual; out = rmsnorm(total) * (weight + weight_bias); the norm sees the float32 sum."""
    row = tl.program_id(0)
    cols = tl.arange(0, block)
    mask = cols < width
    at = row * width + cols
    given = given_scale(scale, quant)
    total = tl.load(x + at, mask=mask, other=0.0).to(tl.float32)
    total += tl.load(residual + at, mask=mask, other=0.0).to(tl.float32)
    gain = tl.load(weight + cols, mask=mask, other=0.0).to(tl.float32) + weight_bias
    tl.store(total_out + at, total, mask=mask)
    inverse = tl.rsqrt(tl.sum(total * total, 0) / width + eps)
    y = (total * inverse * gain).to(total_out.dtype.element_ty)
    store_normed(y, out, scales, given, row, 0, cols, mask, width, quant, block)


@triton.jit
def layer_norm_gated_fwd_kernel(
    x, gate, weight, out, gate_stride, width, eps, heads, silu: tl.constexpr, block: tl.constexpr
):
    """Program (token, head): rmsnorm over the head, times weight, times sigmoid(gate) or silu(gate)."""
    token, head = tl.program_id(0), tl.program_id(1)
    cols = tl.arange(0, block)
    mask = cols < width
    at = (token * heads + head) * width + cols
    value = tl.load(x + at, mask=mask, other=0.0).to(tl.float32)
    inverse = tl.rsqrt(tl.sum(value * value, 0) / width + eps)
    gain = tl.load(weight + cols, mask=mask, other=0.0).to(tl.float32)
    opening = tl.load(gate + token * gate_stride + head * width + cols, mask=mask, other=0.0).to(tl.float32)
    by = tl.sigmoid(opening)
    if silu:
        by = by * opening
    tl.store(out + at, value * inverse * gain * by, mask=mask)
