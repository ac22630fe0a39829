"""The functions that generated Triton calls. An `rl_` name has the same meaning in every dialect.

float32 functions are written out if the hardware's approximation is off by more than a few units in the last
place; they follow `kernels/cpp/prelude.py`. float64 uses libdevice, which the interpreter does not have.
"""

from __future__ import annotations

import triton
import triton.language as tl
from triton.language.extra import libdevice

__all__ = [
    "rl_abs", "rl_ceil", "rl_cos", "rl_div", "rl_erf", "rl_exp", "rl_exp_low", "rl_expm1", "rl_floor",
    "rl_fmod", "rl_gelu_half", "rl_gelu_tanh_half", "rl_log", "rl_log1p", "rl_max", "rl_min", "rl_mod",
    "rl_mul", "rl_not", "rl_part", "rl_place", "rl_pow", "rl_relu", "rl_round", "rl_sigmoid_half", "rl_sign",
    "rl_sin", "rl_sqrt", "rl_tanh", "rl_where",
]  # fmt: skip


@triton.jit
def rl_where(test, a, b):
    return tl.where(test, a, b)


@triton.jit
def rl_not(x):
    return x ^ True


@triton.jit
def rl_abs(x):
    return tl.abs(x)


@triton.jit
def rl_mul(a, b):
    return a * b


@triton.jit
def rl_max(a, b):
    """A NaN on either side stays."""
    return tl.maximum(a, b, propagate_nan=tl.PropagateNan.ALL)


@triton.jit
def rl_min(a, b):
    """A NaN on either side stays."""
    return tl.minimum(a, b, propagate_nan=tl.PropagateNan.ALL)


@triton.jit
def rl_relu(x):
    """One instruction; a NaN stays."""
    return rl_max(x, tl.zeros_like(x))


@triton.jit
def rl_sign(x):
    """The sign of a NaN is NaN."""
    return tl.where(x > 0, 1, tl.where(x < 0, -1, x)).to(x.dtype)


@triton.jit
def rl_div(x, y):
    """Floats are rounded as in IEEE 754. Integers are truncated, and an integer divided by zero is zero."""
    if x.dtype == tl.float32:
        return tl.div_rn(x, y)
    elif x.dtype == tl.float64:
        return x / y
    else:
        return tl.where(y == 0, 0, x // tl.where(y == 0, 1, y)).to(x.dtype)


@triton.jit
def rl_fmod(x, y):
    """The remainder with the sign of x."""
    if x.dtype.is_floating():
        return x % y
    else:
        return tl.where(y == 0, 0, x % tl.where(y == 0, 1, y)).to(x.dtype)


@triton.jit
def rl_mod(x, y):
    """The remainder of integers with the sign of y."""
    r = rl_fmod(x, y)
    return tl.where((r != 0) & ((r < 0) != (y < 0)), r + y, r)


@triton.jit
def rl_place(index, size):
    """An index from either end, clamped to the axis: an index out of range must not crash the GPU."""
    index = tl.where(index < 0, index + size, index)
    return tl.minimum(tl.maximum(index, 0), size - 1)


@triton.jit
def rl_part(index, inner, size):
    """The index over one of several axes, of an index over all of them; clamped where that lies outside."""
    return tl.minimum(tl.maximum(index // inner % size, 0), size - 1)


@triton.jit
def rl_sqrt(x):
    return tl.sqrt(x)


@triton.jit
def rl_floor(x):
    return tl.floor(x)


@triton.jit
def rl_ceil(x):
    return tl.ceil(x)


@triton.jit
def rl_round(x):
    """Rounds to nearest, halves to even: after the addition no bits are left for a fraction."""
    if x.dtype == tl.float64:
        near = (x + 6755399441055744.0) - 6755399441055744.0
        return tl.where(tl.abs(x) < 2251799813685248.0, near, x)
    else:
        near = (x + 12582912.0) - 12582912.0
        return tl.where(tl.abs(x) < 4194304.0, near, x)


@triton.jit
def rl_erf(x):
    return tl.erf(x)


@triton.jit
def rl_gelu_half(x):
    """x · Φ(x) with a relative error of 3e-5 in the tail, below the precision of 16 bits.

    log₂(1 - Φ(z)) is nearly a parabola for z ≥ 0, so a polynomial (minimax over [0, 5.6]; beyond, the tail is
    zero in 16 bits) and one exponential compute it. It takes a third of the instructions of erf, which also
    needs a division.
    """
    z = tl.minimum(tl.abs(x), 8.0, propagate_nan=tl.PropagateNan.ALL)
    q = 2.55046303e-5 * z - 6.51082231e-4
    q = q * z + 7.43212771e-3
    q = q * z - 5.18246958e-2
    q = q * z - 4.60498699e-1
    q = q * z - 1.15051276
    q = q * z - 1.0000409
    y = tl.maximum(x, 0.0, propagate_nan=tl.PropagateNan.ALL) - z * tl.exp2(q)
    return tl.where(x == float("-inf"), float("nan"), y)  # -inf · 0


@triton.jit
def rl_sigmoid_half(x):
    return 1.0 / (1.0 + tl.exp(-x))


@triton.jit
def rl_gelu_tanh_half(x):
    """0.5 · x · (1 + tanh(u)), computed like `rl_gelu_half`; the tail 1 / (1 + exp(2u)) is within 9e-5."""
    z = tl.minimum(tl.abs(x), 8.0, propagate_nan=tl.PropagateNan.ALL)
    q = -5.61740635e-5 * z + 1.23216257e-3
    q = q * z - 1.0088449e-2
    q = q * z + 3.24372168e-2
    q = q * z - 8.12495709e-2
    q = q * z - 4.42411664e-1
    q = q * z - 1.15465136
    q = q * z - 9.99877904e-1
    y = tl.maximum(x, 0.0, propagate_nan=tl.PropagateNan.ALL) - z * tl.exp2(q)
    return tl.where(x == float("-inf"), float("nan"), y)  # -inf · 0


@triton.jit
def rl_exp_low(x):
    """The hardware's exp, for arguments that are small or negative, as in softmax; zero below 1e-38."""
    if x.dtype == tl.float64:
        return tl.exp(x)
    else:
        # tl.exp also computes denormal numbers, with three more instructions
        return tl.exp2(x * 1.44269504)


@triton.jit
def _exponent(low):
    """n and f such that low = n · ln 2 + f, with f near zero."""
    n = rl_round(low * 1.442695)
    f = low - n * 6.93145752e-1
    return n, f - n * 1.42860677e-6


@triton.jit
def rl_exp(x):
    """exp to 2 units in the last place: the hardware's exp2 of a reduced argument."""
    if x.dtype == tl.float64:
        return tl.exp(x)
    else:
        low = tl.where(x < -104.0, -104.0, x)
        low = tl.where(low > 89.0, 89.0, low)
        n, f = _exponent(low)
        # two factors, so that large results overflow to inf at the right argument
        half = tl.floor(n * 0.5)
        return tl.exp2(f * 1.44269502) * tl.exp2(half) * tl.exp2(n - half)


@triton.jit
def rl_expm1(x):
    if x.dtype == tl.float64:
        return libdevice.expm1(x)
    else:
        low = tl.where(x < -40.0, -40.0, x)
        low = tl.where(low > 88.0, 88.0, low)
        n, f = _exponent(low)
        r = 1.98412698e-4 * f + 1.38888889e-3
        r = r * f + 8.33333333e-3
        r = r * f + 4.16666667e-2
        r = r * f + 1.66666667e-1
        r = r * f + 0.5
        r = r * (f * f) + f
        scale = tl.exp2(n)
        return tl.where(x > 88.0, rl_exp(x), r * scale + (scale - 1.0))


@triton.jit
def rl_log(x):
    if x.dtype == tl.float64:
        return tl.log(x)
    else:
        tiny = x < 1.175494351e-38
        a = tl.where(tiny, x * 8388608.0, x)
        bits = a.to(tl.int32, bitcast=True)
        e = (bits - 0x3F2AAAAB) & -8388608
        m = (bits - e).to(tl.float32, bitcast=True)
        i = e.to(tl.float32) * 1.19209290e-7 + tl.where(tiny, -23.0, 0.0)
        f = m - 1.0
        s = f * f
        r = (-0.130187988 * f + 0.140889585) * s + (-0.121489584 * f + 0.139809534)
        r = r * f - 0.166845024
        r = r * f + 0.200121149
        r = r * f - 0.249996364
        r = r * f + 0.333331943
        r = r * f - 0.5
        r = r * s + f
        r = i * 0.693147182 + r
        r = tl.where(x < float("inf"), r, x)
        r = tl.where(x == 0.0, float("-inf"), r)
        return tl.where(x < 0.0, float("nan"), r)


@triton.jit
def rl_log1p(x):
    """log(1 + x) for x in [0, 1], the range that softplus needs."""
    w = 1.0 + x
    return rl_log(w) + (x - (w - 1.0)) / w


@triton.jit
def rl_tanh(x):
    if x.dtype == tl.float64:
        return libdevice.tanh(x)
    else:
        t = tl.abs(x)
        # exp of a negative number cannot overflow
        far = tl.exp(-2.0 * t)
        far = (1.0 - far) / (1.0 + far)
        far = tl.where(x < 0, -far, far)
        s = x * x
        p = 1.57394409e-2 * s - 5.23025580e-2
        p = p * s + 1.33152470e-1
        p = p * s - 3.33327681e-1
        return tl.where(t >= 0.55, far, (p * s) * x + x)


@triton.jit
def rl_pow(x, y):
    if x.dtype == tl.float64:
        return libdevice.pow(x, y)
    else:
        size = tl.abs(x)
        y = tl.where(x == x, y, y)  # gives y the shape of x, which the interpreter needs to combine the tests
        # in float32 the error of the logarithm would be multiplied by the exponent
        wide = tl.exp(y.to(tl.float64) * tl.log(size.to(tl.float64))).to(tl.float32)
        # 1 to an infinite power is 1, and 1 to a NaN is NaN
        wide = tl.where(size == 1.0, tl.where(y == y, 1.0, y), wide)
        is_whole = tl.floor(y) == y
        is_odd = is_whole & (tl.floor(y * 0.5) * 2.0 != y)
        # of the negative numbers, only -inf and -0 have powers with exponents that are not integers
        has_power = is_whole | (size == float("inf")) | (size == 0.0)
        is_negative = x.to(tl.int32, bitcast=True) < 0
        below = tl.where(has_power, tl.where(is_odd, -wide, wide), float("nan"))
        return tl.where((y == 0.0) | (x == 1.0), 1.0, tl.where(is_negative, below, wide))


@triton.jit
def _quarter(x):
    """The nearest multiple of pi/2 to x, modulo four, and the remainder.

    Up to 2^20 it is computed in float64. Larger x are m * 2^e: the leading bits of 2/pi, whose product with
    x is a multiple of four, do not matter, and the 96 bits after them are enough (Payne and Hanek).
    """
    wide = x.to(tl.float64)
    n = rl_round(wide * 0.6366197723675814)
    near = (wide - n * 1.5707963267948966) - n * 6.123233995736766e-17
    bits = x.to(tl.int32, bitcast=True)
    m = ((bits & 0x7FFFFF) | 0x800000).to(tl.uint64)
    # the table has eight zero bits before 2/pi, so the window starts inside it for every x from 2^17 on
    start = tl.minimum(tl.maximum(((bits >> 23) & 0xFF) - 144, 0), 110)
    word, shift = start >> 5, (start & 31).to(tl.uint64)
    a = _pick(word, 0x00A2F983, 0x6E4E4415, 0x29FC2757, 0xD1F534DD)
    b = _pick(word, 0x6E4E4415, 0x29FC2757, 0xD1F534DD, 0xC0DB6295)
    c = _pick(word, 0x29FC2757, 0xD1F534DD, 0xC0DB6295, 0x993C4390)
    d = _pick(word, 0xD1F534DD, 0xC0DB6295, 0x993C4390, 0x41FE5163)
    high, low = (a << 32) | b, (c << 32) | d
    window = (high << shift) | ((low >> 1) >> (63 - shift))
    turns = m * window + ((m * ((low << shift) >> 32)) >> 32)  # the unit is 2^-62, modulo four
    quarters = (turns + 2305843009213693952) >> 62
    far = (turns - (quarters << 62)).to(tl.int64, bitcast=True).to(tl.float64) * 3.4061215800865545e-19
    is_far = (tl.abs(x) >= 1048576.0) & (tl.abs(x) < float("inf"))
    is_negative = bits < 0
    far_quarter = quarters.to(tl.int32)
    far_quarter = tl.where(is_negative, -far_quarter, far_quarter) & 3
    near_quarter = (n - 4.0 * tl.floor(n * 0.25)).to(tl.int32)
    left = tl.where(is_far, tl.where(is_negative, -far, far), near)
    return tl.where(is_far, far_quarter, near_quarter), left.to(tl.float32)


@triton.jit
def _pick(place, first, second, third, fourth):
    low = tl.where(place == 0, first, second).to(tl.uint64)
    return tl.where(place < 2, low, tl.where(place == 2, third, fourth).to(tl.uint64))


@triton.jit
def _sin_near(x):
    s = x * x
    p = 2.86567956e-6 * s - 1.98559923e-4
    p = p * s + 8.33338592e-3
    p = p * s - 1.66666672e-1
    return (p * s) * x + x


@triton.jit
def _cos_near(x):
    s = x * x
    p = 2.44677067e-5 * s - 1.38877297e-3
    p = p * s + 4.16666567e-2
    p = p * s - 0.5
    return p * s + 1.0


@triton.jit
def rl_sin(x):
    if x.dtype == tl.float64:
        return tl.sin(x)
    else:
        quarter, left = _quarter(x)
        y = tl.where(quarter % 2 == 0, _sin_near(left), _cos_near(left))
        return tl.where(quarter >= 2, -y, y)


@triton.jit
def rl_cos(x):
    if x.dtype == tl.float64:
        return tl.cos(x)
    else:
        quarter, left = _quarter(x)
        y = tl.where(quarter % 2 == 0, _cos_near(left), _sin_near(left))
        return tl.where((quarter == 1) | (quarter == 2), -y, y)
