"""The exchange buffers of one-shot kernels (see kernels/allreduce.py), and the groups that have them."""

from __future__ import annotations

from abc import abstractmethod
from dataclasses import dataclass
from typing import Any

import torch

from fusionscope.fusion_runtime.comm.base import Group
from fusionscope.fusion_runtime.errors import RuntimeContractError

Tensor = Any

MAX_BLOCK = 512
"""Columns of one program: H 4096 gives 8 programs a token."""

MAX_ROW_BLOCK = 1024
"""The same where rows are normed (measured, benchmarks/kernels.py): their programs wait for each other once more."""

SLOTS = 2
"""Exchanges whose parts are kept apart."""

LINE = 32
"""int32 of a line of a GPU's cache: what a row's programs look at again and again lies apart from other rows'."""

ALIGNMENT = 256
"""Bytes; where a channel may begin in a larger buffer."""


def power_of_two(n: int) -> int:
    """The smallest power of two that is not below n."""
    return 1 << max(n - 1, 0).bit_length()


def default_block(width: int) -> int:
    """Columns of one program where a kernel does not need whole rows."""
    return min(MAX_BLOCK, power_of_two(width))


def row_block(width: int) -> int:
    """Columns of one program where a kernel needs whole rows, which several programs share (benchmarks/tp.py).

    One multiprocessor moves a wide row's bytes, which grow with the ranks, slower than several that then wait.
    """
    return min(MAX_ROW_BLOCK, max(128, power_of_two(width)))


def word_of(dtype: Any) -> Any:
    """The integer type of a float type's size. Raises RuntimeContractError on other sizes."""
    words = {2: torch.int16, 4: torch.int32}
    if dtype.itemsize not in words:
        raise RuntimeContractError(f"exchange kernels move 2 or 4 bytes an element, not {dtype}: cast it first.")
    return words[dtype.itemsize]


def inbox_bytes(size: int, tokens: int, width: int, dtype: Any) -> int:
    """Bytes of one rank's inbox for parts of [tokens, width], a multiple of ALIGNMENT."""
    exact = SLOTS * size * tokens * width * int(dtype.itemsize)
    return -(-exact // ALIGNMENT) * ALIGNMENT


@dataclass(frozen=True)
class Channel:
    """Buffers for parts of [tokens, width] and one mapping of programs to columns.

    Launches over one channel must follow each other in stream order, eager or in graphs, and come in the same order on
    every rank: the epochs count them. Where several programs share a row (blocks > 1), norms have the channel for
    themselves, as other kernels leave `sums` as they are.
    inboxes [size] int64 are addresses, epochs [ranks here, programs] and sums [ranks here, tokens, 2, places] int32;
    first_rank is the rank whose x comes first in a launch; emulate: peers never send, their parts lie in the inbox;
    `memory` keeps the inboxes alive. These have room for `rows` tokens: channels of fewer can be views of the same
    inboxes and counters, and all of them are one channel to what is said here.
    """

    size: int
    tokens: int
    width: int
    block: int
    dtype: Any
    first_rank: int
    emulate: bool
    inboxes: Tensor
    epochs: Tensor
    sums: Tensor
    memory: Any
    rows: int

    @property
    def blocks(self) -> int:
        return -(-self.width // self.block)

    @property
    def programs(self) -> int:
        return self.tokens * self.blocks

    @property
    def elements(self) -> int:
        """What lies between the slots of two writers."""
        return self.rows * self.width


def counters(ranks: int, tokens: int, blocks: int, device: Any) -> tuple[Tensor, Tensor]:
    """(epochs, sums) of a new channel."""
    epochs = torch.zeros((ranks, tokens * blocks), dtype=torch.int32, device=device)
    places = max(LINE, power_of_two(blocks))
    return epochs, torch.full((ranks, tokens, SLOTS, places), -1, dtype=torch.int32, device=device)


class ExchangeGroup(Group):
    """A group whose ranks reach each other's memory, so that one kernel can hold the all-reduce."""

    device: Any

    def __init__(self) -> None:
        self._channels: dict[tuple[int, int, int, Any], Channel] = {}

    def channel(self, tokens: int, width: int, dtype: Any, block: int | None = None) -> Channel:
        """The buffers for [tokens, width]; one per mapping of programs to columns, so kernels can share them.

        They are made at first use, which must not be while a graph is being captured and must come in the same order
        on every rank. Raises RuntimeContractError otherwise, or where there is no room.
        """
        block = block or default_block(width)
        key = (tokens, width, block, dtype)
        if key not in self._channels:
            if self.device.type == "cuda" and torch.cuda.is_current_stream_capturing():
                raise RuntimeContractError(
                    f"{self.kind} buffers for [{tokens}, {width}] are not there yet: run one step before capturing it."
                )
            self._channels[key] = self._make(tokens, width, dtype, block)
        return self._channels[key]

    def no_room(self, tokens: int, width: int, dtype: Any, block: int | None = None) -> str | None:
        """Why `channel` cannot be made, or None."""
        key = (tokens, width, block or default_block(width), dtype)
        return None if key in self._channels else self._lacks(self._wanted(*key))

    def _wanted(self, tokens: int, width: int, block: int, dtype: Any) -> int:
        """Bytes of the inbox that a new channel takes."""
        return inbox_bytes(self.size, tokens, width, dtype)

    def _lacks(self, wanted: int) -> str | None:
        return None

    @abstractmethod
    def _make(self, tokens: int, width: int, dtype: Any, block: int) -> Channel:
        """New buffers with empty inboxes."""
