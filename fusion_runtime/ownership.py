"""Who owes the all-reduce: a partial sum is a type of its own and is reduced exactly once.

A row-parallel matrix product leaves each rank with one addend of the true result. Passing that as a bare tensor
is how reductions get lost or done twice, so it travels as `PartialSum` (or `DeferredFinalize` for a mixture of
experts whose weighted sum is still to be done as well) and only `Full` may be read. Whether a producer hands on what
it owes or reduces at once is its `Exit`'s decision, taken once and before the producer runs.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass, replace
from types import TracebackType
from typing import Any

from fusionscope.fusion_runtime.comm.base import Group
from fusionscope.fusion_runtime.errors import (
    BadOperands,
    ConsumedTwice,
    DeferredEmpty,
    UnaskedHandoff,
    Unconsumed,
)

Completion = Callable[[Any], Any]
"""This rank's addend -> the complete sum, where that is not one all-reduce over the group."""

_open_scopes = threading.local()


class Full:
    """A complete value: the same on every rank of its group."""

    __slots__ = ("tensor",)

    def __init__(self, tensor: Any) -> None:
        self.tensor = tensor


class Scattered:
    """This rank's share of the tokens of a complete value, [T / size, H]: no boundary takes it beside a sum."""

    __slots__ = ("group", "tensor")

    def __init__(self, tensor: Any, group: Group) -> None:
        self.tensor = tensor
        self.group = group


class Owed:
    """Something that still owes one reduction over `group`; registers with the innermost open ForwardScope.

    `completion` is this sum's own way to be completed (two groups one after the other, say); without one it is an
    all-reduce over the group, and only then may a path do it by a kernel of its own. Raises DeferredEmpty for a batch
    of no tokens: an empty batch never defers.
    """

    def __init__(self, group: Group, what: str, tokens: int, completion: Completion | None) -> None:
        if tokens == 0:
            raise DeferredEmpty(
                f"{what} holds no tokens, and an empty batch never defers: hand it on through an Exit, which knows."
            )
        self.group = group
        self.what = what
        self.completion = completion
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


def _two_dimensional(tensor: Any, what: str) -> None:
    if len(tensor.shape) != 2:
        raise BadOperands(f"{what} is {tuple(tensor.shape)} and must be [tokens, hidden]: flatten it first.")


class PartialSum(Owed):
    """One rank's addend of `tensor` [T, H], owed to `group`. Raises BadOperands on another number of dimensions."""

    def __init__(
        self, tensor: Any, group: Group, what: str = "a partial sum", completion: Completion | None = None
    ) -> None:
        _two_dimensional(tensor, what)
        super().__init__(group, what, int(tensor.shape[0]), completion)
        self.shape = tuple(tensor.shape)
        self.dtype, self.device = tensor.dtype, tensor.device
        self.contiguous = bool(tensor.is_contiguous())
        self._tensor = tensor

    def take(self) -> Any:
        """This rank's addend; the caller now owes the all-reduce. Raises ConsumedTwice on a second call."""
        self._consume()
        # The scope remembers this object until the forward ends: it must not keep the activation alive.
        tensor, self._tensor = self._tensor, None
        return tensor

    def complete(self) -> Full:
        """Takes and completes over this sum's own group: the fallback that every path can rely on."""
        return Full((self.completion or self.group.all_reduce)(self.take()))


@dataclass(frozen=True)
class FinalizeOperands:
    """What is left of a mixture of experts before its weighted sum.

    gemm2_out [P, H] in permuted order; idx [T, K] int32, row of gemm2_out for each token's k-th expert (-1: dropped);
    weights [T, K] f32; scale multiplies the routed part only, once (1 where it is folded into the weights already).
    shared [T, H] or None: the shared expert's output, already times its gate where it has one. replicated: every rank
    holds all of it, not an addend, so that one rank alone may add it. Raises BadOperands where idx and weights are
    not both [T, K] (a flat index would read T*K experts a token), or where shared is not [T, H].
    """

    gemm2_out: Any
    idx: Any
    weights: Any
    scale: float
    shared: Any
    replicated: bool = False

    def __post_init__(self) -> None:
        if len(self.idx.shape) != 2 or tuple(self.weights.shape) != tuple(self.idx.shape):
            raise BadOperands(
                f"idx {tuple(self.idx.shape)} and weights {tuple(self.weights.shape)} must both be [tokens, top-k]."
            )
        wanted = (self.idx.shape[0], self.gemm2_out.shape[-1])
        if self.shared is not None and tuple(self.shared.shape[-2:]) != wanted:
            raise BadOperands(f"shared {tuple(self.shared.shape)} must be [tokens, hidden], which are {wanted}.")

    def of_rank(self, rank: int) -> FinalizeOperands:
        """What this rank adds: a replicated shared expert on rank 0 alone."""
        return replace(self, shared=None) if self.replicated and rank != 0 else self


class DeferredFinalize(Owed):
    """A mixture of experts that owes both its weighted sum over the experts and the all-reduce over `group`."""

    def __init__(
        self,
        operands: FinalizeOperands,
        group: Group,
        what: str = "a deferred finalize",
        completion: Completion | None = None,
    ) -> None:
        super().__init__(group, what, int(operands.idx.shape[0]), completion)
        operands = operands.of_rank(group.rank)
        self.tokens, self.top_k = (int(size) for size in operands.idx.shape)
        self.hidden, self.dtype = int(operands.gemm2_out.shape[-1]), operands.gemm2_out.dtype
        self.contiguous = all(one is None or bool(one.is_contiguous()) for one in (operands.gemm2_out, operands.shared))
        self._operands: FinalizeOperands | None = operands

    def take(self) -> FinalizeOperands:
        """The operands; the caller now owes sum and all-reduce. Raises ConsumedTwice on a second call.

        A replicated shared expert is among them on rank 0 alone.
        """
        self._consume()
        operands, self._operands = self._operands, None
        assert operands is not None  # what is taken a second time has raised
        return operands

    def summed(self, y: Any) -> PartialSum:
        """The same debt after the weighted sum: y [T, H], owed to the same group in the same way."""
        return PartialSum(y, self.group, self.what, self.completion)


class Exit:
    """One producer's exit: whether it hands on what it owes, decided once and before the producer runs.

    Deferred: the consumer does the reduction. Else the exit reduces at once and hands on a Full. `why` says which.
    """

    def __init__(self, group: Group, what: str, *, tokens: int, consumer: bool = True, scattered: bool = False,
                 completion: Completion | None = None) -> None:  # fmt: skip
        """consumer: somebody downstream takes the sum. scattered: the residual holds a share of the tokens only."""
        self.group, self.what, self.completion = group, what, completion
        if tokens == 0:
            self.why = "an empty batch never defers"
        elif not consumer:
            self.why = "nobody downstream takes the sum"
        elif scattered:
            self.why = "the residual is scattered over the ranks"
        else:
            self.why = ""
        self.deferred = not self.why
        self._used = False

    def hand_on(self, tensor: Any) -> PartialSum | Full:
        """tensor [T, H], this rank's addend: owed where this exit defers, else reduced here (nothing for no rows)."""
        _two_dimensional(tensor, self.what)
        self._once()
        if self.deferred:
            return PartialSum(tensor, self.group, self.what, self.completion)
        return Full((self.completion or self.group.all_reduce)(tensor) if tensor.shape[0] else tensor)

    def hand_on_finalize(self, operands: FinalizeOperands) -> DeferredFinalize:
        """Raises UnaskedHandoff where this exit reduces at once: moe_finalize.hand_on sums there."""
        if not self.deferred:
            raise UnaskedHandoff(f"{self.what} handed on a finalize that its exit did not ask for ({self.why}).")
        self._once()
        return DeferredFinalize(operands, self.group, self.what, self.completion)

    def _once(self) -> None:
        if self._used:
            raise UnaskedHandoff(f"{self.what} was handed on before: an exit decides for one forward of one producer.")
        self._used = True


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
