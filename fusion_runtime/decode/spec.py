"""The models that can be captured. Shapes are those of the public configurations named beside them."""

from __future__ import annotations

from dataclasses import replace

from fusionscope.fusion_runtime.decode.model_spec import STREAMS, BoundarySite, ModelSpec

__all__ = ["MODELS", "STREAMS", "BoundarySite", "ModelSpec"]

# zai-org/GLM-5.3-Flash: glm5_next in transformers 5.24.
GLM_5_3_FLASH = ModelSpec(
    name="glm-5.3-flash",
    layers=45,
    hidden=4096,
    vocab=154_880,
    rms_eps=1e-5,
    max_context=1_048_576,
    attention=("kda", "kda", "kda", "mla"),
    residual="mhc",
    dense_layers=3,
    dense_intermediate=12_288,
    swiglu_limit=10.0,
    experts=288,
    top_k=8,
    expert_intermediate=2048,
    shared_intermediate=2048,
    routed_scaling=2.5,
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
)

# Its draft layer: sparse attention, experts, an ordinary residual.
GLM_5_3_FLASH_NEXTN = replace(
    GLM_5_3_FLASH,
    name="glm-5.3-flash-nextn",
    layers=1,
    attention=("mla",),
    residual="add",
    nextn=True,
    dense_layers=0,
    dense_intermediate=0,
    kda_heads=0,
    kda_head_dim=0,
    kda_lora=0,
    gate_lower_bound=0.0,
    hc_eps=0.0,
    hc_iters=0,
    hc_post_mult=0.0,
)

# zai-org/GLM-5: glm_moe_dsa in transformers 5.24; 5.1 to 5.3 have the same shapes.
GLM_5_2 = ModelSpec(
    name="glm-5.2",
    layers=78,
    hidden=6144,
    vocab=154_880,
    rms_eps=1e-5,
    max_context=202_752,
    attention=("mla",),
    dense_layers=3,
    dense_intermediate=12_288,
    experts=256,
    top_k=8,
    expert_intermediate=2048,
    shared_intermediate=2048,
    routed_scaling=2.5,
    mla_heads=64,
    q_lora=2048,
    kv_lora=512,
    qk_dim=192,
    qk_rope=64,
    v_dim=256,
    index_heads=32,
    index_dim=128,
    index_topk=2048,
)

# deepseek-ai/DeepSeek-V3.
DEEPSEEK_V3 = ModelSpec(
    name="deepseek-v3",
    layers=61,
    hidden=7168,
    vocab=129_280,
    rms_eps=1e-6,
    max_context=163_840,
    attention=("mla",),
    dense_layers=3,
    dense_intermediate=18_432,
    experts=256,
    top_k=8,
    expert_intermediate=2048,
    shared_intermediate=2048,
    routed_scaling=2.5,
    expert_groups=8,
    groups_kept=4,
    mla_heads=128,
    q_lora=1536,
    kv_lora=512,
    qk_dim=128,
    qk_rope=64,
    v_dim=128,
)

# lmsys/DeepSeek-V3-0324-NextN.
DEEPSEEK_V3_NEXTN = replace(
    DEEPSEEK_V3, name="deepseek-v3-nextn", layers=1, dense_layers=0, dense_intermediate=0, nextn=True
)

# Qwen/Qwen3.5-35B-A3B: the text model of qwen3_5_moe in transformers 5.24.
QWEN3_5_MOE = ModelSpec(
    name="qwen3.5-moe",
    layers=40,
    hidden=2048,
    vocab=248_320,
    rms_eps=1e-6,
    max_context=32_768,
    attention=("gdn", "gdn", "gdn", "gqa"),
    gemma=True,
    dense_layers=0,
    experts=256,
    top_k=8,
    expert_intermediate=512,
    shared_intermediate=512,
    shared_gate=True,
    softmax_router=True,
    gdn_k_heads=16,
    gdn_v_heads=32,
    gdn_head_dim=128,
    gqa_heads=16,
    gqa_kv_heads=2,
    gqa_head_dim=256,
    rotary_dim=64,
    rope_theta=10_000_000.0,
    qk_norm=True,
    output_gate=True,
)

# meta-llama/Llama-3.1-8B.
LLAMA = ModelSpec(
    name="llama",
    layers=32,
    hidden=4096,
    vocab=128_256,
    rms_eps=1e-5,
    max_context=131_072,
    attention=("gqa",),
    dense_layers=32,
    dense_intermediate=14_336,
    gqa_heads=32,
    gqa_kv_heads=8,
    gqa_head_dim=128,
    rotary_dim=128,
    rope_theta=500_000.0,
)

TINY = replace(GLM_5_3_FLASH.scaled(), name="tiny", layers=5, is_scaled=False)
"""For tests: the same kinds of layers, five of them, at the scaled widths."""

MODELS: dict[str, ModelSpec] = {
    spec.name: spec
    for spec in (
        GLM_5_3_FLASH,
        GLM_5_3_FLASH_NEXTN,
        GLM_5_2,
        DEEPSEEK_V3,
        DEEPSEEK_V3_NEXTN,
        QWEN3_5_MOE,
        LLAMA,
        TINY,
    )
}
