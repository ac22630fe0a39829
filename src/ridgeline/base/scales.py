"""Arrays in the formats of `formats`: which elements share a scale, what the scale is, quantised and back.

A scale is a positive finite float32, at least the least normal float32 (a smaller one is zero to a processor
that flushes subnormals). A group that is all zero has the scale 1. MXFP8 rounds the scale up to a power of
two, so that nothing saturates. NVFP4 stores block scales in E4M3, relative to one float32 scale per tensor.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from ridgeline.base.formats import FORMATS, Format, from_codes, to_codes
from ridgeline.errors import InputError

LEAST_SCALE = float(np.finfo(np.float32).tiny)
LARGEST_FLOAT32 = float(np.finfo(np.float32).max)
# of a block scale in E4M3: the least positive one, and the largest
LEAST_E4M3, LARGEST_E4M3 = 2.0**-9, 448.0


@dataclass(frozen=True)
class Granularity:
    """Which elements share a scale: all, those of one slice of an axis, or runs of `block` along an axis."""

    axis: int | None = None
    block: int = 0

    def __post_init__(self) -> None:
        assert self.block >= 0, "a block holds elements"
        assert self.axis is not None or not self.block, "blocks lie along an axis"

    @property
    def is_per_tensor(self) -> bool:
        return self.axis is None

    def __str__(self) -> str:
        if self.axis is None:
            return "per tensor"
        return (
            f"blocks of {self.block} along axis {self.axis}"
            if self.block
            else f"per channel, axis {self.axis}"
        )

    def scale_shape(self, shape: tuple[int, ...]) -> tuple[int, ...]:
        """The shape ONNX wants the scale in. The last block may be partial."""
        if self.axis is None:
            return ()
        axis = self._axis(shape)
        if not self.block:
            return (shape[axis],)
        return (*shape[:axis], -(-shape[axis] // self.block), *shape[axis + 1 :])

    def spread(self, scale: np.ndarray, shape: tuple[int, ...]) -> np.ndarray:
        """A scale or zero point of `scale_shape` that broadcasts over an array of `shape`."""
        if self.axis is None:
            return scale.reshape(())
        axis = self._axis(shape)
        if self.block:
            return np.repeat(scale, self.block, axis=axis).take(np.arange(shape[axis]), axis=axis)
        return scale.reshape([-1 if i == axis else 1 for i in range(len(shape))])

    def limits(self, array: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """The least and the largest element of every group, zero included; both of `scale_shape`."""
        wide = array.astype(np.float64)
        if not array.size:
            zeros = np.zeros(self.scale_shape(array.shape))
            return zeros, zeros
        if self.axis is None:
            return np.asarray(min(wide.min(), 0.0)), np.asarray(max(wide.max(), 0.0))
        axis = self._axis(array.shape)
        if not self.block:
            others = tuple(i for i in range(array.ndim) if i != axis)
            return np.minimum(wide.min(axis=others), 0.0), np.maximum(wide.max(axis=others), 0.0)
        starts = np.arange(0, array.shape[axis], self.block)
        low, high = (f.reduceat(wide, starts, axis=axis) for f in (np.minimum, np.maximum))
        return np.minimum(low, 0.0), np.maximum(high, 0.0)

    def _axis(self, shape: tuple[int, ...]) -> int:
        assert self.axis is not None
        if not -len(shape) <= self.axis < len(shape):
            raise InputError(f"an array of shape {list(shape)} has no axis {self.axis}", want=str(self))
        return self.axis % len(shape)


PER_TENSOR = Granularity()


def per_channel(axis: int) -> Granularity:
    return Granularity(axis=axis)


def blocks(axis: int, size: int) -> Granularity:
    return Granularity(axis=axis, block=size)


def scale_for(amax: np.ndarray | float, fmt: Format) -> np.ndarray:
    """The scale that maps the magnitude `amax` to the largest value; of 8-bit floats the next power of two.

    Their steps grow with the number, so that a larger scale loses nothing but the least numbers; and kernels
    divide by a power of two exactly with one multiplication.
    """
    wide = np.asarray(amax, dtype=np.float64)
    _require_finite(wide)
    if fmt.is_integer or fmt.bits < 8:
        return _as_scale(wide / fmt.largest)
    mantissa, exponent = np.frexp(wide / fmt.largest)
    # E8M0 has one power below the normal numbers of float32, and stands for a group of zeros with it
    least, of_zeros = (-127, -127) if fmt.block else (-126, 0)
    exponent = np.where(wide > 0, exponent - (mantissa == 0.5), of_zeros)
    return np.exp2(np.clip(exponent, least, 127).astype(np.float64)).astype(fmt.scale_type)


def affine_for(low: np.ndarray, high: np.ndarray, fmt: Format) -> tuple[np.ndarray, np.ndarray]:
    """Scale and zero point that map [low, high], widened to hold zero, to the codes of an integer format.

    Zero is exact: padding and the result of a ReLU are.
    """
    assert fmt.is_integer, f"{fmt} has no zero point"
    least, most = np.minimum(np.asarray(low, np.float64), 0), np.maximum(np.asarray(high, np.float64), 0)
    _require_finite(np.maximum(-least, most))
    scale = _as_scale((most - least) / (fmt.largest - fmt.lowest))
    zero = np.clip(np.rint(fmt.lowest - least / scale.astype(np.float64)), fmt.lowest, fmt.largest)
    return scale, np.asarray(zero).astype(np.int32).astype(fmt.dtype)


def _as_scale(wide: np.ndarray) -> np.ndarray:
    """float32, where a group of zeros gets 1 and nothing rounds to zero."""
    least = np.where(wide > 0, np.maximum(wide, LEAST_SCALE), 1.0)
    return np.minimum(least, LARGEST_FLOAT32).astype(np.float32)


def _require_finite(amax: np.ndarray) -> None:
    if not np.isfinite(amax).all() or (amax < 0).any():
        raise InputError(
            "no scale fits a range that is not finite",
            got=f"{np.ravel(amax)[~(np.isfinite(amax) & (amax >= 0)).ravel()][:3].tolist()}",
            want="a largest magnitude that is finite and not negative",
        )


def check_scale(scale: np.ndarray, shape: tuple[int, ...], granularity: Granularity, *, where: str) -> None:
    """Raise unless the scale is positive, finite and of the shape that the granularity wants."""
    want = granularity.scale_shape(shape)
    if scale.shape != want and not (granularity.is_per_tensor and scale.size == 1):
        raise InputError(
            f"the scale of {where} has the wrong shape",
            got=str(list(scale.shape)),
            want=f"{list(want)}, {granularity}",
        )
    values = scale.astype(np.float64)
    wrong = ~(np.isfinite(values) & (values > 0))
    if wrong.any():
        at = np.argwhere(np.atleast_1d(wrong))[0].tolist()
        raise InputError(
            f"the scale of {where} has {int(wrong.sum())} values that are zero, negative or not finite",
            got=f"{np.atleast_1d(values)[tuple(at)]} at {at}",
            want="every scale positive and finite",
        )


def check_zero_point(zero: np.ndarray, scale: np.ndarray, fmt: Format, *, where: str) -> None:
    """Raise unless the zero point has the format's type, the scale's shape and, of floats, only zeros."""
    if zero.dtype != fmt.dtype or zero.shape != scale.shape:
        raise InputError(
            f"the zero point of {where} does not fit its scale",
            got=f"{zero.dtype}{list(zero.shape)}",
            want=f"{fmt.dtype}{list(scale.shape)}",
        )
    if not fmt.is_integer and zero.astype(np.float32).any():
        raise InputError(f"the zero point of {where} is not zero", want=f"zeros: {fmt} has no zero point")


@dataclass(frozen=True)
class Encoded:
    """An array in a format. `scale` has the shape ONNX wants; `tensor_scale` is the second level of NVFP4."""

    fmt: Format
    granularity: Granularity
    codes: np.ndarray
    scale: np.ndarray
    zero_point: np.ndarray | None = None
    tensor_scale: np.ndarray | None = None

    def step(self) -> np.ndarray:
        """The float32 scale of every group, both levels multiplied."""
        scale = self.scale.astype(np.float32)
        return scale if self.tensor_scale is None else scale * self.tensor_scale

    def decoded(self) -> np.ndarray:
        """The float32 numbers these codes stand for."""
        return dequantize(self.codes, self.step(), self.zero_point, self.fmt, self.granularity)

    def nbytes(self) -> int:
        """Bytes of codes and scales as a file stores them."""
        parts = [self.scale.nbytes, (self.codes.size * self.fmt.bits + 7) // 8]
        if self.zero_point is not None:
            parts.append((self.zero_point.size * self.fmt.bits + 7) // 8)
        return sum(parts) + (4 if self.tensor_scale is not None else 0)


def quantize(
    array: np.ndarray,
    scale: np.ndarray,
    zero_point: np.ndarray | None,
    fmt: Format,
    granularity: Granularity = PER_TENSOR,
) -> np.ndarray:
    """QuantizeLinear: array / scale in float32, rounded to even, plus the zero point, saturated."""
    step, zero = _spread(scale, zero_point, fmt, granularity, array.shape)
    with np.errstate(over="ignore", invalid="ignore"):
        return to_codes(array.astype(np.float32) / step, fmt, zero)


def dequantize(
    codes: np.ndarray,
    scale: np.ndarray,
    zero_point: np.ndarray | None,
    fmt: Format,
    granularity: Granularity = PER_TENSOR,
) -> np.ndarray:
    """DequantizeLinear: (code - zero point) * scale in float32."""
    step, zero = _spread(scale, zero_point, fmt, granularity, codes.shape)
    with np.errstate(over="ignore", invalid="ignore"):
        values: np.ndarray = from_codes(codes, fmt, zero) * step
    return values


def _spread(
    scale: np.ndarray,
    zero_point: np.ndarray | None,
    fmt: Format,
    granularity: Granularity,
    shape: tuple[int, ...],
) -> tuple[np.ndarray, np.ndarray | int]:
    """Scale and zero point of every element, checked first."""
    check_scale(scale, shape, granularity, where="this array")
    step = granularity.spread(scale.astype(np.float32), shape)
    if zero_point is None:
        return step, 0
    check_zero_point(zero_point, scale, fmt, where="this array")
    return step, granularity.spread(zero_point.astype(np.float32), shape)


def scales_for(
    low: np.ndarray, high: np.ndarray, fmt: Format, *, symmetric: bool = True
) -> tuple[np.ndarray, np.ndarray | None]:
    """Scale and zero point of groups with these limits. Only integer formats can be asymmetric.

    A symmetric unsigned format has its zero point in the middle and the scale of its signed sibling, so both
    stand for the same numbers.
    """
    if fmt.is_integer and not symmetric:
        return affine_for(low, high, fmt)
    amax = np.maximum(-np.asarray(low, np.float64), np.asarray(high, np.float64))
    if fmt.is_signed:
        return scale_for(amax, fmt), None
    middle = (fmt.largest + 1) / 2
    _require_finite(amax)
    return _as_scale(amax / (middle - 1)), np.full(amax.shape, middle).astype(np.int32).astype(fmt.dtype)


def scales(
    array: np.ndarray, fmt: Format, granularity: Granularity, *, symmetric: bool = True
) -> tuple[np.ndarray, np.ndarray | None]:
    """`scales_for` the least and the largest element of each group; raises if one is NaN or infinite."""
    return scales_for(*granularity.limits(array), fmt, symmetric=symmetric)


def encode(
    array: np.ndarray,
    fmt: Format,
    granularity: Granularity = PER_TENSOR,
    *,
    symmetric: bool = True,
    clip: np.ndarray | float = 1.0,
) -> Encoded:
    """The array in this format, with scales from its largest elements times `clip`, one share per group."""
    if fmt.block:
        assert granularity.block == fmt.block, f"{fmt} has blocks of {fmt.block}"
    if fmt.has_tensor_scale:
        return _encode_two_levels(array, fmt, granularity, clip)
    low, high = granularity.limits(array)
    scale, zero = scales_for(low * clip, high * clip, fmt, symmetric=symmetric)
    return Encoded(fmt, granularity, quantize(array, scale, zero, fmt, granularity), scale, zero)


def _encode_two_levels(
    array: np.ndarray, fmt: Format, granularity: Granularity, clip: np.ndarray | float
) -> Encoded:
    """Block scales in E4M3 under one float32 scale; a block of zeros has the scale 1."""
    low, high = granularity.limits(array)
    amax = np.maximum(-low, high) * clip
    _require_finite(amax)
    whole = amax.max(initial=0.0)
    tensor_scale = _as_scale(np.asarray(whole / (fmt.largest * LARGEST_E4M3)))
    relative = amax / (fmt.largest * tensor_scale.astype(np.float64))
    relative = np.where(amax > 0, np.clip(relative, LEAST_E4M3, LARGEST_E4M3), 1.0)
    block_scale = to_codes(relative, FORMATS["fp8"])
    step = block_scale.astype(np.float32) * tensor_scale
    codes = quantize(array, step, None, fmt, granularity)
    return Encoded(fmt, granularity, codes, block_scale, None, tensor_scale)
