"""What a model specification is: the shapes of a decode forward and where its boundaries are."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

from fusionscope.fusion_runtime.errors import BadSpec

STREAMS = 4

BoundarySite = tuple[str, str, int, str]
"""(boundary, subtype, layer, boundary it lies in or ""). A site's layer is the one whose output is summed there."""


@dataclass(frozen=True, kw_only=True)
class ModelSpec:
    """Whole-model sizes, before they are split over the ranks. 0 where the model has no such part."""

    name: str
    layers: int
    hidden: int
    vocab: int
    rms_eps: float
    max_context: int
    attention: tuple[str, ...]
    """Kinds of attention ("kda", "mla", "gqa", "gdn") of the first layers, then over again."""
    residual: str = "add"
    """"add": one residual, added before each norm. "mhc": four streams, mixed by hyper-connections."""
    gemma: bool = False
    """Norms multiply by 1 + weight."""
    nextn: bool = False
    """A draft layer: its input is a projection of the token's embedding and the target model's last hidden state."""

    dense_layers: int
    """The first layers have a dense FFN, all others are mixtures of experts."""
    dense_intermediate: int = 0
    swiglu_limit: float = float("inf")
    experts: int = 0
    top_k: int = 0
    expert_intermediate: int = 0
    shared_intermediate: int = 0
    shared_gate: bool = False
    """The shared expert's output is multiplied by the sigmoid of a product with the token."""
    routed_scaling: float = 1.0
    softmax_router: bool = False
    """Scores are a softmax over the experts, not sigmoids."""
    expert_groups: int = 1
    groups_kept: int = 1
    """Experts are chosen within the best groups only."""

    kda_heads: int = 0
    kda_head_dim: int = 0
    kda_lora: int = 0
    """Rank of the decay and output-gate projections."""
    gate_lower_bound: float = 0.0
    conv_width: int = 4
    gdn_k_heads: int = 0
    gdn_v_heads: int = 0
    gdn_head_dim: int = 0

    mla_heads: int = 0
    q_lora: int = 0
    kv_lora: int = 0
    qk_dim: int = 0
    """Width of a head's query and key without their rotated part."""
    qk_rope: int = 0
    v_dim: int = 0
    index_heads: int = 0
    """0: attention over the whole cache."""
    index_dim: int = 0
    index_topk: int = 0
    """Tokens that the indexer keeps; index_topk / index_kpool pools of index_kpool tokens."""
    index_kpool: int = 1

    gqa_heads: int = 0
    gqa_kv_heads: int = 0
    gqa_head_dim: int = 0
    rotary_dim: int = 0
    """The first columns of a head that are rotated."""
    rope_theta: float = 10_000.0
    qk_norm: bool = False
    output_gate: bool = False
    """The attention's output is multiplied by the sigmoid of a second query-sized projection."""

    hc_eps: float = 0.0
    hc_iters: int = 0
    hc_post_mult: float = 0.0
    is_scaled: bool = False
    is_truncated: bool = False

    def is_moe(self, layer: int) -> bool:
        return layer >= self.dense_layers

    def layer_kind(self, layer: int) -> tuple[str, str]:
        """(kind of attention, "dense" or "moe")."""
        return self.attention[layer % len(self.attention)], ("moe" if self.is_moe(layer) else "dense")

    def boundary_map(self, layers: int | None = None) -> list[BoundarySite]:
        """Every boundary site of one forward in order, a containing site before what lies in it."""
        count = self.layers if layers is None else min(layers, self.layers)
        if self.residual == "mhc":
            return [site for layer in range(count) for site in self._mhc_sites(layer)]
        sites: list[BoundarySite] = [("ar_norm", "no_residual", 0, "")]
        for layer in range(count):
            sites.append(("ar_norm", "residual", layer, ""))
            if self.is_moe(layer):
                sites.append(("moe_finalize", "ffn_exit", layer, ""))
            subtype = "trailing" if layer == count - 1 else "residual"
            sites.append(("ar_norm", subtype, layer, "moe_finalize" if self.is_moe(layer) else ""))
        return sites

    def _mhc_sites(self, layer: int) -> list[BoundarySite]:
        attention: list[BoundarySite] = [
            ("mhc_post_pre", "attn_exit", layer, ""),
            ("mhc_post", "attn_exit", layer, "mhc_post_pre"),
        ]
        if not self.is_moe(layer):
            return [*attention, ("mhc_post", "ffn_exit", layer, "")]
        return [*attention, ("moe_finalize", "ffn_exit", layer, ""), ("mhc_post", "ffn_exit", layer, "moe_finalize")]

    def truncated(self, layers: int) -> ModelSpec:
        """Only the first `layers` layers; the whole model if it has no more. Raises BadSpec below 1."""
        if layers < 1:
            raise BadSpec(f"--layers {layers} leaves nothing to run: give at least 1.")
        return self if layers >= self.layers else replace(self, layers=layers, is_truncated=True)

    def scaled(self) -> ModelSpec:
        """For the CPU: layers, sites, order and top-k stay, every width that the model has shrinks."""
        return replace(self, is_scaled=True, **{name: size for name, size in SCALED.items() if getattr(self, name)})

    def check(self, tp: int, batch: int, context: int) -> None:
        """Raises BadSpec if the sizes do not split over tp ranks or the context does not fit."""
        uneven = [f"{name} {getattr(self, name)}" for name in SPLIT if tp < 1 or getattr(self, name) % tp]
        # Where there are fewer key-value heads than ranks, several ranks hold the same one.
        heads = self.gqa_kv_heads
        if tp > 0 and heads and heads % tp and tp % heads:
            uneven.append(f"gqa_kv_heads {heads}")
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


SPLIT = (
    "kda_heads",
    "gdn_k_heads",
    "gdn_v_heads",
    "mla_heads",
    "gqa_heads",
    "vocab",
    "dense_intermediate",
    "expert_intermediate",
    "shared_intermediate",
)
"""Sizes that are divided by the number of ranks."""

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
    "gdn_k_heads": 8,
    "gdn_v_heads": 16,
    "gdn_head_dim": 16,
    "mla_heads": 8,
    "q_lora": 32,
    "kv_lora": 32,
    "qk_dim": 16,
    "qk_rope": 16,
    "v_dim": 16,
    "index_heads": 4,
    "index_dim": 16,
    "index_topk": 128,
    "gqa_heads": 8,
    "gqa_kv_heads": 2,
    "gqa_head_dim": 16,
    "rotary_dim": 8,
    "max_context": 4096,
}
