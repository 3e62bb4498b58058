"""The shipped rules know the launches of our own runtime, also where a trace of it has lost its provenance."""

from __future__ import annotations

import pytest

from fusionscope.analysis import ruleset

ROLES = {
    "one_shot_all_reduce_kernel": "all_reduce",
    "all_reduce_push_norm_kernel": "fused_ar_norm",
    "ar_hc_post_oneshot_kernel": "fused_ar_mhc_post",
    "moe_finalize_ar_hc_post_oneshot_kernel": "fused_finalize_ar_mhc_post",
    "moe_finalize_ar_norm_oneshot_kernel": "fused_finalize_ar_norm",
    "fused_add_rmsnorm_kernel": "residual_rms_norm",
    "rmsnorm_kernel": "rms_norm",
    "_moe_sum_reduce_kernel": "moe_finalize",
    "shared_expert_add_kernel": "shared_add",
    "mhc_post_kernel": "mhc_post",
    "static_quant_fp8_kernel": "quant",
    "per_token_group_quant_fp8_kernel": "quant",
    "qk_norm_rope_kernel": "fused_qk_norm_rope",
    "sigmoid_gate_mul_kernel": "activation",
    "mla_decode_kernel": "attention",
    "fusionscope::gqa_decode": "attention",
    "fusionscope::gdn_update": "attention",
    "fusionscope::qk_norm_rope": "fused_qk_norm_rope",
    "fusionscope::gate_mul": "activation",
    "fusionscope::add_rmsnorm": "residual_rms_norm",
    "inductor::add_rmsnorm": "residual_rms_norm",
    "gloo:all_reduce": "all_reduce",
}


@pytest.mark.parametrize(("name", "role"), ROLES.items())
def test_a_launch_of_the_runtime_has_its_role(name: str, role: str) -> None:
    assert ruleset.load().role_of(name) == role
