"""The kernels of softmax attention, Gated DeltaNet and group-limited routing, in Triton's interpreter."""

from __future__ import annotations

import os

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("triton")
if os.environ.get("TRITON_INTERPRET") != "1":
    pytest.skip("triton was imported before its interpreter was chosen", allow_module_level=True)

from fusionscope.fusion_runtime.decode import cuda_ops as ops
from fusionscope.fusion_runtime.decode import reference_ops as ref
from fusionscope.fusion_runtime.decode.weights import quantise_blocks
from fusionscope.fusion_runtime.errors import RuntimeContractError, WrongQuantisation
from fusionscope.fusion_runtime.quant import FP8_STATIC_TENSOR, InputQuant

T = 3


@pytest.fixture(autouse=True)
def seed():
    torch.manual_seed(0)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize(("normed", "rotary"), [(False, 16), (True, 16), (True, 6)])
def test_norm_and_rotation_in_place_on_slices(dtype, normed, rotary):
    wide = torch.randn(T, 100).to(dtype)
    angle = torch.rand(rotary // 2) * 6
    weights = [torch.randn(16).to(dtype) for _ in range(2)] if normed else [None, None]
    results = []
    for module in (ops, ref):
        own = wide.clone()
        q, k = own[:, :48].unflatten(1, (3, 16)), own[:, 60:92].unflatten(1, (2, 16))
        module.qk_norm_rope(q, k, *weights, 1e-6, 1.0, angle.cos(), angle.sin())
        results.append(own)
    got, want = results
    close = 1e-5 if dtype == torch.float32 else 2e-2
    torch.testing.assert_close(got, want, atol=close, rtol=close)
    assert torch.equal(got[:, 48:60], wide[:, 48:60]) and not torch.equal(got[:, :48], wide[:, :48])


@pytest.mark.parametrize("columns", [1, 70])
def test_gate_mul_of_slices(columns):
    x, gate = torch.randn(T, 90)[:, :70], torch.randn(T, columns + 3)[:, 3:]
    torch.testing.assert_close(ops.gate_mul(x, gate), ref.gate_mul(x, gate), atol=1e-6, rtol=1e-6)


@pytest.mark.parametrize("kv_heads", [1, 2, 4])
def test_gqa_decode_and_concat(kv_heads):
    q, cache = torch.randn(T, 4, 8), torch.randn(T, 10, 2 * kv_heads * 8)
    torch.testing.assert_close(ops.gqa_decode(q, cache, kv_heads), ref.gqa_decode(q, cache, kv_heads))
    assert torch.equal(ops.concat(q, q[..., :3]), ref.concat(q, q[..., :3]))


def test_gated_delta_net_step():
    qk, v = torch.randn(2, T, 2, 16), torch.randn(T, 4, 16)
    a, beta = torch.randn(T, 4) * 8, torch.randn(T, 4)
    A_log, dt_bias, state = torch.randn(4), torch.randn(4), torch.randn(T, 4, 16, 16)
    states = state.clone(), state.clone()
    got = ops.gdn_update(qk[0], qk[1], v, a, beta, A_log, dt_bias, states[0])
    want = ref.gdn_update(qk[0], qk[1], v, a, beta, A_log, dt_bias, states[1])
    torch.testing.assert_close(got, want, atol=1e-5, rtol=1e-5)
    torch.testing.assert_close(states[0], states[1], atol=1e-5, rtol=1e-5)


def test_gated_norm_with_silu():
    o, gate, w = torch.randn(T, 2, 16), torch.randn(T, 2, 16), torch.randn(16)
    torch.testing.assert_close(
        ops.gated_rmsnorm(o, gate, w, 1e-5, True), ref.gated_rmsnorm(o, gate, w, 1e-5, True), atol=1e-5, rtol=1e-5
    )


@pytest.mark.parametrize(("groups", "kept", "softmax"), [(1, 1, True), (4, 2, False), (8, 3, False), (4, 2, True)])
def test_routing_within_the_best_groups(groups, kept, softmax):
    logits, bias = torch.randn(T, 16), torch.randn(16) * 0.1
    got, want = (m.router(logits, bias, 4, groups, kept, softmax) for m in (ops, ref))
    assert torch.equal(got[0], want[0])
    torch.testing.assert_close(got[1], want[1], atol=1e-6, rtol=1e-5)
    # Equal logits: the lower group and the lower expert first, in both.
    flat = [m.router(torch.zeros(1, 16), torch.zeros(16), 4, groups, kept, softmax)[0].tolist() for m in (ops, ref)]
    assert flat[0] == flat[1] == [[0, 1, 2, 3]]


def test_a_linear_takes_what_a_norm_quantised_for_it():
    x, weight = torch.randn(T, 200).bfloat16(), quantise_blocks(torch.randn(48, 200))
    for module in (ops, ref):
        q = module.quantise(x, weight.input_quant)
        assert torch.equal(module.fp8_linear(q, *vars(weight).values()), module.fp8_linear(x, *vars(weight).values()))
        with pytest.raises(WrongQuantisation, match="declares no quantised input"):
            module.fp8_linear(q, torch.randn(48, 200), None)
        with pytest.raises(WrongQuantisation, match="declares fp8_token_group_128"):
            static = module.quantise(x, InputQuant(FP8_STATIC_TENSOR, torch.ones(1)))
            module.fp8_linear(static, weight.weight, weight.scale)


def test_groups_that_are_no_powers_of_two_are_refused():
    with pytest.raises(RuntimeContractError, match="powers of two"):
        ops.router(torch.zeros(1, 12), torch.zeros(12), 2, 3, 1)
