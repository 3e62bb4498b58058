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
import triton.language as tl
from fusionscope.fusion_runtime.kernels import allreduce, attention, kda, mhc_post_pre, mla, moe, norms, quant

# A row of 4096 as two programs, rank 1 of 4 with real peers: every wait and every exchange is in.
RING = dict(size=4, first_rank=1, ranks=1, stage=15, emulate=False, word=tl.int16, block=2048, blocks=2, padded=2,
            delays=None)
PEERS = dict(inboxes="i64", epochs="i32", sums="i32")
NORMED = dict(residual="bf16", weight="bf16", residual_out="bf16", scales="f32", scale="f32")
ROUTED = dict(gemm2="bf16", idx="i32", weights="f32", shared="bf16")
HYPER = dict(streams="bf16", post="f32", comb="f32", out="bf16")
POINTER = {"i64": "*i64", "f32": "*fp32", "bf16": "*bf16", "u8": "*u8", "i32": "*i32", "fp8": "*fp8e4nv"}
TARGETS = {"hopper": GPUTarget("cuda", 90, 32), "cdna4": GPUTarget("hip", "gfx950", 64)}
CASES = {
    "all_reduce": (allreduce.one_shot_all_reduce_kernel, dict(x="bf16", out="bf16", **PEERS), RING),
    "ar_norm": (allreduce.all_reduce_push_norm_kernel, dict(x="bf16", out="bf16", **NORMED, **PEERS),
                dict(quant=0, **RING)),
    "ar_norm_fp8": (allreduce.all_reduce_push_norm_kernel, dict(x="bf16", out="fp8", **NORMED, **PEERS),
                    dict(quant=2, **RING)),
    "ar_norm_mxfp4": (allreduce.all_reduce_push_norm_kernel,
                      dict(x="bf16", out="u8", **{**NORMED, "scales": "u8"}, **PEERS), dict(quant=3, **RING)),
    "ar_norm_nvfp4": (allreduce.all_reduce_push_norm_kernel,
                      dict(x="bf16", out="u8", **{**NORMED, "scales": "fp8"}, **PEERS), dict(quant=4, **RING)),
    "add_norm_fp8": (norms.fused_add_rmsnorm_kernel,
                     dict(x="bf16", out="fp8", total_out="bf16", **NORMED), dict(quant=1, block=8192)),
    "ar_hc_post": (allreduce.ar_hc_post_oneshot_kernel, dict(x="bf16", **HYPER, **PEERS), RING),
    "ar_hc_post_pre": (mhc_post_pre.ar_hc_post_pre_oneshot_kernel,
                       dict(x="bf16", fn="f32", partial="f32", **HYPER, inboxes="i64", epochs="i32"),
                       dict(size=4, first_rank=1, ranks=1, stage=11, emulate=False, word=tl.int16, block=32, rows=4,
                            delays=None)),
    "finalize_hc_post": (allreduce.moe_finalize_ar_hc_post_oneshot_kernel, dict(**ROUTED, **HYPER, **PEERS),
                         dict(k=8, has_shared=True, **RING)),
    "finalize_norm": (allreduce.moe_finalize_ar_norm_oneshot_kernel, dict(out="bf16", **ROUTED, **NORMED, **PEERS),
                      dict(k=8, has_shared=True, quant=0, **RING)),
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
    source = ASTSource(fn=kernel, signature=signature, constexprs=constants)
    made = triton.compile(source, target=TARGETS[sys.argv[1]])
    assert {"cubin", "hsaco"} & set(made.asm), name
print(len(CASES))
"""


@pytest.mark.parametrize("target", ["hopper", "cdna4"])
def test_kernels_compile(target: str, tmp_path: object) -> None:
    environment = {**os.environ, "TRITON_INTERPRET": "0", "TRITON_CACHE_DIR": str(tmp_path)}
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", SCRIPT, target],
        env=environment,
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    assert done.stdout.strip() == "19"


TILES = """
import triton
import triton.language as tl
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource
from fusionscope.fusion_runtime.kernels.launch_mhc_pre import tile_for
from fusionscope.fusion_runtime.kernels.mhc_post_pre import ar_hc_post_pre_oneshot_kernel as kernel

POINTERS = dict(x="*bf16", streams="*bf16", post="*fp32", comb="*fp32", fn="*fp32", out="*bf16", partial="*fp32",
                inboxes="*i64", epochs="*i32")
for tokens in (1, 2, 4):
    tile = tile_for(tokens, 4096)
    constants = dict(size=2, first_rank=1, ranks=1, stage=11, emulate=False, word=tl.int16, block=tile.block,
                     rows=tile.rows, delays=None)
    signature = {name: "constexpr" if name in constants else POINTERS.get(name, "i32") for name in kernel.arg_names}
    source = ASTSource(fn=kernel, signature=signature, constexprs=constants)
    made = triton.compile(source, target=GPUTarget("cuda", 90, 32), options=dict(num_warps=tile.warps))
    looked = made.asm["ptx"].rpartition("ld.volatile")[2]
    waiting, emptying = looked.partition("st.global.b16")[:2]
    # In the loop, or behind it.
    print(bool(emptying) and "bar.sync" in waiting)
"""


def test_no_warp_empties_what_another_waits_for(tmp_path: object) -> None:
    """One token's tile has 32 elements and 128 threads: its four warps look at the same places, each for itself."""
    environment = {**os.environ, "TRITON_INTERPRET": "0", "TRITON_CACHE_DIR": str(tmp_path)}
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", TILES], env=environment, capture_output=True, text=True, timeout=300
    )
    assert done.returncode == 0, done.stderr[-3000:]
    assert done.stdout.split() == ["True"] * 3
