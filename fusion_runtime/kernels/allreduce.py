"""One-shot exchange between ranks: push the own part into every peer's inbox, wait for theirs, sum all.

    inboxes [ranks]                    addresses of the ranks' inboxes, as this process reaches them
    inbox   [2, ranks, elements]       per owner: parts by slot (the epoch's parity) and writer, as integers
    epochs  [ranks here, programs]     how many exchanges this rank's program has finished
    sums    [ranks here, 2, programs]  by slot: what the programs of one row tell each other

A place is empty where all bits are set, which is a NaN in every float format; a part that holds this NaN is sent as
another NaN. So a part announces itself: the reader looks at a slot until nothing in it is empty, and neither flags
nor fences are needed. The reader empties what it has read for the exchange after the next. Two slots are enough: a peer
writes a slot again only after it has read what this rank sent in the exchange between, and that was sent after the
launch that emptied the slot had ended. Epochs live in device memory and are advanced by the kernels, so a captured
graph can be replayed. Zeros keep their sign, and no input can make a reader wait for ever.

Programs are (column block, token, rank): those of one token start one after the other, so that they can wait for each
other too. A norm over a row of several programs sums its squares that way.

`emulate` (one GPU, rank 0 alone): the peers' parts lie in the inbox for good; what would empty them writes elsewhere.
`stage` 15 does everything in one launch. Where programs run one after another (Triton's interpreter) a wait for a
program that comes later would not end: 1 pushes, 2 reads and sums, 4 tells the row, 8 norms and ends the exchange.
"""

from __future__ import annotations

import triton
import triton.language as tl

from fusionscope.fusion_runtime.kernels.mhc import read_streams, write_streams
from fusionscope.fusion_runtime.kernels.moe import weighted_sum
from fusionscope.fusion_runtime.kernels.norms import store_normed


@triton.jit
def rank_of(first_rank: tl.constexpr, ranks: tl.constexpr):
    """This program's rank, a constant where the launch has one rank only."""
    if ranks == 1:
        return first_rank
    return first_rank + tl.program_id(2)


@triton.jit
def inbox_of(inboxes, owner, word: tl.constexpr):
    """Where a rank's inbox begins."""
    return tl.multiple_of(tl.load(inboxes + owner).to(tl.pointer_type(word)), 16)


@triton.jit
def push(value, inboxes, parity, at, mask, rank, elements, size: tl.constexpr, word: tl.constexpr, delays):
    """Writes this program's part into its slot in every peer's inbox, late by delays[rank] reads of memory."""
    if delays is not None:
        turns = tl.load(delays + rank)
        for _ in range(turns):
            turns = tl.maximum(turns, tl.load(delays + rank, volatile=True))
        # Never true, but the compiler cannot know, so the reads stay.
        value = tl.where(turns < 0, value + 1, value)
    bits = value.to(word, bitcast=True)
    # All bits set mean "nothing here yet": clearing the lowest leaves a NaN.
    bits = tl.where(bits == -1, -2, bits).to(word)
    for peer in tl.static_range(size):
        if peer != rank:
            slot = inbox_of(inboxes, peer, word) + (parity * size + rank) * elements
            tl.store(slot + at, bits, mask=mask)


@triton.jit
def sum_parts(own, inboxes, parity, at, mask, rank, elements, size: tl.constexpr, word: tl.constexpr,
              block: tl.constexpr, emulate: tl.constexpr):  # fmt: skip
    """float32 sum of all ranks' parts in rank order (the same order, so the same bits, on every rank), once they have
    come; empties the slots."""
    inbox = inbox_of(inboxes, rank, word) + parity * size * elements
    total = tl.zeros((block,), tl.float32)
    missing = 1
    while missing > 0:
        total = tl.zeros((block,), tl.float32)
        empty = tl.zeros((block,), tl.int32)
        for writer in tl.static_range(size):
            if writer == rank:
                total += own.to(tl.float32)
            else:
                bits = tl.load(inbox + writer * elements + at, mask=mask, other=0, volatile=True)
                empty |= (bits == -1).to(tl.int32)
                total += bits.to(own.dtype, bitcast=True).to(tl.float32)
        missing = tl.max(empty, 0)
    empty_slots(inbox, at, mask, rank, elements, size, word, block, emulate)
    return total


@triton.jit
def empty_slots(inbox, at, mask, rank, elements, size: tl.constexpr, word: tl.constexpr, block: tl.constexpr,
                emulate: tl.constexpr):  # fmt: skip
    """Makes the slots ready for the exchange after the next; emulated, as many writes into the own, unused slot."""
    nothing = tl.full((block,), -1, word)
    for writer in tl.static_range(size):
        if writer != rank:
            if emulate:
                tl.store(inbox + rank * elements + at, nothing, mask=mask)
            else:
                tl.store(inbox + writer * elements + at, nothing, mask=mask)


@triton.jit
def tell_row(value, row, epoch, programs, blocks: tl.constexpr):
    """Tells the other programs of this token a float32; row: this token's places in the slot of even epochs."""
    own = row + tl.program_id(0)
    # The programs of the last launch have ended: nobody reads its slot any more.
    tl.store(own + (epoch + 1) % 2 * programs, -1)
    bits = value.to(tl.int32, bitcast=True)
    tl.store(own + epoch % 2 * programs, tl.where(bits == -1, -2, bits))


@triton.jit
def sum_row(row, epoch, programs, blocks: tl.constexpr, padded: tl.constexpr):
    """The sum of what the programs of this token tell, the same bits in each of them."""
    block = tl.arange(0, padded)
    slot = row + epoch % 2 * programs + block
    bits = tl.load(slot, mask=block < blocks, other=0, volatile=True)
    while tl.max((bits == -1).to(tl.int32), 0) > 0:
        bits = tl.load(slot, mask=block < blocks, other=0, volatile=True)
    return tl.sum(bits.to(tl.float32, bitcast=True), 0)


@triton.jit
def norm_row(total, gain, eps, weight_bias, out, scales, scale, like, sums, epoch, token, here, cols, mask, width,
             elements, stage: tl.constexpr, quant: tl.constexpr, block: tl.constexpr, blocks: tl.constexpr,
             padded: tl.constexpr):  # fmt: skip
    """Stores the RMSNorm of a row of which this program has some columns, `total` in float32."""
    tokens = tl.num_programs(1)
    squares = tl.sum(total * total, 0)
    if blocks > 1:
        # Places, as the inbox has them, for as many tokens as there is room for: other launches take other numbers.
        rows = elements // width
        places = sums + (here * 2 * rows + token) * blocks
        if stage & 4:
            tell_row(squares, places, epoch, rows * blocks, blocks)
        if stage & 8:
            squares = sum_row(places, epoch, rows * blocks, blocks, padded)
    if stage & 8:
        y = total * tl.rsqrt(squares / width + eps) * (gain.to(tl.float32) + weight_bias)
        row = here * tokens + token
        store_normed(y.to(like.dtype.element_ty), out, scales, scale, row, cols, mask, width, quant, block)


@triton.jit
def finish(epochs, epoch):
    """Counts this exchange; no thread may still need the old count."""
    tl.debug_barrier()
    tl.store(epochs, epoch + 1)


@triton.jit
def one_shot_all_reduce_kernel(
    x, out, inboxes, epochs, sums, delays, width, elements,
    size: tl.constexpr, first_rank: tl.constexpr, ranks: tl.constexpr, stage: tl.constexpr, emulate: tl.constexpr,
    word: tl.constexpr, block: tl.constexpr, blocks: tl.constexpr, padded: tl.constexpr
):  # fmt: skip
    """x [ranks, T, W] -> out [ranks, T, W], float32 sum rounded to storage."""
    token, here, rank = tl.program_id(1), tl.program_id(2), rank_of(first_rank, ranks)
    epochs += (here * tl.num_programs(1) + token) * blocks + tl.program_id(0)
    epoch = tl.load(epochs)
    cols = tl.program_id(0) * block + tl.arange(0, block)
    mask = cols < width
    at = token * width + cols
    own = tl.load(x + here * elements + at, mask=mask, other=0.0)
    if stage & 1:
        push(own, inboxes, epoch % 2, at, mask, rank, elements, size, word, delays)
    if stage & 2:
        total = sum_parts(own, inboxes, epoch % 2, at, mask, rank, elements, size, word, block, emulate)
        tl.store(out + here * elements + at, total, mask=mask)
    if stage & 8:
        finish(epochs, epoch)


@triton.jit
def allgather_lastdim_kernel(
    x, out, inboxes, epochs, sums, delays, width, elements,
    size: tl.constexpr, first_rank: tl.constexpr, ranks: tl.constexpr, stage: tl.constexpr, emulate: tl.constexpr,
    word: tl.constexpr, block: tl.constexpr, blocks: tl.constexpr, padded: tl.constexpr
):  # fmt: skip
    """x [ranks, T, W] -> out [ranks, T, size * W], side by side."""
    token, here, rank = tl.program_id(1), tl.program_id(2), rank_of(first_rank, ranks)
    epochs += (here * tl.num_programs(1) + token) * blocks + tl.program_id(0)
    epoch = tl.load(epochs)
    cols = tl.program_id(0) * block + tl.arange(0, block)
    mask = cols < width
    at = token * width + cols
    own = tl.load(x + here * elements + at, mask=mask, other=0.0)
    if stage & 1:
        push(own, inboxes, epoch % 2, at, mask, rank, elements, size, word, delays)
    if stage & 2:
        inbox = inbox_of(inboxes, rank, word) + epoch % 2 * size * elements
        row = out + (here * tl.num_programs(1) + token) * size * width + cols
        for writer in tl.static_range(size):
            if writer == rank:
                tl.store(row + writer * width, own, mask=mask)
            else:
                slot = inbox + writer * elements + at
                bits = tl.load(slot, mask=mask, other=0, volatile=True)
                while tl.max((bits == -1).to(tl.int32), 0) > 0:
                    bits = tl.load(slot, mask=mask, other=0, volatile=True)
                tl.store(row + writer * width, bits.to(own.dtype, bitcast=True), mask=mask)
        empty_slots(inbox, at, mask, rank, elements, size, word, block, emulate)
    if stage & 8:
        finish(epochs, epoch)


@triton.jit
def ar_hc_post_oneshot_kernel(
    x, streams, post, comb, out, inboxes, epochs, sums, delays, hidden, elements,
    size: tl.constexpr, first_rank: tl.constexpr, ranks: tl.constexpr, stage: tl.constexpr, emulate: tl.constexpr,
    word: tl.constexpr, block: tl.constexpr, blocks: tl.constexpr, padded: tl.constexpr
):  # fmt: skip
    """All-reduce of x [ranks, T, H], rounded, then the write into the streams.

    streams [T, 4, H], post, comb are the same for all ranks; out [ranks, T, 4, H] may be `streams` with one rank.
    """
    token, here, rank = tl.program_id(1), tl.program_id(2), rank_of(first_rank, ranks)
    epochs += (here * tl.num_programs(1) + token) * blocks + tl.program_id(0)
    epoch = tl.load(epochs)
    cols = tl.program_id(0) * block + tl.arange(0, block)
    mask = cols < hidden
    at = token * hidden + cols
    own = tl.load(x + here * elements + at, mask=mask, other=0.0)
    if stage & 1:
        push(own, inboxes, epoch % 2, at, mask, rank, elements, size, word, delays)
    if stage & 2:
        # Asked for before the wait, which hides them.
        olds, gains, mix = read_streams(streams, post, comb, token, hidden, cols, mask)
        total = sum_parts(own, inboxes, epoch % 2, at, mask, rank, elements, size, word, block, emulate)
        total = total.to(x.dtype.element_ty).to(tl.float32)
        write_streams(total, olds, gains, mix, out + here * elements * 4, token, hidden, cols, mask)
    if stage & 8:
        finish(epochs, epoch)


@triton.jit
def moe_finalize_ar_hc_post_oneshot_kernel(
    gemm2, idx, weights, shared, streams, post, comb, out, inboxes, epochs, sums, delays, hidden, elements,
    gemm2_stride, scale, k: tl.constexpr, has_shared: tl.constexpr,
    size: tl.constexpr, first_rank: tl.constexpr, ranks: tl.constexpr, stage: tl.constexpr, emulate: tl.constexpr,
    word: tl.constexpr, block: tl.constexpr, blocks: tl.constexpr, padded: tl.constexpr
):  # fmt: skip
    """Weighted sum over the experts plus the shared expert, rounded to storage; then as ar_hc_post_oneshot_kernel.

    gemm2 [ranks, P, H] (gemm2_stride elements a rank), shared [ranks, T, H]; idx and weights [T, k] are the same for
    all ranks, as the router is replicated.
    """
    token, here, rank = tl.program_id(1), tl.program_id(2), rank_of(first_rank, ranks)
    epochs += (here * tl.num_programs(1) + token) * blocks + tl.program_id(0)
    epoch = tl.load(epochs)
    cols = tl.program_id(0) * block + tl.arange(0, block)
    mask = cols < hidden
    at = token * hidden + cols
    part = gemm2 + here.to(tl.int64) * gemm2_stride
    own = weighted_sum(part, idx, weights, token, hidden, scale, cols, mask, k, block)
    if has_shared:
        own += tl.load(shared + here * elements + at, mask=mask, other=0.0).to(tl.float32)
    own = own.to(gemm2.dtype.element_ty)
    if stage & 1:
        push(own, inboxes, epoch % 2, at, mask, rank, elements, size, word, delays)
    if stage & 2:
        olds, gains, mix = read_streams(streams, post, comb, token, hidden, cols, mask)
        total = sum_parts(own, inboxes, epoch % 2, at, mask, rank, elements, size, word, block, emulate)
        total = total.to(gemm2.dtype.element_ty).to(tl.float32)
        write_streams(total, olds, gains, mix, out + here * elements * 4, token, hidden, cols, mask)
    if stage & 8:
        finish(epochs, epoch)


@triton.jit
def all_reduce_push_norm_kernel(
    x, residual, weight, out, residual_out, scales, scale, inboxes, epochs, sums, delays, width, elements,
    eps, weight_bias, quant: tl.constexpr,
    size: tl.constexpr, first_rank: tl.constexpr, ranks: tl.constexpr, stage: tl.constexpr, emulate: tl.constexpr,
    word: tl.constexpr, block: tl.constexpr, blocks: tl.constexpr, padded: tl.constexpr
):  # fmt: skip
    """All-reduce of x [ranks, T, W], rounded before the residual [T, W] is added, then RMSNorm.

    residual None: nothing is added. out and residual_out [ranks, T, W]; out, scales and scale as store_normed has them.
    """
    token, here, rank = tl.program_id(1), tl.program_id(2), rank_of(first_rank, ranks)
    epochs += (here * tl.num_programs(1) + token) * blocks + tl.program_id(0)
    epoch = tl.load(epochs)
    cols = tl.program_id(0) * block + tl.arange(0, block)
    mask = cols < width
    at = token * width + cols
    own = tl.load(x + here * elements + at, mask=mask, other=0.0)
    if stage & 1:
        push(own, inboxes, epoch % 2, at, mask, rank, elements, size, word, delays)
    gain = tl.load(weight + cols, mask=mask, other=0.0)
    if residual is not None:
        old = tl.load(residual + at, mask=mask, other=0.0).to(tl.float32)
    else:
        old = tl.zeros((block,), tl.float32)
    if stage & 2:
        total = sum_parts(own, inboxes, epoch % 2, at, mask, rank, elements, size, word, block, emulate)
        total = total.to(x.dtype.element_ty).to(tl.float32) + old
        tl.store(residual_out + here * elements + at, total, mask=mask)
    else:
        total = tl.load(residual_out + here * elements + at, mask=mask, other=0.0).to(tl.float32)
    norm_row(total, gain, eps, weight_bias, out, scales, scale, x, sums, epoch, token, here, cols, mask, width,
             elements, stage, quant, block, blocks, padded)  # fmt: skip
    if stage & 8:
        finish(epochs, epoch)


@triton.jit
def moe_finalize_ar_norm_oneshot_kernel(
    gemm2, idx, weights, shared, residual, weight, out, residual_out, scales, scale, inboxes, epochs, sums, delays,
    width, elements, gemm2_stride, routed_scale, eps, weight_bias,
    k: tl.constexpr, has_shared: tl.constexpr, quant: tl.constexpr,
    size: tl.constexpr, first_rank: tl.constexpr, ranks: tl.constexpr, stage: tl.constexpr, emulate: tl.constexpr,
    word: tl.constexpr, block: tl.constexpr, blocks: tl.constexpr, padded: tl.constexpr
):  # fmt: skip
    """Weighted sum over the experts plus the shared expert, rounded to storage; then as all_reduce_push_norm_kernel.

    Operands as in moe_finalize_ar_hc_post_oneshot_kernel.
    """
    token, here, rank = tl.program_id(1), tl.program_id(2), rank_of(first_rank, ranks)
    epochs += (here * tl.num_programs(1) + token) * blocks + tl.program_id(0)
    epoch = tl.load(epochs)
    cols = tl.program_id(0) * block + tl.arange(0, block)
    mask = cols < width
    at = token * width + cols
    part = gemm2 + here.to(tl.int64) * gemm2_stride
    own = weighted_sum(part, idx, weights, token, width, routed_scale, cols, mask, k, block)
    if has_shared:
        own += tl.load(shared + here * elements + at, mask=mask, other=0.0).to(tl.float32)
    own = own.to(gemm2.dtype.element_ty)
    if stage & 1:
        push(own, inboxes, epoch % 2, at, mask, rank, elements, size, word, delays)
    gain = tl.load(weight + cols, mask=mask, other=0.0)
    old = tl.load(residual + at, mask=mask, other=0.0).to(tl.float32)
    if stage & 2:
        total = sum_parts(own, inboxes, epoch % 2, at, mask, rank, elements, size, word, block, emulate)
        total = total.to(gemm2.dtype.element_ty).to(tl.float32) + old
        tl.store(residual_out + here * elements + at, total, mask=mask)
    else:
        total = tl.load(residual_out + here * elements + at, mask=mask, other=0.0).to(tl.float32)
    norm_row(total, gain, eps, weight_bias, out, scales, scale, gemm2, sums, epoch, token, here, cols, mask, width,
             elements, stage, quant, block, blocks, padded)  # fmt: skip
    if stage & 8:
        finish(epochs, epoch)
