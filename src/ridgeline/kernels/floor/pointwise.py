"""Arithmetic, element by element: unary and binary maths, variadic sums, bits, casts."""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial, reduce
from typing import Any

import numpy as np
import torch
from torch import Tensor

from ridgeline.kernels.elements import SUB_BYTE
from ridgeline.kernels.floor.dtypes import DTYPES, no_torch_type, widened
from ridgeline.kernels.floor.integers import (
    THIN_UNSIGNED,
    divided,
    in_order,
    ordered,
    remainder,
    through_int64,
)
from ridgeline.kernels.floor.registry import copies, floor, into, placed
from ridgeline.kernels.floor.sub_byte import closed, opened

# torch's functions of the same meaning, which have an `out=`
_MAPS: dict[str, Callable[..., Any]] = {
    "Acos": torch.acos, "Acosh": torch.acosh, "Asin": torch.asin, "Asinh": torch.asinh, "Atan": torch.atan,
    "Atanh": torch.atanh, "Ceil": torch.ceil, "Cos": torch.cos, "Erf": torch.erf,
    "Exp": torch.exp, "Floor": torch.floor, "Log": torch.log, "Reciprocal": torch.reciprocal,
    "Round": torch.round, "Sigmoid": torch.sigmoid, "Sin": torch.sin, "Sqrt": torch.sqrt,
    "Tan": torch.tan, "Tanh": torch.tanh, "Neg": torch.neg, "Not": torch.logical_not,
    "And": torch.logical_and, "Or": torch.logical_or, "Xor": torch.logical_xor,
    "Add": through_int64(torch.add), "Sub": through_int64(torch.sub), "Mul": through_int64(torch.mul),
}  # fmt: skip
for _key, _function in _MAPS.items():
    floor(_key, out=into(_function))(_function)

floor("IsNaN")(torch.isnan)


def _hyperbolic(function: Callable[[Tensor], Tensor]) -> Callable[[Tensor], Tensor]:
    """sinh or cosh. Torch's overflow where exp does; their halves do not."""

    def run(x: Tensor) -> Tensor:
        root = torch.exp(x.abs() / 2)
        far = 0.5 * root * root
        far = torch.copysign(far, x) if function is torch.sinh else far
        return torch.where(x.abs() > 80, far, function(x))

    return run


for _key, _function in {"Sinh": torch.sinh, "Cosh": torch.cosh}.items():
    floor(_key, out=copies(_hyperbolic(_function)))(_hyperbolic(_function))


@floor("Abs")
def absolute(x: Tensor) -> Tensor:
    return x if x.dtype in THIN_UNSIGNED else torch.abs(x)


@floor("Sign")
def sign(x: Tensor) -> Tensor:
    if x.dtype in THIN_UNSIGNED:
        return (x != 0).to(x.dtype)
    made = torch.sign(x)
    # torch has no sign of a NaN and says 0
    return torch.where(torch.isnan(x), x, made) if x.dtype.is_floating_point else made


_COMPARISONS: dict[str, Callable[..., Any]] = {
    "Equal": torch.eq, "Greater": torch.gt, "GreaterOrEqual": torch.ge, "Less": torch.lt,
    "LessOrEqual": torch.le,
}  # fmt: skip


def _compare(a: Tensor, b: Tensor, *, function: Callable[..., Tensor], out: Tensor | None = None) -> Tensor:
    if a.dtype in THIN_UNSIGNED:
        a, b = ordered(a), ordered(b)
    return function(a, b, out=out)


for _key, _function in _COMPARISONS.items():
    floor(_key)(partial(_compare, function=_function))


@floor("Div")
def div(a: Tensor, b: Tensor, *, out: Tensor | None = None) -> Tensor:
    is_whole = not (a.dtype.is_floating_point or a.dtype.is_complex)
    return placed(divided(a, b), out) if is_whole else torch.div(a, b, out=out)


def _scalar_exponent(x: Tensor, y: Tensor) -> bool:
    """A python number reaches torch's special cases for 2, 3, 0.5 and -1; reading it off a GPU would wait."""
    return y.numel() == 1 and y.ndim <= x.ndim and y.is_cpu and x.dtype.is_floating_point


@floor("Pow")
def power(x: Tensor, y: Tensor, *, out: Tensor | None = None) -> Tensor:
    dtype = x.dtype
    if _scalar_exponent(x, y):
        if abs(y.item()) != 0.5:
            return torch.pow(x, y.item(), out=out)
        # torch takes a square root for it, of the wrong sign at -0.0, and NaN at -inf
        made = torch.pow(x, y.item()).abs()
        return placed(torch.where(x == -math.inf, math.inf if y.item() > 0 else 0, made), out)
    y = y.to(x.device)  # a table of exponents may be known on the host alone
    if dtype == torch.uint64 or y.dtype in (torch.uint16, torch.uint32, torch.uint64):
        x, y = x.to(torch.int64), y.to(torch.int64)
    elif dtype in (torch.uint16, torch.uint32):
        x = x.to(torch.int64)
    return placed(torch.pow(x, y).to(dtype), out)


@floor("Mod")
def mod(a: Tensor, b: Tensor, *, fmod: int = 0) -> Tensor:
    if not a.dtype.is_floating_point:
        return remainder(a, b, fmod=fmod)
    if not fmod:
        return torch.remainder(a, b)
    if not a.is_cpu:
        return torch.fmod(a, b)
    # torch's own loses all digits where the quotient is large; C's is exact
    wide = widened(a).numpy(), widened(b).numpy()
    with np.errstate(invalid="ignore"):
        return torch.from_numpy(np.asarray(np.fmod(*wide))).to(a.dtype)


def _extreme(*inputs: Tensor, function: Callable[..., Tensor], out: Tensor | None = None) -> Tensor:
    return function(*inputs, out=out) if len(inputs) == 2 else placed(reduce(function, inputs), out)


for _key, _function in {"Max": torch.maximum, "Min": torch.minimum}.items():
    floor(_key)(in_order(partial(_extreme, function=_function)))


@floor("Sum")
def add_all(*inputs: Tensor) -> Tensor:
    return reduce(torch.add, inputs)


@floor("Mean")
def mean_of(*inputs: Tensor) -> Tensor:
    return (reduce(torch.add, map(widened, inputs)) / len(inputs)).to(inputs[0].dtype)


@floor("IsInf")
def is_inf(x: Tensor, *, detect_negative: int = 1, detect_positive: int = 1) -> Tensor:
    found = torch.isinf(x)
    if not detect_negative:
        found = found & (x > 0)
    if not detect_positive:
        found = found & (x < 0)
    return found


floor("Where", out=into(torch.where), why_not=no_torch_type)(torch.where)


def _bound(limit: Tensor | None) -> Any:
    # a python number saves a broadcast pass; on a GPU it would cost a wait
    return limit.item() if limit is not None and limit.is_cpu else limit


@floor("Clip")
@in_order
def clip(
    x: Tensor, low: Tensor | None = None, high: Tensor | None = None, *, out: Tensor | None = None
) -> Tensor:
    if low is None and high is None:
        return placed(x, out)
    return _keep_nan(torch.clamp(x, _bound(low), _bound(high), out=out), low, high)


def _keep_nan(y: Tensor, *limits: Tensor | None) -> Tensor:
    """A bound that is NaN makes NaN of everything; not every release of torch sees to that."""
    if y.dtype.is_floating_point:
        for limit in limits:
            if limit is not None and limit.is_cpu and bool(torch.isnan(limit).any()):
                y.fill_(torch.nan)
    return y


floor("BitwiseAnd")(through_int64(torch.bitwise_and))
floor("BitwiseOr")(through_int64(torch.bitwise_or))
floor("BitwiseXor")(through_int64(torch.bitwise_xor))
floor("BitwiseNot")(through_int64(torch.bitwise_not))


@floor("BitShift")
def bit_shift(x: Tensor, shift: Tensor, *, direction: str) -> Tensor:
    if direction not in ("LEFT", "RIGHT"):
        raise ValueError(f"BitShift has no direction {direction!r}, want LEFT or RIGHT")
    bits, count = x.to(torch.int64), shift.to(torch.int64)
    if direction == "LEFT":
        return torch.bitwise_left_shift(bits, count).to(x.dtype)
    if x.dtype != torch.uint64:
        return torch.bitwise_right_shift(bits, count).to(x.dtype)
    # int64 shifts copies of the top bit in: clear it first, then put it where it belongs
    top = torch.where(bits < 0, torch.bitwise_left_shift(torch.ones_like(bits), (63 - count) % 64), 0)
    rest = torch.bitwise_right_shift(bits & torch.iinfo(torch.int64).max, count)
    return (rest | top).to(x.dtype)


_FLOAT8 = frozenset({torch.float8_e4m3fn, torch.float8_e4m3fnuz, torch.float8_e5m2, torch.float8_e5m2fnuz})


def convert(x: Tensor, dtype: torch.dtype, *, saturate: int = 1) -> Tensor:
    """A cast with ONNX's saturation for float8: what is too large becomes the largest finite value."""
    x = opened(x)
    if dtype in SUB_BYTE:
        return closed(x, dtype)
    if dtype not in _FLOAT8:
        return x.to(dtype)
    wide = x if x.dtype.is_floating_point and x.element_size() > 1 else x.float()
    if saturate:
        largest = torch.finfo(dtype).max
        wide = wide.clamp(-largest, largest)
    elif dtype == torch.float8_e4m3fn:
        # newer torch saturates here of itself; 464 is the last value that rounds down to 448
        wide = torch.where(wide.abs() > 464, torch.nan, wide)
    return wide.to(dtype)


def _to_e8m0(x: Tensor, *, saturate: int, round_mode: str) -> Tensor:
    """A power of two: the exponent bits of a float32, rounded as asked."""
    bits = opened(x).float().view(torch.int32)
    mantissa, exponent = bits & 0x7FFFFF, (bits >> 23) & 0xFF
    lift = {
        "up": mantissa > 0,
        "down": torch.zeros_like(mantissa, dtype=torch.bool),
        "nearest": mantissa >= 0x400000,
    }[round_mode]
    is_special = exponent == 0xFF
    exponent = torch.where(is_special, exponent, exponent + lift)
    if saturate:
        exponent = torch.where(is_special & (mantissa > 0), exponent, exponent.clamp(max=0xFE))
    return exponent.clamp(max=0xFF).to(torch.uint8).view(torch.float8_e8m0fnu)


def _cast_to(x: Tensor, dtype: torch.dtype, *, saturate: int = 1, round_mode: str = "up") -> Tensor:
    if dtype == torch.float8_e8m0fnu and x.dtype != dtype:
        return _to_e8m0(x, saturate=saturate, round_mode=round_mode)
    return convert(x, dtype, saturate=saturate)


def cast(x: Tensor, *, to: int, **attrs: Any) -> Tensor:
    return _cast_to(x, DTYPES[to], **attrs)


floor("Cast", out=copies(cast), why_not=no_torch_type)(cast)


@floor("CastLike", why_not=no_torch_type)
def cast_like(x: Tensor, like: Tensor, **attrs: Any) -> Tensor:
    return _cast_to(x, like.dtype, **attrs)


@floor("BitCast", why_not=no_torch_type)
def bit_cast(x: Tensor, *, to: int) -> Tensor:
    return x.view(DTYPES[to])
