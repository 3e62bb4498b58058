"""MLA decode: the indexer's logits, the choice of pools, attention over the chosen pools with split KV."""

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def mqa_logits_kernel(
    q, k_cache, head_weights, out, heads, pools, width,
    block_h: tl.constexpr, block_p: tl.constexpr, block_d: tl.constexpr
):  # fmt: skip
    """Program (token, block of pools): sum over heads of weight * relu(q . k), float32."""
    token = tl.program_id(0)
    pool = tl.program_id(1) * block_p + tl.arange(0, block_p)
    head = tl.arange(0, block_h)
    d = tl.arange(0, block_d)
    query = tl.load(
        q + (token * heads + head[None, :]) * width + d[:, None],
        mask=(head < heads)[None, :] & (d < width)[:, None],
        other=0.0,
    )
    key = tl.load(
        k_cache + (token * pools + pool[:, None]).to(tl.int64) * width + d[None, :],
        mask=(pool < pools)[:, None] & (d < width)[None, :],
        other=0.0,
    )
    score = tl.maximum(tl.dot(key, query, input_precision="ieee"), 0.0)
    by = tl.load(head_weights + token * heads + head, mask=head < heads, other=0.0)
    tl.store(out + token * pools + pool, tl.sum(score * by[None, :], 1), mask=pool < pools)


@triton.jit
def topk_select_kernel(logits, out, pools, n, block: tl.constexpr):
    """Program (token,): indices of the n largest logits, in ascending order of index; lower index first on a tie.

    The n-th largest value is found bit by bit on keys that order like the floats.
    """
    token = tl.program_id(0)
    at = tl.arange(0, block)
    inside = at < pools
    bits = tl.load(logits + token * pools + at, mask=inside, other=0.0).to(tl.int32, bitcast=True)
    # Negative floats order backwards: flip their bits; positive ones go above them.
    key = tl.where(bits < 0, ~bits, bits ^ -2147483648).to(tl.uint32, bitcast=True)
    floor = tl.zeros((), tl.uint32)
    for i in tl.static_range(32):
        higher = floor | (1 << (31 - i))
        enough = tl.sum((inside & (key >= higher)).to(tl.int32), 0) >= n
        floor = tl.where(enough, higher, floor)
    above = inside & (key > floor)
    level = inside & (key == floor)
    room = n - tl.sum(above.to(tl.int32), 0)
    chosen = above | (level & (tl.cumsum(level.to(tl.int32), 0) <= room))
    place = tl.cumsum(chosen.to(tl.int32), 0) - 1
    tl.store(out + token * n + place, at, mask=chosen)


@triton.jit
def mla_decode_kernel(
    q,
    kv_cache,
    pool_index,
    part,
    part_lse,
    heads,
    context,
    width,
    chosen,
    per_split,
    sm_scale,
    kpool: tl.constexpr,
    indexed: tl.constexpr,
    rotated: tl.constexpr,
    block_h: tl.constexpr,
    block_n: tl.constexpr,
    block_d: tl.constexpr,
):
    """Program (token, split, block of heads): softmax attention over the split's share of the chosen rows.

    q [T, h, D + rotated]; kv_cache [T, C, D + rotated]: keys are whole rows, values their first D = width columns;
    `rotated` is 0 or a power of two, on a GPU from 16. pool_index [T, chosen / kpool]; leaves the split's own
    normalised output in part [T, splits, h, D] f32 and its log-sum-exp in part_lse [T, splits, h].
    """
    token, split = tl.program_id(0), tl.program_id(1)
    head = tl.program_id(2) * block_h + tl.arange(0, block_h)
    d = tl.arange(0, block_d)
    wide = width + rotated
    q_mask = (head < heads)[:, None] & (d < width)[None, :]
    query = tl.load(q + (token * heads + head[:, None]) * wide + d[None, :], mask=q_mask, other=0.0)
    if rotated > 0:
        turn = width + tl.arange(0, rotated)
        q_turned = tl.load(
            q + (token * heads + head[:, None]) * wide + turn[None, :], mask=(head < heads)[:, None], other=0.0
        )
    rows = kv_cache + token.to(tl.int64) * context * wide
    pools = chosen // kpool
    top = tl.full((block_h,), float("-inf"), tl.float32)
    norm = tl.zeros((block_h,), tl.float32)
    acc = tl.zeros((block_h, block_d), tl.float32)
    start = split * per_split
    end = tl.minimum(start + per_split, chosen)
    for first in range(start, end, block_n):
        n = first + tl.arange(0, block_n)
        inside = n < end
        row = n
        if indexed:
            row = tl.load(pool_index + token * pools + n // kpool, mask=inside, other=0) * kpool + n % kpool
        kv = tl.load(
            rows + row[:, None].to(tl.int64) * wide + d[None, :],
            mask=inside[:, None] & (d < width)[None, :],
            other=0.0,
        )
        score = tl.dot(query, tl.trans(kv), input_precision="ieee")
        if rotated > 0:
            turned = tl.load(rows + row[:, None].to(tl.int64) * wide + turn[None, :], mask=inside[:, None], other=0.0)
            score += tl.dot(q_turned, tl.trans(turned), input_precision="ieee")
        score *= sm_scale
        score = tl.where(inside[None, :], score, float("-inf"))
        higher = tl.maximum(top, tl.max(score, 1))
        weight = tl.exp(score - higher[:, None])
        old = tl.exp(top - higher)
        norm = norm * old + tl.sum(weight, 1)
        acc = acc * old[:, None] + tl.dot(weight.to(kv.dtype), kv, input_precision="ieee")
        top = higher
    at = (token * tl.num_programs(1) + split) * heads + head
    tl.store(part + at[:, None] * width + d[None, :], acc / norm[:, None], mask=q_mask)
    tl.store(part_lse + at, top + tl.log(norm), mask=head < heads)


@triton.jit
def mla_decode_combine_kernel(part, part_lse, out, heads, width, splits, block_s: tl.constexpr, block_d: tl.constexpr):
    """Program (token, head, block of columns): the splits' outputs weighted by their share of the softmax."""
    token, head = tl.program_id(0), tl.program_id(1)
    d = tl.program_id(2) * block_d + tl.arange(0, block_d)
    split = tl.arange(0, block_s)
    at = (token * splits + split) * heads + head
    lse = tl.load(part_lse + at, mask=split < splits, other=float("-inf"))
    share = tl.exp(lse - tl.max(lse, 0))
    share = share / tl.sum(share, 0)
    value = tl.load(
        part + at[:, None] * width + d[None, :], mask=(split < splits)[:, None] & (d < width)[None, :], other=0.0
    )
    tl.store(out + (token * heads + head) * width + d, tl.sum(value * share[:, None], 0), mask=d < width)
