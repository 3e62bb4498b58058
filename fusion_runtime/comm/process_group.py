"""A group over torch.distributed: gloo on the CPU, NCCL or RCCL on GPUs."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
import torch.distributed as dist

from fusionscope.fusion_runtime.comm.base import Group


class ProcessGroup(Group):
    """Wraps a process group that is already initialised (the default one if none is given).

    The backend sums in x's dtype. all_reduce works in place where x is one block of memory: x is the producer's own
    output. Of a view it reduces a copy, as backends refuse views.
    """

    def __init__(self, group: Any = None) -> None:
        self._group = group
        self.rank = dist.get_rank(group)
        self.size = dist.get_world_size(group)
        self.kind = str(dist.get_backend(group))

    @property
    def process_group(self) -> Any:
        """torch's process group."""
        return dist.group.WORLD if self._group is None else self._group

    def all_reduce(self, x: Any) -> Any:
        if self.size > 1:
            x = x.contiguous()
            dist.all_reduce(x, group=self._group)
        return x

    def all_gather_last(self, x: Any) -> Any:
        if self.size == 1:
            return x
        x = x.contiguous()
        parts = [torch.empty_like(x) for _ in range(self.size)]
        dist.all_gather(parts, x, group=self._group)
        return torch.cat(parts, -1)

    def agree(self, able: Sequence[bool]) -> list[bool]:
        if not able:
            return []
        return [bool(bit) for bit in self._least([int(bit) for bit in able])]

    def same(self, number: int) -> bool:
        least, most = self._least([number, -number])
        return least == -most

    def _least(self, numbers: Sequence[int]) -> list[int]:
        """The smallest over the ranks, entry by entry."""
        where = torch.device("cuda", torch.cuda.current_device()) if "nccl" in self.kind else torch.device("cpu")
        row = torch.tensor(numbers, dtype=torch.int64, device=where)
        if self.size > 1:
            dist.all_reduce(row, op=dist.ReduceOp.MIN, group=self._group)
        return [int(number) for number in row.tolist()]
