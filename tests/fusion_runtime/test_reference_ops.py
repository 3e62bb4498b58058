"""Each operation against an independent computation in float64, mostly loops."""

from __future__ import annotations

import math
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from hypothesis import given, settings
from hypothesis import strategies as st

from fusionscope.fusion_runtime.decode import reference_ops as ops
from fusionscope.fusion_runtime.decode.reference_mhc import sinkhorn
from fusionscope.fusion_runtime.decode.weights import quantise_blocks


def draw(seed: int, *shape: int, dtype: Any = torch.float32) -> Any:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed)).to(dtype)


def same(got: Any, want: Any, close: float = 1e-5) -> None:
    torch.testing.assert_close(got.double(), torch.as_tensor(want).double(), atol=close, rtol=close)


def test_embed_is_zero_outside_the_shard() -> None:
    table = draw(1, 8, 6)
    ids = torch.tensor([7, 8, 15, 16])
    got = ops.embed(ids, table, 8)
    assert torch.equal(got, torch.stack([torch.zeros(6), table[0], table[7], torch.zeros(6)]))


def test_expand_and_mean_are_inverse() -> None:
    x = draw(1, 3, 8)
    streams = ops.expand_streams(x, 4)
    assert streams.shape == (3, 4, 8) and streams.is_contiguous()
    same(ops.stream_mean(streams), x)
    same(ops.stream_mean(draw(2, 3, 4, 8)), draw(2, 3, 4, 8).double().mean(1))


def test_rmsnorm_takes_rows_with_a_stride() -> None:
    wide, w = draw(1, 3, 12), draw(2, 8)
    x = wide[:, 2:10]
    for t in range(3):
        row = [float(v) for v in x[t]]
        root = math.sqrt(sum(v * v for v in row) / 8 + 1e-5)
        same(ops.rmsnorm(x, w, 1e-5)[t], [v / root * float(g) for v, g in zip(row, w, strict=True)])


def test_hc_pre_by_loops() -> None:
    T, H, mult, rms_eps, hc_eps = 3, 16, 2.0, 1e-5, 1e-6
    R, fn, scale, base, w = draw(1, T, 4, H), draw(2, 24, 4 * H), draw(3, 3), draw(4, 24), draw(5, H)
    x, post, comb = ops.hc_pre(R, fn, scale, base, w, rms_eps, hc_eps, 20, mult)
    for t in range(T):
        flat = R[t].double().reshape(-1)
        m = (fn.double() @ flat) / math.sqrt(float(flat.square().mean()) + rms_eps)
        s, b = scale.double(), base.double()
        pre = 1 / (1 + torch.exp(-(m[:4] * s[0] + b[:4]))) + hc_eps
        same(post[t], mult / (1 + torch.exp(-(m[4:8] * s[1] + b[4:8]))))
        rows = [[float(m[8 + 4 * j + k] * s[2] + b[8 + 4 * j + k]) for k in range(4)] for j in range(4)]
        rows = [[math.exp(v - max(row)) for v in row] for row in rows]
        rows = [[v / sum(row) + hc_eps for v in row] for row in rows]
        for iteration in range(20):
            if iteration:
                rows = [[v / (sum(row) + hc_eps) for v in row] for row in rows]
            sums = [sum(rows[j][k] for j in range(4)) + hc_eps for k in range(4)]
            rows = [[rows[j][k] / sums[k] for k in range(4)] for j in range(4)]
        same(comb[t], rows)
        mixed = sum(pre[j] * R[t, j].double() for j in range(4))
        same(x[t], mixed / math.sqrt(float(mixed.square().mean()) + rms_eps) * w.double())


@settings(deadline=None, max_examples=50)
@given(st.integers(0, 10**6), st.floats(0, 8))
def test_sinkhorn_is_column_stochastic_and_nearly_row_stochastic(seed: int, spread: float) -> None:
    comb = sinkhorn(draw(seed, 5, 4, 4) * spread, 1e-6, 20)
    assert (comb > 0).all()
    torch.testing.assert_close(comb.sum(-2), torch.ones(5, 4), atol=1e-5, rtol=0)
    if spread <= 1:
        torch.testing.assert_close(comb.sum(-1), torch.ones(5, 4), atol=1e-3, rtol=0)


@pytest.mark.parametrize(("dtype", "close"), [(torch.float32, 1e-5), (torch.bfloat16, 3e-2)])
def test_mhc_post_by_einsum(dtype: Any, close: float) -> None:
    x, R = draw(1, 3, 16, dtype=dtype), draw(2, 3, 4, 16, dtype=dtype)
    post, comb = draw(3, 3, 4), draw(4, 3, 4, 4)
    want = post.double()[..., None] * x.double()[:, None] + torch.einsum("tkj,tkh->tjh", comb.double(), R.double())
    before = R.clone()
    got = ops.mhc_post(x, R, post, comb)
    assert got.dtype == dtype and torch.equal(R, before)
    same(got, want, close)


def test_fp8_quantisation_bounds_its_error() -> None:
    x = draw(1, 3, 200) * torch.tensor([[1e-3], [1.0], [1e3]])
    q, scale = ops.per_token_group_quant_fp8(x)
    assert q.shape == (3, 200) and scale.shape == (3, 2)
    # e4m3 keeps 3 bits of mantissa: half a step is 1/16 of the value, or of the smallest normal 2^-6.
    error = (ops.dequantise(q, scale, (1, 128)) - x).abs()
    bound = x.abs() / 16 + scale.repeat_interleave(128, 1)[:, :200] * 2**-10
    assert (error <= bound).all()
    same(scale[1, 0], x[1, :128].abs().max() / 448)


def test_fp8_linear_multiplies_what_the_quantised_operands_stand_for() -> None:
    x, w = draw(1, 3, 256), draw(2, 192, 256)
    quantised = quantise_blocks(w)
    assert quantised.scale is not None and quantised.scale.shape == (2, 2)
    q, scale = ops.per_token_group_quant_fp8(x)
    want = torch.zeros(3, 192, dtype=torch.float64)
    for block in range(2):
        columns = slice(block * 128, block * 128 + 128)
        for rows, index in ((slice(0, 128), 0), (slice(128, 192), 1)):
            product = q[:, columns].double() @ quantised.weight[rows, columns].double().T
            want[:, rows] += scale[:, block, None].double() * float(quantised.scale[index, block]) * product
    got = ops.fp8_linear(x, quantised.weight, quantised.scale)
    same(got, want, 1e-4)
    exact = x.double() @ w.double().T
    assert (got - exact).norm() / exact.norm() < 0.06
    same(ops.fp8_linear(x, w, None), exact, 1e-4)


def test_silu_mul_clamp_clamps_the_gate_above_only() -> None:
    gu = torch.tensor([[12.0, -20.0, 3.0, 11.0, 1.0, -30.0]])
    got = ops.silu_mul_clamp(gu, 10.0)[0]
    want = [10 / (1 + math.exp(-10)) * 10, -20 / (1 + math.exp(20)) * 1, 3 / (1 + math.exp(-3)) * -10]
    same(got, want)


def test_conv_update_equals_a_convolution_over_the_whole_past() -> None:
    T, C, steps = 2, 5, 7
    x, w = draw(1, steps, T, C), draw(2, C, 4)
    state = torch.zeros(T, C, 3)
    for step in range(steps):
        got = ops.causal_conv1d_update(x[step], state, w)
        for t in range(T):
            for c in range(C):
                total = sum(
                    float(w[c, 3 - back]) * float(x[step - back, t, c]) for back in range(4) if step - back >= 0
                )
                same(got[t, c], total / (1 + math.exp(-total)))
    assert torch.equal(state, x[-3:].permute(1, 2, 0))


def test_kda_update_by_loops() -> None:
    T, h, d, bound = 2, 3, 4, -5.0
    packed = draw(1, T, 3 * h * d)
    q, k, v = (part.view(T, h, d) for part in packed.split(h * d, 1))
    f, beta, A_log, dt_bias = draw(2, T, h, d), draw(3, T, h), draw(4, h), draw(5, h * d)
    state = draw(6, T, h, d, d)
    S = state.double().clone()
    got = ops.kda_update(q, k, v, f, beta, A_log, dt_bias, bound, state)
    for t in range(T):
        for i in range(h):
            qn = q[t, i].double() / math.sqrt(float(q[t, i].double().square().sum()) + 1e-6) / math.sqrt(d)
            kn = k[t, i].double() / math.sqrt(float(k[t, i].double().square().sum()) + 1e-6)
            for a in range(d):
                gate = math.exp(float(A_log[i])) * (float(f[t, i, a]) + float(dt_bias[i * d + a]))
                S[t, i, a] *= math.exp(bound / (1 + math.exp(-gate)))
            seen = kn @ S[t, i]
            step = (v[t, i].double() - seen) / (1 + math.exp(-float(beta[t, i])))
            S[t, i] += torch.outer(kn, step)
            same(got[t, i], qn @ S[t, i])
    same(state, S)


def test_gated_rmsnorm_by_hand() -> None:
    o, gate, w = draw(1, 2, 3, 4), draw(2, 2, 3, 4), draw(3, 4)
    od = o.double()
    want = od / (od.square().mean(-1, keepdim=True) + 1e-5).sqrt() * w.double() / (1 + torch.exp(-gate.double()))
    same(ops.gated_rmsnorm(o, gate, w, 1e-5), want)


def test_indexer_logits_by_loops() -> None:
    q, keys, head_w = draw(1, 2, 3, 4), draw(2, 2, 5, 4), draw(3, 2, 3)
    got = ops.indexer_logits(q, keys, head_w)
    for t in range(2):
        for p in range(5):
            same(got[t, p], sum(float(head_w[t, i]) * max(0.0, float(q[t, i] @ keys[t, p])) for i in range(3)))


def test_topk_blocks_are_the_best_pools() -> None:
    logits = draw(1, 3, 40)
    got = ops.topk_blocks(logits, 7)
    assert got.dtype == torch.int32
    for t in range(3):
        best = sorted(range(40), key=lambda p: -float(logits[t, p]))[:7]
        assert set(got[t].tolist()) == set(best)


def test_mla_decode_attends_to_the_chosen_pools_only() -> None:
    T, h, D, C, pool = 2, 3, 4, 24, 4
    q, cache = draw(1, T, h, D), draw(2, T, C, D)
    chosen = torch.tensor([[5, 0], [2, 3]], dtype=torch.int32)
    everything = torch.arange(6, dtype=torch.int32).expand(T, 6)
    for picked, argument, latent in ((chosen, chosen, D), (everything, None, D), (chosen, chosen, D - 1)):
        got = ops.mla_decode(q, cache, argument, pool, 0.3, latent)
        for t in range(T):
            rows = [int(p) * pool + i for p in picked[t] for i in range(pool)]
            for i in range(h):
                weights = [math.exp(0.3 * float(q[t, i] @ cache[t, row])) for row in rows]
                mixed = sum(w * cache[t, row, :latent].double() for w, row in zip(weights, rows, strict=True))
                same(got[t, i], mixed / sum(weights))


def test_cache_write_changes_one_row() -> None:
    cache, x = draw(1, 2, 5, 3), draw(2, 2, 3)
    want = cache.clone()
    want[:, 4] = x
    ops.cache_write(cache, x, 4)
    assert torch.equal(cache, want)


def test_batched_heads_by_loops() -> None:
    x, w = draw(1, 2, 3, 4), draw(2, 3, 4, 5)
    got = ops.batched_heads(x, w)
    assert got.is_contiguous()
    for t in range(2):
        for i in range(3):
            same(got[t, i], x[t, i].double() @ w[i].double())


def test_router_chooses_by_biased_score_and_weighs_by_score() -> None:
    logits, bias = draw(1, 4, 12), draw(2, 12) * 0.5
    ids, weights = ops.router(logits, bias, 3)
    assert ids.dtype == torch.int32
    for t in range(4):
        score = [1 / (1 + math.exp(-float(v))) for v in logits[t]]
        best = sorted(range(12), key=lambda e: -(score[e] + float(bias[e])))[:3]
        assert ids[t].tolist() == best
        same(weights[t], [score[e] / sum(score[b] for b in best) for e in best])


def test_router_breaks_ties_by_the_lower_id() -> None:
    ids, _ = ops.router(torch.zeros(1, 9), torch.zeros(9), 4)
    assert ids.tolist() == [[0, 1, 2, 3]]


@settings(deadline=None, max_examples=60)
@given(st.integers(1, 6), st.integers(1, 4), st.integers(4, 9), st.sampled_from([1, 2, 4, 16]), st.integers(0, 999))
def test_moe_align_sorts_and_pads(tokens: int, k: int, experts: int, block: int, seed: int) -> None:
    generator = torch.Generator().manual_seed(seed)
    ids = torch.stack([torch.randperm(experts, generator=generator)[:k] for _ in range(tokens)]).int()
    sorted_ids, expert_of_block, padded, idx = ops.moe_align(ids, experts, block)
    slots = tokens * k
    assert sorted_ids.shape[0] == expert_of_block.shape[0] * block == ops.moe_blocks(slots, experts, block) * block
    assert all(part.dtype == torch.int32 for part in (sorted_ids, expert_of_block, padded, idx))
    assert sorted(s for s in sorted_ids.tolist() if s < slots) == list(range(slots))
    assert sorted_ids[idx.reshape(-1).long()].tolist() == list(range(slots))
    for row, slot in enumerate(sorted_ids.tolist()):
        if slot < slots:
            assert expert_of_block[row // block] == ids.reshape(-1)[slot]
            assert row < int(padded)
    used = int(padded) // block
    assert (expert_of_block[used:] == -1).all() and (expert_of_block[:used] >= 0).all()
    assert int(padded) == sum(-(-c // block) * block for c in torch.bincount(ids.reshape(-1).long()).tolist())


@pytest.mark.parametrize("block", [1, 4])
def test_moe_gemms_and_sum_equal_a_loop_over_experts(block: int) -> None:
    T, H, inner, E, K, scale = 5, 8, 6, 7, 3, 2.5
    x, up, down = draw(1, T, H), draw(2, E, 2 * inner, H), draw(3, E, H, inner)
    ids, weights = ops.router(draw(4, T, E), torch.zeros(E), K)
    *rows, idx = ops.moe_align(ids, E, block)
    hidden = ops.silu_mul_clamp(ops.moe_gemm(x, up, None, *rows, K), 10.0)
    got = ops.moe_sum_reduce(ops.moe_gemm(hidden, down, None, *rows, 0), idx, weights, scale)
    for t in range(T):
        want = torch.zeros(H, dtype=torch.float64)
        for slot in range(K):
            gate, value = (up[ids[t, slot]].double() @ x[t].double()).chunk(2)
            gate, value = gate.clamp(max=10), value.clamp(-10, 10)
            want += float(weights[t, slot]) * (down[ids[t, slot]].double() @ (gate / (1 + torch.exp(-gate)) * value))
        same(got[t], scale * want, 1e-4)


def test_moe_gemm_in_fp8_equals_one_fp8_linear_per_expert() -> None:
    T, E, N, K = 3, 4, 256, 128
    x, quantised = draw(1, T, K), quantise_blocks(draw(2, E, N, K))
    assert quantised.scale is not None and quantised.scale.shape == (E, 2, 1)
    ids = torch.tensor([[0, 3], [3, 1], [0, 1]], dtype=torch.int32)
    *rows, idx = ops.moe_align(ids, E, 16)
    out = ops.moe_gemm(x, quantised.weight, quantised.scale, *rows, 2)
    for t in range(T):
        for slot in range(2):
            expert = int(ids[t, slot])
            want = ops.fp8_linear(x[t : t + 1], quantised.weight[expert], quantised.scale[expert])
            same(out[int(idx[t, slot])], want[0], 1e-4)


def test_moe_sum_reduce_never_reads_dropped_slots() -> None:
    gemm2 = draw(1, 4, 6)
    gemm2[0] = float("nan")
    idx = torch.tensor([[1, -1], [-1, -1]], dtype=torch.int32)
    got = ops.moe_sum_reduce(gemm2, idx, torch.ones(2, 2), 2.0)
    same(got[0], 2 * gemm2[1].double())
    assert torch.equal(got[1], torch.zeros(6))


def test_argmax_and_add() -> None:
    assert ops.argmax(torch.tensor([[0.0, 3.0, 1.0]])).tolist() == [1]
    same(ops.add(draw(1, 2, 3), draw(2, 2, 3)), draw(1, 2, 3).double() + draw(2, 2, 3).double())
