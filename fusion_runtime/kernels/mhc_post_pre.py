"""A half-layer's exit joined to the next read: all-reduce, mHC write and the read's projection in one launch.

The read's 24 dot products and its sum of squares run over all 4H columns of a token's new streams. A program has some
columns of a few tokens: it exchanges them (see allreduce.py), writes their new streams, and leaves its share of the
sums, as mhc.mhc_pre_gemm_sqrsum_kernel does. mhc.mhc_pre_big_fuse_with_norm_kernel makes the read of them, as ever.
"""

from __future__ import annotations

import triton
import triton.language as tl

from fusionscope.fusion_runtime.kernels.allreduce import inboxes_of, push, rank_of, sum_parts
from fusionscope.fusion_runtime.kernels.mhc import new_stream, read_streams


@triton.jit(do_not_specialize=["tokens"])
def ar_hc_post_pre_oneshot_kernel(
    x, streams, post, comb, fn, out, partial, inboxes, epochs, delays, tokens, hidden, elements,
    size: tl.constexpr, first_rank: tl.constexpr, ranks: tl.constexpr, stage: tl.constexpr, emulate: tl.constexpr,
    word: tl.constexpr, block: tl.constexpr, rows: tl.constexpr
):  # fmt: skip
    """Program (column block, block of `rows` tokens, rank). Stage 1 pushes, 2 reads and sums, 8 ends the exchange.

    x [ranks, T, H]; streams [T, 4, H], post, comb and fn [24, 4H] f32 are the same for all ranks; out [ranks, T, 4, H];
    partial [ranks, T, column blocks, 32] f32: 24 dot products and the sum of squares of what `out` holds, rounded.
    """
    here, rank = tl.program_id(2), rank_of(first_rank, ranks)
    column, columns, first = tl.program_id(0), tl.num_programs(0), tl.program_id(1) * rows
    # Exchanges and writes know one dimension only.
    place = tl.arange(0, rows * block)
    token, cols = first + place // block, column * block + place % block
    mask = (token < tokens) & (cols < hidden)
    token = tl.minimum(token, tokens - 1)
    at = token * hidden + cols
    epochs += (here * tokens + first) * columns + column
    epoch = tl.load(epochs)
    boxes, inbox = inboxes_of(inboxes, rank, size, word)
    own = tl.load(x + here * elements + at, mask=mask, other=0.0)
    mine, coef, col = first + tl.arange(0, rows), tl.arange(0, 32), column * block + tl.arange(0, block)
    if stage & 2:
        # Asked for before the wait, which hides them.
        inside = (coef < 24)[:, None] & (col < hidden)[None, :]
        weights = ()
        for j in tl.static_range(4):
            weights += (tl.load(fn + (coef[:, None] * 4 + j) * hidden + col[None, :], mask=inside, other=0.0),)  # type: ignore[assignment]
        olds, gains, mix = read_streams(streams, post, comb, token, hidden, cols, mask)
    if stage & 1:
        push(own, boxes, epoch % 2, at, mask, rank, elements, size, word, delays)
    if stage & 2:
        few: tl.constexpr = rows * block < 128
        total = sum_parts(own, inbox, epoch % 2, at, mask, rank, elements, size, word, rows * block, emulate, few)
        total = total.to(x.dtype.element_ty).to(tl.float32)
        products = tl.zeros((rows, 32, block), tl.float32)
        squares = tl.zeros((rows, block), tl.float32)
        for j in tl.static_range(4):
            # The read sees what is stored: rounded.
            new = new_stream(total, olds, gains, mix, j).to(out.dtype.element_ty)
            tl.store(out + ((here * tokens + token) * 4 + j) * hidden + cols, new, mask=mask)
            value = tl.reshape(tl.where(mask, new.to(tl.float32), 0.0), (rows, block))
            products += value[:, None, :] * weights[j][None, :, :]
            squares += value * value
        sums = tl.where(coef[None, :] == 24, tl.sum(squares, 1)[:, None], tl.sum(products, 2))
        places = ((here * tokens + mine)[:, None] * columns + column) * 32 + coef[None, :]
        tl.store(partial + places, sums, mask=(mine < tokens)[:, None])
    if stage & 8:
        # As allreduce.finish, for every token: other kernels over this channel may have a program for each. A tile goes
        # by its first token's count, so with those in between the numbers of tokens must not change: rows wider than a
        # tile cannot come to that, since their exchanges have other blocks, and so inboxes of their own.
        tl.debug_barrier()
        tl.store(epochs + tl.arange(0, rows) * columns, epoch + 1, mask=mine < tokens)
