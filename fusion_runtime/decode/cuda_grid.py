"""What the CUDA operations share: grids, outputs, and the counters of split-K tiles."""

from __future__ import annotations

from typing import Any

import torch

Tensor = Any

COLUMNS = 512
"""Columns of one program where every element is on its own."""

WAVE = 264
"""Programs that fill a large GPU twice (132 multiprocessors): what K is split for."""

TILES_COUNTED = 1 << 16

_arrived: dict[Any, Tensor] = {}


def cover(n: int, block: int) -> int:
    """Blocks that cover n."""
    return -(-n // block)


def new(like: Tensor, *shape: int, dtype: Any = None) -> Tensor:
    """An empty tensor on `like`'s device, of its dtype unless one is given."""
    return torch.empty(shape, dtype=dtype or like.dtype, device=like.device)


def counters(device: Any) -> Tensor:
    """Arrival counters of split-K tiles; kernels leave them at zero, so launches of one stream share them."""
    if device not in _arrived:
        _arrived[device] = torch.zeros(TILES_COUNTED, dtype=torch.int32, device=device)
    return _arrived[device]
