"""A group over torch.distributed: gloo on the CPU, NCCL or RCCL on GPUs."""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist

from fusionscope.fusion_runtime.comm.base import Group


class ProcessGroup(Group):
    """Wraps a process group that is already initialised (the default one if none is given).

    The backend sums in x's dtype. all_reduce works in place: x is the producer's own output.
    """

    def __init__(self, group: Any = None) -> None:
        self._group = group
        self.rank = dist.get_rank(group)
        self.size = dist.get_world_size(group)
        self.kind = str(dist.get_backend(group))

    def all_reduce(self, x: Any) -> Any:
        if self.size > 1:
            dist.all_reduce(x, group=self._group)
        return x

    def all_gather_last(self, x: Any) -> Any:
        if self.size == 1:
            return x
        parts = [torch.empty_like(x) for _ in range(self.size)]
        dist.all_gather(parts, x.contiguous(), group=self._group)
        return torch.cat(parts, -1)
