"""What every path offers. A path is one way to run a boundary; `split` is the one that always can."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from fusionscope.fusion_runtime.comm.base import Group
from fusionscope.fusion_runtime.ownership import DeferredFinalize, PartialSum

if TYPE_CHECKING:
    from fusionscope.fusion_runtime.context import DecodeContext


@dataclass(frozen=True)
class SiteShape:
    """What gates look at, besides the group: tokens T, hidden H, the tensors' dtype and device, top_k (0: no MoE)."""

    tokens: int
    hidden: int
    dtype: Any
    device: Any
    top_k: int = 0


@dataclass(frozen=True)
class Norm:
    """RMSNorm: y = r * rsqrt(mean(r^2) + eps) * (weight + weight_bias), weight [H]."""

    weight: Any
    eps: float
    weight_bias: float = 0.0


class Path(ABC):
    """One way to run boundaries. Methods consume what is owed exactly once and never change their other inputs."""

    name: str
    finalizes_through_post: bool = False
    """True if `moe_finalize` covers finalize, all-reduce and mHC post at once (`finalize_post`)."""

    @abstractmethod
    def declines(self, boundary: str, *, shape: SiteShape, group: Group) -> str | None:
        """None if this path can run the site, else the gate that failed, as a sentence without a full stop."""

    @abstractmethod
    def mhc_post(self, owed: PartialSum, streams: Any, post: Any, comb: Any, ctx: DecodeContext) -> Any:
        """All-reduce, then R'[t,j] = post[t,j] * x[t] + sum_k comb[t,k,j] * R[t,k].

        owed [T, H]; streams [T, 4, H]; post [T, 4] f32; comb [T, 4, 4] f32; returns new streams [T, 4, H].
        """

    @abstractmethod
    def finalize(self, owed: DeferredFinalize, ctx: DecodeContext) -> PartialSum:
        """Weighted sum over the experts, times scale, plus shared: [T, H], still owed to the group."""

    def finalize_post(self, owed: DeferredFinalize, streams: Any, post: Any, comb: Any, ctx: DecodeContext) -> Any:
        """finalize, all-reduce and mhc_post in one; only where `finalizes_through_post`."""
        raise NotImplementedError(f"path {self.name} does not finalize through the mHC post.")

    @abstractmethod
    def ar_norm(self, owed: PartialSum, residual: Any, norm: Norm, ctx: DecodeContext) -> tuple[Any, Any]:
        """All-reduce, r = sum + residual, y = RMSNorm(r); returns (y, r), both [T, H]."""


class UnavailablePath(Path):
    """A path whose library or device is missing: it declines everywhere, with that reason."""

    def __init__(self, name: str, reason: str) -> None:
        self.name = name
        self.reason = reason

    def declines(self, boundary: str, *, shape: SiteShape, group: Group) -> str | None:
        return self.reason

    def mhc_post(self, owed: PartialSum, streams: Any, post: Any, comb: Any, ctx: DecodeContext) -> Any:
        raise NotImplementedError(self.reason)

    def finalize(self, owed: DeferredFinalize, ctx: DecodeContext) -> PartialSum:
        raise NotImplementedError(self.reason)

    def ar_norm(self, owed: PartialSum, residual: Any, norm: Norm, ctx: DecodeContext) -> tuple[Any, Any]:
        raise NotImplementedError(self.reason)
