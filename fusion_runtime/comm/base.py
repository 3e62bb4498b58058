"""The tensor-parallel group that partial sums are owed to."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any


class Group(ABC):
    """`size` ranks that hold one shard each; `kind` is what the report calls it (single, gloo, nccl, loopback)."""

    rank: int
    size: int
    kind: str

    @abstractmethod
    def all_reduce(self, x: Any) -> Any:
        """Sum of x [T, H] over the ranks, rounded to x's dtype; may reuse x's memory."""

    @abstractmethod
    def all_gather_last(self, x: Any) -> Any:
        """x [T, V/size] of every rank side by side in rank order: [T, V]."""

    def agree(self, able: Sequence[bool]) -> list[bool]:
        """For each entry whether every rank says so; every rank must call it, with as many entries."""
        return list(able)

    def same(self, number: int) -> bool:
        """Whether every rank has this number (of 32 bits); every rank must call it."""
        return True
