"""The functions of generated Triton that make codes of numbers: division by a scale, rounding, saturation."""

from __future__ import annotations

import triton
import triton.language as tl
from triton import knobs

from ridgeline.kernels.triton.math import rl_max, rl_min

__all__ = [
    "rl_codes", "rl_codes_of_sums", "rl_for_float8", "rl_levels", "rl_number", "rl_over_power",
    "rl_over_sums",
]  # fmt: skip
IS_INTERPRETED = tl.constexpr(bool(knobs.runtime.interpret))


@triton.jit
def rl_levels(x, scale):
    """x / scale as IEEE 754 rounds it, up to 2^17; larger quotients are beyond every code of 8 or 16 bits.

    One division per scale instead of one per x: the product with the reciprocal is corrected by what it
    leaves of x, which is exact (Markstein). An infinity or a NaN needs no correction, and would be lost.
    """
    # the reciprocal of the least subnormal numbers is infinite, and zero times that is NaN
    inverse = tl.minimum(tl.div_rn(scale * 0.0 + 1.0, scale), 3.4e38)
    near = x * inverse
    left = tl.fma(-near, scale, x)
    return tl.where(tl.abs(near) < 131072.0, tl.fma(left, inverse, near), near)


@triton.jit
def rl_over_power(x, scale):
    """x / scale, exactly as IEEE 754 rounds it, for a power of two whose reciprocal is normal."""
    bits = scale.to(tl.int32, bitcast=True)
    return x * (0x7F000000 - bits).to(tl.float32, bitcast=True)


@triton.jit
def rl_for_float8(x, most):
    """What a cast to float8 saturates. Compiled casts do it themselves; those of the interpreter do not."""
    if IS_INTERPRETED:
        return rl_max(-most, rl_min(most, x))
    else:
        return x


@triton.jit
def rl_over_sums(x, scale):
    """x / scale within its last bit. With the sum of `rl_codes` it becomes one instruction, rounded once."""
    return x * tl.minimum(tl.div_rn(tl.full(scale.shape, 1.0, tl.float32), scale), 3.4028234663852886e38)


@triton.jit
def rl_codes(x, zero, least, most):
    """x rounded to the nearest integer, halves to even, + zero, saturated; a NaN becomes the least.

    After 1.5 · 2^23 is added, the low bits are the integer, and nothing is converted.
    """
    near = x + 12582912.0
    low, high = 12582912.0 + (least - zero), 12582912.0 + (most - zero)
    near = tl.minimum(tl.where(near >= low, near, low), high)
    return near.to(tl.int32, bitcast=True) - 0x4B400000 + zero.to(tl.int32)


@triton.jit
def rl_codes_of_sums(x, scale, least, most):
    """`rl_codes` of x / scale; another code than its only within 2^-15 of the middle between two.

    The range of codes is mapped to 0 to 1, where saturation is part of the multiplication, and back.
    """
    width = most - least
    one = tl.full(scale.shape, 1.0, tl.float32)
    # the reciprocals of the least numbers are infinite, and zero times that is NaN
    inverse = tl.minimum(tl.div_rn(one, scale * width), 3.4028234663852886e38)
    part = tl.fma(x, inverse, 0.0 - least / width)
    part = tl.minimum(tl.maximum(part, 0.0), 1.0)  # in this form; a NaN becomes zero
    near = tl.fma(part, width, 12582912.0 + least)
    return near.to(tl.int32, bitcast=True) - 0x4B400000


@triton.jit
def rl_number(x):
    """A byte as float32. In two steps, so that Triton moves bytes between threads and not their floats."""
    return x.to(tl.int32).to(tl.float32)
