"""Quantised activations: the keys a linear can ask for, their own tensor type, and the rounding each key means.

A quantised activation is never a bare tensor: `QuantisedActivation` carries its key, and only a linear that declares
the same key may read it (`expect`). The functions here are the reference in plain torch; kernels must round the same.
Quantising starts from the norm's output rounded to the storage dtype, as in the unfused order.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F

from fusionscope.fusion_runtime.errors import WrongQuantisation

Tensor = Any

FP8_MAX = 448.0
"""Largest float8_e4m3fn."""
FP4_MAX = 6.0
"""Largest e2m1."""
FP8_SMALLEST_AMAX = 1e-10
"""A group of zeros gets this as its largest magnitude, so that its scale is not zero."""
_FP4_STEPS = (0.25, 0.75, 1.25, 1.75, 2.5, 3.5, 5.0)
"""Between neighbouring e2m1 magnitudes; a value on the 1st, 3rd, … goes down to the even code, on the others up."""
_FP4_VALUES = (0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0)
E8M0_BIAS = 127


@dataclass(frozen=True)
class QuantKey:
    """One format of a quantised activation.

    group: columns that share a scale (0: one scale for the tensor). layout: of the scales ("" where there is one
    layout). needs_scale: the consumer brings a float32 scale of its own (see InputQuant.scale).
    """

    name: str
    group: int
    layout: str = ""
    needs_scale: bool = False

    def __str__(self) -> str:
        return f"{self.name}_{self.layout}" if self.layout else self.name


FP8_STATIC_TENSOR = QuantKey("fp8_static_tensor", 0, needs_scale=True)
FP8_TOKEN_GROUP_128 = QuantKey("fp8_token_group_128", 128)
NVFP4_SWIZZLED = QuantKey("nvfp4", 16, "swizzled_128x4", needs_scale=True)
NVFP4_LINEAR = QuantKey("nvfp4", 16, "linear", needs_scale=True)
MXFP4 = QuantKey("mxfp4", 32)

QUANT_KEYS = (FP8_STATIC_TENSOR, FP8_TOKEN_GROUP_128, NVFP4_SWIZZLED, NVFP4_LINEAR, MXFP4)
"""Every key; `None` in their place means that the activation stays in the storage dtype."""


@dataclass(frozen=True)
class InputQuant:
    """What a linear declares of its input: the key, and the scale that belongs to the linear.

    scale, a float32 tensor of one element: fp8_static_tensor divides by it; nvfp4 multiplies by it (448 * 6 / the
    largest magnitude expected). None for the other keys. Raises WrongQuantisation where the two do not fit.
    """

    key: QuantKey
    scale: Tensor | None = None

    def __post_init__(self) -> None:
        if self.key.needs_scale and self.scale is None:
            raise WrongQuantisation(f"{self.key} needs the consumer's float32 scale: pass InputQuant(key, scale).")
        if not self.key.needs_scale and self.scale is not None:
            raise WrongQuantisation(f"{self.key} finds its scales itself: pass no scale.")


@dataclass(frozen=True)
class QuantisedActivation:
    """A quantised [T, H] that only a linear with the same key may read.

    data: float8_e4m3fn [T, H], or uint8 [T, H/2] with two e2m1 a byte, the even column in the low four bits.
    scale: fp8_static_tensor f32 of one element; fp8_token_group_128 f32 [T, ceil(H/128)]; nvfp4 linear e4m3
    [T, H/16], swizzled e4m3 flat (see swizzle_128x4); mxfp4 uint8 exponents (UE8M0) [T, H/32].
    tensor_scale: nvfp4's float32 scale, None for the others. dtype: of the activation before quantising.
    """

    key: QuantKey
    data: Tensor
    scale: Tensor
    shape: tuple[int, int]
    dtype: Any
    tensor_scale: Tensor | None = None


Activation = Any
"""A tensor in the storage dtype, or a QuantisedActivation."""


def expect(x: Activation, declared: InputQuant | None, who: str) -> Activation:
    """x, if the linear `who` can take it: a tensor in the storage dtype (which it quantises itself), or its own key.

    Raises WrongQuantisation on a key that it does not declare.
    """
    key = x.key if isinstance(x, QuantisedActivation) else None
    wanted = declared.key if declared is not None else None
    if key is not None and key != wanted:
        raise WrongQuantisation(
            f"{who} was given a {key} activation and declares {wanted or 'no quantised input'}: "
            "let the norm before it produce what this linear declares."
        )
    return x


def refusal(columns: int, key: QuantKey) -> str:
    """ "" if [T, columns] can be quantised to `key`, else why not."""
    if key.name in ("nvfp4", "mxfp4") and columns % key.group:
        return f"{columns} columns are not a multiple of the {key.group} that share a scale in {key}"
    return ""


def quantise(x: Tensor, wanted: InputQuant) -> QuantisedActivation:
    """x [T, H] in the storage dtype -> its quantised form. Raises WrongQuantisation where H does not fit the key."""
    key = wanted.key
    problem = refusal(x.shape[1], key)
    if problem:
        raise WrongQuantisation(f"{problem}: choose another key or pad the width.")
    shape = (int(x.shape[0]), int(x.shape[1]))
    if key == FP8_STATIC_TENSOR:
        return QuantisedActivation(key, _to_fp8(x.float() / wanted.scale), wanted.scale, shape, x.dtype)
    if key == FP8_TOKEN_GROUP_128:
        data, scale = fp8_groups(x)
        return QuantisedActivation(key, data, scale, shape, x.dtype)
    if key == MXFP4:
        data, scale = mxfp4_groups(x)
        return QuantisedActivation(key, data, scale, shape, x.dtype)
    data, scale = nvfp4_groups(x, wanted.scale)
    if key == NVFP4_SWIZZLED:
        scale = swizzle_128x4(scale)
    return QuantisedActivation(key, data, scale, shape, x.dtype, wanted.scale)


def dequantise(q: QuantisedActivation) -> Tensor:
    """float32 [T, H]: what a linear computes with."""
    rows, columns = q.shape
    if q.key == FP8_STATIC_TENSOR:
        return q.data.float() * q.scale
    if q.key == FP8_TOKEN_GROUP_128:
        return q.data.float() * q.scale.repeat_interleave(q.key.group, 1)[:, :columns]
    values = unpack_fp4(q.data)
    if q.key == MXFP4:
        scale = torch.exp2(q.scale.float() - E8M0_BIAS)
    else:
        sf = unswizzle_128x4(q.scale, rows, columns // 16) if q.key == NVFP4_SWIZZLED else q.scale
        scale = sf.float() / q.tensor_scale
    return values * scale.repeat_interleave(q.key.group, 1)


def _to_fp8(x: Tensor) -> Tensor:
    return x.clamp(-FP8_MAX, FP8_MAX).to(torch.float8_e4m3fn)


def fp8_groups(x: Tensor) -> tuple[Tensor, Tensor]:
    """x [T, H] -> (e4m3 [T, H], f32 [T, ceil(H/128)]): scale = largest magnitude of 128 columns / 448."""
    columns = x.shape[1]
    padded = F.pad(x.float(), (0, -columns % 128)).unflatten(1, (-1, 128))
    scale = padded.abs().amax(-1).clamp(min=FP8_SMALLEST_AMAX) / FP8_MAX
    return _to_fp8(padded / scale[..., None]).flatten(1)[:, :columns].contiguous(), scale


def nvfp4_groups(x: Tensor, tensor_scale: Tensor) -> tuple[Tensor, Tensor]:
    """x [T, H] -> (packed [T, H/2] uint8, e4m3 [T, H/16]).

    Scale factor = e4m3(tensor_scale * largest magnitude of 16 columns / 6); value = e2m1(x * tensor_scale / factor),
    zero where the factor rounds to zero.
    """
    groups = x.float().unflatten(1, (-1, 16))
    sf = _to_fp8(tensor_scale * groups.abs().amax(-1) / FP4_MAX)
    wide = sf.float()[..., None]
    scaled = torch.where(wide > 0, groups * tensor_scale / wide, 0.0)
    return pack_fp4(scaled.flatten(1)), sf


def mxfp4_groups(x: Tensor) -> tuple[Tensor, Tensor]:
    """x [T, H] -> (packed [T, H/2] uint8, UE8M0 [T, H/32] uint8).

    Exponent = floor(log2(largest magnitude of 32 columns)) - 2, as the OCP Microscaling specification 1.0 has it;
    what is then over 6 becomes 6.
    """
    groups = x.float().unflatten(1, (-1, 32))
    # frexp is exact where log2 rounds: |x| = mantissa * 2**exponent with 0.5 <= mantissa < 1.
    exponent = torch.frexp(groups.abs().amax(-1)).exponent - 3
    exponent = torch.where(groups.abs().amax(-1) > 0, exponent, -E8M0_BIAS).clamp(-E8M0_BIAS, E8M0_BIAS)
    scaled = torch.ldexp(groups, -exponent[..., None])
    return pack_fp4(scaled.flatten(1)), (exponent + E8M0_BIAS).to(torch.uint8)


def pack_fp4(x: Tensor) -> Tensor:
    """x [T, H] f32 -> uint8 [T, H/2]: nearest e2m1, ties to the even code, over 6 becomes 6; -0 keeps its sign."""
    size = x.abs()
    code = torch.zeros_like(size, dtype=torch.uint8)
    for at, step in enumerate(_FP4_STEPS):
        code += (size > step) if at % 2 == 0 else (size >= step)
    code |= torch.signbit(x).to(torch.uint8) << 3
    return code[:, 0::2] | (code[:, 1::2] << 4)


def unpack_fp4(packed: Tensor) -> Tensor:
    """uint8 [T, H/2] -> float32 [T, H]."""
    codes = torch.stack([packed & 15, packed >> 4], -1).flatten(1)
    table = torch.tensor([*_FP4_VALUES, *(-v for v in _FP4_VALUES)], device=packed.device)
    return table[codes.long()]


def swizzled_offsets(rows: int, columns: int, device: Any = "cpu") -> Tensor:
    """int64 [rows, columns]: where scale (row, column) lies in the flat 128x4 layout.

    Tiles of 128 rows x 4 columns, tile rows outermost; inside a tile row r, column c is at
    (r % 32) * 16 + (r // 32) * 4 + c.
    """
    r = torch.arange(rows, device=device)[:, None]
    c = torch.arange(columns, device=device)[None, :]
    tile = (r // 128) * -(-columns // 4) + c // 4
    return tile * 512 + (r % 32) * 16 + (r % 128 // 32) * 4 + c % 4


def swizzle_128x4(scale: Tensor) -> Tensor:
    """[T, G] -> flat, T padded to 128 rows and G to 4 columns with zeros."""
    rows, columns = scale.shape
    flat = torch.zeros(-(-rows // 128) * 128 * -(-columns // 4) * 4, dtype=torch.uint8, device=scale.device)
    flat[swizzled_offsets(rows, columns, scale.device).flatten()] = scale.view(torch.uint8).flatten()
    return flat.view(scale.dtype)


def unswizzle_128x4(flat: Tensor, rows: int, columns: int) -> Tensor:
    """The inverse of swizzle_128x4, padding left out: [rows, columns]."""
    return flat.view(torch.uint8)[swizzled_offsets(rows, columns, flat.device)].view(flat.dtype)
