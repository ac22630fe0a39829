"""Integer arithmetic that PyTorch lacks: unsigned types in their own order, and divisions that never trap.

uint64 travels as int64 of the same bits, which adds, subtracts and multiplies as it does. ONNX leaves a
division by zero open; here, as in generated kernels and in numpy, its quotient and its remainder are 0.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import Any, TypeAlias

import torch
from torch import Tensor

from ridgeline.kernels.floor.registry import placed

Wrapper: TypeAlias = Callable[[Callable[..., Tensor]], Callable[..., Tensor]]

THIN_UNSIGNED = frozenset({torch.uint16, torch.uint32, torch.uint64})
_LEAST = torch.iinfo(torch.int64).min


def ordered(x: Tensor) -> Tensor:
    """int64 in the order of an unsigned type: uint64 turns negative above 2^63, so flip its top bit."""
    return x.view(torch.int64) ^ _LEAST if x.dtype == torch.uint64 else x.to(torch.int64)


def unordered(x: Tensor, dtype: torch.dtype) -> Tensor:
    """The unsigned values that `ordered` made int64 of."""
    return (x ^ _LEAST).view(torch.uint64) if dtype == torch.uint64 else x.to(dtype)


def _converting(there: Callable[[Tensor], Tensor], back: Callable[[Tensor, torch.dtype], Tensor]) -> Wrapper:
    """Wraps a function so that unsigned types go `there` and int64 results come `back`."""

    def wrapper(run: Callable[..., Tensor]) -> Callable[..., Tensor]:
        @wraps(run, assigned=("__doc__", "__name__"))
        def run_any(*inputs: Any, **attrs: Any) -> Tensor:
            dtype = inputs[0].dtype
            if dtype not in THIN_UNSIGNED:
                return run(*inputs, **attrs)
            out = attrs.pop("out", None)
            made = run(*(there(x) if _is_thin(x) else x for x in inputs), **attrs)
            return placed(back(made, dtype) if made.dtype == torch.int64 else made, out)

        return run_any

    return wrapper


def _is_thin(x: Any) -> bool:
    return isinstance(x, Tensor) and x.dtype in THIN_UNSIGNED


# torch computes little in uint16, uint32 and uint64: these go through int64, which wraps as they do
through_int64 = _converting(lambda x: x.to(torch.int64), lambda x, dtype: x.to(dtype))
# for functions that compare values, or pick among them
in_order = _converting(ordered, unordered)


def divided(a: Tensor, b: Tensor) -> Tensor:
    """The quotient, cut towards zero. The least value over -1 wraps around."""
    if a.dtype == torch.uint64:
        return _divided_uint64(a.view(torch.int64), b.view(torch.int64)).view(torch.uint64)
    if a.dtype in THIN_UNSIGNED:
        return divided(a.to(torch.int64), b.to(torch.int64)).to(a.dtype)
    # processors trap on both divisors
    is_zero, is_minus = b == 0, (b == -1) & b.dtype.is_signed
    quotient = torch.div(a, b.masked_fill(is_zero | is_minus, 1), rounding_mode="trunc")
    return torch.where(is_minus, -a, quotient).masked_fill_(is_zero, 0)


def _divided_uint64(a: Tensor, b: Tensor) -> Tensor:
    """Unsigned division of bits held as int64: half of a large dividend first, then what is left of it."""
    low = b.masked_fill(b < 0, 1)
    halved = (a >> 1) & torch.iinfo(torch.int64).max
    quotient = torch.where(a < 0, divided(halved, low) << 1, divided(a, low))
    rest = a - quotient * low
    quotient = quotient + ((a < 0) & (low != 0) & (rest ^ _LEAST >= low ^ _LEAST))
    return torch.where(b < 0, (a ^ _LEAST >= b ^ _LEAST).to(torch.int64), quotient)


def remainder(a: Tensor, b: Tensor, *, fmod: int) -> Tensor:
    """With the sign of the dividend for `fmod`, else with that of the divisor."""
    if a.dtype in THIN_UNSIGNED:
        bits, by = a.to(torch.int64), b.to(torch.int64)
        return (bits - divided(a, b).to(torch.int64) * by).masked_fill_(by == 0, 0).to(a.dtype)
    rest = (a - divided(a, b) * b).masked_fill_(b == 0, 0)
    return (
        rest
        if fmod or not a.dtype.is_signed
        else torch.where((rest != 0) & ((rest < 0) != (b < 0)), rest + b, rest)
    )
