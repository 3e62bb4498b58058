"""The aiter path: AITER's norm at one rank, its fused all-reduces over custom all-reduce memory at 2, 4 or 8.

Operations are looked up by name in `aiter.ops` when a site asks: the package on PyPI, amd-aiter, has the fused
all-reduce + norm and lacks mHC post, which ROCm/aiter's main has. Nothing here has run on an AMD GPU: tests hold calls
against the signatures of amd-aiter 0.1.7.post2.dev18 and, for mHC post, of main.
"""

from __future__ import annotations

import importlib.util
from collections.abc import Callable
from pathlib import Path as FilePath
from typing import TYPE_CHECKING, Any

import torch

from fusionscope.fusion_runtime.comm.base import Group
from fusionscope.fusion_runtime.comm.process_group import ProcessGroup
from fusionscope.fusion_runtime.gates import Decline, Gate
from fusionscope.fusion_runtime.hyper import HyperWeights
from fusionscope.fusion_runtime.norms import Norm
from fusionscope.fusion_runtime.ownership import PartialSum
from fusionscope.fusion_runtime.paths import probing
from fusionscope.fusion_runtime.paths.base import Path, Rest, SiteShape
from fusionscope.fusion_runtime.quant import Activation, InputQuant

if TYPE_CHECKING:
    from fusionscope.fusion_runtime.context import DecodeContext

Tensor = Any

WORLD_SIZES = (2, 4, 8)
MOST_BYTES = 64 << 20
NORM_WIDTH = 16384
POST_WIDTH = 4096
"""mHC post keeps a row of at most 512 times 8 columns in one block."""

DTYPES = (torch.bfloat16, torch.float16)
WHEEL = "amd-aiter 0.1.7.post2.dev18"
EXCHANGE = "aiter.ops.custom_all_reduce"
COMMUNICATOR = "aiter.dist.device_communicators.custom_all_reduce"
POST = "fused_allreduce_mhc_post_only"
MHC, POST_PRE = "aiter.ops.mhc", "mhc_fused_post_pre"
POST_PRE_TOKENS = 127
"""Rows up to which its post and pre share a launch on every GPU (gfx950: 1,023); past that it runs them apart."""


def which_library() -> str | None:
    """Why AITER cannot be imported, or None. Nothing is imported."""
    found = importlib.util.find_spec("aiter")
    if found is None:
        return "AITER is not installed: pip install amd-aiter (AMD GPUs), or build ROCm/aiter"
    if not any((FilePath(place) / "ops").is_dir() for place in found.submodule_search_locations or ()):
        return (
            "the `aiter` that is installed is the asyncio iterator package of that name and not AMD's: "
            "pip uninstall aiter, then pip install amd-aiter"
        )
    return None


class AiterPath(Path):
    """Declines what the library, the GPU or the group cannot do."""

    name = "aiter"

    def __init__(self) -> None:
        self._communicators: dict[Group, Any] = {}

    def unavailable(self, group: Group, device: Any) -> Decline | None:
        missing = which_library()
        if missing is not None:
            return Decline(Gate.LIBRARY_MISSING, missing)
        if torch.device(device).type != "cuda" or torch.version.hip is None:
            return Decline(Gate.NO_DEVICE, "AITER needs an AMD GPU and a ROCm build of torch")
        return None

    def declines(self, boundary: str, *, shape: SiteShape, group: Group) -> Decline | None:
        if boundary not in ("ar_norm", "mhc_post", "mhc_post_pre"):
            return Decline(Gate.NOT_COVERED, f"AITER has no {boundary}")
        if shape.tokens == 0:
            return Decline(Gate.NO_TOKENS, "there are no tokens")
        if shape.dtype not in DTYPES:
            return Decline(Gate.DTYPE, f"the dtype is {shape.dtype} and neither bfloat16 nor float16")
        if boundary == "mhc_post_pre":
            return _post_pre_declines(shape)
        if boundary == "ar_norm":
            return _norm_declines(shape, group) or _exchange_declines(boundary, shape, group)
        if shape.hidden % 8 or shape.hidden > POST_WIDTH:
            why = f"hidden {shape.hidden} is no multiple of 8 up to {POST_WIDTH}, which AITER's mHC post takes"
            return Decline(Gate.HIDDEN_WIDTH, why)
        if group.size == 1:
            return Decline(Gate.ONE_RANK, "one rank has nothing to reduce")
        return _exchange_declines(boundary, shape, group)

    def mhc_post(self, owed: PartialSum, streams: Tensor, post: Tensor, comb: Tensor, ctx: DecodeContext) -> Tensor:
        x, out = owed.take().contiguous(), torch.empty_like(streams, memory_format=torch.contiguous_format)
        communicator = self._communicator(owed.group)
        # The kernel reads the peers' parts from registered memory: `buffer` is, x is not.
        buffer = communicator.buffer
        _found(EXCHANGE, POST)(
            communicator._ptr,
            x,
            out,
            streams.contiguous(),
            post.contiguous().unsqueeze(-1),
            comb.contiguous(),
            reg_ptr=buffer.data_ptr(),
            reg_bytes=buffer.numel() * buffer.element_size(),
        )
        return out

    def joins_read(self) -> bool:
        return True

    def mhc_post_pre(
        self, owed: PartialSum, streams: Tensor, post: Tensor, comb: Tensor, read: HyperWeights, ctx: DecodeContext
    ) -> tuple[Tensor, Rest]:
        # The group's all-reduce, then one operation for post and read, whose launches are not to be told apart.
        next_post, next_comb, x, new = _found(MHC, POST_PRE)(
            owed.complete().tensor.contiguous(),
            streams.contiguous(),
            post.contiguous().unsqueeze(-1),
            comb.contiguous(),
            read.fn,
            read.scale,
            read.base,
            rms_eps=read.rms_eps,
            hc_pre_eps=read.hc_eps,
            hc_sinkhorn_eps=read.hc_eps,
            hc_post_mult_value=read.post_multiplier,
            sinkhorn_repeat=read.iterations,
            norm_weight=read.norm,
            norm_eps=read.rms_eps,
        )
        return new, lambda: (x, next_post.squeeze(-1), next_comb)

    def ar_norm(
        self,
        owed: PartialSum,
        residual: Tensor | None,
        norm: Norm,
        ctx: DecodeContext,
        quant: InputQuant | None = None,
    ) -> tuple[Activation, Tensor]:
        x = owed.take().contiguous()
        residual = None if residual is None else residual.contiguous()
        out, total = torch.empty_like(x), torch.empty_like(x)
        weight = norm.weight + 1 if norm.weight_bias else norm.weight
        if owed.group.size == 1:
            _found("aiter.ops.rmsnorm", "rmsnorm2d_fwd_with_add")(out, x, residual, total, weight, norm.eps)
            return out, total
        # By name: the method returns (residual, norm). registered=False copies x into memory that the peers can read.
        # One stage, where a version leaves the choice: it rounds the sum before the residual is added (aiter #2586).
        method = self._communicator(owed.group).fused_ar_rms
        optional = {"use_1stage": True}
        probing.call(method, optional, x, residual, res_out=total, out=out, w=weight, eps=norm.eps, registered=False)
        return out, total

    def _communicator(self, group: Group) -> Any:
        """AITER's own shared memory, made at first use on every rank; it meets over gloo."""
        if group not in self._communicators:
            import torch.distributed as dist

            ranks = dist.get_process_group_ranks(group.process_group)  # type: ignore[attr-defined]
            # Only this group's ranks are here: without the option it waits for every rank of the world.
            meeting = dist.new_group(ranks, backend="gloo", use_local_synchronization=True)
            device = torch.device("cuda", torch.cuda.current_device())
            self._communicators[group] = _found(COMMUNICATOR, "CustomAllreduce")(meeting, device)
        return self._communicators[group]


def _post_pre_declines(shape: SiteShape) -> Decline | None:
    if shape.dtype is not torch.bfloat16:
        return Decline(Gate.DTYPE, f"AITER's mHC pre is for bfloat16 and the dtype is {shape.dtype}")
    if shape.gamma_dtype is not None and shape.gamma_dtype != shape.dtype:
        return Decline(Gate.GAMMA_DTYPE, f"the norm's weight is {shape.gamma_dtype} and x {shape.dtype}")
    if shape.hidden % 256 or shape.hidden < 512:
        why = f"hidden {shape.hidden} is no multiple of 256 from 512 on, which AITER's mHC post takes"
        return Decline(Gate.HIDDEN_WIDTH, why)
    if shape.tokens > POST_PRE_TOKENS:
        why = f"{shape.tokens} tokens are over the {POST_PRE_TOKENS} up to which AITER joins post and pre"
        return Decline(Gate.TOKENS_OVER_CAP, why)
    return _missing(MHC, POST_PRE)


def _norm_declines(shape: SiteShape, group: Group) -> Decline | None:
    if not shape.residual:
        return Decline(Gate.NO_RESIDUAL, "AITER's fusion adds a residual and there is none")
    if shape.quant is not None:
        return Decline(Gate.QUANT_UNSUPPORTED, f"AITER's fusion does not end in {shape.quant} here")
    if shape.gamma_dtype is not None and shape.gamma_dtype != shape.dtype:
        return Decline(Gate.GAMMA_DTYPE, f"the norm's weight is {shape.gamma_dtype} and x {shape.dtype}")
    if shape.hidden > NORM_WIDTH:
        return Decline(Gate.HIDDEN_WIDTH, f"hidden {shape.hidden} is over {NORM_WIDTH}")
    return None


def _exchange_declines(boundary: str, shape: SiteShape, group: Group) -> Decline | None:
    if group.size == 1:
        return _missing("aiter.ops.rmsnorm", "rmsnorm2d_fwd_with_add")
    if group.size not in WORLD_SIZES:
        return Decline(Gate.WORLD_SIZE, f"AITER fuses an all-reduce of 2, 4 or 8 ranks, not of {group.size}")
    if not isinstance(group, ProcessGroup):
        return Decline(Gate.GROUP_KIND, f"AITER shares memory between processes and the group is {group.kind}")
    size = shape.tokens * shape.hidden * shape.dtype.itemsize
    if size > MOST_BYTES:
        return Decline(Gate.BYTES_OVER_CAP, f"{size} bytes are over AITER's {MOST_BYTES}")
    if size % 16:
        return Decline(Gate.ALIGNMENT, f"{size} bytes are not a multiple of 16")
    missing = _missing(COMMUNICATOR, "CustomAllreduce")
    if missing is not None or boundary == "mhc_post":
        return missing or _missing(EXCHANGE, POST)
    # The operations themselves hide their signatures; the communicator's methods do not.
    method = getattr(_found(COMMUNICATOR, "CustomAllreduce"), "fused_ar_rms", None)
    if not probing.takes(method, "res_out", "out", "w", "eps", "registered"):
        why = f"CustomAllreduce.fused_ar_rms of this AITER does not take what {WHEEL}'s does"
        return Decline(Gate.LIBRARY_SIGNATURE, why)
    return None


def _missing(module: str, name: str) -> Decline | None:
    if probing.operation(module, name) is not None:
        return None
    return Decline(Gate.OP_MISSING, f"op missing: this AITER has no {module}.{name}; ROCm/aiter's main may have it")


def _found(module: str, name: str) -> Callable[..., Any]:
    found = probing.operation(module, name)
    assert found is not None  # declines() asked before
    return found
