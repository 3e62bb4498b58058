from __future__ import annotations

from collections import Counter
from dataclasses import replace

import pytest

pytest.importorskip("torch")

from fusionscope.fusion_runtime.decode.spec import MODELS, ModelSpec
from fusionscope.fusion_runtime.errors import BadSpec

GLM = MODELS["glm-5.3-flash"]


def test_layer_kinds() -> None:
    kinds = [GLM.layer_kind(layer) for layer in range(GLM.layers)]
    assert Counter(a for a, _ in kinds) == {"kda": 34, "mla": 11}
    assert [layer for layer, (a, _) in enumerate(kinds) if a == "mla"] == list(range(3, 44, 4))
    assert [f for _, f in kinds] == ["dense"] * 3 + ["moe"] * 42


@pytest.mark.parametrize("spec", [GLM, GLM.scaled()])
def test_boundary_map_of_the_whole_model(spec: ModelSpec) -> None:
    sites = spec.boundary_map()
    assert Counter((boundary, subtype) for boundary, subtype, _, _ in sites) == {
        ("mhc_post_pre", "attn_exit"): 45,
        ("mhc_post", "attn_exit"): 45,
        ("mhc_post", "ffn_exit"): 45,
        ("moe_finalize", "ffn_exit"): 42,
    }
    nested = [layer for b, s, layer, outer in sites if outer == "moe_finalize" and (b, s) == ("mhc_post", "ffn_exit")]
    assert nested == list(range(3, 45))
    assert [site[:3] for site in sites if site[3] == "mhc_post_pre"] == [
        ("mhc_post", "attn_exit", layer) for layer in range(45)
    ]


ORDINARY = {
    "glm-5.2": (78, 75),
    "deepseek-v3": (61, 58),
    "qwen3.5-moe": (40, 40),
    "llama": (32, 0),
    "glm-5.3-flash-nextn": (1, 1),
    "deepseek-v3-nextn": (1, 1),
}


@pytest.mark.parametrize("name", ORDINARY)
def test_boundary_map_of_an_ordinary_residual(name: str) -> None:
    """The embedding's sum, two sums a layer, of which the last is the trailing one; experts contain theirs."""
    layers, moe = ORDINARY[name]
    sites = MODELS[name].boundary_map()
    want = {("ar_norm", "no_residual"): 1, ("ar_norm", "residual"): 2 * layers - 1, ("ar_norm", "trailing"): 1}
    if moe:
        want["moe_finalize", "ffn_exit"] = moe
    assert Counter((boundary, subtype) for boundary, subtype, _, _ in sites) == want
    assert sum(outer == "moe_finalize" for *_, outer in sites) == moe
    assert sites[-1][1:3] == ("trailing", layers - 1)


def test_kinds_of_attention() -> None:
    assert [MODELS["qwen3.5-moe"].layer_kind(layer)[0] for layer in range(5)] == ["gdn", "gdn", "gdn", "gqa", "gdn"]
    assert {MODELS["deepseek-v3"].layer_kind(layer) for layer in range(61)} == {("mla", "dense"), ("mla", "moe")}
    assert {MODELS["llama"].layer_kind(layer) for layer in range(32)} == {("gqa", "dense")}


def test_truncated_and_asked_for_layers_agree() -> None:
    cut = GLM.truncated(5)
    assert cut.is_truncated and cut.boundary_map() == GLM.boundary_map(5)
    assert Counter(boundary for boundary, *_ in cut.boundary_map()) == {
        "mhc_post_pre": 5,
        "mhc_post": 10,
        "moe_finalize": 2,
    }
    assert GLM.truncated(45) is GLM and GLM.truncated(99) is GLM
    with pytest.raises(BadSpec, match="--layers 0"):
        GLM.truncated(0)


def test_scaled_keeps_structure_and_shrinks_widths() -> None:
    small = GLM.scaled()
    assert small.is_scaled and not GLM.is_scaled
    for kept in ("layers", "dense_layers", "top_k", "hc_iters", "attention", "routed_scaling", "index_kpool"):
        assert getattr(small, kept) == getattr(GLM, kept)
    assert small.hidden < GLM.hidden and small.experts >= small.top_k


@pytest.mark.parametrize("name", sorted(MODELS))
@pytest.mark.parametrize("tp", [1, 2, 4, 8])
def test_models_split_over_ranks(name: str, tp: int) -> None:
    MODELS[name].check(tp, 4, 4096)
    MODELS[name].scaled().check(tp, 4, 256)


def test_check_says_what_does_not_fit() -> None:
    with pytest.raises(BadSpec, match=r"does not split over --tp 3 \(kda_heads 64\)"):
        GLM.check(3, 4, 4096)
    with pytest.raises(BadSpec, match=r"gqa_kv_heads 2\)"):
        replace(MODELS["llama"].scaled(), gqa_heads=9, vocab=513, dense_intermediate=129).check(3, 4, 256)
    with pytest.raises(BadSpec, match="--batch 0"):
        GLM.check(4, 0, 4096)
    with pytest.raises(BadSpec, match=r"--context 100 .* multiple of 16"):
        GLM.check(4, 1, 100)
    with pytest.raises(BadSpec, match="up to 4096"):
        GLM.scaled().check(4, 1, 8192)


def test_pools_kept_is_bounded_by_the_context() -> None:
    assert GLM.pools_kept(1024) == 64
    assert GLM.pools_kept(65536) == 128
