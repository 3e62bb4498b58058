"""Quantising on a GPU: every format, bit for bit as the reference on the CPU has it."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("triton")

from gpus import needs_gpu

from fusionscope.fusion_runtime.decode.model import ops_for
from fusionscope.fusion_runtime.quant import QUANT_KEYS, InputQuant, QuantKey, quantise

pytestmark = needs_gpu


@pytest.mark.parametrize("rows", [1, 17, 129])
@pytest.mark.parametrize("columns", [160, 4096])
@pytest.mark.parametrize("key", QUANT_KEYS, ids=str)
def test_every_format_has_the_reference_s_bits(key: QuantKey, columns: int, rows: int) -> None:
    x = (torch.randn((rows, columns), generator=torch.Generator().manual_seed(rows)) * 4).bfloat16()
    x[0, :33] = 0.0
    x[-1, 40], x[-1, 41] = -0.0, 300.0
    scale = torch.tensor([37.0]) if key.needs_scale else None
    want = quantise(x, InputQuant(key, scale))
    got = ops_for("cuda").quantise(x.cuda(), InputQuant(key, None if scale is None else scale.cuda()))
    assert (got.key, got.shape, got.dtype) == (want.key, want.shape, want.dtype)
    for mine, theirs in ((got.data, want.data), (got.scale, want.scale)):
        assert mine.shape == theirs.shape and mine.dtype == theirs.dtype
        assert torch.equal(mine.cpu().view(torch.uint8), theirs.view(torch.uint8))
