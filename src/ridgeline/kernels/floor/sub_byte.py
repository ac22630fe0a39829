"""Numbers of four and two bits: to types torch computes with, back to bits, and moved as bits.

What is out of range keeps its low bits, as ONNX's reference has it; float4 has no infinity and saturates.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from ridgeline.kernels.elements import SUB_BYTE, TORCH_DTYPES, bits

FLOAT4 = TORCH_DTYPES["float4_e2m1fn"]
# how many bits, and whether the highest one is a sign
INTEGERS = {
    TORCH_DTYPES["int4"]: (4, True), TORCH_DTYPES["uint4"]: (4, False),
    TORCH_DTYPES["int2"]: (2, True), TORCH_DTYPES["uint2"]: (2, False),
}  # fmt: skip
_FLOAT4_SIZES = (0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0)
_FLOAT4_VALUES = torch.tensor([*_FLOAT4_SIZES, *(-size for size in _FLOAT4_SIZES)])
# the middle between neighbours; one that falls on a middle goes to the even neighbour
_UP_FROM = ((0.25, False), (0.75, True), (1.25, False), (1.75, True), (2.5, False), (3.5, True), (5.0, False))


def bounds(dtype: torch.dtype) -> tuple[int, int]:
    """The smallest and the largest integer of a type."""
    if dtype not in INTEGERS:
        return torch.iinfo(dtype).min, torch.iinfo(dtype).max
    width, is_signed = INTEGERS[dtype]
    return (-(1 << width - 1), (1 << width - 1) - 1) if is_signed else (0, (1 << width) - 1)


def opened(x: Tensor) -> Tensor:
    """The same numbers in a type torch computes with; what it computes with already stays as it is."""
    if x.dtype == FLOAT4:
        return _FLOAT4_VALUES.to(x.device)[bits(x).to(torch.int64)]
    if x.dtype not in INTEGERS:
        return x
    width, is_signed = INTEGERS[x.dtype]
    if not is_signed:
        return bits(x)
    sign = 1 << width - 1
    return (bits(x).to(torch.int8) ^ sign) - sign


def closed(x: Tensor, dtype: torch.dtype) -> Tensor:
    """Numbers in a type narrower than a byte."""
    if dtype == FLOAT4:
        return _to_float4(x)
    width, _ = INTEGERS[dtype]
    whole = x.to(torch.float64).nan_to_num(0, 0, 0) if x.is_floating_point() else x
    return (whole.to(torch.int64) & ((1 << width) - 1)).to(torch.uint8).view(dtype)


def _to_float4(x: Tensor) -> Tensor:
    wide = x if x.dtype == torch.float64 else x.to(torch.float32)
    size = wide.abs()
    code = torch.zeros_like(size, dtype=torch.uint8)
    for middle, takes_tie in _UP_FROM:
        code += (size >= middle) if takes_tie else (size > middle)
    # NaN is no float4: it becomes minus zero, as ml_dtypes has it
    is_negative = torch.signbit(wide) | wide.isnan()
    return (code | (is_negative.to(torch.uint8) << 3)).view(FLOAT4)


def moved_as_bits(run: Callable[..., Sequence[Any]]) -> Callable[[Sequence[Any]], Sequence[Any]]:
    """An op that only moves values, for values that torch cannot copy: their bytes are moved."""

    def move(values: Sequence[Any]) -> Sequence[Any]:
        carried = next(v.dtype for v in values if isinstance(v, Tensor) and v.dtype in SUB_BYTE)
        made = run([bits(v) if isinstance(v, Tensor) else v for v in values])
        return [_carried(m, carried) for m in made]

    return move


def _carried(made: Any, dtype: torch.dtype) -> Any:
    """Moved bytes under their own type again; counts, masks and indices stay what they are."""
    is_moved = isinstance(made, Tensor) and made.dtype == torch.uint8
    return made.contiguous().view(dtype) if is_moved else made
