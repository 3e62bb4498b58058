"""The flashinfer path: FlashInfer's norms at one rank, its trtllm all-reduce fusions at 2, 4 or 8, its mHC post.

Written for flashinfer-python 0.6.13 and later, whose operations are looked up, and their arguments probed, when a site
asks: nothing is imported before. FlashInfer fuses mHC post with an all-reduce only on compute capability 10; elsewhere
the group's all-reduce runs first, and its mHC post after it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import torch

from fusionscope.fusion_runtime.comm.base import Group
from fusionscope.fusion_runtime.comm.symmetric import SymmetricGroup
from fusionscope.fusion_runtime.gates import Decline, Gate
from fusionscope.fusion_runtime.hyper import HyperWeights
from fusionscope.fusion_runtime.norms import Norm
from fusionscope.fusion_runtime.ownership import DeferredFinalize, PartialSum
from fusionscope.fusion_runtime.paths import probing
from fusionscope.fusion_runtime.paths.base import Path, Rest, SiteShape
from fusionscope.fusion_runtime.quant import FP8_STATIC_TENSOR, Activation, InputQuant, QuantisedActivation

if TYPE_CHECKING:
    from fusionscope.fusion_runtime.context import DecodeContext

Tensor = Any

LIBRARY = "flashinfer"
WORLD_SIZES = (2, 4, 8)
"""What its choice between one and two shots knows."""

MAJORS = (9, 10)
"""Compute capabilities whose trtllm kernels it builds."""

MOST_TOKENS = 2048
FINALIZE_TOKENS = 128
"""The MoE finalize has one shot only; FlashInfer warns past this."""

CAPS_MIB = {9: {2: 64.0, 4: 2.0, 8: 0.5}, 10: {2: 64.0, 4: 32.0, 8: 1.0}}
"""tokens * hidden * bytes, by compute capability and ranks, up to which vLLM takes this fusion."""

POST_PRE = "mhc_fused_post_pre"
POST_PRE_HIDDEN, POST_PRE_TOKENS = 4096, (33, 16384)
POST_PRE_CONSTANTS = (1e-5, 1e-6, 20, 2.0)
"""What its experimental post and pre in one launch is compiled for, besides compute capability 10.3 (0.7.4)."""

DTYPES = (torch.bfloat16, torch.float16)


class FlashinferPath(Path):
    """Declines what the library, its version, the GPU or the group cannot do."""

    name = "flashinfer"

    def __init__(self) -> None:
        self._workspaces: dict[tuple[Group, int, Any], Any] = {}

    def unavailable(self, group: Group, device: Any) -> Decline | None:
        if not probing.has_library(LIBRARY):
            why = "FlashInfer is not installed: pip install 'flashinfer-python>=0.6.13'"
            return Decline(Gate.LIBRARY_MISSING, why)
        if torch.device(device).type != "cuda" or torch.version.hip is not None:
            return Decline(Gate.NO_DEVICE, "FlashInfer needs an NVIDIA GPU")
        return None

    def finalizes_through(self, ends: str) -> bool:
        return ends == "norm"

    def declines(self, boundary: str, *, shape: SiteShape, group: Group) -> Decline | None:
        if shape.tokens == 0:
            return Decline(Gate.NO_TOKENS, "there are no tokens")
        if shape.dtype not in DTYPES:
            return Decline(Gate.DTYPE, f"the dtype is {shape.dtype} and neither bfloat16 nor float16")
        if shape.hidden % 8:
            return Decline(Gate.ALIGNMENT, f"hidden {shape.hidden} is not a multiple of 8")
        if not shape.contiguous:
            return Decline(Gate.NOT_CONTIGUOUS, "FlashInfer reads each of its operands as one block of memory")
        if boundary in ("mhc_post", "mhc_post_pre") and shape.dtype is not torch.bfloat16:
            return Decline(Gate.DTYPE, f"FlashInfer's mHC post is for bfloat16 and the dtype is {shape.dtype}")
        if boundary == "mhc_post":
            return _missing("flashinfer.mhc", "mhc_post")
        if boundary == "mhc_post_pre":
            return _post_pre_declines(shape)
        if boundary == "moe_finalize" and shape.ends == "mhc":
            return Decline(Gate.NOT_COVERED, "FlashInfer's MoE finalize ends in a norm and this one in mHC post")
        if boundary not in ("ar_norm", "moe_finalize"):
            return Decline(Gate.NOT_COVERED, f"FlashInfer has no {boundary}")
        if shape.gamma_dtype is not None and shape.gamma_dtype != shape.dtype:
            return Decline(Gate.GAMMA_DTYPE, f"the norm's weight is {shape.gamma_dtype} and x {shape.dtype}")
        if boundary == "ar_norm" and group.size == 1:
            return _one_rank_declines(shape)
        return _fusion_declines(boundary, shape, group)

    def mhc_post(self, owed: PartialSum, streams: Tensor, post: Tensor, comb: Tensor, ctx: DecodeContext) -> Tensor:
        x, *beside = _whole(owed.complete().tensor, streams, post, comb)
        return _found("flashinfer.mhc", "mhc_post")(x, *beside)

    def joins_read(self) -> bool:
        return True

    def mhc_post_pre(
        self, owed: PartialSum, streams: Tensor, post: Tensor, comb: Tensor, read: HyperWeights, ctx: DecodeContext
    ) -> tuple[Tensor, Rest]:
        # The group's all-reduce, then one launch for post and read: the whole of it counts as mhc_post.
        new, next_post, next_comb, x = _found("flashinfer.mhc", POST_PRE)(
            *_whole(owed.complete().tensor, streams, post, comb, read.fn, read.scale, read.base, read.norm),
            rms_eps=read.rms_eps,
            hc_pre_eps=read.hc_eps,
            hc_sinkhorn_eps=read.hc_eps,
            hc_post_mult_value=read.post_multiplier,
            sinkhorn_repeat=read.iterations,
            norm_eps=read.rms_eps,
        )
        return new, lambda: (x, next_post.squeeze(-1), next_comb)

    def finalize_norm(
        self, owed: DeferredFinalize, residual: Tensor, norm: Norm, ctx: DecodeContext, quant: InputQuant | None = None
    ) -> tuple[Activation, Tensor]:
        parts = owed.take()
        # Its kernel reads the weights in x's dtype; scaling them here scales the routed part once, and it alone.
        weights = (parts.weights * parts.scale).to(parts.gemm2_out.dtype).contiguous()
        operands = {
            "expanded_idx_to_permuted_idx": parts.idx.contiguous(),
            "expert_scale_factor": weights,
            "shared_expert_output": parts.shared,
        }
        return self._fused("kMoEFinalizeARResidualRMSNorm", parts.gemm2_out, residual, norm, owed.group, operands)

    def ar_norm(
        self,
        owed: PartialSum,
        residual: Tensor | None,
        norm: Norm,
        ctx: DecodeContext,
        quant: InputQuant | None = None,
    ) -> tuple[Activation, Tensor]:
        x = owed.take()
        if owed.group.size == 1:
            return _one_rank(x, residual, norm, quant)
        if quant is None:
            return self._fused("kARResidualRMSNorm", x, residual, norm, owed.group, {})
        data = torch.empty_like(x, dtype=torch.float8_e4m3fn)
        operands = {"quant_out": data, "scale_factor": quant.scale}
        _, total = self._fused("kARResidualRMSNormFP8Quant", x, residual, norm, owed.group, operands)
        return _static(data, quant, x), total

    def _fused(
        self, pattern: str, x: Tensor, residual: Tensor, norm: Norm, group: Group, operands: dict[str, Any]
    ) -> tuple[Tensor, Tensor]:
        normed, total = torch.empty_like(residual), torch.empty_like(residual)
        probing.call(
            _found("flashinfer.comm", "allreduce_fusion"),
            {"weight_bias": norm.weight_bias},
            input=x,
            workspace=self._workspace(group, residual),
            pattern=getattr(_found("flashinfer.comm", "AllReduceFusionPattern"), pattern),
            launch_with_pdl=False,
            # An early trigger gave NaN with one-shot kernels (flashinfer #1223).
            trigger_completion_at_end=True,
            residual_in=residual,
            residual_out=total,
            norm_out=normed,
            rms_gamma=norm.weight,
            rms_eps=norm.eps,
            **operands,
        )
        return normed, total

    def _workspace(self, group: Group, like: Tensor) -> Any:
        """Made at first use of a width, on every rank alike; never while a graph is being captured."""
        hidden = int(like.shape[-1])
        key = (group, hidden, like.dtype)
        if key not in self._workspaces:
            self._workspaces[key] = probing.call(
                _found("flashinfer.comm", "create_allreduce_fusion_workspace"),
                # The group's own ranks meet for it, and not all there are.
                {"group": getattr(group, "process_group", None)},
                backend="trtllm",
                world_size=group.size,
                rank=group.rank,
                max_token_num=most_tokens(group.size, hidden, like.dtype, like.device),
                hidden_dim=hidden,
                dtype=like.dtype,
            )
        return self._workspaces[key]


def cap_bytes(size: int, device: Any) -> int:
    """Bytes of x up to which the fusion is taken; 0 on another GPU or another number of ranks."""
    major = int(torch.cuda.get_device_capability(device)[0])
    return int(CAPS_MIB.get(major, {}).get(size, 0.0) * (1 << 20))


def most_tokens(size: int, hidden: int, dtype: Any, device: Any) -> int:
    """Rows that a workspace is made for."""
    return max(1, min(MOST_TOKENS, cap_bytes(size, device) // (hidden * int(dtype.itemsize))))


def _fusion_declines(boundary: str, shape: SiteShape, group: Group) -> Decline | None:
    if group.size not in WORLD_SIZES:
        if group.size == 1:
            return Decline(Gate.ONE_RANK, "FlashInfer's fused MoE finalize needs two ranks at least")
        return Decline(Gate.WORLD_SIZE, f"FlashInfer fuses an all-reduce of 2, 4 or 8 ranks, not of {group.size}")
    if not isinstance(group, SymmetricGroup):
        why = f"its workspace needs GPUs that reach each other's memory, and the group is {group.kind}: "
        return Decline(Gate.PEER_MEMORY, why + "make it a SymmetricGroup")
    if torch.cuda.get_device_capability(shape.device)[0] not in MAJORS:
        return Decline(Gate.ARCH_UNSUPPORTED, "FlashInfer's trtllm fusions are built for compute capability 9 and 10")
    if not shape.residual:
        return Decline(Gate.NO_RESIDUAL, "FlashInfer's fusion adds a residual and there is none")
    size = shape.tokens * shape.hidden * shape.dtype.itemsize
    if size > cap_bytes(group.size, shape.device):
        why = f"{size} bytes are over the {cap_bytes(group.size, shape.device)} up to which {group.size} ranks gain"
        return Decline(Gate.BYTES_OVER_CAP, why)
    most = FINALIZE_TOKENS if boundary == "moe_finalize" else MOST_TOKENS
    if shape.tokens > most:
        return Decline(Gate.TOKENS_OVER_CAP, f"{shape.tokens} tokens are over {most}")
    if boundary == "moe_finalize" and shape.top_k < 1:
        return Decline(Gate.TOP_K, "the indices of the experts are not [tokens, top k]")
    if shape.quant is not None and (boundary == "moe_finalize" or shape.quant != FP8_STATIC_TENSOR):
        return Decline(Gate.QUANT_UNSUPPORTED, f"FlashInfer's {boundary} does not end in {shape.quant} here")
    return _missing("flashinfer.comm", "allreduce_fusion", "weight_bias")


def _post_pre_declines(shape: SiteShape) -> Decline | None:
    if probing.operation("flashinfer.mhc", POST_PRE) is None:
        return Decline(Gate.OP_MISSING, f"this FlashInfer has no flashinfer.mhc.{POST_PRE}: it needs 0.7.4 or later")
    if torch.cuda.get_device_capability(shape.device) != (10, 3):
        return Decline(Gate.ARCH_UNSUPPORTED, f"FlashInfer's {POST_PRE} is built for compute capability 10.3")
    if shape.gamma_dtype is not None and shape.gamma_dtype != shape.dtype:
        return Decline(Gate.GAMMA_DTYPE, f"the norm's weight is {shape.gamma_dtype} and x {shape.dtype}")
    if shape.hidden != POST_PRE_HIDDEN:
        return Decline(Gate.HIDDEN_WIDTH, f"hidden is {shape.hidden} and its kernel is for {POST_PRE_HIDDEN}")
    if shape.read != POST_PRE_CONSTANTS:
        return Decline(
            Gate.READ_UNSUPPORTED, f"the read's constants are {shape.read}, its kernel's {POST_PRE_CONSTANTS}"
        )
    fewest, most = POST_PRE_TOKENS
    if shape.tokens < fewest:
        return Decline(Gate.TOKENS_UNDER_FLOOR, f"{shape.tokens} tokens are fewer than the {fewest} of its kernel")
    if shape.tokens > most:
        return Decline(Gate.TOKENS_OVER_CAP, f"{shape.tokens} tokens are over {most}")
    return None


def _one_rank_declines(shape: SiteShape) -> Decline | None:
    if shape.quant is None:
        return _missing("flashinfer.norm", "fused_add_rmsnorm" if shape.residual else "rmsnorm")
    if shape.quant != FP8_STATIC_TENSOR or not shape.residual:
        return Decline(Gate.QUANT_UNSUPPORTED, f"FlashInfer has no add and norm that ends in {shape.quant}")
    return _missing("flashinfer.norm", "fused_add_rmsnorm_quant")


def _one_rank(x: Tensor, residual: Tensor | None, norm: Norm, quant: InputQuant | None) -> tuple[Activation, Tensor]:
    gemma = "gemma_" if norm.weight_bias else ""
    if residual is None:
        return _found("flashinfer.norm", f"{gemma}rmsnorm")(x, norm.weight, norm.eps), x
    # Its kernels write over both; x is ours to use up, the residual is not.
    total = residual.clone()
    if quant is None:
        _found("flashinfer.norm", f"{gemma}fused_add_rmsnorm")(x, total, norm.weight, norm.eps)
        return x, total
    data = torch.empty_like(x, dtype=torch.float8_e4m3fn)
    weight = norm.weight + 1 if norm.weight_bias else norm.weight
    _found("flashinfer.norm", "fused_add_rmsnorm_quant")(data, x, total, weight, quant.scale, norm.eps)
    return _static(data, quant, x), total


def _static(data: Tensor, quant: InputQuant, like: Tensor) -> QuantisedActivation:
    shape = (int(like.shape[0]), int(like.shape[1]))
    return QuantisedActivation(quant.key, data, quant.scale, shape, like.dtype)


def _missing(module: str, name: str, *arguments: str) -> Decline | None:
    found = probing.operation(module, name)
    if found is None:
        return Decline(Gate.OP_MISSING, f"this FlashInfer has no {module}.{name}: it needs 0.6.13 or later")
    if not probing.takes(found, *arguments):
        why = f"{module}.{name} of this FlashInfer takes no {' or '.join(arguments)}: it needs 0.6.13 or later"
        return Decline(Gate.LIBRARY_SIGNATURE, why)
    return None


def _whole(*operands: Tensor) -> list[Tensor]:
    """Each as one block of memory, as its kernels take for granted: gates ask this of x and the streams alone."""
    return [one.contiguous() for one in operands]


def _found(module: str, name: str) -> Callable[..., Any]:
    found = probing.operation(module, name)
    assert found is not None  # declines() asked before
    return found
