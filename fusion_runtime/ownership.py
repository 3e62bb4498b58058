"""Who owes the all-reduce: a partial sum is a type of its own and is reduced exactly once.

A row-parallel matrix product leaves each rank with one addend of the true result. Passing that as a bare tensor
is how reductions get lost or done twice, so it travels as `PartialSum` (or `DeferredFinalize` for a mixture of
experts whose weighted sum is still to be done as well) and only `Full` may be read.
"""

from __future__ import annotations

import threading
from dataclasses import dataclass
from types import TracebackType
from typing import Any

from fusionscope.fusion_runtime.comm.base import Group
from fusionscope.fusion_runtime.errors import ConsumedTwice, Unconsumed

_open_scopes = threading.local()


class Full:
    """A complete value: the same on every rank of its group."""

    __slots__ = ("tensor",)

    def __init__(self, tensor: Any) -> None:
        self.tensor = tensor


class Owed:
    """Something that still owes one all-reduce over `group`; registers with the innermost open ForwardScope."""

    def __init__(self, group: Group, what: str) -> None:
        self.group = group
        self.what = what
        self.consumed = False
        scope = _innermost()
        if scope is not None:
            scope.owed.append(self)

    def _consume(self) -> None:
        if self.consumed:
            raise ConsumedTwice(
                f"{self.what} was already consumed: its all-reduce is done or handed on; "
                "pass the result of the first consumer on instead of taking the partial sum again."
            )
        self.consumed = True


class PartialSum(Owed):
    """One rank's addend of `tensor` [T, H], owed to `group`."""

    def __init__(self, tensor: Any, group: Group, what: str = "a partial sum") -> None:
        super().__init__(group, what)
        self._tensor = tensor

    @property
    def shape(self) -> tuple[int, ...]:
        return tuple(self._tensor.shape)

    @property
    def dtype(self) -> Any:
        return self._tensor.dtype

    def take(self) -> Any:
        """This rank's addend; the caller now owes the all-reduce. Raises ConsumedTwice on a second call."""
        self._consume()
        return self._tensor

    def complete(self) -> Full:
        """Takes and all-reduces over this sum's own group: the fallback that every path can rely on."""
        return Full(self.group.all_reduce(self.take()))


@dataclass(frozen=True)
class FinalizeOperands:
    """What is left of a mixture of experts before its weighted sum.

    gemm2_out [P, H] in permuted order; idx [T, K] int32, row of gemm2_out for each token's k-th expert (-1: dropped);
    weights [T, K] f32; scale multiplies the routed part only; shared [T, H] or None.
    """

    gemm2_out: Any
    idx: Any
    weights: Any
    scale: float
    shared: Any


class DeferredFinalize(Owed):
    """A mixture of experts that owes both its weighted sum over the experts and the all-reduce over `group`."""

    def __init__(self, operands: FinalizeOperands, group: Group, what: str = "a deferred finalize") -> None:
        super().__init__(group, what)
        self._operands = operands

    @property
    def tokens(self) -> int:
        return int(self._operands.idx.shape[0])

    @property
    def top_k(self) -> int:
        return int(self._operands.idx.shape[-1])

    @property
    def dtype(self) -> Any:
        return self._operands.gemm2_out.dtype

    def take(self) -> FinalizeOperands:
        """The operands; the caller now owes sum and all-reduce. Raises ConsumedTwice on a second call."""
        self._consume()
        return self._operands


class ForwardScope:
    """Everything owed inside must be consumed before the scope ends, else `Unconsumed`.

    Scopes nest and are per thread. An exception on its way out is not replaced.
    """

    def __init__(self) -> None:
        self.owed: list[Owed] = []

    def __enter__(self) -> ForwardScope:
        stack: list[ForwardScope] = _open_scopes.__dict__.setdefault("stack", [])
        stack.append(self)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        _open_scopes.stack.pop()
        left = [o.what for o in self.owed if not o.consumed]
        if left and kind is None:
            raise Unconsumed(
                f"the forward ended with {len(left)} reduction(s) still owed ({', '.join(left[:3])}): "
                "give each to a boundary or call .complete() on it."
            )


def _innermost() -> ForwardScope | None:
    stack: list[ForwardScope] = _open_scopes.__dict__.get("stack", [])
    return stack[-1] if stack else None
