"""KDA: the short causal convolution and one step of the gated delta rule, both with state in place."""

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def _causal_conv1d_update_kernel(x, state, weight, out, x_stride, channels, block: tl.constexpr):
    """Program (token, channel block): four taps over the last three inputs and x, then silu; the state shifts by one.

    x [T, C]; state [T, C, 3], oldest first; weight [C, 4].
    """
    token = tl.program_id(0)
    c = tl.program_id(1) * block + tl.arange(0, block)
    mask = c < channels
    past = state + (token * channels + c) * 3
    new = tl.load(x + token * x_stride + c, mask=mask, other=0.0)
    s0 = tl.load(past, mask=mask, other=0.0)
    s1 = tl.load(past + 1, mask=mask, other=0.0)
    s2 = tl.load(past + 2, mask=mask, other=0.0)
    y = s0.to(tl.float32) * tl.load(weight + c * 4, mask=mask, other=0.0).to(tl.float32)
    y += s1.to(tl.float32) * tl.load(weight + c * 4 + 1, mask=mask, other=0.0).to(tl.float32)
    y += s2.to(tl.float32) * tl.load(weight + c * 4 + 2, mask=mask, other=0.0).to(tl.float32)
    y += new.to(tl.float32) * tl.load(weight + c * 4 + 3, mask=mask, other=0.0).to(tl.float32)
    tl.store(past, s1, mask=mask)
    tl.store(past + 1, s2, mask=mask)
    tl.store(past + 2, new, mask=mask)
    tl.store(out + token * channels + c, y * tl.sigmoid(y), mask=mask)


@triton.jit
def fused_recurrent_gated_delta_rule_update_kernel(
    q,
    k,
    v,
    f,
    beta,
    a_log,
    dt_bias,
    state,
    out,
    q_stride,
    k_stride,
    v_stride,
    f_stride,
    beta_stride,
    heads,
    lower_bound,
    d: tl.constexpr,
    block_v: tl.constexpr,
    each: tl.constexpr,
    per_head: tl.constexpr,
):
    """Program (token, head, block of value columns): S *= exp(g); S += k (x) beta (v - k.S); o = q.S.

    state [T, h, d, d] float32 (key rows, value columns), in place; columns are independent of each other. `each` value
    heads share a query and key head. per_head: one decay a head by a softplus, else one a key row by a sigmoid.
    """
    token, head = tl.program_id(0), tl.program_id(1)
    shared = head // each
    row = tl.arange(0, d)
    col = tl.program_id(2) * block_v + tl.arange(0, block_v)
    qf = tl.load(q + token * q_stride + shared * d + row).to(tl.float32)
    kf = tl.load(k + token * k_stride + shared * d + row).to(tl.float32)
    vf = tl.load(v + token * v_stride + head * d + col).to(tl.float32)
    qf = qf * tl.rsqrt(tl.sum(qf * qf, 0) + 1e-6) * tl.rsqrt(d * 1.0)
    kf = kf * tl.rsqrt(tl.sum(kf * kf, 0) + 1e-6)
    if per_head:
        decay = tl.load(f + token * f_stride + head).to(tl.float32) + tl.load(dt_bias + head)
        soft = tl.where(decay > 20.0, decay, tl.log(1.0 + tl.exp(tl.minimum(decay, 20.0))))
        g = tl.zeros((d,), tl.float32) - tl.exp(tl.load(a_log + head)) * soft
    else:
        decay = tl.load(f + token * f_stride + head * d + row).to(tl.float32) + tl.load(dt_bias + head * d + row)
        g = lower_bound * tl.sigmoid(tl.exp(tl.load(a_log + head)) * decay)
    strength = tl.sigmoid(tl.load(beta + token * beta_stride + head).to(tl.float32))
    at = state + ((token * heads + head) * d + row[:, None]).to(tl.int64) * d + col[None, :]
    s = tl.load(at) * tl.exp(g)[:, None]
    delta = (vf - tl.sum(kf[:, None] * s, 0)) * strength
    s += kf[:, None] * delta[None, :]
    tl.store(at, s)
    tl.store(out + (token * heads + head) * d + col, tl.sum(qf[:, None] * s, 0))
