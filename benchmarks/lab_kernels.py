"""Triton kernels of the lab set, each boundary split and fused; `pdl`: launched with programmatic dependent launch.

With `pdl` a kernel may start before the one in front of it has ended, and waits for its data here.
"""

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def _wait(pdl: tl.constexpr):
    if pdl:
        tl.extra.cuda.gdc_wait()


@triton.jit
def _go_on(pdl: tl.constexpr):
    if pdl:
        tl.extra.cuda.gdc_launch_dependents()


@triton.jit
def lab_add_kernel(a, b, out, elements, block: tl.constexpr, pdl: tl.constexpr):
    """out = a + b, by blocks of elements."""
    _wait(pdl)
    at = tl.program_id(0) * block + tl.arange(0, block)
    mask = at < elements
    total = tl.load(a + at, mask=mask, other=0.0).to(tl.float32) + tl.load(b + at, mask=mask, other=0.0).to(tl.float32)
    tl.store(out + at, total, mask=mask)
    _go_on(pdl)


@triton.jit
def lab_norm_kernel(x, weight, out, width, eps, block: tl.constexpr, pdl: tl.constexpr):
    """Program (row,): RMSNorm."""
    _wait(pdl)
    cols = tl.arange(0, block)
    mask = cols < width
    at = tl.program_id(0) * width + cols
    value = tl.load(x + at, mask=mask, other=0.0).to(tl.float32)
    gain = tl.load(weight + cols, mask=mask, other=0.0).to(tl.float32)
    tl.store(out + at, value * tl.rsqrt(tl.sum(value * value, 0) / width + eps) * gain, mask=mask)
    _go_on(pdl)


@triton.jit
def lab_add_norm_kernel(x, residual, weight, total_out, out, width, eps, block: tl.constexpr, pdl: tl.constexpr):
    """Program (row,): total = x + residual, rounded, and its RMSNorm."""
    _wait(pdl)
    cols = tl.arange(0, block)
    mask = cols < width
    at = tl.program_id(0) * width + cols
    total = tl.load(x + at, mask=mask, other=0.0).to(tl.float32)
    total += tl.load(residual + at, mask=mask, other=0.0).to(tl.float32)
    tl.store(total_out + at, total, mask=mask)
    gain = tl.load(weight + cols, mask=mask, other=0.0).to(tl.float32)
    tl.store(out + at, total * tl.rsqrt(tl.sum(total * total, 0) / width + eps) * gain, mask=mask)
    _go_on(pdl)


@triton.jit
def lab_pull_kernel(p0, p1, p2, p3, out, width, block: tl.constexpr, pdl: tl.constexpr):
    """Program (row,): sum of four ranks' parts that lie in local buffers."""
    _wait(pdl)
    cols = tl.arange(0, block)
    mask = cols < width
    at = tl.program_id(0) * width + cols
    total = tl.load(p0 + at, mask=mask, other=0.0).to(tl.float32) + tl.load(p1 + at, mask=mask, other=0.0).to(
        tl.float32
    )
    total += tl.load(p2 + at, mask=mask, other=0.0).to(tl.float32)
    total += tl.load(p3 + at, mask=mask, other=0.0).to(tl.float32)
    tl.store(out + at, total, mask=mask)
    _go_on(pdl)


@triton.jit
def lab_pull_norm_kernel(
    p0, p1, p2, p3, residual, weight, total_out, out, width, eps, block: tl.constexpr, pdl: tl.constexpr
):  # fmt: skip
    """Program (row,): the sum of four parts, residual added, and its RMSNorm."""
    _wait(pdl)
    cols = tl.arange(0, block)
    mask = cols < width
    at = tl.program_id(0) * width + cols
    total = tl.load(p0 + at, mask=mask, other=0.0).to(tl.float32) + tl.load(p1 + at, mask=mask, other=0.0).to(
        tl.float32
    )
    total += tl.load(p2 + at, mask=mask, other=0.0).to(tl.float32)
    total += tl.load(p3 + at, mask=mask, other=0.0).to(tl.float32)
    total += tl.load(residual + at, mask=mask, other=0.0).to(tl.float32)
    tl.store(total_out + at, total, mask=mask)
    gain = tl.load(weight + cols, mask=mask, other=0.0).to(tl.float32)
    tl.store(out + at, total * tl.rsqrt(tl.sum(total * total, 0) / width + eps) * gain, mask=mask)
    _go_on(pdl)


@triton.jit
def _quantise(value, q, scale, row, width, at, mask, groups: tl.constexpr):
    """value [block] float32 -> FP8 with one scale for each 128 columns; width is a multiple of 128."""
    by = tl.reshape(value, (groups, 128))
    peak = tl.maximum(tl.max(tl.abs(by), 1), 1e-10) / 448.0
    small = tl.minimum(tl.maximum(by / peak[:, None], -448.0), 448.0)
    flat = tl.reshape(small, (groups * 128,))
    tl.store(q + at, flat.to(q.dtype.element_ty), mask=mask)
    group = tl.arange(0, groups)
    tl.store(scale + row * (width // 128) + group, peak, mask=group < width // 128)


@triton.jit
def lab_quant_kernel(x, q, scale, width, block: tl.constexpr, pdl: tl.constexpr):
    """Program (row,): FP8 with one scale for each 128 columns."""
    _wait(pdl)
    row = tl.program_id(0)
    cols = tl.arange(0, block)
    mask = cols < width
    at = row * width + cols
    value = tl.load(x + at, mask=mask, other=0.0).to(tl.float32)
    _quantise(value, q, scale, row, width, at, mask, block // 128)
    _go_on(pdl)


@triton.jit
def lab_static_quant_kernel(x, scale, q, elements, block: tl.constexpr):
    """q = x / scale, rounded to FP8, by blocks of elements."""
    at = tl.program_id(0) * block + tl.arange(0, block)
    mask = at < elements
    value = tl.load(x + at, mask=mask, other=0.0).to(tl.float32) / tl.load(scale)
    small = tl.minimum(tl.maximum(value, -448.0), 448.0)
    tl.store(q + at, small.to(q.dtype.element_ty), mask=mask)


@triton.jit
def lab_add_norm_quant_kernel(
    x, residual, weight, total_out, q, scale, width, eps, block: tl.constexpr, pdl: tl.constexpr
):  # fmt: skip
    """Program (row,): residual added, RMSNorm, FP8."""
    _wait(pdl)
    row = tl.program_id(0)
    cols = tl.arange(0, block)
    mask = cols < width
    at = row * width + cols
    total = tl.load(x + at, mask=mask, other=0.0).to(tl.float32)
    total += tl.load(residual + at, mask=mask, other=0.0).to(tl.float32)
    tl.store(total_out + at, total, mask=mask)
    gain = tl.load(weight + cols, mask=mask, other=0.0).to(tl.float32)
    value = total * tl.rsqrt(tl.sum(total * total, 0) / width + eps) * gain
    _quantise(value.to(x.dtype.element_ty).to(tl.float32), q, scale, row, width, at, mask, block // 128)
    _go_on(pdl)


@triton.jit
def lab_silu_kernel(gate_up, out, inner, block: tl.constexpr, pdl: tl.constexpr):
    """Program (row, column block): silu of the gate."""
    _wait(pdl)
    row = tl.program_id(0)
    cols = tl.program_id(1) * block + tl.arange(0, block)
    mask = cols < inner
    gate = tl.load(gate_up + row * 2 * inner + cols, mask=mask, other=0.0).to(tl.float32)
    tl.store(out + row * inner + cols, gate * tl.sigmoid(gate), mask=mask)
    _go_on(pdl)


@triton.jit
def lab_mul_kernel(a, gate_up, out, inner, block: tl.constexpr, pdl: tl.constexpr):
    """Program (row, column block): a times the up half."""
    _wait(pdl)
    row = tl.program_id(0)
    cols = tl.program_id(1) * block + tl.arange(0, block)
    mask = cols < inner
    up = tl.load(gate_up + row * 2 * inner + inner + cols, mask=mask, other=0.0).to(tl.float32)
    value = tl.load(a + row * inner + cols, mask=mask, other=0.0).to(tl.float32) * up
    tl.store(out + row * inner + cols, value, mask=mask)
    _go_on(pdl)


@triton.jit
def lab_silu_mul_kernel(gate_up, out, inner, block: tl.constexpr, pdl: tl.constexpr):
    """Program (row, column block): silu(gate) * up."""
    _wait(pdl)
    row = tl.program_id(0)
    cols = tl.program_id(1) * block + tl.arange(0, block)
    mask = cols < inner
    gate = tl.load(gate_up + row * 2 * inner + cols, mask=mask, other=0.0).to(tl.float32)
    up = tl.load(gate_up + row * 2 * inner + inner + cols, mask=mask, other=0.0).to(tl.float32)
    tl.store(out + row * inner + cols, gate * tl.sigmoid(gate) * up, mask=mask)
    _go_on(pdl)


@triton.jit
def lab_silu_mul_quant_kernel(gate_up, q, scale, inner, block: tl.constexpr, pdl: tl.constexpr):
    """Program (row, column block): silu(gate) * up, rounded, FP8 with one scale for each 128 columns."""
    _wait(pdl)
    row = tl.program_id(0)
    cols = tl.program_id(1) * block + tl.arange(0, block)
    mask = cols < inner
    gate = tl.load(gate_up + row * 2 * inner + cols, mask=mask, other=0.0).to(tl.float32)
    up = tl.load(gate_up + row * 2 * inner + inner + cols, mask=mask, other=0.0).to(tl.float32)
    value = (gate * tl.sigmoid(gate) * up).to(gate_up.dtype.element_ty).to(tl.float32)
    by = tl.reshape(value, (block // 128, 128))
    peak = tl.maximum(tl.max(tl.abs(by), 1), 1e-10) / 448.0
    small = tl.reshape(tl.minimum(tl.maximum(by / peak[:, None], -448.0), 448.0), (block,))
    tl.store(q + row * inner + cols, small.to(q.dtype.element_ty), mask=mask)
    group = tl.program_id(1) * (block // 128) + tl.arange(0, block // 128)
    tl.store(scale + row * (inner // 128) + group, peak, mask=group < inner // 128)
    _go_on(pdl)
