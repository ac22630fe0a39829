"""Element types as the floor meets them: ONNX's numbers, torch's dtypes, numpy attributes as tensors."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import wraps
from typing import Any

import numpy as np
import torch
from torch import Tensor

from ridgeline.spec import Op, TensorSpec

# by ONNX's TensorProto.DataType; the missing numbers (string, 4-bit and 2-bit types) have no torch tensor
DTYPES = {
    1: torch.float32, 2: torch.uint8, 3: torch.int8, 4: torch.uint16, 5: torch.int16, 6: torch.int32,
    7: torch.int64, 9: torch.bool, 10: torch.float16, 11: torch.float64, 12: torch.uint32, 13: torch.uint64,
    14: torch.complex64, 15: torch.complex128, 16: torch.bfloat16, 17: torch.float8_e4m3fn,
    18: torch.float8_e4m3fnuz, 19: torch.float8_e5m2, 20: torch.float8_e5m2fnuz, 24: torch.float8_e8m0fnu,
}  # fmt: skip

# numpy knows these by ml_dtypes; torch reads their bits
_BIT_TYPES = {
    "bfloat16": (np.uint16, torch.bfloat16),
    "float8_e4m3fn": (np.uint8, torch.float8_e4m3fn),
    "float8_e4m3fnuz": (np.uint8, torch.float8_e4m3fnuz),
    "float8_e5m2": (np.uint8, torch.float8_e5m2),
    "float8_e5m2fnuz": (np.uint8, torch.float8_e5m2fnuz),
    "float8_e8m0fnu": (np.uint8, torch.float8_e8m0fnu),
}

_NARROW_FLOATS = frozenset({torch.float16, torch.bfloat16})
THIN_UNSIGNED = frozenset({torch.uint16, torch.uint32, torch.uint64})
_NO_TORCH_TYPE = frozenset(
    {"string", "int4", "uint4", "int2", "uint2", "float4_e2m1", "float6_e2m3", "float6_e3m2"}
)


def to_tensor(array: Any) -> Tensor:
    """A tensor with a copy of a numpy array (or a scalar, or a list)."""
    if isinstance(array, Tensor):
        return array
    array = np.asarray(array)
    if array.dtype.name in _BIT_TYPES:
        bits, dtype = _BIT_TYPES[array.dtype.name]
        return torch.from_numpy(np.array(array.view(bits))).view(dtype)
    return torch.from_numpy(np.array(array, order="C"))


def widened(x: Tensor) -> Tensor:
    """float32 for half types, so that sums keep fp32 state; anything else as it is."""
    return x.float() if x.dtype in _NARROW_FLOATS else x


def through_int64(run: Callable[..., Tensor]) -> Callable[..., Tensor]:
    """Torch computes little in uint16, uint32 and uint64: go through int64, which wraps as they do."""

    @wraps(run, assigned=("__doc__", "__name__"))
    def run_any(*inputs: Tensor, **attrs: Any) -> Tensor:
        dtype = inputs[0].dtype
        if dtype not in THIN_UNSIGNED:
            return run(*inputs, **attrs)
        wide = (x.to(torch.int64) if x is not None and x.dtype in THIN_UNSIGNED else x for x in inputs)
        result = run(*wide, **attrs)
        return result.to(dtype) if result.dtype == torch.int64 else result

    return run_any


def lowest(dtype: torch.dtype) -> float | int:
    """Less than or equal to every value of the type."""
    if dtype == torch.bool:
        return 0
    return -float("inf") if dtype.is_floating_point else torch.iinfo(dtype).min


def highest(dtype: torch.dtype) -> float | int:
    """Greater than or equal to every value of the type."""
    if dtype == torch.bool:
        return 1
    return float("inf") if dtype.is_floating_point else torch.iinfo(dtype).max


def no_torch_type(op: Op, specs: Mapping[str, TensorSpec]) -> str | None:
    """Refuse strings and 4-bit types: no torch tensor holds them."""
    for name in (*op.inputs, *op.outputs):
        if name in specs and specs[name].dtype in _NO_TORCH_TYPE:
            return f"{name} is {specs[name].dtype}, which torch tensors do not hold"
    wanted = [op.attrs[key] for key in ("to", "output_dtype") if op.attrs.get(key)]
    if any(number not in DTYPES for number in wanted):
        return f"type number {wanted[0]} has no torch tensor"
    return None
