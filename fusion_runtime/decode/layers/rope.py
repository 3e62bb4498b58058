"""Rotary position embedding at one position: every sequence of a step decodes at the same length."""

from __future__ import annotations

from typing import Any

import torch

Tensor = Any


def rotation(width: int, theta: float, position: int, device: Any) -> tuple[Tensor, Tensor]:
    """(cos, sin), each [width / 2] float32: angle i is position * theta**(-2i / width)."""
    powers = torch.arange(0, width, 2, dtype=torch.float64) / width
    angle = position * theta**-powers
    return angle.cos().float().to(device), angle.sin().float().to(device)
