"""Model specifications as data: the shapes of a decode forward and where its boundaries are."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

from fusionscope.fusion_runtime.errors import BadSpec

BOUNDARIES_LISTED = ("ar_norm", "moe_finalize", "mhc_post")
"""Every report lists these kinds, also where the model has none of them."""

STREAMS = 4

BoundarySite = tuple[str, str, int, str]
"""(boundary, subtype, layer, boundary it lies in or "")."""


@dataclass(frozen=True)
class ModelSpec:
    """Whole-model sizes, before they are split over the ranks."""

    name: str
    layers: int
    hidden: int
    vocab: int
    dense_layers: int
    """The first layers have a dense FFN, all others are mixtures of experts."""
    dense_intermediate: int
    experts: int
    top_k: int
    expert_intermediate: int
    shared_intermediate: int
    routed_scaling: float
    swiglu_limit: float
    rms_eps: float
    mla_every: int
    """Layer i has MLA attention if i % mla_every == mla_every - 1, else KDA."""
    kda_heads: int
    kda_head_dim: int
    kda_lora: int
    """Rank of the decay and output-gate projections."""
    gate_lower_bound: float
    conv_width: int
    mla_heads: int
    q_lora: int
    kv_lora: int
    qk_dim: int
    v_dim: int
    index_heads: int
    index_dim: int
    index_topk: int
    """Tokens that the indexer keeps; index_topk / index_kpool pools of index_kpool tokens."""
    index_kpool: int
    hc_eps: float
    hc_iters: int
    hc_post_mult: float
    max_context: int
    is_scaled: bool = False
    is_truncated: bool = False

    def is_mla(self, layer: int) -> bool:
        return layer % self.mla_every == self.mla_every - 1

    def is_moe(self, layer: int) -> bool:
        return layer >= self.dense_layers

    def layer_kind(self, layer: int) -> tuple[str, str]:
        """("kda" or "mla", "dense" or "moe")."""
        return ("mla" if self.is_mla(layer) else "kda"), ("moe" if self.is_moe(layer) else "dense")

    def boundary_map(self, layers: int | None = None) -> list[BoundarySite]:
        """Every boundary site of one forward in order, a containing site before what lies in it."""
        sites: list[BoundarySite] = []
        for layer in range(self.layers if layers is None else min(layers, self.layers)):
            sites.append(("mhc_post", "attn_exit", layer, ""))
            if self.is_moe(layer):
                sites.append(("moe_finalize", "ffn_exit", layer, ""))
            sites.append(("mhc_post", "ffn_exit", layer, "moe_finalize" if self.is_moe(layer) else ""))
        return sites

    def truncated(self, layers: int) -> ModelSpec:
        """Only the first `layers` layers; the whole model if it has no more. Raises BadSpec below 1."""
        if layers < 1:
            raise BadSpec(f"--layers {layers} leaves nothing to run: give at least 1.")
        return self if layers >= self.layers else replace(self, layers=layers, is_truncated=True)

    def scaled(self) -> ModelSpec:
        """For the CPU: layers, sites, order and top-k stay, every width shrinks."""
        return replace(self, is_scaled=True, **SCALED)

    def check(self, tp: int, batch: int, context: int) -> None:
        """Raises BadSpec if the sizes do not split over tp ranks or the context does not fit."""
        split = {
            "kda_heads": self.kda_heads,
            "mla_heads": self.mla_heads,
            "vocab": self.vocab,
            "dense_intermediate": self.dense_intermediate,
            "expert_intermediate": self.expert_intermediate,
            "shared_intermediate": self.shared_intermediate,
        }
        uneven = [f"{name} {size}" for name, size in split.items() if tp < 1 or size % tp]
        if uneven:
            raise BadSpec(f"{self.name} does not split over --tp {tp} ({uneven[0]}): use 1, 2 or 4.")
        if batch < 1:
            raise BadSpec(f"--batch {batch} decodes nothing: give at least 1.")
        if not self.index_kpool <= context <= self.max_context or context % self.index_kpool:
            raise BadSpec(
                f"--context {context} does not suit {self.name}: give a multiple of {self.index_kpool} "
                f"up to {self.max_context}."
            )

    def pools_kept(self, context: int) -> int:
        """How many pools of the cache the indexer keeps at this context length."""
        return min(self.index_topk, context) // self.index_kpool


SCALED: dict[str, Any] = {
    "hidden": 64,
    "vocab": 512,
    "dense_intermediate": 128,
    "experts": 16,
    "expert_intermediate": 32,
    "shared_intermediate": 32,
    "kda_heads": 8,
    "kda_head_dim": 16,
    "kda_lora": 16,
    "mla_heads": 8,
    "q_lora": 32,
    "kv_lora": 32,
    "qk_dim": 16,
    "v_dim": 16,
    "index_heads": 4,
    "index_dim": 16,
    "index_topk": 128,
    "max_context": 4096,
}

GLM_5_3_FLASH = ModelSpec(
    name="glm-5.3-flash",
    layers=45,
    hidden=4096,
    vocab=154_880,
    dense_layers=3,
    dense_intermediate=12_288,
    experts=288,
    top_k=8,
    expert_intermediate=2048,
    shared_intermediate=2048,
    routed_scaling=2.5,
    swiglu_limit=10.0,
    rms_eps=1e-5,
    mla_every=4,
    kda_heads=64,
    kda_head_dim=128,
    kda_lora=128,
    gate_lower_bound=-5.0,
    conv_width=4,
    mla_heads=64,
    q_lora=1536,
    kv_lora=512,
    qk_dim=256,
    v_dim=256,
    index_heads=32,
    index_dim=128,
    index_topk=2048,
    index_kpool=16,
    hc_eps=1e-6,
    hc_iters=20,
    hc_post_mult=2.0,
    max_context=1_048_576,
)

TINY = replace(GLM_5_3_FLASH.scaled(), name="tiny", layers=5, is_scaled=False)
"""For tests: the same kinds of layers, five of them, at the scaled widths."""

MODELS: dict[str, ModelSpec] = {spec.name: spec for spec in (GLM_5_3_FLASH, TINY)}
