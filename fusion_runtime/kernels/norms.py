"""RMS norms: plain, with the residual added first, and gated by a sigmoid. One program a row, float32 inside."""

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def rmsnorm_kernel(x, weight, out, x_stride, width, eps, block: tl.constexpr):
    """x * rsqrt(mean(x^2) + eps) * weight."""
    row = tl.program_id(0)
    cols = tl.arange(0, block)
    mask = cols < width
    value = tl.load(x + row * x_stride + cols, mask=mask, other=0.0).to(tl.float32)
    inverse = tl.rsqrt(tl.sum(value * value, 0) / width + eps)
    gain = tl.load(weight + cols, mask=mask, other=0.0).to(tl.float32)
    tl.store(out + row * width + cols, value * inverse * gain, mask=mask)


@triton.jit
def fused_add_rmsnorm_kernel(x, residual, weight, out, total_out, width, eps, weight_bias, block: tl.constexpr):
    """total = x + residual; out = rmsnorm(total) * (weight + weight_bias); the norm sees the float32 sum."""
    row = tl.program_id(0)
    cols = tl.arange(0, block)
    mask = cols < width
    at = row * width + cols
    total = tl.load(x + at, mask=mask, other=0.0).to(tl.float32)
    total += tl.load(residual + at, mask=mask, other=0.0).to(tl.float32)
    tl.store(total_out + at, total, mask=mask)
    inverse = tl.rsqrt(tl.sum(total * total, 0) / width + eps)
    gain = tl.load(weight + cols, mask=mask, other=0.0).to(tl.float32) + weight_bias
    tl.store(out + at, total * inverse * gain, mask=mask)


@triton.jit
def layer_norm_gated_fwd_kernel(x, gate, weight, out, gate_stride, width, eps, heads, block: tl.constexpr):
    """Program (token, head): rmsnorm over the head, times weight, times sigmoid(gate)."""
    token, head = tl.program_id(0), tl.program_id(1)
    cols = tl.arange(0, block)
    mask = cols < width
    at = (token * heads + head) * width + cols
    value = tl.load(x + at, mask=mask, other=0.0).to(tl.float32)
    inverse = tl.rsqrt(tl.sum(value * value, 0) / width + eps)
    gain = tl.load(weight + cols, mask=mask, other=0.0).to(tl.float32)
    opening = tl.load(gate + token * gate_stride + head * width + cols, mask=mask, other=0.0).to(tl.float32)
    tl.store(out + at, value * inverse * gain * tl.sigmoid(opening), mask=mask)
