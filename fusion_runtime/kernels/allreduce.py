"""One-shot exchange between ranks: push the own part into every peer's inbox, wait for theirs, sum all.

    inboxes [ranks]                    addresses of the ranks' inboxes, as this process reaches them
    inbox   [2, ranks, elements]       per owner: parts by slot (the epoch's parity) and writer, as integers
    epochs  [ranks here, programs]     how many exchanges this rank's program has finished
    sums    [ranks here, T, 2, places] by token and slot: what the programs of one row tell each other, on lines of
                                       the cache of their own, as all of them look at theirs again and again

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

from fusionscope.fusion_runtime.comm.channel import LINE
from fusionscope.fusion_runtime.kernels.mhc import read_streams, write_streams
from fusionscope.fusion_runtime.kernels.moe import weighted_sum
from fusionscope.fusion_runtime.kernels.norms import given_scale, store_normed

ROW_LINE = tl.constexpr(LINE)


@triton.jit
def rank_of(first_rank: tl.constexpr, ranks: tl.constexpr):
    """This program's rank, a constant where the launch has one rank only."""
    if ranks == 1:
        return first_rank
    return first_rank + tl.program_id(2)


@triton.jit
def inboxes_of(inboxes, rank, size: tl.constexpr, word: tl.constexpr):
    """(where every rank's inbox begins, where this rank's does): asked for at once, not one after the other."""
    boxes = ()
    for owner in tl.static_range(size):
        boxes += (tl.multiple_of(tl.load(inboxes + owner).to(tl.pointer_type(word)), 16),)  # type: ignore[assignment]
    return boxes, tl.multiple_of(tl.load(inboxes + rank).to(tl.pointer_type(word)), 16)


@triton.jit
def begin(epochs, width, block: tl.constexpr, blocks: tl.constexpr):
    """(token, rank's place in this launch, place of the epoch, epoch, columns, mask, elements): what a program has."""
    token, here = tl.program_id(1), tl.program_id(2)
    epochs += (here * tl.num_programs(1) + token) * blocks + tl.program_id(0)
    cols = tl.program_id(0) * block + tl.arange(0, block)
    return token, here, epochs, tl.load(epochs), cols, cols < width, token * width + cols


@triton.jit
def push(value, boxes, parity, at, mask, rank, elements, size: tl.constexpr, word: tl.constexpr, delays):
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
            tl.store(boxes[peer] + (parity * size + rank) * elements + at, bits, mask=mask)


@triton.jit
def look(own, slots, at, mask, rank, elements, size: tl.constexpr, block: tl.constexpr):
    """(float32 sum of all ranks' parts in rank order: the same bits on every rank; what has not come, not 0 there)."""
    total = tl.zeros((block,), tl.float32)
    empty = tl.zeros((block,), tl.int32)
    for writer in tl.static_range(size):
        if writer == rank:
            total += own.to(tl.float32)
        else:
            bits = tl.load(slots + writer * elements + at, mask=mask, other=0, volatile=True)
            empty |= (bits == -1).to(tl.int32)
            total += bits.to(own.dtype, bitcast=True).to(tl.float32)
    return total, empty


@triton.jit
def sum_parts(own, inbox, parity, at, mask, rank, elements, size: tl.constexpr, word: tl.constexpr,
              block: tl.constexpr, emulate: tl.constexpr, few: tl.constexpr = False):  # fmt: skip
    """What `look` sums, once all of it has come; empties the slots.

    `few`: the block has fewer elements than the program has threads. Then every warp can have all of them, and leaves
    the loop when it has seen them: the first must not empty what the others still wait for.
    """
    slots = inbox + parity * size * elements
    total = tl.zeros((block,), tl.float32)
    missing = 1
    while missing > 0:
        total, empty = look(own, slots, at, mask, rank, elements, size, block)
        missing = tl.max(empty, 0)
    if few:
        tl.debug_barrier()
    empty_slots(slots, at, mask, rank, elements, size, word, block, emulate)
    return total


@triton.jit
def empty_slots(slots, at, mask, rank, elements, size: tl.constexpr, word: tl.constexpr, block: tl.constexpr,
                emulate: tl.constexpr):  # fmt: skip
    """Makes the slots ready for the exchange after the next; emulated, as many writes into the own, unused slot."""
    nothing = tl.full((block,), -1, word)
    for writer in tl.static_range(size):
        if writer != rank:
            if emulate:
                tl.store(slots + rank * elements + at, nothing, mask=mask)
            else:
                tl.store(slots + writer * elements + at, nothing, mask=mask)


@triton.jit
def missing_and_sum(missing_a, sum_a, missing_b, sum_b):
    """One reduction for two questions."""
    return missing_a | missing_b, sum_a + sum_b


@triton.jit
def row_places(sums, epoch, token, here, padded: tl.constexpr):
    """(this token's places in the slot of this epoch, those in the other slot): whole lines of the cache."""
    line: tl.constexpr = ROW_LINE if padded < ROW_LINE else padded
    sums += (here * tl.num_programs(1) + token) * 2 * line
    return sums + epoch % 2 * line, sums + (epoch + 1) % 2 * line


@triton.jit
def tell_row(value, places, before):
    """Tells the other programs of this token a float32."""
    # The programs of the last launch have ended: nobody reads its slot any more.
    tl.store(before + tl.program_id(0), -1)
    bits = value.to(tl.int32, bitcast=True)
    tl.store(places + tl.program_id(0), tl.where(bits == -1, -2, bits))


@triton.jit
def sum_row(places, blocks: tl.constexpr, padded: tl.constexpr):
    """The sum of what the programs of this token tell, the same bits in each of them."""
    block = tl.arange(0, padded)
    total = 0.0
    missing = 1
    while missing > 0:
        bits = tl.load(places + block, mask=block < blocks, other=0, volatile=True)
        missing, total = tl.reduce(((bits == -1).to(tl.int32), bits.to(tl.float32, bitcast=True)), 0, missing_and_sum)
    return total


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
    rank = rank_of(first_rank, ranks)
    _token, here, epochs, epoch, _cols, mask, at = begin(epochs, width, block, blocks)
    boxes, inbox = inboxes_of(inboxes, rank, size, word)
    own = tl.load(x + here * elements + at, mask=mask, other=0.0)
    if stage & 1:
        push(own, boxes, epoch % 2, at, mask, rank, elements, size, word, delays)
    if stage & 2:
        total = sum_parts(own, inbox, epoch % 2, at, mask, rank, elements, size, word, block, emulate)
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
    rank = rank_of(first_rank, ranks)
    token, here, epochs, epoch, cols, mask, at = begin(epochs, width, block, blocks)
    boxes, inbox = inboxes_of(inboxes, rank, size, word)
    own = tl.load(x + here * elements + at, mask=mask, other=0.0)
    if stage & 1:
        push(own, boxes, epoch % 2, at, mask, rank, elements, size, word, delays)
    if stage & 2:
        slots = inbox + epoch % 2 * size * elements
        row = out + (here * tl.num_programs(1) + token) * size * width + cols
        for writer in tl.static_range(size):
            if writer == rank:
                tl.store(row + writer * width, own, mask=mask)
            else:
                slot = slots + writer * elements + at
                bits = tl.load(slot, mask=mask, other=0, volatile=True)
                while tl.max((bits == -1).to(tl.int32), 0) > 0:
                    bits = tl.load(slot, mask=mask, other=0, volatile=True)
                tl.store(row + writer * width, bits.to(own.dtype, bitcast=True), mask=mask)
        empty_slots(slots, at, mask, rank, elements, size, word, block, emulate)
    if stage & 8:
        finish(epochs, epoch)


@triton.jit
def end_in_post(
    own, boxes, inbox, olds, gains, mix, out, epochs, epoch, delays, token, here, rank, cols, mask, at, hidden,
    elements, size: tl.constexpr, stage: tl.constexpr, emulate: tl.constexpr, word: tl.constexpr, block: tl.constexpr
):  # fmt: skip
    """From a program's part to its columns of the new streams [ranks, T, 4, H], what they are mixed of being there."""
    if stage & 1:
        push(own, boxes, epoch % 2, at, mask, rank, elements, size, word, delays)
    if stage & 2:
        total = sum_parts(own, inbox, epoch % 2, at, mask, rank, elements, size, word, block, emulate)
        write_streams(
            total.to(own.dtype).to(tl.float32), olds, gains, mix, out + here * elements * 4, token, hidden, cols, mask
        )
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
    rank = rank_of(first_rank, ranks)
    token, here, epochs, epoch, cols, mask, at = begin(epochs, hidden, block, blocks)
    boxes, inbox = inboxes_of(inboxes, rank, size, word)
    own = tl.load(x + here * elements + at, mask=mask, other=0.0)
    # Asked for before the part is sent: a load after a store waits for what the store's address waits for.
    olds, gains, mix = read_streams(streams, post, comb, token, hidden, cols, mask)
    end_in_post(own, boxes, inbox, olds, gains, mix, out, epochs, epoch, delays, token, here, rank, cols, mask, at,
                hidden, elements, size, stage, emulate, word, block)  # fmt: skip


@triton.jit
def routed_part(gemm2, idx, weights, shared, token, here, cols, mask, at, hidden, elements, stride, scale,
                k: tl.constexpr, has_shared: tl.constexpr, block: tl.constexpr):  # fmt: skip
    """Some columns of a rank's part: the weighted sum over its experts plus the shared expert, rounded to storage.

    gemm2 [ranks, P, H] (stride elements a rank), shared [ranks, T, H]; idx and weights [T, k] are the same for all
    ranks, as the router is replicated.
    """
    own = weighted_sum(gemm2 + here.to(tl.int64) * stride, idx, weights, token, hidden, scale, cols, mask, k, block)
    if has_shared:
        own += tl.load(shared + here * elements + at, mask=mask, other=0.0).to(tl.float32)
    return own.to(gemm2.dtype.element_ty)


@triton.jit
def moe_finalize_ar_hc_post_oneshot_kernel(
    gemm2, idx, weights, shared, streams, post, comb, out, inboxes, epochs, sums, delays, hidden, elements,
    gemm2_stride, scale, k: tl.constexpr, has_shared: tl.constexpr,
    size: tl.constexpr, first_rank: tl.constexpr, ranks: tl.constexpr, stage: tl.constexpr, emulate: tl.constexpr,
    word: tl.constexpr, block: tl.constexpr, blocks: tl.constexpr, padded: tl.constexpr
):  # fmt: skip
    """routed_part, then as ar_hc_post_oneshot_kernel."""
    rank = rank_of(first_rank, ranks)
    token, here, epochs, epoch, cols, mask, at = begin(epochs, hidden, block, blocks)
    boxes, inbox = inboxes_of(inboxes, rank, size, word)
    olds, gains, mix = read_streams(streams, post, comb, token, hidden, cols, mask)
    own = routed_part(gemm2, idx, weights, shared, token, here, cols, mask, at, hidden, elements, gemm2_stride, scale,
                      k, has_shared, block)  # fmt: skip
    end_in_post(own, boxes, inbox, olds, gains, mix, out, epochs, epoch, delays, token, here, rank, cols, mask, at,
                hidden, elements, size, stage, emulate, word, block)  # fmt: skip


@triton.jit
def norm_operands(residual, weight, scale, cols, mask, at, quant: tl.constexpr, block: tl.constexpr):
    """(residual, float32; gain; what given_scale gives): what a norm needs beside the sum."""
    gain = tl.load(weight + cols, mask=mask, other=0.0)
    if residual is not None:
        old = tl.load(residual + at, mask=mask, other=0.0).to(tl.float32)
    else:
        old = tl.zeros((block,), tl.float32)
    return old, gain, given_scale(scale, quant)


@triton.jit
def end_in_norm(
    own, boxes, inbox, old, gain, given, out, residual_out, scales, sums, epochs, epoch, delays, token, here, rank,
    cols, mask, at, width, elements, eps, weight_bias, quant: tl.constexpr,
    size: tl.constexpr, stage: tl.constexpr, emulate: tl.constexpr, word: tl.constexpr, block: tl.constexpr,
    blocks: tl.constexpr, padded: tl.constexpr
):  # fmt: skip
    """From a program's part to its columns of the sum, rounded before the residual is added, and of its RMSNorm."""
    if stage & 1:
        push(own, boxes, epoch % 2, at, mask, rank, elements, size, word, delays)
    slots = inbox + epoch % 2 * size * elements
    places, before = row_places(sums, epoch, token, here, padded)
    total = tl.zeros((block,), tl.float32)
    squares = 0.0
    if stage & 2:
        missing = 1
        while missing > 0:
            total, empty = look(own, slots, at, mask, rank, elements, size, block)
            total = total.to(own.dtype).to(tl.float32) + old
            # Counted too soon while something is missing, and then again: one reduction, not one after the other.
            missing, squares = tl.reduce((empty, total * total), 0, missing_and_sum)
    elif stage & 12:
        total = tl.load(residual_out + here * elements + at, mask=mask, other=0.0).to(tl.float32)
        squares = tl.sum(total * total, 0)
    if blocks > 1 and stage & 4:
        tell_row(squares, places, before)
    if stage & 2:
        empty_slots(slots, at, mask, rank, elements, size, word, block, emulate)
        tl.store(residual_out + here * elements + at, total, mask=mask)
    if stage & 8:
        if blocks > 1:
            squares = sum_row(places, blocks, padded)
        y = total * tl.rsqrt(squares / width + eps) * (gain.to(tl.float32) + weight_bias)
        row, first = here * tl.num_programs(1) + token, tl.program_id(0) * block
        store_normed(y.to(own.dtype), out, scales, given, row, first, cols, mask, width, quant, block)
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
    rank = rank_of(first_rank, ranks)
    token, here, epochs, epoch, cols, mask, at = begin(epochs, width, block, blocks)
    boxes, inbox = inboxes_of(inboxes, rank, size, word)
    own = tl.load(x + here * elements + at, mask=mask, other=0.0)
    old, gain, given = norm_operands(residual, weight, scale, cols, mask, at, quant, block)
    end_in_norm(own, boxes, inbox, old, gain, given, out, residual_out, scales, sums, epochs, epoch, delays, token,
                here, rank, cols, mask, at, width, elements, eps, weight_bias, quant, size, stage, emulate, word, block,
                blocks, padded)  # fmt: skip


@triton.jit
def moe_finalize_ar_norm_oneshot_kernel(
    gemm2, idx, weights, shared, residual, weight, out, residual_out, scales, scale, inboxes, epochs, sums, delays,
    width, elements, gemm2_stride, routed_scale, eps, weight_bias,
    k: tl.constexpr, has_shared: tl.constexpr, quant: tl.constexpr,
    size: tl.constexpr, first_rank: tl.constexpr, ranks: tl.constexpr, stage: tl.constexpr, emulate: tl.constexpr,
    word: tl.constexpr, block: tl.constexpr, blocks: tl.constexpr, padded: tl.constexpr
):  # fmt: skip
    """routed_part, then as all_reduce_push_norm_kernel."""
    rank = rank_of(first_rank, ranks)
    token, here, epochs, epoch, cols, mask, at = begin(epochs, width, block, blocks)
    boxes, inbox = inboxes_of(inboxes, rank, size, word)
    old, gain, given = norm_operands(residual, weight, scale, cols, mask, at, quant, block)
    own = routed_part(gemm2, idx, weights, shared, token, here, cols, mask, at, width, elements, gemm2_stride,
                      routed_scale, k, has_shared, block)  # fmt: skip
    end_in_norm(own, boxes, inbox, old, gain, given, out, residual_out, scales, sums, epochs, epoch, delays, token,
                here, rank, cols, mask, at, width, elements, eps, weight_bias, quant, size, stage, emulate, word, block,
                blocks, padded)  # fmt: skip
