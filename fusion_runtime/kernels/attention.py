"""Softmax attention's small companions: norm and rotation of queries and keys, and the output's gate."""

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def qk_norm_rope_kernel(
    q, k, q_weight, k_weight, cos, sin, heads, width, q_token, q_head, k_token, k_head, eps, weight_bias,
    normed: tl.constexpr, half: tl.constexpr, block: tl.constexpr
):  # fmt: skip
    """Program (token, head): query heads first, then key heads; RMSNorm if `normed`, then the rotation, in place.

    Columns i and i + half turn together; those from 2 * half on stay.
    """
    token, head = tl.program_id(0), tl.program_id(1)
    x = q + token * q_token + head * q_head
    weight = q_weight
    if head >= heads:
        x = k + token * k_token + (head - heads) * k_head
        weight = k_weight
    col = tl.arange(0, block)
    mask = col < width
    turns = col < 2 * half
    first = col < half
    partner = tl.where(first, col + half, tl.where(turns, col - half, col))
    own = tl.load(x + col, mask=mask, other=0.0)
    other = tl.load(x + partner, mask=mask, other=0.0)
    y, z = own.to(tl.float32), other.to(tl.float32)
    if normed:
        inverse = tl.rsqrt(tl.sum(y * y, 0) / width + eps)
        gain = tl.load(weight + col, mask=mask, other=0.0).to(tl.float32) + weight_bias
        partner_gain = tl.load(weight + partner, mask=mask, other=0.0).to(tl.float32) + weight_bias
        y = (y * inverse * gain).to(own.dtype).to(tl.float32)
        z = (z * inverse * partner_gain).to(own.dtype).to(tl.float32)
    angle = tl.where(first, col, col - half)
    c = tl.load(cos + angle, mask=turns, other=1.0)
    s = tl.load(sin + angle, mask=turns, other=0.0)
    turned = y * c + tl.where(first, -z, z) * s
    # Every column is read, by whichever thread, before any is overwritten.
    tl.debug_barrier()
    tl.store(x + col, turned, mask=mask)


@triton.jit
def sigmoid_gate_mul_kernel(x, gate, out, x_token, gate_token, gate_column, width, block: tl.constexpr):
    """Program (token, block of columns): x * sigmoid(gate); gate_column 0: one gate for the whole token."""
    token = tl.program_id(0)
    col = tl.program_id(1) * block + tl.arange(0, block)
    mask = col < width
    value = tl.load(x + token * x_token + col, mask=mask, other=0.0).to(tl.float32)
    by = tl.load(gate + token * gate_token + col * gate_column, mask=mask, other=0.0).to(tl.float32)
    tl.store(out + token * width + col, value * tl.sigmoid(by), mask=mask)
