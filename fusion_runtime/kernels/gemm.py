"""Matrix products of few tokens with FP8 weights, and the small float32 product of the router.

`quantised` False runs the same kernels on weights in the storage dtype, without scales.
"""

from __future__ import annotations

import triton
import triton.language as tl

from fusionscope.fusion_runtime.kernels.norms import to_fp8


@triton.jit
def per_token_group_quant_fp8_kernel(x, q, scale, x_stride, columns, groups, block_g: tl.constexpr):
    """Program (row, block of groups): amax/448 of each 128 columns, and the columns over it in FP8."""
    row = tl.program_id(0)
    group = tl.program_id(1) * block_g + tl.arange(0, block_g)
    cols = group[:, None] * 128 + tl.arange(0, 128)[None, :]
    mask = cols < columns
    value = tl.load(x + row * x_stride + cols, mask=mask, other=0.0).to(tl.float32)
    largest = tl.maximum(tl.max(tl.abs(value), 1), 1e-10)
    # A plain division is an approximate one on a GPU.
    by = tl.div_rn(largest, tl.zeros_like(largest) + 448.0)
    inverse = tl.div_rn(tl.zeros_like(by) + 1.0, by)
    small = to_fp8(value, by[:, None] + tl.zeros_like(value), inverse[:, None])
    tl.store(q + row * columns + cols, small.to(q.dtype.element_ty), mask=mask)
    tl.store(scale + row * groups + group, by, mask=group < groups)


@triton.jit
def fp8_gemm_kernel(
    x,
    x_scale,
    w,
    w_scale,
    out,
    partial,
    arrived,
    rows,
    n,
    k,
    groups,
    x_stride,
    quantised: tl.constexpr,
    splits: tl.constexpr,
    steps: tl.constexpr,
    block_m: tl.constexpr,
    block_n: tl.constexpr,
):
    """Program (column tile, split of K, row tile) of x [rows, k] . w [n, k]^T.

    With several splits each leaves its float32 part in `partial` [splits, rows, n]; the last to arrive adds them up
    in order, so results do not depend on who is last, and sets the tile's counter back to 0 for the next launch.
    """
    pid_n, pid_s, pid_m = tl.program_id(0), tl.program_id(1), tl.program_id(2)
    row = pid_m * block_m + tl.arange(0, block_m)
    col = pid_n * block_n + tl.arange(0, block_n)
    row_in, col_in = row < rows, col < n
    acc = tl.zeros((block_m, block_n), tl.float32)
    for step in range(steps):
        group = pid_s * steps + step
        at = group * 128 + tl.arange(0, 128)
        a = tl.load(x + row[:, None] * x_stride + at[None, :], mask=row_in[:, None] & (at < k)[None, :], other=0.0)
        b = tl.load(w + col[None, :] * k + at[:, None], mask=col_in[None, :] & (at < k)[:, None], other=0.0)
        if quantised:
            # Past the last group a and b are zero, so any scale will do.
            near = tl.minimum(group, groups - 1)
            sa = tl.load(x_scale + row * groups + near, mask=row_in, other=0.0)
            sb = tl.load(w_scale + (pid_n * block_n // 128) * groups + near)
            acc += tl.dot(a, b) * (sa * sb)[:, None]
        else:
            acc += tl.dot(a, b, input_precision="ieee")
    at_out = row[:, None] * n + col[None, :]
    mask = row_in[:, None] & col_in[None, :]
    if splits == 1:
        tl.store(out + at_out, acc, mask=mask)
    else:
        tl.store(partial + pid_s * rows * n + at_out, acc, mask=mask)
        # Every thread's part must be written before the one thread that counts releases them.
        tl.debug_barrier()
        tile = arrived + pid_m * tl.num_programs(0) + pid_n
        if tl.atomic_add(tile, 1, sem="acq_rel", scope="gpu") == splits - 1:
            tl.debug_barrier()
            total = tl.zeros((block_m, block_n), tl.float32)
            for s in tl.static_range(splits):
                total += tl.load(partial + s * rows * n + at_out, mask=mask, other=0.0)
            tl.store(out + at_out, total, mask=mask)
            tl.store(tile, 0)


@triton.jit
def tiny_n_gemm_kernel(x, w, out, rows, n, k, block_m: tl.constexpr, block_n: tl.constexpr, block_k: tl.constexpr):
    """Program (column tile, row tile) of x [rows, k] . w [n, k]^T in float32, without tensor cores' rounding."""
    col = tl.program_id(0) * block_n + tl.arange(0, block_n)
    row = tl.program_id(1) * block_m + tl.arange(0, block_m)
    acc = tl.zeros((block_m, block_n), tl.float32)
    for start in range(0, k, block_k):
        at = start + tl.arange(0, block_k)
        a = tl.load(x + row[:, None] * k + at[None, :], mask=(row < rows)[:, None] & (at < k)[None, :], other=0.0)
        b = tl.load(w + col[:, None] * k + at[None, :], mask=(col < n)[:, None] & (at < k)[None, :], other=0.0)
        acc += tl.sum(a.to(tl.float32)[:, None, :] * b[None, :, :], 2)
    tl.store(out + row[:, None] * n + col[None, :], acc, mask=(row < rows)[:, None] & (col < n)[None, :])
