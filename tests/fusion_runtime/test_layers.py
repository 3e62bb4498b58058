"""Each kind of layer at tp = 1 against an independent float64 computation over its own weights."""

from __future__ import annotations

import math
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from fusionscope.fusion_runtime.comm.single import SingleGroup
from fusionscope.fusion_runtime.context import DecodeContext
from fusionscope.fusion_runtime.decode import reference_ops
from fusionscope.fusion_runtime.decode.layers.decoder import DecoderLayer
from fusionscope.fusion_runtime.decode.layers.ffn import Mlp, MoeFfn
from fusionscope.fusion_runtime.decode.layers.kda import KdaAttention
from fusionscope.fusion_runtime.decode.layers.mla import MlaAttention
from fusionscope.fusion_runtime.decode.spec import MODELS
from fusionscope.fusion_runtime.decode.weights import WeightSource
from fusionscope.fusion_runtime.hyper import HyperWeights
from fusionscope.fusion_runtime.norms import Norm
from fusionscope.fusion_runtime.ownership import Exit
from fusionscope.fusion_runtime.residual_stream import HyperStream

SPEC = MODELS["tiny"]
BATCH, CONTEXT = 3, 256


@pytest.fixture
def ctx() -> DecodeContext:
    return DecodeContext(SingleGroup(), reference_ops)


@pytest.fixture
def weights(ctx: DecodeContext) -> WeightSource:
    return WeightSource(ctx.group, "cpu", 3)


@pytest.fixture
def x() -> Any:
    return torch.randn((BATCH, SPEC.hidden), generator=torch.Generator().manual_seed(5))


def sigmoid(v: Any) -> Any:
    return 1 / (1 + torch.exp(-v))


def silu(v: Any) -> Any:
    return v * sigmoid(v)


def rms(v: Any, w: Any) -> Any:
    return v / (v.square().mean(-1, keepdim=True) + SPEC.rms_eps).sqrt() * w.double()


def leave(ctx: DecodeContext) -> Exit:
    return Exit(ctx.group, "the layer", tokens=BATCH)


def near(got: Any, want: Any) -> None:
    torch.testing.assert_close(got.double(), want, atol=2e-5, rtol=2e-4)


def swiglu(layer: Mlp, x: Any) -> Any:
    gate, up = (x @ layer.up.weight.double().T).chunk(2, -1)
    limit = SPEC.swiglu_limit
    return (silu(gate.clamp(max=limit)) * up.clamp(-limit, limit)) @ layer.down.weight.double().T


def kda_by_hand(layer: KdaAttention, x: Any, conv_state: Any, state: Any) -> Any:
    """x [T, H] and the states before, all float64; changes `state`."""
    h, d, rank = SPEC.kda_heads, SPEC.kda_head_dim, SPEC.kda_lora
    low = x @ layer.low.double().T
    f = low[:, :rank] @ layer.f_up.double().T
    gate = low[:, rank : 2 * rank] @ layer.g_up.double().T
    beta = sigmoid(low[:, 2 * rank :])
    window = torch.cat([conv_state, (x @ layer.qkv.weight.double().T)[..., None]], -1)
    mixed = silu((window * layer.conv.double()).sum(-1)).view(-1, 3, h, d)
    out = torch.zeros(x.shape[0], h, d, dtype=torch.float64)
    for t in range(x.shape[0]):
        for i in range(h):
            q, k, v = mixed[t, :, i]
            q = q / (q.square().sum() + 1e-6).sqrt() / math.sqrt(d)
            k = k / (k.square().sum() + 1e-6).sqrt()
            logits = f[t].view(h, d)[i] + layer.dt_bias.double().view(h, d)[i]
            decay = torch.exp(SPEC.gate_lower_bound * sigmoid(math.exp(float(layer.A_log[i])) * logits))
            # As one matrix: S' = (I - beta k k^T) diag(decay) S + beta k v^T.
            erase = torch.eye(d, dtype=torch.float64) - beta[t, i] * torch.outer(k, k)
            state[t, i] = erase @ torch.diag(decay) @ state[t, i] + beta[t, i] * torch.outer(k, v)
            out[t, i] = q @ state[t, i]
    y = rms(out, layer.out_norm) * sigmoid(gate.view(out.shape))
    return y.flatten(1) @ layer.out.weight.double().T


def test_kda_over_three_steps(ctx: DecodeContext, weights: WeightSource, x: Any) -> None:
    layer = KdaAttention(SPEC, weights, "kda", BATCH)
    conv, state = layer.conv_state.double(), layer.state.double()
    for step in range(3):
        token = x * (1 + step)
        near(layer.forward(token, ctx, leave(ctx)).take(), kda_by_hand(layer, token.double(), conv, state))
        conv = torch.cat([conv[..., 1:], (token.double() @ layer.qkv.weight.double().T)[..., None]], -1)
    near(layer.state, state)
    near(layer.conv_state, conv)


def mla_by_hand(layer: MlaAttention, x: Any, kv_cache: Any, index_cache: Any) -> Any:
    """Attention in the expanded space (per-head keys and values), the textbook form of MLA; caches before the step."""
    h, pool = SPEC.mla_heads, SPEC.index_kpool
    down = x @ layer.down.weight.double().T
    q_low = rms(down[:, : SPEC.q_lora], layer.q_norm)
    cache, keys = kv_cache.clone(), index_cache.clone()
    cache[:, -1] = rms(down[:, SPEC.q_lora :], layer.kv_norm)
    keys[:, -1] = rms(x @ layer.index_k.double().T, layer.index_k_norm)
    q = (q_low @ layer.q_up.weight.double().T).view(-1, h, SPEC.qk_dim)
    index_q = (q_low @ layer.index_q.weight.double().T).view(-1, SPEC.index_heads, SPEC.index_dim)
    head_weights = x @ layer.index_head.double().T
    out = torch.zeros(x.shape[0], h, SPEC.v_dim, dtype=torch.float64)
    for t in range(x.shape[0]):
        score = [
            sum(head_weights[t, i] * max(0.0, float(index_q[t, i] @ keys[t, p])) for i in range(SPEC.index_heads))
            for p in range(CONTEXT // pool)
        ]
        kept = sorted(range(len(score)), key=lambda p: -float(score[p]))[: SPEC.index_topk // pool]
        rows = cache[t].view(-1, pool, SPEC.kv_lora)[kept].flatten(0, 1)
        for i in range(h):
            key = rows @ layer.k_absorb[i].double().T
            value = rows @ layer.v_up[i].double()
            out[t, i] = torch.softmax(key @ q[t, i] / math.sqrt(SPEC.qk_dim), 0) @ value
    return out.flatten(1) @ layer.out.weight.double().T


def test_mla(ctx: DecodeContext, weights: WeightSource, x: Any) -> None:
    layer = MlaAttention(SPEC, weights, "mla", BATCH, CONTEXT)
    assert SPEC.pools_kept(CONTEXT) < CONTEXT // SPEC.index_kpool, "the indexer must have something to leave out"
    want = mla_by_hand(layer, x.double(), layer.kv_cache.double(), layer.index_cache.double())
    near(layer.forward(x, ctx, leave(ctx)).take(), want)
    near(layer.forward(x, ctx, leave(ctx)).take(), want)


def test_dense(ctx: DecodeContext, weights: WeightSource, x: Any) -> None:
    layer = Mlp(SPEC, weights, "dense", SPEC.dense_intermediate)
    near(layer.forward(x, ctx, leave(ctx)).take(), swiglu(layer, x.double()))


def moe_by_hand(layer: MoeFfn, x: Any) -> Any:
    out = swiglu(layer.shared, x)
    for t in range(x.shape[0]):
        score = sigmoid(layer.router.double() @ x[t])
        chosen = (score + layer.bias.double()).topk(SPEC.top_k).indices
        for e in chosen:
            gate, up = (layer.up.weight[e].double() @ x[t]).chunk(2)
            inner = silu(gate.clamp(max=SPEC.swiglu_limit)) * up.clamp(-SPEC.swiglu_limit, SPEC.swiglu_limit)
            weight = SPEC.routed_scaling * score[e] / score[chosen].sum()
            out[t] += weight * (layer.down.weight[e].double() @ inner)
    return out


def finalized(layer: MoeFfn, x: Any, ctx: DecodeContext) -> Any:
    from fusionscope.fusion_runtime.paths.split import SplitPath

    return SplitPath().finalize(layer.forward(x, ctx, leave(ctx)), ctx).take()


@pytest.mark.parametrize("block", [1, 4])
def test_moe(ctx: DecodeContext, weights: WeightSource, x: Any, block: int) -> None:
    layer = MoeFfn(SPEC, weights, "moe")
    layer.block = block
    near(finalized(layer, x, ctx), moe_by_hand(layer, x.double()))


def read_by_hand(mhc: HyperWeights, R: Any) -> tuple[Any, Any, Any]:
    flat = R.flatten(1)
    m = (flat @ mhc.fn.double().T) / (flat.square().mean(-1, keepdim=True) + SPEC.rms_eps).sqrt()
    scale, base = mhc.scale.double(), mhc.base.double()
    pre = sigmoid(m[:, :4] * scale[0] + base[:4]) + SPEC.hc_eps
    post = SPEC.hc_post_mult * sigmoid(m[:, 4:8] * scale[1] + base[4:8])
    comb = torch.softmax((m[:, 8:] * scale[2] + base[8:]).view(-1, 4, 4), -1) + SPEC.hc_eps
    for iteration in range(SPEC.hc_iters):
        if iteration:
            comb = comb / (comb.sum(2, keepdim=True) + SPEC.hc_eps)
        comb = comb / (comb.sum(1, keepdim=True) + SPEC.hc_eps)
    return rms((pre[..., None] * R).sum(1), mhc.norm), post, comb


def write_by_hand(y: Any, R: Any, post: Any, comb: Any) -> Any:
    return post[..., None] * y[:, None] + comb.transpose(1, 2) @ R


@pytest.mark.parametrize("index", [0, 3, 4])
def test_whole_layers(ctx: DecodeContext, weights: WeightSource, index: int) -> None:
    """Layer 0 is KDA and dense, 3 is MLA and MoE, 4 is KDA and MoE."""
    layer = DecoderLayer(SPEC, weights, index, BATCH, CONTEXT)
    streams = torch.randn((BATCH, 4, SPEC.hidden), generator=torch.Generator().manual_seed(9))
    R = streams.double()
    x, post, comb = read_by_hand(layer.attention_read, R)
    if isinstance(layer.attention, MlaAttention):
        caches = layer.attention.kv_cache.double(), layer.attention.index_cache.double()
        y = mla_by_hand(layer.attention, x, *caches)
    else:
        y = kda_by_hand(layer.attention, x, layer.attention.conv_state.double(), layer.attention.state.double())
    R = write_by_hand(y, R, post, comb)
    x, post, comb = read_by_hand(layer.ffn_read, R)
    y = moe_by_hand(layer.ffn, x) if isinstance(layer.ffn, MoeFfn) else swiglu(layer.ffn, x)
    stream = HyperStream(ctx, 1)
    stream.resume(streams)
    stream.finalize(layer.forward(None, stream, ctx), Norm(layer.ffn_read.norm, SPEC.rms_eps))
    near(stream.streams, write_by_hand(y, R, post, comb))
    kinds = type(layer.attention).__name__, type(layer.ffn).__name__
    assert kinds == {0: ("KdaAttention", "Mlp"), 3: ("MlaAttention", "MoeFfn"), 4: ("KdaAttention", "MoeFfn")}[index]
