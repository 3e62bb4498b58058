"""The inductor path: torch.compile of a boundary's math around the group's own all-reduce.

The all-reduce stays a call of the group (a compiler cannot fuse it); what surrounds it is one compiled region. Each
kind is compiled once for the shapes of its sites, and shows as one operator in a CPU profile.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from functools import cache
from types import FunctionType
from typing import TYPE_CHECKING, Any

import torch

from fusionscope.fusion_runtime.comm.base import Group
from fusionscope.fusion_runtime.decode.one_launch import launch_as
from fusionscope.fusion_runtime.gates import Decline, Gate
from fusionscope.fusion_runtime.norms import Norm
from fusionscope.fusion_runtime.ownership import DeferredFinalize, PartialSum
from fusionscope.fusion_runtime.paths.base import Path, SiteShape
from fusionscope.fusion_runtime.quant import (
    FP8_MAX,
    FP8_STATIC_TENSOR,
    FP8_TOKEN_GROUP_128,
    Activation,
    InputQuant,
    QuantisedActivation,
    fp8_groups,
)

if TYPE_CHECKING:
    from fusionscope.fusion_runtime.context import DecodeContext

Tensor = Any


def mhc_post(x: Tensor, streams: Tensor, post: Tensor, comb: Tensor) -> Tensor:
    """boundaries.mhc_post.apply without a matrix product, so that the compiler makes one loop of it."""
    mixed = (comb[:, :, :, None] * streams.float()[:, :, None, :]).sum(1)
    return (post[:, :, None] * x.float()[:, None, :] + mixed).to(streams.dtype)


def finalize(gemm2: Tensor, idx: Tensor, weights: Tensor, scale: float, shared: Tensor | None) -> Tensor:
    """boundaries.moe_finalize.partial."""
    rows = torch.where((idx >= 0)[..., None], gemm2[idx.clamp(min=0).long()].float(), 0.0)
    y = scale * (weights[..., None] * rows).sum(1)
    if shared is not None:
        y = y + shared.float()
    return y.to(gemm2.dtype)


def add_rmsnorm(x: Tensor, residual: Tensor | None, weight: Tensor, eps: float, bias: float) -> tuple[Tensor, Tensor]:
    """The math of ar_norm after its all-reduce."""
    r = x.float() if residual is None else x.float() + residual.float()
    y = r * torch.rsqrt(r.square().mean(-1, keepdim=True) + eps) * (weight.float() + bias)
    return y.to(x.dtype), r.to(x.dtype)


def add_rmsnorm_fp8(
    x: Tensor, residual: Tensor | None, weight: Tensor, eps: float, bias: float, scale: Tensor
) -> tuple[Tensor, Tensor]:
    """add_rmsnorm whose normed value is divided by a static scale into FP8."""
    y, r = add_rmsnorm(x, residual, weight, eps, bias)
    return (y.float() / scale).clamp(-FP8_MAX, FP8_MAX).to(torch.float8_e4m3fn), r


@cache
def no_compiler() -> str | None:
    """Why inductor cannot compile for the CPU here, or None."""
    wanted = os.environ.get("CXX")
    if wanted and shutil.which(wanted):
        return None
    if wanted:
        return f"no C++ compiler found: CXX is {wanted!r}, which does not exist; install g++ or correct CXX"
    if any(shutil.which(name) for name in ("g++", "clang++")):
        return None
    return "no C++ compiler found: install g++ or clang++, or name one in CXX"


def add_rmsnorm_fp8_groups(
    x: Tensor, residual: Tensor | None, weight: Tensor, eps: float, bias: float
) -> tuple[Tensor, Tensor, Tensor]:
    """add_rmsnorm whose normed value is divided into FP8 by a scale for each token and 128 columns."""
    y, r = add_rmsnorm(x, residual, weight, eps, bias)
    data, scale = fp8_groups(y)
    return data, scale, r


OPTIONS = {"emulate_precision_casts": True}
"""Round where the code rounds: the compiler would keep the normed value in float32 up to the quantising."""


class _Compiled:
    """A function compiled once for every signature: shapes, strides, dtypes and numbers.

    The compiler counts recompilations by code object and refuses the ninth, which a model with several batch sizes
    and norms would reach: each signature gets a code object of its own.
    """

    def __init__(self, function: Callable[..., Any]) -> None:
        self._function = function
        self._made: dict[tuple[Any, ...], Callable[..., Any]] = {}

    def __call__(self, *operands: Any) -> Any:
        signature = tuple(
            (x.shape, x.stride(), x.dtype, x.device) if isinstance(x, torch.Tensor) else x for x in operands
        )
        if signature not in self._made:
            code = self._function.__code__.replace(co_name=f"{self._function.__name__}_{len(self._made)}")
            copy = FunctionType(code, self._function.__globals__)
            self._made[signature] = torch.compile(copy, fullgraph=True, dynamic=False, options=OPTIONS)
        return self._made[signature](*operands)


class InductorPath(Path):
    """Declines on the CPU without a C++ compiler."""

    name = "inductor"

    def __init__(self) -> None:
        self._post = self._compiled(mhc_post)
        self._finalize = self._compiled(finalize)
        self._add_rmsnorm = self._compiled(add_rmsnorm)
        self._add_rmsnorm_fp8 = self._compiled(add_rmsnorm_fp8)
        self._add_rmsnorm_fp8_groups = self._compiled(add_rmsnorm_fp8_groups)

    @staticmethod
    def _compiled(function: Callable[..., Any]) -> Callable[..., Any]:
        compiled = _Compiled(function)
        return launch_as(f"inductor::{function.__name__}", lambda *operands: compiled(*operands))

    def unavailable(self, group: Group, device: Any) -> Decline | None:
        problem = no_compiler() if torch.device(device).type == "cpu" else None
        return Decline(Gate.NO_COMPILER, problem) if problem else None

    def declines(self, boundary: str, *, shape: SiteShape, group: Group) -> Decline | None:
        if boundary not in ("ar_norm", "moe_finalize", "mhc_post"):
            return Decline(Gate.NOT_COVERED, f"there is no compiled {boundary}")
        if shape.quant not in (None, FP8_STATIC_TENSOR, FP8_TOKEN_GROUP_128):
            return Decline(Gate.QUANT_UNSUPPORTED, f"FP8 formats alone are compiled, not {shape.quant}")
        if shape.quant == FP8_TOKEN_GROUP_128 and shape.hidden % FP8_TOKEN_GROUP_128.group:
            # Compiled for a CPU by torch 2.13, the padded last group writes zeros into the residual.
            return Decline(Gate.QUANT_UNSUPPORTED, f"hidden {shape.hidden} is no whole number of groups of 128")
        return None

    def mhc_post(self, owed: PartialSum, streams: Tensor, post: Tensor, comb: Tensor, ctx: DecodeContext) -> Tensor:
        return self._post(owed.complete().tensor, streams, post, comb)

    def finalize(self, owed: DeferredFinalize, ctx: DecodeContext) -> PartialSum:
        p = owed.take()
        return owed.summed(self._finalize(p.gemm2_out, p.idx, p.weights, p.scale, p.shared))

    def ar_norm(
        self,
        owed: PartialSum,
        residual: Tensor | None,
        norm: Norm,
        ctx: DecodeContext,
        quant: InputQuant | None = None,
    ) -> tuple[Activation, Tensor]:
        full = owed.complete().tensor
        operands = (full, residual, norm.weight, norm.eps, norm.weight_bias)
        if quant is None:
            normed, total = self._add_rmsnorm(*operands)
            return normed, total
        if quant.key == FP8_STATIC_TENSOR:
            scale = quant.scale
            data, total = self._add_rmsnorm_fp8(*operands, scale)
        else:
            data, scale, total = self._add_rmsnorm_fp8_groups(*operands)
        shape = (int(full.shape[0]), int(full.shape[1]))
        return QuantisedActivation(quant.key, data, scale, shape, full.dtype), total
