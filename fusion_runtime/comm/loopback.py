"""A group whose ranks' buffers all lie on one GPU: the kernels and flags of tensor parallelism without the links.

Timing mode: rank 0 runs alone. Its peers' parts are random buffers that never change, and its kernels raise the
peers' flags themselves so that nothing waits. The time of a link is not in it: reports label it `emulated ranks`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch

from fusionscope.fusion_runtime.comm.base import Group
from fusionscope.fusion_runtime.errors import RuntimeContractError

Tensor = Any

MAX_BLOCK = 512
"""Columns of one program: H 4096 gives 8 programs a token."""

SIZES = (2, 4, 8)


@dataclass(frozen=True)
class Channel:
    """The exchange buffers of one shape (see kernels/allreduce.py); programs = tokens * blocks."""

    tokens: int
    width: int
    block: int
    data: Tensor
    pads: Tensor
    epochs: Tensor

    @property
    def blocks(self) -> int:
        return -(-self.width // self.block)

    @property
    def elements(self) -> int:
        return self.tokens * self.width


def make_channel(size: int, tokens: int, width: int, block: int, dtype: Any, device: Any) -> Channel:
    """Empty buffers for `size` ranks, no epoch published yet."""
    programs = tokens * -(-width // block)
    return Channel(
        tokens,
        width,
        block,
        torch.zeros((size, 2, tokens * width), dtype=dtype, device=device),
        torch.zeros((size, size, programs), dtype=torch.int32, device=device),
        torch.zeros((size, programs), dtype=torch.int32, device=device),
    )


def power_of_two(n: int) -> int:
    """The smallest power of two that is not below n."""
    return 1 << max(n - 1, 0).bit_length()


class Loopback(Group):
    """Rank 0 of `size` (2, 4 or 8) on `device`, in timing mode; peers' parts are normal numbers of `peer_std`.

    Buffers of a shape are made the first time it is used, which must not be while a graph is being captured.
    """

    kind = "loopback"
    rank = 0

    def __init__(self, size: int, device: Any = "cuda", *, seed: int = 0, peer_std: float = 0.25) -> None:
        if size not in SIZES:
            raise RuntimeContractError(f"loopback emulates 2, 4 or 8 ranks, not {size}: choose one of these for --tp.")
        self.size = size
        self.device = torch.device(device)
        self.seed, self.peer_std = seed, peer_std
        self._channels: dict[tuple[int, int, int, Any], Channel] = {}

    def channel(self, tokens: int, width: int, dtype: Any, block: int | None = None) -> Channel:
        """The exchange buffers for [tokens, width]; one per mapping of programs to columns, so kernels can share."""
        block = block or min(MAX_BLOCK, power_of_two(width))
        key = (tokens, width, block, dtype)
        if key not in self._channels:
            if self.device.type == "cuda" and torch.cuda.is_current_stream_capturing():
                raise RuntimeContractError(
                    f"loopback buffers for [{tokens}, {width}] are not there yet: run one step before capturing it."
                )
            made = make_channel(self.size, tokens, width, block, dtype, self.device)
            generator = torch.Generator(self.device).manual_seed(self.seed)
            drawn = torch.randn(
                (self.size, 1, tokens * width), generator=generator, device=self.device, dtype=torch.float32
            )
            made.data.copy_(drawn.mul_(self.peer_std).expand(-1, 2, -1))
            self._channels[key] = made
        return self._channels[key]

    def partials(self, x: Tensor, block: int | None = None) -> list[Tensor]:
        """Every rank's part as an exchange of x [T, W] sees it, for references: x itself, then the peers'."""
        channel = self.channel(x.shape[0], x.shape[1], x.dtype, block)
        return [x, *(channel.data[rank, 0].view(x.shape) for rank in range(1, self.size))]

    def all_reduce(self, x: Tensor) -> Tensor:
        from fusionscope.fusion_runtime.kernels.launch import all_reduce

        out: Tensor = all_reduce(x.contiguous(), self.channel(x.shape[0], x.shape[1], x.dtype), self.size)
        return out

    def all_gather_last(self, x: Tensor) -> Tensor:
        from fusionscope.fusion_runtime.kernels.launch import all_gather_last

        out: Tensor = all_gather_last(x.contiguous(), self.channel(x.shape[0], x.shape[1], x.dtype, 4096), self.size)
        return out
