"""Prologue, tail and caches: embedding, stream expand and mean, one row's write into a cache, argmax."""

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def vocab_embedding_kernel(ids, table, out, vocab_start, rows, hidden, block: tl.constexpr):
    """Program (token, column block): this rank's row of the table, or zeros where the id is another rank's."""
    token = tl.program_id(0)
    cols = tl.program_id(1) * block + tl.arange(0, block)
    mask = cols < hidden
    local = tl.load(ids + token) - vocab_start + tl.zeros((block,), tl.int64)
    row = tl.load(table + local * hidden + cols, mask=mask & (local >= 0) & (local < rows), other=0.0)
    tl.store(out + token * hidden + cols, row, mask=mask)


@triton.jit
def expand_streams_kernel(x, out, hidden, streams: tl.constexpr, block: tl.constexpr):
    """Program (token, column block): the same columns into every stream."""
    token = tl.program_id(0)
    cols = tl.program_id(1) * block + tl.arange(0, block)
    mask = cols < hidden
    value = tl.load(x + token * hidden + cols, mask=mask)
    for j in tl.static_range(streams):
        tl.store(out + (token * streams + j) * hidden + cols, value, mask=mask)


@triton.jit
def _mhc_stream_mean_kernel(streams_in, out, hidden, streams: tl.constexpr, block: tl.constexpr):
    """Program (token, column block): unweighted mean of the streams, summed in float32."""
    token = tl.program_id(0)
    cols = tl.program_id(1) * block + tl.arange(0, block)
    mask = cols < hidden
    total = tl.zeros((block,), tl.float32)
    for j in tl.static_range(streams):
        total += tl.load(streams_in + (token * streams + j) * hidden + cols, mask=mask, other=0.0).to(tl.float32)
    tl.store(out + token * hidden + cols, total / streams, mask=mask)


@triton.jit
def cache_write_kernel(x, cache, x_stride, cache_stride, position, width, block: tl.constexpr):
    """Program (token,): row `position` of the token's cache."""
    token = tl.program_id(0)
    cols = tl.arange(0, block)
    mask = cols < width
    value = tl.load(x + token * x_stride + cols, mask=mask)
    tl.store(cache + token.to(tl.int64) * cache_stride + position * width + cols, value, mask=mask)


@triton.jit
def argmax_kernel(logits, out, width, block: tl.constexpr):
    """Program (token,): the first column of the largest logit. Every lane keeps its own best until the end."""
    row = logits + tl.program_id(0).to(tl.int64) * width
    lane = tl.arange(0, block)
    best = tl.full((block,), float("-inf"), tl.float32)
    where = tl.zeros((block,), tl.int32)
    for start in range(0, width, block):
        cols = start + lane
        value = tl.load(row + cols, mask=cols < width, other=float("-inf")).to(tl.float32)
        better = value > best
        best = tl.where(better, value, best)
        where = tl.where(better, cols, where)
    top = tl.max(best, 0)
    first = tl.min(tl.where(best == top, where, 2147483647), 0)
    tl.store(out + tl.program_id(0), first.to(tl.int64))
