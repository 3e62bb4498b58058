"""Mixture of experts: routing, sorting slots by expert, the grouped product, activation, the weighted sum."""

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def _best_groups(left, groups: tl.constexpr, kept: tl.constexpr, per: tl.constexpr):
    """left [groups * per], minus infinity outside the `kept` groups whose two best entries sum highest."""
    grouped = tl.reshape(left, (groups, per))
    within = tl.arange(0, per)[None, :]
    top = tl.max(grouped, 1)
    at = tl.min(tl.where(grouped == top[:, None], within, per), 1)
    worth = top + tl.max(tl.where(within == at[:, None], float("-inf"), grouped), 1)
    group = tl.arange(0, groups)
    one, other = tl.reshape(worth, (groups, 1)), tl.reshape(worth, (1, groups))
    before = (other > one) | ((other == one) & (group[None, :] < group[:, None]))
    stays = tl.sum(before.to(tl.int32), 1) < kept
    return tl.reshape(tl.where(stays[:, None], grouped, float("-inf")), (groups * per,))


@triton.jit
def _router_triton_kernel(logits, bias, ids, weights, experts, k: tl.constexpr, groups: tl.constexpr,
                          kept_groups: tl.constexpr, softmax: tl.constexpr, block_e: tl.constexpr,
                          block_k: tl.constexpr):  # fmt: skip
    """Program (token,): the k best of score + bias, lower id first on a tie; weights without the bias.

    A score is sigmoid(logit), or the softmax over the experts. groups > 1 needs block_e experts.
    """
    token = tl.program_id(0)
    expert = tl.arange(0, block_e)
    mask = expert < experts
    logit = tl.load(logits + token * experts + expert, mask=mask, other=float("-inf"))
    if softmax:
        raised = tl.exp(logit - tl.max(logit, 0))
        score = raised / tl.sum(raised, 0)
    else:
        score = tl.sigmoid(logit)
    left = tl.where(mask, score + tl.load(bias + expert, mask=mask, other=0.0), float("-inf"))
    if groups > 1:
        left = _best_groups(left, groups, kept_groups, block_e // groups)
    place = tl.arange(0, block_k)
    chosen = tl.zeros((block_k,), tl.int32)
    kept = tl.zeros((block_k,), tl.float32)
    for i in tl.static_range(k):
        best = tl.max(left, 0)
        # Not a number is equal to nothing: an index stays in range all the same.
        one = tl.minimum(tl.min(tl.where(left == best, expert, block_e), 0), experts - 1)
        chosen = tl.where(place == i, one, chosen)
        kept = tl.where(place == i, tl.sum(tl.where(expert == one, score, 0.0), 0), kept)
        left = tl.where(expert == one, float("-inf"), left)
    at = token * k + place
    tl.store(ids + at, chosen, mask=place < k)
    tl.store(weights + at, kept / tl.sum(kept, 0), mask=place < k)


@triton.jit
def moe_align_kernel(
    ids, sorted_ids, expert_of_block, num_padded, idx, first_block, slots, experts, blocks,
    block: tl.constexpr, block_e: tl.constexpr, block_s: tl.constexpr
):  # fmt: skip
    """One program: counts the slots of every expert, lays experts out in whole blocks, places every slot.

    first_block [experts] int32 is scratch, read back by other threads of this program after a barrier.
    """
    expert = tl.arange(0, block_e)
    count = tl.zeros((block_e,), tl.int32)
    for start in range(0, slots, block_s):
        slot = start + tl.arange(0, block_s)
        mine = tl.load(ids + slot, mask=slot < slots, other=-1)
        count += tl.sum((expert[:, None] == mine[None, :]).to(tl.int32), 1)
        tl.store(expert_of_block + slot, -1, mask=slot < blocks)
    for start in range(0, blocks * block, block_s):
        row = start + tl.arange(0, block_s)
        tl.store(sorted_ids + row, slots, mask=row < blocks * block)
    used = (count + block - 1) // block
    first = tl.cumsum(used, 0) - used
    tl.store(first_block + expert, first, mask=expert < experts)
    tl.store(num_padded, tl.sum(used, 0) * block)
    tl.debug_barrier()
    for start in range(0, slots, block_s):
        slot = start + tl.arange(0, block_s)
        inside = slot < slots
        mine = tl.load(ids + slot, mask=inside, other=-1)
        within = tl.zeros((block_s,), tl.int32)
        for before in range(0, start + 1, block_s):
            other = before + tl.arange(0, block_s)
            theirs = tl.load(ids + other, mask=other < slots, other=-2)
            same = (theirs[None, :] == mine[:, None]) & (other[None, :] < slot[:, None])
            within += tl.sum(same.to(tl.int32), 1)
        row = tl.load(first_block + mine, mask=inside, other=0) * block + within
        tl.store(idx + slot, row, mask=inside)
        tl.store(sorted_ids + row, slot, mask=inside)
        # Several slots of one block write the same expert: the value does not depend on who is last.
        tl.store(expert_of_block + row // block, mine, mask=inside)


@triton.jit
def fused_moe_kernel(
    x,
    x_scale,
    w,
    w_scale,
    out,
    sorted_ids,
    expert_of_block,
    num_padded,
    slots,
    n,
    k,
    groups,
    n_groups,
    top_k,
    gather: tl.constexpr,
    quantised: tl.constexpr,
    block_m: tl.constexpr,
    block_n: tl.constexpr,
):
    """Program (column tile, block of rows of one expert): out[p] = w[expert] . x[row].

    gather: row p reads token sorted_ids[p] // top_k; else row p reads row p. Padding rows are not written.
    Row blocks past num_padded leave at once: their number depends on the routing, the grid does not.
    """
    pid_n, pid_m = tl.program_id(0), tl.program_id(1)
    if pid_m * block_m < tl.load(num_padded):
        expert = tl.load(expert_of_block + pid_m).to(tl.int64)
        place = pid_m * block_m + tl.arange(0, block_m)
        slot = tl.load(sorted_ids + place)
        real = slot < slots
        row = place
        if gather:
            row = slot // top_k
        col = pid_n * block_n + tl.arange(0, block_n)
        col_in = col < n
        weight = w + expert * n * k
        acc = tl.zeros((block_m, block_n), tl.float32)
        for group in range(groups):
            at = group * 128 + tl.arange(0, 128)
            a = tl.load(x + row[:, None] * k + at[None, :], mask=real[:, None] & (at < k)[None, :], other=0.0)
            b = tl.load(weight + col[None, :] * k + at[:, None], mask=col_in[None, :] & (at < k)[:, None], other=0.0)
            if quantised:
                sa = tl.load(x_scale + row * groups + group, mask=real, other=0.0)
                sb = tl.load(w_scale + (expert * n_groups + pid_n * block_n // 128) * groups + group)
                acc += tl.dot(a, b) * (sa * sb)[:, None]
            else:
                acc += tl.dot(a, b, input_precision="ieee")
        tl.store(out + place[:, None] * n + col[None, :], acc, mask=real[:, None] & col_in[None, :])


@triton.jit
def silu_mul_clamp_kernel(gate_up, out, inner, limit, block: tl.constexpr):
    """Program (row, column block): silu(min(gate, limit)) * clamp(up, -limit, limit); gate columns come first."""
    row = tl.program_id(0)
    cols = tl.program_id(1) * block + tl.arange(0, block)
    mask = cols < inner
    gate = tl.load(gate_up + row * 2 * inner + cols, mask=mask, other=0.0).to(tl.float32)
    up = tl.load(gate_up + row * 2 * inner + inner + cols, mask=mask, other=0.0).to(tl.float32)
    gate = tl.minimum(gate, limit)
    up = tl.minimum(tl.maximum(up, -limit), limit)
    tl.store(out + row * inner + cols, gate * tl.sigmoid(gate) * up, mask=mask)


@triton.jit
def weighted_sum(gemm2, idx, weights, token, hidden, scale, cols, mask, k: tl.constexpr, block: tl.constexpr):
    """Some columns of one token, float32: scale * sum_k w[k] * gemm2[idx[k]]; a row of -1 is skipped."""
    total = tl.zeros((block,), tl.float32)
    for i in tl.static_range(k):
        row = tl.load(idx + token * k + i) + tl.zeros((block,), tl.int32)
        weight = tl.load(weights + token * k + i) * scale
        value = tl.load(gemm2 + row.to(tl.int64) * hidden + cols, mask=mask & (row >= 0), other=0.0)
        total += weight * value.to(tl.float32)
    return total


@triton.jit
def _moe_sum_reduce_kernel(
    gemm2, idx, weights, shared, out, hidden, scale, k: tl.constexpr, has_shared: tl.constexpr, block: tl.constexpr
):
    """Program (token, column block): the weighted sum over the experts, and the shared expert if it is given."""
    token = tl.program_id(0)
    cols = tl.program_id(1) * block + tl.arange(0, block)
    mask = cols < hidden
    total = weighted_sum(gemm2, idx, weights, token, hidden, scale, cols, mask, k, block)
    if has_shared:
        total += tl.load(shared + token * hidden + cols, mask=mask, other=0.0).to(tl.float32)
    tl.store(out + token * hidden + cols, total, mask=mask)


@triton.jit
def shared_expert_add_kernel(a, b, out, elements, block: tl.constexpr):
    """Program (block,): a + b, the shared expert's add of the split path."""
    at = tl.program_id(0) * block + tl.arange(0, block)
    mask = at < elements
    total = tl.load(a + at, mask=mask, other=0.0).to(tl.float32) + tl.load(b + at, mask=mask, other=0.0).to(tl.float32)
    tl.store(out + at, total, mask=mask)
