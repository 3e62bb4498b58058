"""Rotation, grouped-query attention, gates, Gated DeltaNet and group-limited routing against loops in float64."""

from __future__ import annotations

import math
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from fusionscope.fusion_runtime.decode import reference_ops as ops
from fusionscope.fusion_runtime.decode.layers.rope import rotation

T = 2


def draw(seed: int, *shape: int) -> Any:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


def near(got: Any, want: Any) -> None:
    torch.testing.assert_close(got.double(), want.double(), atol=2e-5, rtol=2e-5)


def test_rotation_turns_pairs_by_their_angle() -> None:
    cos, sin = rotation(4, 100.0, 7, "cpu")
    near(torch.atan2(sin, cos), torch.tensor([7 - 2 * math.pi, 0.7]))


def test_norm_then_rotation_of_the_first_columns() -> None:
    q, k, weight = draw(1, T, 2, 6), draw(2, T, 1, 6), draw(3, 6)
    angle = torch.tensor([0.3, 1.1])
    before = q.double(), k.double()
    ops.qk_norm_rope(q, k, weight, weight + 1, 1e-6, 0.0, angle.cos(), angle.sin())
    for x, old, gain in ((q, before[0], weight), (k, before[1], weight + 1)):
        normed = old / (old.square().mean(-1, keepdim=True) + 1e-6).sqrt() * gain.double()
        want = normed.clone()
        for i, a in enumerate(angle.tolist()):
            turned = (normed[..., i] + 1j * normed[..., i + 2]) * complex(math.cos(a), math.sin(a))
            want[..., i], want[..., i + 2] = turned.real, turned.imag
        near(x, want)


def test_without_weights_nothing_is_normed() -> None:
    q, k = draw(1, T, 2, 4), draw(2, T, 1, 4)
    before = q.clone()
    ops.qk_norm_rope(q, k, None, None, 1e-6, 0.0, torch.tensor([0.0, -1.0]), torch.tensor([1.0, 0.0]))
    near(q, torch.stack([-before[..., 2], -before[..., 1], before[..., 0], -before[..., 3]], -1))


@pytest.mark.parametrize(("heads", "kv_heads"), [(4, 4), (4, 2), (4, 1)])
def test_grouped_query_attention(heads: int, kv_heads: int) -> None:
    d, C = 3, 5
    q, cache = draw(1, T, heads, d), draw(2, T, C, 2 * kv_heads * d)
    got = ops.gqa_decode(q, cache, kv_heads)
    keys, values = (part.unflatten(-1, (kv_heads, d)).double() for part in cache.chunk(2, -1))
    for t in range(T):
        for i in range(heads):
            j = i * kv_heads // heads
            weights = torch.softmax(keys[t, :, j] @ q[t, i].double() / math.sqrt(d), 0)
            near(got[t, i], weights @ values[t, :, j])


def test_gate_mul_and_concat() -> None:
    x, gate = draw(1, T, 6), draw(2, T, 6)
    near(ops.gate_mul(x, gate), x / (1 + torch.exp(-gate)))
    near(ops.gate_mul(x, gate[:, :1]), x / (1 + torch.exp(-gate[:, :1])))
    assert torch.equal(ops.concat(x, gate[:, 1:3]), torch.cat([x, gate[:, 1:3]], 1))


def test_gated_delta_net_over_two_steps() -> None:
    hk, h, d = 2, 4, 5
    A_log, dt_bias, state = draw(1, h), draw(2, h), draw(3, T, h, d, d)
    S = state.double()
    for step in range(2):
        q, k, v = draw(10 + step, T, hk, d), draw(20 + step, T, hk, d), draw(30 + step, T, h, d)
        a, beta = draw(40 + step, T, h), draw(50 + step, T, h)
        got = ops.gdn_update(q, k, v, a, beta, A_log, dt_bias, state)
        for t in range(T):
            for i in range(h):
                key, query = (x[t, i // 2].double() for x in (k, q))
                key, query = (x / (x.square().sum() + 1e-6).sqrt() for x in (key, query))
                decay = math.exp(-math.exp(A_log[i]) * math.log1p(math.exp(a[t, i] + dt_bias[i])))
                strength = 1 / (1 + math.exp(-beta[t, i]))
                S[t, i] *= decay
                S[t, i] += torch.outer(key, strength * (v[t, i].double() - key @ S[t, i]))
                near(got[t, i], query @ S[t, i] / math.sqrt(d))
        near(state, S)


def test_gated_norm_with_silu() -> None:
    o, gate, w = draw(1, T, 2, 6), draw(2, T, 2, 6), draw(3, 6)
    normed = o / (o.square().mean(-1, keepdim=True) + 1e-5).sqrt() * w
    near(ops.gated_rmsnorm(o, gate, w, 1e-5, True), normed * gate / (1 + torch.exp(-gate)))


def test_only_the_best_groups_are_chosen_from() -> None:
    """Group 1 holds the best expert, but groups 0 and 2 hold the better pairs."""
    logits = torch.tensor([[1.0, 1.0, 2.0, -9.0, 0.9, 1.2]])
    ids, weights = ops.router(logits, torch.zeros(6), 3, 3, 2)
    assert ids.tolist() == [[5, 0, 1]]
    score = torch.sigmoid(logits[0, [5, 0, 1]])
    near(weights[0], score / score.sum())
    assert ops.router(logits, torch.zeros(6), 3)[0].tolist() == [[2, 5, 0]]


def test_the_bias_chooses_groups_and_experts_but_does_not_weigh() -> None:
    bias = torch.tensor([0.0, 0.0, 0.5, 0.5])
    ids, weights = ops.router(torch.zeros(1, 4), bias, 2, 2, 1)
    assert ids.tolist() == [[2, 3]] and weights.tolist() == [[0.5, 0.5]]


def test_softmax_scores() -> None:
    logits = draw(1, T, 8)
    ids, weights = ops.router(logits, torch.zeros(8), 3, softmax=True)
    best = logits.sort(-1, descending=True)
    assert torch.equal(ids.long(), best.indices[:, :3])
    near(weights, torch.softmax(best.values[:, :3], -1))
