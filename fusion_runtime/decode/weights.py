"""Random weights by name. On the CPU the whole tensor is drawn and sliced, so that every tp computes one model.

On CUDA only this rank's shard is drawn (a whole GLM-5.3-Flash does not fit one GPU), seeded by its rank too: the
shapes and bytes are right, and ranks do not form one model.
"""

from __future__ import annotations

import zlib
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch

from fusionscope.fusion_runtime.comm.base import Group
from fusionscope.fusion_runtime.quant import FP8_TOKEN_GROUP_128, InputQuant

Tensor = Any

FP8_BLOCK = 128
FP8_SPAN = 448.0
EXPERTS_AT_ONCE = 16


@dataclass(frozen=True)
class Quantised:
    """A weight as `fp8_linear` and `moe_gemm` take it: FP8 with block scales, or the storage dtype and None."""

    weight: Tensor
    scale: Tensor | None

    @property
    def input_quant(self) -> InputQuant | None:
        """What a product with this weight takes quantised: FP8 by token and 128 columns, or nothing."""
        return None if self.scale is None else InputQuant(FP8_TOKEN_GROUP_128)


class WeightSource:
    """Draws this rank's shard of named tensors: the same name, seed and tp give the same numbers."""

    def __init__(self, group: Group, device: Any, seed: int = 0) -> None:
        self.group = group
        self.device = torch.device(device)
        self.seed = seed
        self.whole = self.device.type == "cpu"
        self.dtype = torch.float32 if self.whole else torch.bfloat16

    def normal(
        self, name: str, shape: Sequence[int], *, shard: int | None = None, std: float = 1.0, dtype: Any = None
    ) -> Tensor:
        """Normal numbers of the whole tensor's shape, of which dimension `shard` is split over the ranks."""
        drawn = self._draw(name, self._drawn_shape(shape, shard)).mul_(std)
        return self._mine(drawn, shard).to(dtype or self.dtype).contiguous()

    def matrix(self, name: str, rows: int, columns: int, *, shard: int | None = None, dtype: Any = None) -> Tensor:
        """[rows, columns] that keeps the size of what it multiplies: standard deviation columns**-0.5."""
        return self.normal(name, (rows, columns), shard=shard, std=columns**-0.5, dtype=dtype)

    def stacked(self, names: Sequence[str], rows: int, columns: int) -> Quantised:
        """Column-parallel matrices of one shape, each split by rows, one below the other (q, k, v; gate, up)."""
        return self.quantise(torch.cat([self.matrix(name, rows, columns, shard=0) for name in names]))

    def quantised(self, name: str, rows: int, columns: int, *, shard: int | None = None) -> Quantised:
        """A matrix in FP8 on CUDA, in the storage dtype on the CPU."""
        return self.quantise(self.matrix(name, rows, columns, shard=shard))

    def experts(self, names: Sequence[str], experts: int, rows: int, columns: int, *, shard: int) -> Quantised:
        """[experts, rows of all names, columns] with each name's rows (shard 0) or the columns (shard 1) split."""
        if self.whole:
            std = columns**-0.5
            parts = [self.normal(name, (experts, rows, columns), shard=shard + 1, std=std) for name in names]
            return Quantised(torch.cat(parts, 1).contiguous(), None)
        mine = self._drawn_shape((rows * len(names), columns), shard)
        weight = torch.empty((experts, *mine), dtype=torch.float8_e4m3fn, device=self.device)
        scales = []
        for first in range(0, experts, EXPERTS_AT_ONCE):
            count = min(EXPERTS_AT_ONCE, experts - first)
            drawn = self._draw(f"{names[0]}.{first}", (count, *mine)).mul_(columns**-0.5)
            part = quantise_blocks(drawn)
            weight[first : first + count] = part.weight
            scales.append(part.scale)
        return Quantised(weight, torch.cat(scales))

    def quantise(self, weight: Tensor) -> Quantised:
        """A weight that is already this rank's, as fp8_linear takes it."""
        return Quantised(weight, None) if self.whole else quantise_blocks(weight)

    def _drawn_shape(self, shape: Sequence[int], shard: int | None) -> tuple[int, ...]:
        sizes = list(shape)
        if shard is not None and not self.whole:
            sizes[shard] //= self.group.size
        return tuple(sizes)

    def _mine(self, drawn: Tensor, shard: int | None) -> Tensor:
        if shard is None or not self.whole:
            return drawn
        return drawn.chunk(self.group.size, shard)[self.group.rank]

    def _draw(self, name: str, shape: tuple[int, ...]) -> Tensor:
        owner = "" if self.whole else f"|{self.group.rank}"
        generator = torch.Generator(self.device).manual_seed(zlib.crc32(f"{self.seed}|{name}{owner}".encode()))
        return torch.randn(shape, generator=generator, device=self.device)


def quantise_blocks(weight: Tensor) -> Quantised:
    """[..., N, K] -> float8_e4m3fn with one float32 scale for each 128 x 128 block; N and K need not be multiples."""
    n, k = weight.shape[-2:]
    pad_n, pad_k = -n % FP8_BLOCK, -k % FP8_BLOCK
    padded = torch.nn.functional.pad(weight.float(), (0, pad_k, 0, pad_n))
    tiles = padded.unflatten(-1, (-1, FP8_BLOCK)).unflatten(-3, (-1, FP8_BLOCK))
    scale = tiles.abs().amax((-3, -1)).clamp(min=1e-10) / FP8_SPAN
    q = (tiles / scale[..., :, None, :, None]).flatten(-4, -3).flatten(-2)
    return Quantised(q[..., :n, :k].to(torch.float8_e4m3fn).contiguous(), scale.contiguous())
