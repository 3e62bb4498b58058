"""Each family's toy model, split over two ranks and run through the residual stream, against the plain forward."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from fusionscope.fusion_runtime.comm.single import SingleGroup
from fusionscope.fusion_runtime.context import DecodeContext
from fusionscope.fusion_runtime.decode import reference_ops
from fusionscope.fusion_runtime.families.base import Family, forward
from fusionscope.fusion_runtime.families.deepseek_v3 import DeepseekV3
from fusionscope.fusion_runtime.families.glm_5_2 import Glm52
from fusionscope.fusion_runtime.families.glm_5_3_flash import Glm53Flash
from fusionscope.fusion_runtime.families.llama import Llama
from fusionscope.fusion_runtime.families.qwen3_5_moe import Qwen35Moe
from fusionscope.fusion_runtime.quant import FP8_TOKEN_GROUP_128, InputQuant, QuantisedActivation, dequantise, expect

T, H, INNER, EXPERTS, K = 3, 16, 8, 4, 2
LAYERS = 2


class RMSNorm(torch.nn.Module):
    """As an engine has it; `one` is what a Gemma norm adds to its weight."""

    one = 0.0

    def __init__(self, seed: int, eps: float) -> None:
        super().__init__()
        self.weight, self.variance_epsilon = draw(seed, H), eps

    def forward(self, x: Any) -> Any:
        scale = torch.rsqrt(x.square().mean(-1, keepdim=True) + self.variance_epsilon)
        return x * scale * (self.weight + self.one)


class GemmaRMSNorm(RMSNorm):
    one = 1.0


def draw(seed: int, *shape: int) -> Any:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed)) / max(shape[-1], 1) ** 0.25


def share(weight: Any, dim: int, rank: int, size: int) -> Any:
    return weight.chunk(size, dim)[rank]


class Linear:
    """y = x W^T with W [N, K]; `input_quant` is what it declares."""

    def __init__(self, weight: Any, input_quant: InputQuant | None = None) -> None:
        self.weight, self.input_quant = weight, input_quant

    def __call__(self, x: Any) -> Any:
        expect(x, self.input_quant, "the toy projection")
        return (dequantise(x) if isinstance(x, QuantisedActivation) else x) @ self.weight.T


class Block:
    """down(tanh(up(x))), split by its inner width: stands for attention and for a dense feed-forward."""

    def __init__(self, seed: int, rank: int, size: int, quant: InputQuant | None = None) -> None:
        up = share(draw(seed, INNER, H), 0, rank, size)
        self.up = self.qkv_proj = self.gate_up_proj = Linear(up, quant)
        self.down = Linear(share(draw(seed + 1, H, INNER), 1, rank, size))

    def __call__(self, x: Any) -> Any:
        return self.down(torch.tanh(self.up(x)))


class Moe:
    def __init__(self, seed: int, rank: int, size: int, gated: bool) -> None:
        self.router = draw(seed, EXPERTS, H)
        self.blocks = [Block(seed + 10 * e, rank, size) for e in range(1, EXPERTS + 1)]
        shared = Block(seed + 99, rank, size)
        self.shared_experts = self.shared_expert = shared
        self.shared_expert_gate = Linear(draw(seed + 7, 1, H)) if gated else None
        self.routed_scaling_factor = 1.0 if gated else 2.5

    def choose(self, x: Any) -> tuple[Any, Any]:
        best = torch.softmax(x @ self.router.T, -1).topk(K)
        return best.indices, best.values

    def experts(self, x: Any) -> tuple[Any, Any, Any]:
        """Rows sorted by expert, as a grouped product leaves them."""
        ids, weights = self.choose(x)
        order = ids.flatten().argsort(stable=True)
        rows = torch.stack([self.blocks[int(ids.flatten()[slot])](x[slot // K]) for slot in order.tolist()])
        idx = torch.empty_like(order).scatter_(0, order, torch.arange(len(order)))
        return rows, idx.view_as(ids).int(), weights

    def __call__(self, x: Any) -> Any:
        """The plain forward, token by token."""
        ids, weights = self.choose(x)
        out = []
        for t in range(x.shape[0]):
            routed = sum(w * self.blocks[int(e)](x[t]) for e, w in zip(ids[t], weights[t], strict=True))
            gate = torch.sigmoid(self.shared_expert_gate(x[t])) if self.shared_expert_gate else 1.0
            out.append(self.routed_scaling_factor * routed + gate * self.shared_expert(x[t]))
        return torch.stack(out)


def hyper(seed: int) -> Any:
    return SimpleNamespace(hc_fn=draw(seed, 24, 4 * H), hc_scale=draw(seed + 1, 3), hc_base=draw(seed + 2, 24))


def toy(rank: int, size: int, norm: type, eps: float, *, moe_from: int, gated: bool = False,
        quant: InputQuant | None = None) -> Any:  # fmt: skip
    layers = []
    for i in range(LAYERS):
        attention = Block(100 * i + 1, rank, size, quant)
        mlp = Moe(100 * i + 3, rank, size, gated) if i >= moe_from else Block(100 * i + 3, rank, size, quant)
        layer = SimpleNamespace(
            input_layernorm=norm(100 * i + 5, eps),
            post_attention_layernorm=norm(100 * i + 6, eps),
            self_attn=attention,
            mlp=mlp,
            attn_hc=hyper(100 * i + 7),
            ffn_hc=hyper(100 * i + 8),
        )
        if gated and i == 0:
            layer.linear_attn = layer.__dict__.pop("self_attn")
        layers.append(layer)
    return SimpleNamespace(layers=layers, norm=norm(999, eps), embedding=draw(7, T, H))


def plain(model: Any) -> Any:
    """The textbook forward of an ordinary residual on the whole model."""
    r = model.embedding
    for layer in model.layers:
        attention = getattr(layer, "linear_attn", None) or layer.self_attn
        r = r + attention(layer.input_layernorm(r))
        r = r + layer.mlp(layer.post_attention_layernorm(r))
    return model.norm(r)


def plain_streams(model: Any) -> Any:
    streams = model.embedding[:, None].expand(-1, 4, -1)
    for layer in model.layers:
        halves = ((layer.attn_hc, layer.input_layernorm, layer.self_attn),
                  (layer.ffn_hc, layer.post_attention_layernorm, layer.mlp))  # fmt: skip
        for hc, norm, block in halves:
            x, post, comb = reference_ops.hc_pre(
                streams.contiguous(),
                hc.hc_fn,
                hc.hc_scale,
                hc.hc_base,
                norm.weight,
                norm.variance_epsilon,
                1e-6,
                20,
                2.0,
            )
            streams = post[..., None] * block(x)[:, None] + comb.transpose(1, 2) @ streams
    return model.norm(streams.mean(1))


Case = tuple[Callable[[int, int], Any], Family, Callable[[Any], Any]]
FAMILIES: dict[str, Case] = {
    "llama": (lambda r, s: toy(r, s, RMSNorm, 1e-5, moe_from=9), Llama(RMSNorm), plain),
    "deepseek-v3": (lambda r, s: toy(r, s, RMSNorm, 1e-6, moe_from=1), DeepseekV3(RMSNorm), plain),
    "glm-5.2": (lambda r, s: toy(r, s, RMSNorm, 1e-5, moe_from=1), Glm52(RMSNorm), plain),
    "qwen3.5-moe": (
        lambda r, s: toy(r, s, GemmaRMSNorm, 1e-6, moe_from=0, gated=True), Qwen35Moe(GemmaRMSNorm), plain
    ),
    "glm-5.3-flash": (lambda r, s: toy(r, s, RMSNorm, 1e-5, moe_from=1), Glm53Flash(RMSNorm), plain_streams),
}  # fmt: skip

SITES = {
    "llama": {("ar_norm", "no_residual"): 1, ("ar_norm", "residual"): 3, ("ar_norm", "trailing"): 1},
    "qwen3.5-moe": {
        ("ar_norm", "no_residual"): 1, ("ar_norm", "residual"): 3, ("ar_norm", "trailing"): 1,
        ("moe_finalize", "ffn_exit"): 2,
    },
    "glm-5.3-flash": {
        ("mhc_post_pre", "attn_exit"): 2, ("mhc_post", "attn_exit"): 2, ("mhc_post", "ffn_exit"): 2,
        ("moe_finalize", "ffn_exit"): 1,
    },
}  # fmt: skip


@pytest.mark.parametrize("name", FAMILIES)
def test_two_ranks_compute_the_plain_forward(name: str, lockstep: Callable[..., list[Any]]) -> None:
    make, family, textbook = FAMILIES[name]
    want = textbook(make(0, 1))

    def rank(group: Any) -> Any:
        ctx = DecodeContext(group, reference_ops)
        model = make(group.rank, group.size)
        # A vocabulary that is split leaves each rank with the rows of its own tokens.
        mine = torch.where(torch.arange(T)[:, None] % group.size == group.rank, model.embedding, 0.0)
        counts: dict[tuple[str, str], int] = {}
        hidden = forward(family, model, mine, ctx)
        for row in ctx.recorder.rows:
            counts[row.boundary, row.subtype] = counts.get((row.boundary, row.subtype), 0) + 1
        return hidden, counts

    for hidden, counts in lockstep(2, rank):
        torch.testing.assert_close(hidden, want, atol=1e-5, rtol=1e-4)
        assert counts == SITES.get(name, counts)


def test_a_llama_s_projections_take_what_they_declare() -> None:
    quant = InputQuant(FP8_TOKEN_GROUP_128)
    group = SingleGroup()
    ctx = DecodeContext(group, reference_ops)
    exact, coarse = (toy(0, 1, RMSNorm, 1e-5, moe_from=9, quant=q) for q in (None, quant))
    want = forward(Llama(RMSNorm), exact, exact.embedding, ctx)
    got = forward(Llama(RMSNorm), coarse, coarse.embedding, ctx)
    error = (got - want).norm() / want.norm()
    assert 1e-4 < error < 0.05, "FP8 rounds, and nothing else"


def test_a_norm_of_another_class_is_run_as_it_is() -> None:
    group = SingleGroup()
    ctx = DecodeContext(group, reference_ops)
    model = toy(0, 1, RMSNorm, 1e-5, moe_from=9)
    model.layers[0].input_layernorm = torch.nn.Identity()
    torch.testing.assert_close(forward(Llama(RMSNorm), model, model.embedding, ctx), plain(model))
