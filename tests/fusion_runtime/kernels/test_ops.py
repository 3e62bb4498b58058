"""Every operation's kernels against the reference operations, in Triton's interpreter on tiny shapes."""

from __future__ import annotations

import os

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("triton")
if os.environ.get("TRITON_INTERPRET") != "1":
    pytest.skip("triton was imported before its interpreter was chosen", allow_module_level=True)

from fusionscope.fusion_runtime.decode import cuda_ops as ops
from fusionscope.fusion_runtime.decode import cuda_products
from fusionscope.fusion_runtime.decode import reference_ops as ref
from fusionscope.fusion_runtime.decode.cuda_grid import counters
from fusionscope.fusion_runtime.decode.weights import quantise_blocks
from fusionscope.fusion_runtime.kernels import gemm

T, H = 3, 72


@pytest.fixture(autouse=True)
def seed():
    torch.manual_seed(0)


def close(got, want, tolerance=1e-5):
    assert got.shape == want.shape and got.dtype == want.dtype
    assert not torch.isnan(got.float()).any()
    error = (got.float() - want.float()).norm() / want.float().norm().clamp(min=1e-20)
    assert error <= tolerance, float(error)


def test_embed_takes_rows_of_this_shard_and_zeros_elsewhere():
    ids, table = torch.tensor([5, 9, 12]), torch.randn(6, H)
    got = ops.embed(ids, table, 6)
    assert torch.equal(got, ref.embed(ids, table, 6))
    assert not got[0].any() and got[1].any() and not got[2].any()


def test_streams_expand_and_mean():
    x, R = torch.randn(T, H), torch.randn(T, 4, H)
    assert torch.equal(ops.expand_streams(x, 4), ref.expand_streams(x, 4))
    close(ops.stream_mean(R), ref.stream_mean(R))


def test_rmsnorm_of_a_slice():
    wide = torch.randn(T, 2 * H)
    x, w = wide[:, H:], torch.randn(H)
    close(ops.rmsnorm(x, w, 1e-5), ref.rmsnorm(x, w, 1e-5))


def test_rmsnorm_in_bfloat16():
    x, w = torch.randn(T, H).bfloat16(), torch.randn(H).bfloat16()
    close(ops.rmsnorm(x, w, 1e-5), ref.rmsnorm(x, w, 1e-5), 4e-3)


@pytest.mark.parametrize("bias", [0.0, 1.0])
def test_add_rmsnorm(bias):
    x, r, w = torch.randn(T, H), torch.randn(T, H), torch.randn(H)
    for got, want in zip(ops.add_rmsnorm(x, r, w, 1e-5, bias), ref.add_rmsnorm(x, r, w, 1e-5, bias), strict=True):
        close(got, want)


def test_add_and_gated_norm():
    a, b = torch.randn(T, H), torch.randn(T, H)
    close(ops.add(a, b), ref.add(a, b))
    o, gate, w = torch.randn(T, 2, 16), torch.randn(T, 64)[:, :32].view(T, 2, 16), torch.randn(16)
    close(ops.gated_rmsnorm(o, gate, w, 1e-5), ref.gated_rmsnorm(o, gate, w, 1e-5))


def test_argmax_takes_the_first_of_equals():
    logits = torch.randn(T, 300)
    logits[1, 40] = logits[1, 200] = 9.0
    assert torch.equal(ops.argmax(logits), ref.argmax(logits))


@pytest.mark.parametrize("tokens", [1, 3, 5])
def test_hc_pre(tokens):
    R, fn = torch.randn(tokens, 4, H), torch.randn(24, 4 * H) * 0.1
    scale, base, w = torch.rand(3), torch.randn(24), torch.randn(H)
    got = ops.hc_pre(R, fn, scale, base, w, 1e-5, 1e-6, 20, 2.0)
    for mine, want in zip(got, ref.hc_pre(R, fn, scale, base, w, 1e-5, 1e-6, 20, 2.0), strict=True):
        close(mine, want, 2e-5)


def test_mhc_post():
    x, R, post, comb = torch.randn(T, H), torch.randn(T, 4, H), torch.rand(T, 4), torch.rand(T, 4, 4)
    close(ops.mhc_post(x, R, post, comb), ref.mhc_post(x, R, post, comb))


@pytest.fixture
def quant_of_torch(monkeypatch):
    """The interpreter's own conversion to FP8 drops a carry (127.9 becomes 64): torch converts in its place."""
    monkeypatch.setattr(cuda_products, "per_token_group_quant_fp8", ref.per_token_group_quant_fp8)


def test_group_quant_before_its_rounding():
    x = torch.randn(T, 2 * 200)[:, :200]
    q, scale = torch.empty(T, 200), torch.empty(T, 2)
    gemm.per_token_group_quant_fp8_kernel[(T, 1)](x, q, scale, x.stride(0), 200, 2, block_g=2)
    want_q, want_scale = ref.per_token_group_quant_fp8(x)
    assert torch.equal(scale, want_scale)
    assert torch.equal(q.to(torch.float8_e4m3fn).float(), want_q.float())


@pytest.mark.parametrize(("rows", "n", "k"), [(3, 70, 256), (17, 40, 1300)])
def test_fp8_linear(rows, n, k, quant_of_torch):
    x, w = torch.randn(rows, k), quantise_blocks(torch.randn(n, k))
    close(ops.fp8_linear(x, w.weight, w.scale), ref.fp8_linear(x, w.weight, w.scale))
    plain = torch.randn(n, k)
    close(cuda_products.grouped_linear(x, None, plain, None, x.dtype), ref.linear(x, plain), 2e-5)
    assert not counters(x.device).any()


def test_router_gemm_and_router():
    x, w, bias = torch.randn(5, H), torch.randn(9, H), torch.randn(9) * 0.1
    logits = ops.router_gemm(x, w)
    close(logits, ref.router_gemm(x, w))
    logits[0, 3] = logits[0, 5]
    bias[3] = bias[5]
    ids, weights = ops.router(logits, bias, 3)
    want_ids, want_weights = ref.router(logits, bias, 3)
    assert torch.equal(ids, want_ids)
    close(weights, want_weights)


@pytest.mark.parametrize(("tokens", "experts"), [(3, 20), (40, 5)])
def test_moe_align(tokens, experts):
    ids = torch.stack([torch.randperm(experts)[:3] for _ in range(tokens)]).int()
    for got, want in zip(ops.moe_align(ids, experts, 16), ref.moe_align(ids, experts, 16), strict=True):
        assert torch.equal(got, want)


@pytest.mark.parametrize("quantised", [True, False])
def test_moe_products_and_their_sum(quantised, quant_of_torch):
    hidden, inner, experts = 136, 72, 6
    x = torch.randn(T, hidden)
    ids = torch.stack([torch.randperm(experts)[:2] for _ in range(T)]).int()
    weights = torch.rand(T, 2)
    up, down = torch.randn(experts, 2 * inner, hidden) * 0.1, torch.randn(experts, hidden, inner) * 0.1
    rows = ref.moe_align(ids, experts, 16)
    both = []
    for module in (ops, ref):
        a, sa, b, sb = up, None, down, None
        if quantised:
            qa, qb = quantise_blocks(up), quantise_blocks(down)
            a, sa, b, sb = qa.weight, qa.scale, qb.weight, qb.scale
        first = module.moe_gemm(x, a, sa, *rows[:3], 2)
        second = module.moe_gemm(module.silu_mul_clamp(first, 10.0), b, sb, *rows[:3], 0)
        idx = rows[3].clone()
        idx[0, 0] = -1
        both.append(module.moe_sum_reduce(second, idx, weights, 2.5))
    # Quantising twice can flip a rounding of the inner activations; without it the products agree to float32.
    close(*both, 5e-3 if quantised else 1e-5)


def test_causal_conv1d_update_moves_the_state():
    x, w = torch.randn(T, 2 * H)[:, :H], torch.randn(H, 4)
    state = torch.randn(T, H, 3)
    other = state.clone()
    close(ops.causal_conv1d_update(x, state, w), ref.causal_conv1d_update(x, other, w))
    assert torch.equal(state, other)


def test_kda_update_moves_the_state():
    heads, d = 2, 16
    q, k, v = (y.view(T, heads, d) for y in torch.randn(T, 3 * heads * d).split(heads * d, 1))
    f, beta = torch.randn(T, heads, d), torch.randn(T, 8)[:, :heads]
    A, dt, state = torch.randn(heads), torch.randn(heads * d), torch.randn(T, heads, d, d)
    other = state.clone()
    close(ops.kda_update(q, k, v, f, beta, A, dt, -5.0, state), ref.kda_update(q, k, v, f, beta, A, dt, -5.0, other))
    close(state, other)


def test_cache_write_changes_one_row():
    cache, x = torch.randn(T, 6, 20), torch.randn(T, 40)[:, 20:]
    other = cache.clone()
    ops.cache_write(cache, x, 4)
    ref.cache_write(other, x, 4)
    assert torch.equal(cache, other)


def test_batched_heads():
    x, w = torch.randn(T, 2, 8), torch.randn(2, 8, 12)
    close(ops.batched_heads(x, w), ref.batched_heads(x, w))


def test_indexer_picks_the_same_pools():
    q, keys, by = torch.randn(T, 4, 16), torch.randn(T, 70, 16), torch.randn(T, 4)
    logits = ops.indexer_logits(q, keys, by)
    close(logits, ref.indexer_logits(q, keys, by))
    got = ops.topk_blocks(logits, 7)
    assert torch.equal(got.long(), ref.topk_blocks(logits, 7).sort(-1).values.long())


def test_topk_takes_the_lower_index_on_a_tie():
    logits = torch.tensor([[1.0, -2.0, 1.0, 3.0, 1.0, -0.5]])
    assert ops.topk_blocks(logits, 3).tolist() == [[0, 2, 3]]


@pytest.mark.parametrize("indexed", [True, False])
@pytest.mark.parametrize(("heads", "latent"), [(3, 24), (3, 16), (70, 16)])
def test_mla_decode(indexed, heads, latent):
    """Rows of 24 columns: all latent, or 16 latent and 8 rotated, which are keys only; 70 heads take two programs."""
    q, cache = torch.randn(T, heads, 24), torch.randn(T, 80, 24)
    pools = torch.stack([torch.randperm(20)[:11] for _ in range(T)]).int() if indexed else None
    close(ops.mla_decode(q, cache, pools, 4, 0.2, latent), ref.mla_decode(q, cache, pools, 4, 0.2, latent), 2e-5)


def test_every_reference_operation_has_a_counterpart():
    # What the layers never call: helpers of the reference.
    helpers = {"dequantise"}
    missing = {name for name in ref.__all__ if not hasattr(ops, name)} - helpers
    assert not missing
