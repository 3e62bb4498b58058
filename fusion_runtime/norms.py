"""Which norm modules a fused path may take over: exactly the two RMSNorm flavours, by one hook.

y = r * rsqrt(mean(r^2) + eps) * (weight + weight_bias). Plain RMSNorm has weight_bias 0. Gemma's checkpoint stores w
and means 1 + w: weight_bias 1 with the raw weight, or 0 with a weight to which 1 was added already, never both.
Anything else (Identity, LayerNorm, a subclass with a forward of its own) is not a norm that a path knows: the boundary
then completes the sum, adds the residual and calls the module.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch

from fusionscope.fusion_runtime.errors import BadNorm

Tensor = Any


@dataclass(frozen=True)
class Norm:
    """An RMSNorm as the paths take it: weight [H]; `folded` says that 1 was added to a Gemma weight already."""

    weight: Tensor
    eps: float
    weight_bias: float = 0.0
    folded: bool = False

    def __post_init__(self) -> None:
        if self.weight_bias not in (0.0, 1.0):
            raise BadNorm(f"weight_bias {self.weight_bias} is neither 0 (plain) nor 1 (Gemma): pass one of these.")
        if self.folded and self.weight_bias:
            raise BadNorm("the weight has 1 added already and weight_bias would add it again: pass weight_bias 0.")


class RmsNorm(torch.nn.Module):  # type: ignore[misc]
    """Plain RMSNorm over the last dimension, arithmetic in float32, result in x's dtype."""

    weight_bias = 0.0

    def __init__(self, weight: Tensor, eps: float) -> None:
        super().__init__()
        self.weight = torch.nn.Parameter(weight, requires_grad=False)
        self.eps = eps

    def forward(self, x: Tensor) -> Tensor:
        return apply(_own(self), x)


class GemmaRmsNorm(RmsNorm):
    """RMSNorm with 1 + weight, the weight as the checkpoint stores it."""

    weight_bias = 1.0


Reader = Callable[[Any], Norm]


def _own(module: Any) -> Norm:
    return Norm(module.weight, module.eps, module.weight_bias)


def _torch(module: Any) -> Norm:
    # torch takes the dtype's epsilon where none is given.
    eps = torch.finfo(module.weight.dtype).eps if module.eps is None else module.eps
    return Norm(module.weight, eps)


_readers: dict[type, Reader] = {RmsNorm: _own, GemmaRmsNorm: _own, torch.nn.RMSNorm: _torch}


def register_norm(kind: type, read: Reader) -> None:
    """Says how an engine's RMSNorm class is read; its subclasses are not taken along."""
    _readers[kind] = read


def as_norm(module: Any) -> Norm | None:
    """The norm that `module` is, or None where no fused path may stand in for it (also: no weight, a bias)."""
    if isinstance(module, Norm):
        return module
    read = _readers.get(type(module))
    if read is None or getattr(module, "weight", None) is None or getattr(module, "bias", None) is not None:
        return None
    return read(module)


def apply(norm: Norm, x: Tensor) -> Tensor:
    """The reference: x [T, H] -> [T, H] in x's dtype."""
    f = x.float()
    y = f * torch.rsqrt(f.square().mean(-1, keepdim=True) + norm.eps) * (norm.weight.float() + norm.weight_bias)
    return y.to(x.dtype)
