"""mHC: the read of a half-layer in two launches (projection, everything else) and the write in one."""

from __future__ import annotations

import triton
import triton.language as tl

PARTIAL_WIDTH = 32
"""Row of the projection's partial results: 24 dot products, the sum of squares, padding."""


@triton.jit
def mhc_pre_gemm_sqrsum_kernel(
    streams, fn, partial, tokens, width, splits, per_split: tl.constexpr, block_t: tl.constexpr, block_k: tl.constexpr
):
    """Program (split of K, token block): 24 dot products and the sum of squares over its share of the 4H columns.

    streams [T, 4H]; fn [24, 4H] f32; partial [T, splits, 32] f32.
    """
    split = tl.program_id(0)
    token = tl.program_id(1) * block_t + tl.arange(0, block_t)
    coef = tl.arange(0, 32)
    dots = tl.zeros((block_t, 32), tl.float32)
    squares = tl.zeros((block_t,), tl.float32)
    for step in range(0, per_split, block_k):
        k = split * per_split + step + tl.arange(0, block_k)
        inside = k < width
        x = tl.load(
            streams + token[:, None] * width + k[None, :], mask=(token < tokens)[:, None] & inside[None, :], other=0.0
        ).to(tl.float32)
        w = tl.load(fn + coef[:, None] * width + k[None, :], mask=(coef < 24)[:, None] & inside[None, :], other=0.0)
        dots += tl.sum(x[:, None, :] * w[None, :, :], 2)
        squares += tl.sum(x * x, 1)
    both = tl.where(coef[None, :] == 24, squares[:, None], dots)
    tl.store(partial + (token[:, None] * splits + split) * 32 + coef[None, :], both, mask=(token < tokens)[:, None])


@triton.jit
def mhc_pre_big_fuse_with_norm_kernel(
    streams,
    partial,
    scale,
    base,
    norm_weight,
    out,
    post_out,
    comb_out,
    hidden,
    splits,
    rms_eps,
    hc_eps,
    post_mult,
    iters,
    block_s: tl.constexpr,
    block_h: tl.constexpr,
):
    """Program (token,): coefficients, sinkhorn, the mixed input sum_j pre_j R_j rounded to storage, its RMSNorm."""
    token = tl.program_id(0)
    cols = tl.arange(0, block_h)
    mask = cols < hidden
    # Asked for before the sinkhorn, which hides the wait.
    mine = streams + token * 4 * hidden + cols
    r0 = tl.load(mine, mask=mask, other=0.0)
    r1 = tl.load(mine + hidden, mask=mask, other=0.0)
    r2 = tl.load(mine + 2 * hidden, mask=mask, other=0.0)
    r3 = tl.load(mine + 3 * hidden, mask=mask, other=0.0)
    gain = tl.load(norm_weight + cols, mask=mask, other=0.0)
    split = tl.arange(0, block_s)
    four = tl.arange(0, 4)
    square = four[:, None] * 4 + four[None, :]
    row = partial + token * splits * 32
    here = split < splits
    squares = tl.sum(tl.load(row + split * 32 + 24, mask=here, other=0.0), 0)
    inverse = tl.rsqrt(squares / (4 * hidden) + rms_eps)
    narrow = split[:, None] * 32 + four[None, :]
    m_pre = tl.sum(tl.load(row + narrow, mask=here[:, None], other=0.0), 0) * inverse
    m_post = tl.sum(tl.load(row + narrow + 4, mask=here[:, None], other=0.0), 0) * inverse
    wide = split[:, None, None] * 32 + 8 + square[None, :, :]
    m_comb = tl.sum(tl.load(row + wide, mask=here[:, None, None], other=0.0), 0) * inverse

    pre = tl.sigmoid(m_pre * tl.load(scale) + tl.load(base + four)) + hc_eps
    post = post_mult * tl.sigmoid(m_post * tl.load(scale + 1) + tl.load(base + 4 + four))
    logits = m_comb * tl.load(scale + 2) + tl.load(base + 8 + square)
    comb = tl.exp(logits - tl.max(logits, 1)[:, None])
    comb = comb / tl.sum(comb, 1)[:, None] + hc_eps
    comb = comb / (tl.sum(comb, 0)[None, :] + hc_eps)
    for _ in range(iters - 1):
        comb = comb / (tl.sum(comb, 1)[:, None] + hc_eps)
        comb = comb / (tl.sum(comb, 0)[None, :] + hc_eps)
    tl.store(post_out + token * 4 + four, post)
    tl.store(comb_out + token * 16 + square, comb)

    mixed = tl.sum(tl.where(four == 0, pre, 0.0), 0) * r0.to(tl.float32)
    mixed += tl.sum(tl.where(four == 1, pre, 0.0), 0) * r1.to(tl.float32)
    mixed += tl.sum(tl.where(four == 2, pre, 0.0), 0) * r2.to(tl.float32)
    mixed += tl.sum(tl.where(four == 3, pre, 0.0), 0) * r3.to(tl.float32)
    mixed = mixed.to(streams.dtype.element_ty).to(tl.float32)
    normed = mixed * tl.rsqrt(tl.sum(mixed * mixed, 0) / hidden + rms_eps) * gain.to(tl.float32)
    tl.store(out + token * hidden + cols, normed, mask=mask)


@triton.jit
def read_streams(streams, post, comb, token, hidden, cols, mask):
    """What a write needs of one token: some columns of its four streams, and its 4 + 16 coefficients."""
    base = streams + token * 4 * hidden + cols
    olds = ()
    for k in tl.static_range(4):
        olds += (tl.load(base + k * hidden, mask=mask, other=0.0),)  # type: ignore[assignment]
    gains = ()
    for j in tl.static_range(4):
        gains += (tl.load(post + token * 4 + j),)  # type: ignore[assignment]
    mix = ()
    for i in tl.static_range(16):
        mix += (tl.load(comb + token * 16 + i),)  # type: ignore[assignment]
    return olds, gains, mix


@triton.jit
def new_stream(x, olds, gains, mix, j: tl.constexpr):
    """R'[j] = post[j] * x + sum_k comb[k, j] * R[k] in float32, of what read_streams read; x is float32."""
    # Spelled as fused multiply-adds: the compiler would choose its own in each kernel, and bits would differ.
    y = gains[j] * x
    for k in tl.static_range(4):
        y = tl.fma(mix[k * 4 + j], olds[k].to(tl.float32), y)
    return y


@triton.jit
def write_streams(x, olds, gains, mix, out, token, hidden, cols, mask):
    """Stores all four new streams. `out` may be `streams`."""
    for j in tl.static_range(4):
        tl.store(out + (token * 4 + j) * hidden + cols, new_stream(x, olds, gains, mix, j), mask=mask)


@triton.jit
def mhc_post_kernel(x, streams, post, comb, out, hidden, block: tl.constexpr):
    """Program (token, column block): the write of the complete sum x [T, H] into the streams [T, 4, H]."""
    token = tl.program_id(0)
    cols = tl.program_id(1) * block + tl.arange(0, block)
    mask = cols < hidden
    value = tl.load(x + token * hidden + cols, mask=mask, other=0.0).to(tl.float32)
    olds, gains, mix = read_streams(streams, post, comb, token, hidden, cols, mask)
    write_streams(value, olds, gains, mix, out, token, hidden, cols, mask)
