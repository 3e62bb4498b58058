"""Kernels compile for NVIDIA and AMD GPUs on a machine that has none (Triton brings the assemblers along).

That says nothing about results: the interpreter's tests and the GPU's do.
"""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

pytest.importorskip("torch")
pytest.importorskip("triton")

# In a process of its own: whether kernels are interpreted is decided when Triton is imported.
SCRIPT = """
import sys
import triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource
from fusionscope.fusion_runtime.kernels import attention, kda, mla, moe, norms, quant

POINTER = {"f32": "*fp32", "bf16": "*bf16", "u8": "*u8", "i32": "*i32", "fp8": "*fp8e4nv"}
TARGETS = {"hopper": GPUTarget("cuda", 90, 32), "blackwell": GPUTarget("cuda", 100, 32),
           "cdna3": GPUTarget("hip", "gfx942", 64), "cdna4": GPUTarget("hip", "gfx950", 64)}
CASES = {
    "nvfp4": (quant.fp4_quant_kernel, dict(x="bf16", tensor_scale="f32", out="u8", scales="fp8"),
              dict(size=16, mx=False, swizzled=True, block=32)),
    "nvfp4_linear": (quant.fp4_quant_kernel, dict(x="bf16", tensor_scale="f32", out="u8", scales="fp8"),
                     dict(size=16, mx=False, swizzled=False, block=32)),
    "mxfp4": (quant.fp4_quant_kernel, dict(x="bf16", tensor_scale="u8", out="u8", scales="u8"),
              dict(size=32, mx=True, swizzled=False, block=32)),
    "qk_norm_rope": (attention.qk_norm_rope_kernel,
                     dict(q="bf16", k="bf16", q_weight="bf16", k_weight="bf16", cos="f32", sin="f32"),
                     dict(normed=True, half=32, block=256)),
    "gate_mul": (attention.sigmoid_gate_mul_kernel, dict(x="bf16", gate="bf16", out="bf16"), dict(block=512)),
    "gdn": (kda.fused_recurrent_gated_delta_rule_update_kernel,
            dict(q="bf16", k="bf16", v="bf16", f="bf16", beta="bf16", a_log="f32", dt_bias="f32", state="f32",
                 out="bf16"), dict(d=128, block_v=32, each=2, per_head=True)),
    "router": (moe._router_triton_kernel, dict(logits="f32", bias="f32", ids="i32", weights="f32"),
               dict(k=8, groups=8, kept_groups=4, softmax=False, block_e=256, block_k=8)),
    "mla": (mla.mla_decode_kernel,
            dict(q="bf16", kv_cache="bf16", pool_index="i32", part="f32", part_lse="f32"),
            dict(kpool=1, indexed=True, rotated=64, block_h=16, block_n=32, block_d=512)),
    "gated_norm": (norms.layer_norm_gated_fwd_kernel, dict(x="bf16", gate="bf16", weight="bf16", out="bf16"),
                   dict(silu=True, block=128)),
}
FLOATS = {"eps", "weight_bias", "lower_bound", "sm_scale", "scale"}
for name, (kernel, pointers, constants) in CASES.items():
    signature = {
        argument: "constexpr" if argument in constants else POINTER[pointers[argument]] if argument in pointers
        else "fp32" if argument in FLOATS else "i32"
        for argument in kernel.arg_names
    }
    for where in sys.argv[1:]:
        # FP8 of this kind is not CDNA3's.
        if where == "cdna3" and "fp8" in pointers.values():
            continue
        source = ASTSource(fn=kernel, signature=signature, constexprs=constants)
        made = triton.compile(source, target=TARGETS[where])
        assert {"cubin", "hsaco"} & set(made.asm), (name, where)
print(len(CASES))
"""


@pytest.mark.parametrize("targets", [("hopper", "blackwell"), ("cdna3", "cdna4")], ids=["nvidia", "amd"])
def test_kernels_compile(targets: tuple[str, ...], tmp_path: object) -> None:
    environment = {**os.environ, "TRITON_INTERPRET": "0", "TRITON_CACHE_DIR": str(tmp_path)}
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", SCRIPT, *targets],
        env=environment,
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    assert done.stdout.strip() == "9"
