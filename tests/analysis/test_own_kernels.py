"""The shipped rules know the launches of our own runtime, also where a trace of it has lost its provenance."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

from fusionscope.analysis import ruleset

ROLES = {
    "one_shot_all_reduce_kernel": "all_reduce",
    "all_reduce_push_norm_kernel": "fused_ar_norm",
    "ar_hc_post_oneshot_kernel": "fused_ar_mhc_post",
    "ar_hc_post_pre_oneshot_kernel": "fused_ar_mhc_post_pre",
    "mhc_pre_gemm_sqrsum_kernel": "mhc_pre",
    "mhc_pre_big_fuse_with_norm_kernel": "mhc_pre",
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
    "inductor::finalize": "moe_finalize",
    "fusionscope::rmsnorm": "rms_norm",
    "fusionscope::fp8_linear": "gemm",
    "fusionscope::router": "moe_route",
    "gloo:all_reduce": "all_reduce",
    "topk_select_kernel": "attention",
    "cache_write_kernel": "kv_write",
    "vocab_embedding_kernel": "gather",
    "expand_streams_kernel": "copy",
    "fp4_quant_kernel": "quant",
}


@pytest.mark.parametrize(("name", "role"), ROLES.items())
def test_a_launch_of_the_runtime_has_its_role(name: str, role: str) -> None:
    assert ruleset.load().role_of(name) == role


KERNELS = Path(__file__).parents[2] / "fusion_runtime/kernels"


def compiled() -> list[str]:
    """The functions that Triton compiles in the runtime's own kernels."""
    found = [node for path in sorted(KERNELS.glob("*.py")) for node in ast.walk(ast.parse(path.read_text()))]
    functions = [node for node in found if isinstance(node, ast.FunctionDef)]
    return [f.name for f in functions if any(ast.unparse(d).startswith("triton.jit") for d in f.decorator_list)]


def test_every_kernel_of_the_runtime_has_a_role() -> None:
    rules = ruleset.load()
    kernels = [name for name in compiled() if name.endswith("_kernel")]
    assert len(kernels) > 25
    assert [name for name in kernels if not rules.role_of(name)] == []


def test_what_is_launched_is_called_a_kernel() -> None:
    """Else the test above would pass it over."""
    known = set(compiled())
    launched = {
        name
        for path in KERNELS.parent.rglob("*.py")
        for name in re.findall(r"\b(\w+)\[", path.read_text())
        if name in known
    }
    assert len(launched) > 20 and [name for name in launched if not name.endswith("_kernel")] == []
