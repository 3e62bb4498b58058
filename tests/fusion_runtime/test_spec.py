from __future__ import annotations

from collections import Counter

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
        ("mhc_post", "attn_exit"): 45,
        ("mhc_post", "ffn_exit"): 45,
        ("moe_finalize", "ffn_exit"): 42,
    }
    nested = [layer for b, s, layer, outer in sites if outer == "moe_finalize" and (b, s) == ("mhc_post", "ffn_exit")]
    assert nested == list(range(3, 45))


def test_truncated_and_asked_for_layers_agree() -> None:
    cut = GLM.truncated(5)
    assert cut.is_truncated and cut.boundary_map() == GLM.boundary_map(5)
    assert Counter(boundary for boundary, *_ in cut.boundary_map()) == {"mhc_post": 10, "moe_finalize": 2}
    assert GLM.truncated(45) is GLM and GLM.truncated(99) is GLM
    with pytest.raises(BadSpec, match="--layers 0"):
        GLM.truncated(0)


def test_scaled_keeps_structure_and_shrinks_widths() -> None:
    small = GLM.scaled()
    assert small.is_scaled and not GLM.is_scaled
    for kept in ("layers", "dense_layers", "top_k", "hc_iters", "mla_every", "routed_scaling", "index_kpool"):
        assert getattr(small, kept) == getattr(GLM, kept)
    assert small.hidden < GLM.hidden and small.experts >= small.top_k


@pytest.mark.parametrize("tp", [1, 2, 4, 8])
def test_models_split_over_ranks(tp: int) -> None:
    GLM.check(tp, 4, 4096)
    GLM.scaled().check(tp, 4, 256)


def test_check_says_what_does_not_fit() -> None:
    with pytest.raises(BadSpec, match=r"does not split over --tp 3 \(kda_heads 64\)"):
        GLM.check(3, 4, 4096)
    with pytest.raises(BadSpec, match="--batch 0"):
        GLM.check(4, 0, 4096)
    with pytest.raises(BadSpec, match=r"--context 100 .* multiple of 16"):
        GLM.check(4, 1, 100)
    with pytest.raises(BadSpec, match="up to 4096"):
        GLM.scaled().check(4, 1, 8192)


def test_pools_kept_is_bounded_by_the_context() -> None:
    assert GLM.pools_kept(1024) == 64
    assert GLM.pools_kept(65536) == 128
