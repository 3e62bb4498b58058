"""FP4 activations: NVFP4 and MXFP4 from the storage dtype in one launch, rounded as quant.py says."""

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def _e2m1(x):
    """float32 -> the four bits of the nearest e2m1, ties to the even code; over 6 becomes 6."""
    size = tl.abs(x)
    code = (size > 0.25).to(tl.int32) + (size >= 0.75).to(tl.int32) + (size > 1.25).to(tl.int32)
    code += (size >= 1.75).to(tl.int32) + (size > 2.5).to(tl.int32) + (size >= 3.5).to(tl.int32)
    code += (size > 5.0).to(tl.int32)
    return code | tl.where(x.to(tl.int32, bitcast=True) < 0, 8, 0)


@triton.jit
def fp4_groups(even, odd, whole, scales, mx: tl.constexpr):
    """Groups [G, size / 2] of even and odd columns, float32 -> (packed [G, size / 2] uint8, the groups' scales [G]).

    whole: the tensor's scale; nothing where scales are exponents (mx).
    """
    largest = tl.maximum(tl.max(tl.abs(even), 1), tl.max(tl.abs(odd), 1))
    if mx:
        # The bits of a positive float32 hold floor(log2) + 127; zero and what is too small for a scale become -127.
        exponent = tl.maximum((largest.to(tl.int32, bitcast=True) >> 23) - 127 - 2, -127)
        by = ((127 - exponent) << 23).to(tl.float32, bitcast=True)
        even, odd = even * by[:, None], odd * by[:, None]
        stored = (exponent + 127).to(tl.uint8)
    else:
        factor = tl.div_rn(whole * largest, tl.zeros_like(largest) + 6.0)
        stored = tl.minimum(factor, 448.0).to(scales.dtype.element_ty)
        wide = stored.to(tl.float32)[:, None] + tl.zeros_like(even)
        safe = tl.where(wide > 0, wide, 1.0)
        even = tl.where(wide > 0, tl.div_rn(even * whole, safe), 0.0)
        odd = tl.where(wide > 0, tl.div_rn(odd * whole, safe), 0.0)
    return (_e2m1(even) | (_e2m1(odd) << 4)).to(tl.uint8), stored


@triton.jit
def store_fp4(y, whole, out, scales, row, first, width, size: tl.constexpr, mx: tl.constexpr,
              block: tl.constexpr):  # fmt: skip
    """Columns first to first + block of a row y as fp4_quant_kernel stores them, scales row by row."""
    even, odd = tl.split(tl.reshape(y.to(tl.float32), (block // 2, 2)))
    even = tl.reshape(even, (block // size, size // 2))
    odd = tl.reshape(odd, (block // size, size // 2))
    packed, stored = fp4_groups(even, odd, whole, scales, mx)
    group = first // size + tl.arange(0, block // size)
    inside = group < width // size
    pair = tl.arange(0, size // 2)
    at = group[:, None] * (size // 2) + pair[None, :]
    tl.store(out + row * (width // 2) + at, packed, mask=inside[:, None])
    tl.store(scales + row * (width // size) + group, stored, mask=inside)


@triton.jit
def fp4_quant_kernel(
    x, tensor_scale, out, scales, rows, groups, x_stride, columns_of_scales,
    size: tl.constexpr, mx: tl.constexpr, swizzled: tl.constexpr, block: tl.constexpr
):  # fmt: skip
    """Program (row, block of groups of `size` columns); out [T, H/2] uint8, two values a byte, the even column low.

    mx: scales are exponents, uint8. Else they are e4m3 times the tensor's scale; swizzled: in tiles of 128 rows by 4,
    and the grid covers whole tiles, so that the padding is written as zeros.
    """
    row = tl.program_id(0)
    group = tl.program_id(1) * block + tl.arange(0, block)
    inside = group < tl.where(row < rows, groups, 0)
    pair = tl.arange(0, size // 2)
    at = group[:, None] * size + 2 * pair[None, :]
    even = tl.load(x + row * x_stride + at, mask=inside[:, None], other=0.0).to(tl.float32)
    odd = tl.load(x + row * x_stride + at + 1, mask=inside[:, None], other=0.0).to(tl.float32)
    whole = 1.0
    if not mx:
        whole = tl.load(tensor_scale)
    packed, stored = fp4_groups(even, odd, whole, scales, mx)
    if swizzled:
        tile = (row // 128) * (columns_of_scales // 4) + group // 4
        place = tile * 512 + (row % 32) * 16 + (row % 128 // 32) * 4 + group % 4
        tl.store(scales + place, stored, mask=group < columns_of_scales)
    else:
        tl.store(scales + row * groups + group, stored, mask=inside)
    tl.store(out + row * groups * (size // 2) + at // 2, packed, mask=inside[:, None])
