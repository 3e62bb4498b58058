from __future__ import annotations

from typing import Any

import pytest

torch = pytest.importorskip("torch")

from fusionscope.fusion_runtime.comm.single import SingleGroup
from fusionscope.fusion_runtime.decode.reference_ops import dequantise
from fusionscope.fusion_runtime.decode.weights import WeightSource, quantise_blocks


class Rank(SingleGroup):
    def __init__(self, rank: int, size: int) -> None:
        self.rank, self.size = rank, size


def sources(size: int, seed: int = 0) -> list[WeightSource]:
    return [WeightSource(Rank(rank, size), "cpu", seed) for rank in range(size)]


def test_the_shards_of_every_rank_make_the_whole() -> None:
    (whole,) = sources(1)
    parts = sources(4)
    for shard in (0, 1):
        pieces = [s.matrix("w", 8, 12, shard=shard) for s in parts]
        assert all(piece.is_contiguous() for piece in pieces)
        assert torch.equal(torch.cat(pieces, shard), whole.matrix("w", 8, 12))
    assert all(torch.equal(s.matrix("w", 8, 12), whole.matrix("w", 8, 12)) for s in parts)


def test_stacked_matrices_are_split_one_by_one() -> None:
    (whole,) = sources(1)
    q, k = whole.matrix("q", 8, 4), whole.matrix("k", 8, 4)
    second = sources(2)[1].stacked(["q", "k"], 8, 4)
    assert second.scale is None
    assert torch.equal(second.weight, torch.cat([q[4:], k[4:]]))


def test_expert_shards_make_the_whole() -> None:
    (whole,) = sources(1)
    parts = sources(2)
    up = [s.experts(["gate", "up"], 3, 8, 4, shard=0).weight for s in parts]
    full = whole.experts(["gate", "up"], 3, 8, 4, shard=0).weight
    assert torch.equal(torch.cat([up[0][:, :4], up[1][:, :4], up[0][:, 4:], up[1][:, 4:]], 1), full)
    down = [s.experts(["down"], 3, 4, 8, shard=1).weight for s in parts]
    assert torch.equal(torch.cat(down, 2), whole.experts(["down"], 3, 4, 8, shard=1).weight)


def test_names_and_seeds_draw_different_numbers_of_the_asked_size() -> None:
    (a,), (b,) = sources(1, 0), sources(1, 1)
    assert torch.equal(a.matrix("w", 64, 256), a.matrix("w", 64, 256))
    assert not torch.equal(a.matrix("w", 64, 256), a.matrix("v", 64, 256))
    assert not torch.equal(a.matrix("w", 64, 256), b.matrix("w", 64, 256))
    assert a.matrix("w", 64, 256).std().item() == pytest.approx(1 / 16, rel=0.05)


@pytest.mark.parametrize("shape", [(256, 128), (100, 200), (3, 130, 128)])
def test_block_quantisation_bounds_its_error(shape: tuple[int, ...]) -> None:
    weight: Any = torch.randn(shape, generator=torch.Generator().manual_seed(1))
    quantised = quantise_blocks(weight)
    assert quantised.weight.dtype == torch.float8_e4m3fn and quantised.weight.shape == shape
    assert quantised.scale is not None
    assert quantised.scale.shape == (*shape[:-2], -(-shape[-2] // 128), -(-shape[-1] // 128))
    back = dequantise(quantised.weight, quantised.scale, (128, 128))
    assert ((back - weight).abs() <= weight.abs() / 16 + 1e-4).all()
    # The largest weight of a block stands at the end of the FP8 range, so it comes back almost unrounded.
    assert quantised.weight.float().abs().max() == 448


def test_on_a_gpu_only_the_shard_is_drawn_and_quantised(monkeypatch: pytest.MonkeyPatch) -> None:
    """The CUDA rule on CPU tensors: shapes are the shard's, big matrices FP8, ranks differ."""
    a, b = sources(2)
    for source in (a, b):
        monkeypatch.setattr(source, "whole", False)
        monkeypatch.setattr(source, "dtype", torch.bfloat16)
    drawn: list[tuple[int, ...]] = []
    real = WeightSource._draw
    monkeypatch.setattr(WeightSource, "_draw", lambda s, name, shape: drawn.append(shape) or real(s, name, shape))
    qkv = a.stacked(["q", "k", "v"], 256, 384)
    assert qkv.weight.shape == (384, 384) and qkv.weight.dtype == torch.float8_e4m3fn
    assert qkv.scale is not None and qkv.scale.shape == (3, 3)
    up = a.experts(["gate", "up"], 20, 256, 128, shard=0)
    down = a.experts(["down"], 20, 128, 256, shard=1)
    assert up.weight.shape == (20, 256, 128) and down.weight.shape == (20, 128, 128)
    assert up.scale is not None and up.scale.shape == (20, 2, 1)
    back = dequantise(up.weight, up.scale, (128, 128))
    assert back.std().item() == pytest.approx(128**-0.5, rel=0.05)
    assert drawn == [(128, 384)] * 3 + [(16, 256, 128), (4, 256, 128), (16, 128, 128), (4, 128, 128)]
    ours, theirs = a.matrix("w", 8, 16, shard=1), b.matrix("w", 8, 16, shard=1)
    assert ours.shape == theirs.shape == (8, 8) and ours.dtype == torch.bfloat16
    assert not torch.equal(ours, theirs)
