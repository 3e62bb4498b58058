"""Chooses the path of a site once, before it runs, and remembers why another one stepped back."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from fusionscope.fusion_runtime.errors import BadOperands, MixedWithScattered, Unconsumed, WrongGroup
from fusionscope.fusion_runtime.gates import Decline, Gate
from fusionscope.fusion_runtime.ownership import Owed, Scattered
from fusionscope.fusion_runtime.paths.base import Path, SiteShape
from fusionscope.fusion_runtime.paths.registry import get_path

if TYPE_CHECKING:
    from fusionscope.fusion_runtime.context import DecodeContext


@dataclass(frozen=True)
class Choice:
    """The path to run; `declined` is "" or "path: reason" of those that stepped back before it.

    quantise_after: the path does all but the quantising, which follows as an operation of its own.
    """

    path: Path
    declined: str = ""
    quantise_after: bool = False


def choose(boundary: str, subtype: str, layer: int, owed: Owed, shape: SiteShape, ctx: DecodeContext) -> Choice:
    """Falls back in this order: the path asked for (or those that it names, best first), each also with the quantising
    left out of it; then split.

    Raises WrongGroup where the sum is owed to another group than the forward's.
    """
    if owed.group is not ctx.group:
        raise WrongGroup(
            f"{owed.what} belongs to another group ({owed.group.kind}, {owed.group.size} ranks) than the forward "
            f"({ctx.group.kind}, {ctx.group.size} ranks): complete it over its own group first."
        )
    wanted = get_path(ctx.paths.path_for(boundary, subtype, layer))
    declined: list[str] = []
    for name in wanted.order(boundary, subtype, shape, ctx.group):
        path = get_path(name)
        decline = _declines(path, boundary, owed, shape, ctx)
        if decline is None:
            return Choice(path, "; ".join(declined))
        declined.append(f"{name}: {decline}")
        if decline.gate is Gate.QUANT_UNSUPPORTED:
            without = replace(shape, quant=None)
            if _declines(path, boundary, owed, without, ctx) is None:
                return Choice(path, "; ".join(declined), quantise_after=True)
    return Choice(get_path("split"), "; ".join(declined))


def _declines(path: Path, boundary: str, owed: Owed, shape: SiteShape, ctx: DecodeContext) -> Decline | None:
    if path.name == "split":
        return None
    if path.name in ctx.unavailable:
        return ctx.unavailable[path.name]
    if owed.completion is not None:
        return Decline(Gate.OWN_COMPLETION, "the sum is completed in its own way, not by one all-reduce")
    return path.declines(boundary, shape=shape, group=ctx.group)


def check_taken(owed: Owed, path: Path) -> None:
    """Raises Unconsumed where a path came back without having taken what is owed."""
    if not owed.consumed:
        raise Unconsumed(
            f"the path {path.name} left {owed.what} unreduced: it must take() or complete() what it is given."
        )


def check_beside(owed: Any, shape: tuple[int, ...], dtype: Any, other: Any, name: str) -> None:
    """`other` [T, ..., H] must be whole and of one dtype with what is owed, of `shape` [T, H].

    Raises MixedWithScattered where it holds a share of the tokens, BadOperands on another width or dtype.
    """
    what = getattr(owed, "what", "the update")
    tokens, hidden = shape
    if isinstance(other, Scattered) or other.shape[0] != tokens:
        rows = other.tensor.shape[0] if isinstance(other, Scattered) else other.shape[0]
        raise MixedWithScattered(
            f"{what} is a sum for {tokens} tokens and the {name} holds {rows}: gather the {name} first, "
            "or let the producer's exit reduce at once."
        )
    if other.shape[-1] != hidden:
        raise BadOperands(
            f"{what} is {hidden} wide and the {name} {other.shape[-1]}: kernels would read past one of them."
        )
    if other.dtype != dtype:
        raise BadOperands(f"{what} is {dtype} and the {name} {other.dtype}: bring both to one storage dtype.")


def check_shape(tensor: Any, shape: tuple[int, ...], name: str) -> None:
    """Raises BadOperands on another shape, which a kernel would not notice: it would read past the end."""
    if tuple(tensor.shape) != shape:
        raise BadOperands(f"{name} is {tuple(tensor.shape)} and must be {shape} beside what is owed.")
