"""Every quantised format against values computed by hand, and its type against the linears that may read it."""

from __future__ import annotations

import math
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from hypothesis import given
from hypothesis import strategies as st

from fusionscope.fusion_runtime import quant
from fusionscope.fusion_runtime.errors import WrongQuantisation
from fusionscope.fusion_runtime.quant import (
    FP8_STATIC_TENSOR,
    FP8_TOKEN_GROUP_128,
    MXFP4,
    NVFP4_LINEAR,
    NVFP4_SWIZZLED,
    QUANT_KEYS,
    InputQuant,
    QuantKey,
    dequantise,
    expect,
    pack_fp4,
    quantise,
    unpack_fp4,
)

E2M1 = [0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0]


def wanted(key: QuantKey, scale: float = 0.25) -> InputQuant:
    return InputQuant(key, torch.tensor([scale])) if key.needs_scale else InputQuant(key)


def draw(*shape: int, dtype: Any = torch.bfloat16) -> Any:
    return (torch.randn(shape, generator=torch.Generator().manual_seed(0)) * 3).to(dtype)


def nearest_even(value: float) -> float:
    """The e2m1 magnitude nearest to |value|; on a tie the one whose code is even."""
    return min(range(8), key=lambda code: (abs(E2M1[code] - min(abs(value), 6.0)), code % 2))


@given(st.floats(-20, 20, width=32))
def test_fp4_rounds_to_the_nearest_even_code(value: float) -> None:
    packed = pack_fp4(torch.tensor([[value, -value]]))
    code = nearest_even(value)
    assert (int(packed) & 7, int(packed) >> 4 & 7) == (code, code)
    assert unpack_fp4(packed)[0].abs().tolist() == [E2M1[code]] * 2


@pytest.mark.parametrize(
    ("value", "stored"), [(0.25, 0.0), (0.75, 1.0), (1.25, 1.0), (1.75, 2.0), (2.5, 2.0), (3.5, 4.0), (5.0, 4.0)]
)
def test_fp4_ties(value: float, stored: float) -> None:
    assert unpack_fp4(pack_fp4(torch.tensor([[value, -value]]))).tolist() == [[stored, -stored]]


def test_fp4_packs_the_even_column_low() -> None:
    assert pack_fp4(torch.tensor([[1.0, -6.0, 0.5, 3.0]])).tolist() == [[0xF2, 0x51]]


def test_static_fp8_divides_and_clamps() -> None:
    x = torch.tensor([[1.0, -3.0, 1000.0, -1000.0, 0.07]])
    q = quantise(x, wanted(FP8_STATIC_TENSOR, 0.5))
    assert q.data.float().tolist() == [[2.0, -6.0, 448.0, -448.0, 0.140625]]
    assert dequantise(q)[0, 2] == 224.0


def test_token_group_scale_is_the_largest_of_128_columns_over_448() -> None:
    x = torch.zeros(2, 200)
    x[0, 5], x[0, 127], x[0, 130], x[1, 199] = 2.0, -7.0, 0.5, 3.0
    q = quantise(x, wanted(FP8_TOKEN_GROUP_128))
    near = torch.tensor([[7 / 448, 0.5 / 448], [1e-10 / 448, 3 / 448]])
    torch.testing.assert_close(q.scale, near)
    assert q.data[0, 127].float() == -448 and q.data[0, 5].float() == 128 and q.data[1, 199].float() == 448
    assert q.data.shape == (2, 200)


def test_nvfp4_scales_are_e4m3_of_the_largest_of_16_columns_over_6() -> None:
    x = torch.zeros(1, 32)
    x[0, :3] = torch.tensor([6.0, 3.1, -1.0])
    x[0, 16] = 0.001
    q = quantise(x, wanted(NVFP4_LINEAR, 10.0))
    # 10 * 6 / 6 = 10 is an e4m3; 10 * 0.001 / 6 rounds to 0.001953125, the smallest one.
    assert q.scale.float().tolist() == [[10.0, 0.001953125]]
    assert dequantise(q)[0, :3].tolist() == pytest.approx([6.0, 3.0, -1.0])
    assert dequantise(q)[0, 16].item() == pytest.approx(0.001953125 / 10 * 6)
    zero = quantise(torch.full((1, 16), 1e-9), wanted(NVFP4_LINEAR, 1.0))
    assert zero.scale.float().item() == 0 and dequantise(zero).abs().max() == 0


def test_mxfp4_scales_are_powers_of_two_of_32_columns() -> None:
    x = torch.zeros(1, 96)
    x[0, 0], x[0, 1], x[0, 32], x[0, 33] = 7.9, 4.0, 0.25, 0.06
    q = quantise(x, wanted(MXFP4))
    # floor(log2 7.9) - 2 = 0; floor(log2 0.25) - 2 = -4; a group of zeros takes the smallest exponent.
    assert q.scale.tolist() == [[127, 123, 0]]
    assert dequantise(q)[0, [0, 1, 32, 33]].tolist() == [6.0, 4.0, 0.25, 0.0625]


@given(st.integers(-60, 60), st.floats(1.0, 1.75, width=32))
def test_mxfp4_exponent_is_exact_at_powers_of_two(power: int, mantissa: float) -> None:
    x = torch.full((1, 32), math.ldexp(mantissa, power))
    assert quantise(x, wanted(MXFP4)).scale.item() == 127 + power - 2


@pytest.mark.parametrize(("rows", "columns"), [(1, 4), (3, 5), (128, 4), (130, 9)])
def test_swizzled_scales_lie_in_tiles_of_128_by_4(rows: int, columns: int) -> None:
    scale = torch.arange(rows * columns, dtype=torch.int64).remainder(251).to(torch.uint8).view(rows, columns)
    flat = quant.swizzle_128x4(scale)
    tiles = flat.view(-(-rows // 128), -(-columns // 4), 32, 4, 4)
    for r in (0, rows // 2, rows - 1):
        for c in range(columns):
            assert tiles[r // 128, c // 4, r % 32, r % 128 // 32, c % 4] == scale[r, c]
    assert int(flat.sum()) == int(scale.sum()), "padding is zero"
    assert torch.equal(quant.unswizzle_128x4(flat, rows, columns), scale)


@pytest.mark.parametrize("rows", [0, 1, 129])
@pytest.mark.parametrize("key", QUANT_KEYS, ids=str)
def test_round_trip_stays_within_the_format_s_step(key: QuantKey, rows: int) -> None:
    x = draw(rows, 256)
    q = quantise(x, wanted(key, 0.1 if key is FP8_STATIC_TENSOR else 448 * 6 / 16.0))
    assert q.shape == (rows, 256) and q.dtype == torch.bfloat16
    back = dequantise(q)
    assert back.shape == x.shape
    if rows:
        step = 1 / 16 if "fp8" in key.name else 1 / 4
        error = (back - x.float()).abs()
        largest = x.float().abs().amax(1, keepdim=True)
        assert (error <= step * x.float().abs() + 0.05 * largest).all()


def test_both_nvfp4_layouts_hold_the_same_numbers() -> None:
    x = draw(5, 96)
    linear, swizzled = (quantise(x, wanted(key, 50.0)) for key in (NVFP4_LINEAR, NVFP4_SWIZZLED))
    assert torch.equal(linear.data, swizzled.data)
    assert torch.equal(dequantise(linear), dequantise(swizzled))


@pytest.mark.parametrize(("key", "columns"), [(NVFP4_LINEAR, 24), (NVFP4_SWIZZLED, 8), (MXFP4, 48)], ids=str)
def test_widths_that_do_not_fit_are_refused(key: QuantKey, columns: int) -> None:
    with pytest.raises(WrongQuantisation, match=f"{columns} columns are not a multiple of the {key.group}"):
        quantise(draw(1, columns), wanted(key))


def test_a_linear_reads_its_own_key_alone() -> None:
    x = draw(2, 128)
    group, static = InputQuant(FP8_TOKEN_GROUP_128), wanted(FP8_STATIC_TENSOR)
    q = quantise(x, group)
    assert expect(q, group, "qkv") is q
    assert expect(x, group, "qkv") is x, "the linear quantises a plain activation itself"
    with pytest.raises(WrongQuantisation, match=r"qkv was given a fp8_token_group_128 .* declares fp8_static_tensor"):
        expect(q, static, "qkv")
    with pytest.raises(WrongQuantisation, match="declares no quantised input"):
        expect(q, None, "qkv")


def test_a_scale_is_due_exactly_where_the_key_needs_one() -> None:
    with pytest.raises(WrongQuantisation, match="needs the consumer's float32 scale"):
        InputQuant(NVFP4_LINEAR)
    with pytest.raises(WrongQuantisation, match="pass no scale"):
        InputQuant(MXFP4, torch.ones(1))
