"""One-shot exchange between ranks: publish the own part, wait for the peers' flags, read all parts, sum.

Every program exchanges with the same program of the other ranks and nobody else, so flags and epochs are per program:
    data   [ranks, 2, elements]        each rank's parts; the slot is the epoch's parity
    pads   [owner, writer, programs]   the last epoch that `writer` has published to `owner`
    epochs [ranks, programs]           the last epoch that this rank's program has finished
Epochs live in device memory and are advanced by the kernels, so a captured graph can be replayed. Two slots are
enough: a rank that publishes epoch e has seen its peers publish e - 1, and a peer's program publishes e - 1 only in a
launch after the one in which it read e - 2, the slot that is now written again.

`emulate` (one GPU, rank 0 alone): the kernel also writes the flags that its peers would have written, so that
the wait finds them. `stage` 3 does everything in one launch. Where programs run one after another (Triton's
interpreter) a wait for a program that comes later would not end: stage 1 publishes, a second launch with
stage 2 reads.
"""

from __future__ import annotations

import triton
import triton.language as tl

from fusionscope.fusion_runtime.kernels.mhc import write_streams
from fusionscope.fusion_runtime.kernels.moe import weighted_sum


@triton.jit
def publish(value, data, pads, epochs, at, mask, rank, program, programs, elements, size: tl.constexpr,
            emulate: tl.constexpr, scope: tl.constexpr):  # fmt: skip
    """Writes this program's part into its slot and raises its flag at every peer."""
    epoch = tl.load(epochs + rank * programs + program) + 1
    tl.store(data + (rank * 2 + epoch % 2) * elements + at, value, mask=mask)
    # All threads' stores come before the flags that a few threads raise.
    tl.debug_barrier()
    peer = tl.arange(0, size)
    raised = tl.zeros((size,), tl.int32) + epoch
    tl.atomic_xchg(pads + (peer * size + rank) * programs + program, raised, mask=peer != rank, sem="release",
                   scope=scope)  # fmt: skip
    if emulate:
        tl.atomic_xchg(pads + (rank * size + peer) * programs + program, raised, mask=peer != rank, sem="release",
                       scope=scope)  # fmt: skip


@triton.jit
def wait_for_peers(pads, epochs, rank, program, programs, size: tl.constexpr, scope: tl.constexpr):
    """Returns the epoch once every peer's program has published it."""
    epoch = tl.load(epochs + rank * programs + program) + 1
    for peer in tl.static_range(size):
        flag = pads + (rank * size + peer) * programs + program
        if peer != rank:
            seen = tl.atomic_add(flag, 0, sem="acquire", scope=scope)
            while seen < epoch:
                seen = tl.atomic_add(flag, 0, sem="acquire", scope=scope)
    tl.debug_barrier()
    return epoch


@triton.jit
def sum_ranks(data, epoch, at, mask, elements, size: tl.constexpr, block: tl.constexpr):
    """float32 sum of all ranks' parts in rank order (the same order, so the same bits, on every rank)."""
    total = tl.zeros((block,), tl.float32)
    for rank in tl.static_range(size):
        part = tl.load(data + (rank * 2 + epoch % 2) * elements + at, mask=mask, other=0.0)
        total += part.to(tl.float32)
    return total


@triton.jit
def finish(epochs, epoch, rank, program, programs):
    """Remembers the epoch for this program's next launch; no thread may still need the old one."""
    tl.debug_barrier()
    tl.store(epochs + rank * programs + program, epoch)


@triton.jit
def one_shot_all_reduce_kernel(
    x, out, data, pads, epochs, width, elements,
    size: tl.constexpr, stage: tl.constexpr, emulate: tl.constexpr, scope: tl.constexpr, block: tl.constexpr
):  # fmt: skip
    """Program (token, column block, rank): x [ranks, T, W] -> out [ranks, T, W], float32 sum rounded to storage."""
    token, rank = tl.program_id(0), tl.program_id(2)
    program = token * tl.num_programs(1) + tl.program_id(1)
    programs = tl.num_programs(0) * tl.num_programs(1)
    cols = tl.program_id(1) * block + tl.arange(0, block)
    mask = cols < width
    at = token * width + cols
    if stage != 2:
        own = tl.load(x + rank * elements + at, mask=mask, other=0.0)
        publish(own, data, pads, epochs, at, mask, rank, program, programs, elements, size, emulate, scope)
    if stage != 1:
        epoch = wait_for_peers(pads, epochs, rank, program, programs, size, scope)
        total = sum_ranks(data, epoch, at, mask, elements, size, block)
        tl.store(out + rank * elements + at, total, mask=mask)
        finish(epochs, epoch, rank, program, programs)


@triton.jit
def allgather_lastdim_kernel(
    x, out, data, pads, epochs, width, elements,
    size: tl.constexpr, stage: tl.constexpr, emulate: tl.constexpr, scope: tl.constexpr, block: tl.constexpr
):  # fmt: skip
    """Program (token, column block, rank): x [ranks, T, W] -> out [ranks, T, ranks * W], side by side."""
    token, rank = tl.program_id(0), tl.program_id(2)
    program = token * tl.num_programs(1) + tl.program_id(1)
    programs = tl.num_programs(0) * tl.num_programs(1)
    cols = tl.program_id(1) * block + tl.arange(0, block)
    mask = cols < width
    at = token * width + cols
    if stage != 2:
        own = tl.load(x + rank * elements + at, mask=mask, other=0.0)
        publish(own, data, pads, epochs, at, mask, rank, program, programs, elements, size, emulate, scope)
    if stage != 1:
        epoch = wait_for_peers(pads, epochs, rank, program, programs, size, scope)
        row = out + (rank * tl.num_programs(0) + token) * size * width + cols
        for peer in tl.static_range(size):
            part = tl.load(data + (peer * 2 + epoch % 2) * elements + at, mask=mask, other=0.0)
            tl.store(row + peer * width, part, mask=mask)
        finish(epochs, epoch, rank, program, programs)


@triton.jit
def ar_hc_post_oneshot_kernel(
    x, streams, post, comb, out, data, pads, epochs, hidden, elements,
    size: tl.constexpr, stage: tl.constexpr, emulate: tl.constexpr, scope: tl.constexpr, block: tl.constexpr
):  # fmt: skip
    """Program (token, column block, rank): all-reduce of x [ranks, T, H], rounded, then the write into the streams.

    streams [T, 4, H], post, comb are the same for all ranks; out [ranks, T, 4, H] may be `streams` with one rank.
    """
    token, rank = tl.program_id(0), tl.program_id(2)
    program = token * tl.num_programs(1) + tl.program_id(1)
    programs = tl.num_programs(0) * tl.num_programs(1)
    cols = tl.program_id(1) * block + tl.arange(0, block)
    mask = cols < hidden
    at = token * hidden + cols
    if stage != 2:
        own = tl.load(x + rank * elements + at, mask=mask, other=0.0)
        publish(own, data, pads, epochs, at, mask, rank, program, programs, elements, size, emulate, scope)
    if stage != 1:
        epoch = wait_for_peers(pads, epochs, rank, program, programs, size, scope)
        total = sum_ranks(data, epoch, at, mask, elements, size, block)
        total = total.to(data.dtype.element_ty).to(tl.float32)
        write_streams(total, streams, post, comb, out + rank * elements * 4, token, hidden, cols, mask)
        finish(epochs, epoch, rank, program, programs)


@triton.jit
def moe_finalize_ar_hc_post_oneshot_kernel(
    gemm2, idx, weights, shared, streams, post, comb, out, data, pads, epochs, hidden, elements, gemm2_stride, scale,
    k: tl.constexpr, has_shared: tl.constexpr,
    size: tl.constexpr, stage: tl.constexpr, emulate: tl.constexpr, scope: tl.constexpr, block: tl.constexpr
):  # fmt: skip
    """Program (token, column block, rank): weighted sum over the experts plus the shared expert, rounded to storage,
    published; then as ar_hc_post_oneshot_kernel.

    gemm2 [ranks, P, H] (gemm2_stride elements a rank), shared [ranks, T, H]; idx and weights [T, k] are the same for
    all ranks, as the router is replicated.
    """
    token, rank = tl.program_id(0), tl.program_id(2)
    program = token * tl.num_programs(1) + tl.program_id(1)
    programs = tl.num_programs(0) * tl.num_programs(1)
    cols = tl.program_id(1) * block + tl.arange(0, block)
    mask = cols < hidden
    at = token * hidden + cols
    if stage != 2:
        part = gemm2 + rank.to(tl.int64) * gemm2_stride
        own = weighted_sum(part, idx, weights, token, hidden, scale, cols, mask, k, block)
        if has_shared:
            own += tl.load(shared + rank * elements + at, mask=mask, other=0.0).to(tl.float32)
        own = own.to(data.dtype.element_ty)
        publish(own, data, pads, epochs, at, mask, rank, program, programs, elements, size, emulate, scope)
    if stage != 1:
        epoch = wait_for_peers(pads, epochs, rank, program, programs, size, scope)
        total = sum_ranks(data, epoch, at, mask, elements, size, block)
        total = total.to(data.dtype.element_ty).to(tl.float32)
        write_streams(total, streams, post, comb, out + rank * elements * 4, token, hidden, cols, mask)
        finish(epochs, epoch, rank, program, programs)


@triton.jit
def all_reduce_pull_norm_kernel(
    x, residual, weight, out, residual_out, data, pads, epochs, width, elements, eps, weight_bias,
    size: tl.constexpr, stage: tl.constexpr, emulate: tl.constexpr, scope: tl.constexpr, block: tl.constexpr
):  # fmt: skip
    """Program (token, 0, rank): all-reduce of x [ranks, T, W], rounded before the residual [T, W] is added, RMSNorm.

    out and residual_out [ranks, T, W]. The block covers a whole row.
    """
    token, rank = tl.program_id(0), tl.program_id(2)
    programs = tl.num_programs(0)
    cols = tl.arange(0, block)
    mask = cols < width
    at = token * width + cols
    if stage != 2:
        own = tl.load(x + rank * elements + at, mask=mask, other=0.0)
        publish(own, data, pads, epochs, at, mask, rank, token, programs, elements, size, emulate, scope)
    if stage != 1:
        epoch = wait_for_peers(pads, epochs, rank, token, programs, size, scope)
        total = sum_ranks(data, epoch, at, mask, elements, size, block)
        total = total.to(data.dtype.element_ty).to(tl.float32)
        total += tl.load(residual + at, mask=mask, other=0.0).to(tl.float32)
        tl.store(residual_out + rank * elements + at, total, mask=mask)
        inverse = tl.rsqrt(tl.sum(total * total, 0) / width + eps)
        gain = tl.load(weight + cols, mask=mask, other=0.0).to(tl.float32) + weight_bias
        tl.store(out + rank * elements + at, total * inverse * gain, mask=mask)
        finish(epochs, epoch, rank, token, programs)
