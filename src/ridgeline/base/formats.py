"""The table of low-precision number formats, and how one number becomes a code and a code a number.

Rounding is to nearest, ties to even. A number beyond the range, infinities among them, becomes the code of
the largest value of its sign. NaN stays NaN in the float8 formats; the formats without NaN follow ONNX: an
integer gets its lowest code (as in ONNX Runtime), FP4 gets -0 (as in the ONNX reference).
Arithmetic is in float32.
Scales of whole arrays are in `scales`.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import ml_dtypes
import numpy as np

from ridgeline.errors import InputError

FLOAT32 = np.dtype(np.float32)
# half types, by the names that options and reports have for them
HALF_NAMES = {"fp16": "float16", "bf16": "bfloat16"}
SHORT_NAMES = {"float32": "fp32", **{name: short for short, name in HALF_NAMES.items()}}
# ONNX numbers its element types; the first opset whose QuantizeLinear and DequantizeLinear take a type
INT8_OPSET, FLOAT8_OPSET, INT4_OPSET, FLOAT4_OPSET, E8M0_OPSET = 10, 19, 21, 23, 24
PER_CHANNEL_OPSET, BLOCKS_OPSET = 13, 21


@dataclass(frozen=True)
class Format:
    """One element format. `block` and `scale_type` are set in formats that define their own scales."""

    name: str
    bits: int
    dtype: np.dtype  # of ml_dtypes: one element per byte, whatever its bits
    onnx_type: int
    opset: int
    largest: float  # the largest value of both signs; scales map the largest magnitude to it
    lowest: float  # the least value: below -largest only for integers
    block: int = 0  # elements that share a scale; 0: the user chooses
    scale_type: np.dtype = field(default=FLOAT32)
    scale_onnx_type: int = 1
    has_tensor_scale: bool = False  # block scales are themselves quantised, with one float32 scale per tensor

    @property
    def is_integer(self) -> bool:
        return self.name.startswith(("int", "uint"))

    @property
    def is_signed(self) -> bool:
        return self.lowest < 0

    def __str__(self) -> str:
        return self.name


def _format(name: str, bits: int, kind: str, onnx_type: int, **rest: object) -> Format:
    dtype = np.dtype(getattr(ml_dtypes, kind, None) or kind)
    return Format(name=name, bits=bits, dtype=dtype, onnx_type=onnx_type, **rest)  # type: ignore[arg-type]


_E4M3 = np.dtype(ml_dtypes.float8_e4m3fn)
_E8M0 = np.dtype(ml_dtypes.float8_e8m0fnu)
FORMATS: dict[str, Format] = {
    row.name: row
    for row in (
        _format("int8", 8, "int8", 3, opset=INT8_OPSET, largest=127.0, lowest=-128.0),
        _format("uint8", 8, "uint8", 2, opset=INT8_OPSET, largest=255.0, lowest=0.0),
        _format("fp8", 8, "float8_e4m3fn", 17, opset=FLOAT8_OPSET, largest=448.0, lowest=-448.0),
        _format("fp8_e5m2", 8, "float8_e5m2", 19, opset=FLOAT8_OPSET, largest=57344.0, lowest=-57344.0),
        _format("int4", 4, "int4", 22, opset=INT4_OPSET, largest=7.0, lowest=-8.0),
        _format("uint4", 4, "uint4", 21, opset=INT4_OPSET, largest=15.0, lowest=0.0),
        _format("fp4", 4, "float4_e2m1fn", 23, opset=FLOAT4_OPSET, largest=6.0, lowest=-6.0),
        _format(
            "nvfp4", 4, "float4_e2m1fn", 23, opset=FLOAT4_OPSET, largest=6.0, lowest=-6.0,
            block=16, scale_type=_E4M3, scale_onnx_type=17, has_tensor_scale=True,
        ),
        _format(
            "mxfp8", 8, "float8_e4m3fn", 17, opset=E8M0_OPSET, largest=448.0, lowest=-448.0,
            block=32, scale_type=_E8M0, scale_onnx_type=24,
        ),
    )
}  # fmt: skip


def to_codes(values: np.ndarray, fmt: Format, zero_point: np.ndarray | int = 0) -> np.ndarray:
    """Numbers that are already divided by their scale, as elements of the format."""
    with np.errstate(invalid="ignore", over="ignore"):
        if fmt.is_integer:
            levels = np.rint(values.astype(np.float32)) + np.asarray(zero_point).astype(np.float32)
            levels = np.where(np.isnan(levels), np.float32(fmt.lowest), levels)
            codes: np.ndarray = np.clip(levels, fmt.lowest, fmt.largest).astype(np.int32).astype(fmt.dtype)
            return codes
        # clipped first: a cast to E4M3 makes a NaN of what is too large, one to E5M2 an infinity
        clipped = np.clip(values.astype(np.float32), fmt.lowest, fmt.largest)
        return clipped.astype(fmt.dtype)


def from_codes(codes: np.ndarray, fmt: Format, zero_point: np.ndarray | int = 0) -> np.ndarray:
    """The float32 values of codes, before the scale."""
    values = codes.astype(np.int32).astype(np.float32) if fmt.is_integer else codes.astype(np.float32)
    return values - np.asarray(zero_point).astype(np.float32) if fmt.is_integer else values


def every_code(fmt: Format) -> np.ndarray:
    """All elements of the format in the order of their bits."""
    bits = np.arange(2**fmt.bits, dtype=np.uint8)
    return _from_bits(bits, fmt)


def pack(codes: np.ndarray, fmt: Format) -> np.ndarray:
    """Elements as bytes in memory order: two 4-bit elements in a byte, the first in the low half.

    An odd count is padded with a zero.
    """
    bits = _bits(codes).reshape(-1)
    if fmt.bits == 8:
        return bits.copy()
    if bits.size % 2:
        bits = np.append(bits, np.uint8(0))
    return bits[0::2] & np.uint8(15) | bits[1::2] << np.uint8(4)


def unpack(data: np.ndarray, fmt: Format, shape: tuple[int, ...]) -> np.ndarray:
    """The elements of packed bytes."""
    count = int(np.prod(shape, dtype=np.int64))
    want = (count * fmt.bits + 7) // 8
    if data.dtype != np.uint8 or data.size != want:
        raise InputError(
            f"packed {fmt} data of shape {list(shape)} has the wrong size",
            got=f"{data.size} elements of {data.dtype}",
            want=f"{want} bytes",
        )
    data = data.reshape(-1)
    if fmt.bits == 4:
        data = np.stack([data & np.uint8(15), data >> np.uint8(4)], axis=1).reshape(-1)[:count]
    return _from_bits(data, fmt).reshape(shape)


def _bits(codes: np.ndarray) -> np.ndarray:
    return np.ascontiguousarray(codes).view(np.uint8)


def _from_bits(bits: np.ndarray, fmt: Format) -> np.ndarray:
    """Bytes with one element in each; ml_dtypes keeps a negative int4 with its sign in the high half."""
    if fmt.name == "int4":
        return ((bits.astype(np.int8) ^ np.int8(8)) - np.int8(8)).astype(fmt.dtype)
    return np.ascontiguousarray(bits, dtype=np.uint8).view(fmt.dtype)
