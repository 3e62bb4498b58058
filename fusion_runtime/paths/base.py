"""What every path offers. A path is one way to run a boundary; `split` is the one that always can."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from fusionscope.fusion_runtime.comm.base import Group
from fusionscope.fusion_runtime.gates import Decline
from fusionscope.fusion_runtime.hyper import HyperWeights
from fusionscope.fusion_runtime.norms import Norm
from fusionscope.fusion_runtime.ownership import DeferredFinalize, FinalizeOperands, PartialSum
from fusionscope.fusion_runtime.quant import Activation, InputQuant, QuantKey

if TYPE_CHECKING:
    from fusionscope.fusion_runtime.context import DecodeContext

Tensor = Any

Rest = Callable[[], tuple[Tensor, Tensor, Tensor]]
"""What is left of an mHC read: -> (x [T, H], post [T, 4] f32, comb [T, 4, 4] f32)."""


@dataclass(frozen=True)
class SiteShape:
    """What gates look at, besides the group; the same on every rank.

    tokens T, hidden H, the tensors' dtype and device, top_k (0: no MoE). ends: what a moe_finalize ends in, "norm" or
    "mhc" ("" for other boundaries). quant: the key of the normed output, None for the storage dtype. gamma_dtype and
    eps: of the norm, None where there is none. residual: whether one is added. contiguous: what is owed and
    the residual or the streams beside it are each one block of memory. read: the constants of the read that a
    mhc_post_pre ends in (HyperWeights.constants).
    """

    tokens: int
    hidden: int
    dtype: Any
    device: Any
    top_k: int = 0
    ends: str = ""
    quant: QuantKey | None = None
    gamma_dtype: Any = None
    eps: float | None = None
    residual: bool = True
    contiguous: bool = True
    read: tuple[float, float, int, float] | None = None


def weighted_sum(parts: FinalizeOperands, ctx: DecodeContext) -> Tensor:
    """Over the experts, times scale, plus shared: [T, H], one operation after the other."""
    y = ctx.ops.moe_sum_reduce(parts.gemm2_out, parts.idx, parts.weights, parts.scale)
    return y if parts.shared is None else ctx.ops.add(y, parts.shared)


class Path(ABC):
    """One way to run boundaries. Methods consume what is owed exactly once and never change their other inputs.

    A site goes: `unavailable` (asked once, agreed over the ranks), then `declines` (asked at every site, from facts
    that all ranks share), then the method. A method may not step back any more: past `take()` it owes the sum.
    """

    name: str

    def unavailable(self, group: Group, device: Any) -> Decline | None:
        """What this rank alone can tell: a library, driver or GPU missing. Asked once, when a context is made.

        If one rank cannot, none does; so this must not depend on anything but the machine.
        """
        return None

    def settings(self) -> str:
        """What must be the same on every rank besides the name (a tuning table, say)."""
        return ""

    def chooses_from(self, names: Sequence[str]) -> Sequence[str]:
        """The paths that `order` may name, out of all `names`; none for a path that runs sites itself."""
        return ()

    def order(self, boundary: str, subtype: str, shape: SiteShape, group: Group) -> Sequence[str]:
        """Paths to try at a site, best first: itself. A path that only chooses names others; split comes last anyway.

        Depends on nothing that differs between ranks.
        """
        return (self.name,)

    @abstractmethod
    def declines(self, boundary: str, *, shape: SiteShape, group: Group) -> Decline | None:
        """None if this path can run the site. Depends on nothing that differs between ranks."""

    def finalizes_through(self, ends: str) -> bool:
        """Whether `moe_finalize` is one piece up to its end ("norm" or "mhc"), all-reduce included."""
        return False

    @abstractmethod
    def mhc_post(self, owed: PartialSum, streams: Tensor, post: Tensor, comb: Tensor, ctx: DecodeContext) -> Tensor:
        """All-reduce, then R'[t,j] = post[t,j] * x[t] + sum_k comb[t,k,j] * R[t,k].

        owed [T, H]; streams [T, 4, H]; post [T, 4] f32; comb [T, 4, 4] f32; returns new streams [T, 4, H].
        """

    def joins_read(self) -> bool:
        """Whether `mhc_post_pre` is there: the write of an exit and the read behind it share launches."""
        return False

    def mhc_post_pre(
        self, owed: PartialSum, streams: Tensor, post: Tensor, comb: Tensor, read: HyperWeights, ctx: DecodeContext
    ) -> tuple[Tensor, Rest]:
        """mhc_post -> the new streams, and what is left of the read of them, as they are stored.

        Only where `joins_read()`. What lies before the return is the mhc_post site; the rest runs at once after it.
        Sums of the read may be taken in another order than hc_pre's.
        """
        raise NotImplementedError(f"path {self.name} does not join the read to the mHC post.")

    def finalize(self, owed: DeferredFinalize, ctx: DecodeContext) -> PartialSum:
        """Weighted sum over the experts, times scale, plus shared: [T, H], still owed to the group.

        Here one operation after the other.
        """
        return owed.summed(weighted_sum(owed.take(), ctx))

    def finalize_post(
        self, owed: DeferredFinalize, streams: Tensor, post: Tensor, comb: Tensor, ctx: DecodeContext
    ) -> Tensor:
        """finalize, all-reduce and mhc_post in one; only where `finalizes_through("mhc")`."""
        raise NotImplementedError(f"path {self.name} does not finalize through the mHC post.")

    def finalize_norm(
        self, owed: DeferredFinalize, residual: Tensor, norm: Norm, ctx: DecodeContext, quant: InputQuant | None = None
    ) -> tuple[Activation, Tensor]:
        """finalize and ar_norm in one; only where `finalizes_through("norm")`."""
        raise NotImplementedError(f"path {self.name} does not finalize through the norm.")

    @abstractmethod
    def ar_norm(
        self,
        owed: PartialSum,
        residual: Tensor | None,
        norm: Norm,
        ctx: DecodeContext,
        quant: InputQuant | None = None,
    ) -> tuple[Activation, Tensor]:
        """All-reduce, r = sum + residual (the sum itself where residual is None), y = RMSNorm(r).

        The sum is rounded to the storage dtype before the add. Returns (y, r): r [T, H]; y [T, H], or its
        QuantisedActivation where `quant` asks for one: y rounded to the storage dtype first, then quantised.
        """


class UnavailablePath(Path):
    """A path whose library or device is missing: it declines everywhere, with that reason."""

    def __init__(self, name: str, why: Decline) -> None:
        self.name = name
        self.why = why

    def unavailable(self, group: Group, device: Any) -> Decline | None:
        return self.why

    def declines(self, boundary: str, *, shape: SiteShape, group: Group) -> Decline | None:
        return self.why

    def mhc_post(self, owed: PartialSum, streams: Tensor, post: Tensor, comb: Tensor, ctx: DecodeContext) -> Tensor:
        raise NotImplementedError(str(self.why))

    def ar_norm(
        self,
        owed: PartialSum,
        residual: Tensor | None,
        norm: Norm,
        ctx: DecodeContext,
        quant: InputQuant | None = None,
    ) -> tuple[Activation, Tensor]:
        raise NotImplementedError(str(self.why))
