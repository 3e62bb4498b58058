"""A group of one rank: nothing to reduce, nothing to gather, no launch."""

from __future__ import annotations

from typing import Any

from fusionscope.fusion_runtime.comm.base import Group


class SingleGroup(Group):
    """tp = 1."""

    rank = 0
    size = 1
    kind = "single"

    def all_reduce(self, x: Any) -> Any:
        return x

    def all_gather_last(self, x: Any) -> Any:
        return x
