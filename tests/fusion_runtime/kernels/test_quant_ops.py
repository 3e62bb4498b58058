"""FP4 activations on CUDA, in Triton's interpreter: bit for bit as the reference has them."""

from __future__ import annotations

import os

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("triton")
if os.environ.get("TRITON_INTERPRET") != "1":
    pytest.skip("triton was imported before its interpreter was chosen", allow_module_level=True)

from fusionscope.fusion_runtime.decode import cuda_ops as ops
from fusionscope.fusion_runtime.errors import WrongQuantisation
from fusionscope.fusion_runtime.quant import MXFP4, NVFP4_LINEAR, NVFP4_SWIZZLED, InputQuant, quantise, unswizzle_128x4


def groups_of(q):
    """(scale bytes [T, G], packed values [T, G, bytes of a group]) whatever the layout."""
    rows, columns = q.shape
    count = columns // q.key.group
    scale = unswizzle_128x4(q.scale, rows, count) if q.key == NVFP4_SWIZZLED else q.scale
    return scale.view(torch.uint8), q.data.unflatten(1, (count, -1))


def same(got, want, at_least):
    """Bits of every group whose scale the interpreter converts as a GPU does: its e4m3 loses carries (1.94 -> 1.0).

    tests/fusion_runtime/test_gpu_quant.py compares all of them.
    """
    assert (got.key, got.shape, got.dtype) == (want.key, want.shape, want.dtype)
    assert got.scale.shape == want.scale.shape and got.scale.dtype == want.scale.dtype
    (scale, data), (true_scale, true_data) = groups_of(got), groups_of(want)
    right = scale == true_scale
    assert right.float().mean() >= at_least
    assert torch.equal(data[right], true_data[right])


@pytest.mark.parametrize(
    ("key", "rows"),
    # Swizzled scales come in tiles of 128 rows.
    [(NVFP4_SWIZZLED, 3), (NVFP4_SWIZZLED, 129), (NVFP4_LINEAR, 1), (NVFP4_LINEAR, 5), (MXFP4, 1), (MXFP4, 5)],
    ids=str,
)
def test_fp4_has_the_reference_s_bits(key, rows):
    x = (torch.randn((rows, 160), generator=torch.Generator().manual_seed(rows)) * 4).bfloat16()
    x[0, :33] = 0.0
    x[-1, 40], x[-1, 41] = -0.0, 300.0
    wanted = InputQuant(key, torch.tensor([37.0]) if key.needs_scale else None)
    same(ops.quantise(x, wanted), quantise(x, wanted), 1.0 if key == MXFP4 else 0.9)


@pytest.mark.parametrize("key", [MXFP4, NVFP4_LINEAR], ids=str)
def test_ties_and_extremes(key):
    steps = torch.tensor([0.25, 0.75, 1.25, 1.75, 2.5, 3.5, 5.0, 6.0])
    x = torch.cat([steps, -steps, steps * 1.01, -steps * 0.99])[None]
    for scale in (1.0, 2.0**-20, 2.0**60, 2.0**-120):
        wanted = InputQuant(key, torch.tensor([1.0]) if key.needs_scale else None)
        same(ops.quantise(x * scale, wanted), quantise(x * scale, wanted), 1.0)


def test_a_width_that_does_not_fit_is_refused():
    with pytest.raises(WrongQuantisation, match="48 columns are not a multiple of the 32"):
        ops.quantise(torch.ones(1, 48), InputQuant(MXFP4))
