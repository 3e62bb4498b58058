"""A group whose ranks' buffers all lie on one GPU: the kernels of tensor parallelism without the links.

Timing mode (`Loopback`): rank 0 runs alone. Its peers' parts are random numbers that lie in its inbox and never change,
so nothing waits. The time of a link is not in it: reports label it `emulated ranks`.
Sync mode (`sync_channel`): one launch holds every rank's programs, and waiting is real.
"""

from __future__ import annotations

from typing import Any

import torch

from fusionscope.fusion_runtime.comm.channel import SLOTS, Channel, ExchangeGroup, counters, default_block, word_of
from fusionscope.fusion_runtime.errors import RuntimeContractError

Tensor = Any

SIZES = (2, 4, 8)

GATHER_BLOCK = 4096
"""Columns of one program of an all-gather."""


def sync_channel(
    size: int, tokens: int, width: int, dtype: Any, device: Any, block: int | None = None, emulate: bool = False
) -> Channel:
    """Empty inboxes of `size` ranks on one device; without `emulate` for launches that hold all ranks."""
    block = block or default_block(width)
    owners = 1 if emulate else size
    memory = torch.full((size, SLOTS, size, tokens * width), -1, dtype=word_of(dtype), device=device)
    inboxes = torch.tensor([memory[owner].data_ptr() for owner in range(size)], dtype=torch.int64, device=device)
    epochs, sums = counters(owners, tokens, -(-width // block), device)
    return Channel(size, tokens, width, block, dtype, 0, emulate, inboxes, epochs, sums, memory, tokens)


class Loopback(ExchangeGroup):
    """Rank 0 of `size` (2, 4 or 8) on `device`, in timing mode; peers' parts are normal numbers of `peer_std`."""

    kind = "loopback"
    rank = 0

    def __init__(self, size: int, device: Any = "cuda", *, seed: int = 0, peer_std: float = 0.25) -> None:
        if size not in SIZES:
            raise RuntimeContractError(f"loopback emulates 2, 4 or 8 ranks, not {size}: choose one of these for --tp.")
        super().__init__()
        self.size = size
        self.device = torch.device(device)
        self.seed, self.peer_std = seed, peer_std

    def _make(self, tokens: int, width: int, dtype: Any, block: int) -> Channel:
        made = sync_channel(self.size, tokens, width, dtype, self.device, block, emulate=True)
        generator = torch.Generator(self.device).manual_seed(self.seed)
        drawn = torch.randn((self.size, tokens * width), generator=generator, device=self.device, dtype=torch.float32)
        made.memory[0].view(dtype).copy_(drawn.mul_(self.peer_std))
        return made

    def partials(self, x: Tensor, block: int | None = None) -> list[Tensor]:
        """Every rank's part as an exchange of x [T, W] sees it, for references: x itself, then the peers'."""
        channel = self.channel(x.shape[0], x.shape[1], x.dtype, block)
        parts = channel.memory[0, 0].view(x.dtype)
        return [x, *(parts[rank].view(x.shape) for rank in range(1, self.size))]

    def all_reduce(self, x: Tensor) -> Tensor:
        from fusionscope.fusion_runtime.kernels.launch import all_reduce

        out: Tensor = all_reduce(x, self.channel(x.shape[0], x.shape[1], x.dtype))
        return out

    def all_gather_last(self, x: Tensor) -> Tensor:
        from fusionscope.fusion_runtime.kernels.launch import all_gather_last

        out: Tensor = all_gather_last(x, self.channel(x.shape[0], x.shape[1], x.dtype, GATHER_BLOCK))
        return out
