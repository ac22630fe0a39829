"""Element types as the floor meets them: ONNX's numbers, torch's dtypes, numpy attributes as tensors."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from torch import Tensor

from ridgeline.base.spec import Op, TensorSpec
from ridgeline.frontend.types import ONNX_TYPES
from ridgeline.kernels.elements import TORCH_DTYPES, to_torch

# by ONNX's TensorProto.DataType; the missing number is that of strings, which no torch tensor holds
DTYPES = {ONNX_TYPES[name]: dtype for name, dtype in TORCH_DTYPES.items() if name in ONNX_TYPES}

_NARROW_FLOATS = frozenset({torch.float16, torch.bfloat16})


def to_tensor(array: Any) -> Tensor:
    """A tensor with a copy of a numpy array (or a scalar, or a list)."""
    return array if isinstance(array, Tensor) else to_torch(np.asarray(array))


def widened(x: Tensor) -> Tensor:
    """float32 for half types, so that sums keep fp32 state; anything else as it is."""
    return x.float() if x.dtype in _NARROW_FLOATS else x


def ends(dtype: torch.dtype) -> tuple[float | int, float | int]:
    """Less than or equal to every value of the type, and greater than or equal to every value."""
    if dtype == torch.bool:
        return 0, 1
    if dtype.is_floating_point:
        return -float("inf"), float("inf")
    return torch.iinfo(dtype).min, torch.iinfo(dtype).max


def no_torch_type(op: Op, specs: Mapping[str, TensorSpec]) -> str | None:
    """Refuse strings: no torch tensor holds them."""
    for name in (*op.inputs, *op.outputs):
        if name in specs and specs[name].dtype not in TORCH_DTYPES:
            return f"{name} is {specs[name].dtype}, which torch tensors do not hold"
    wanted = [op.attrs[key] for key in ("to", "output_dtype") if op.attrs.get(key)]
    if any(number not in DTYPES for number in wanted):
        return f"type number {wanted[0]} has no torch tensor"
    return None
