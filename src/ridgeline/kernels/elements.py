"""Element types as torch and numpy hold them: our names, torch's dtypes, numpy's, and the way between.

Types narrower than a byte lie one value to a byte, as ml_dtypes keeps them. Torch has names for them and
little more, so whoever copies or reads such a tensor goes by its bits.
"""

from __future__ import annotations

import ml_dtypes
import numpy as np
import torch
from torch import Tensor

# our names are numpy's and ml_dtypes'; torch's name of the last one counts two values, and we keep one
TORCH_DTYPES: dict[str, torch.dtype] = {
    name: getattr(torch, name)
    for name in (
        "float64", "float32", "float16", "bfloat16", "int64", "int32", "int16", "int8", "uint64", "uint32",
        "uint16", "uint8", "bool", "complex64", "complex128", "float8_e4m3fn", "float8_e5m2",
        "float8_e4m3fnuz", "float8_e5m2fnuz", "float8_e8m0fnu", "int4", "uint4", "int2", "uint2",
    )
} | {"float4_e2m1fn": torch.float4_e2m1fn_x2}  # fmt: skip
DTYPE_NAMES = {dtype: name for name, dtype in TORCH_DTYPES.items()}
SUB_BYTE = frozenset(TORCH_DTYPES[name] for name in ("int4", "uint4", "int2", "uint2", "float4_e2m1fn"))
BIT_WIDTHS = {"int4": 4, "uint4": 4, "int2": 2, "uint2": 2, "float4_e2m1fn": 4}


def dtype_name(tensor: Tensor) -> str:
    return DTYPE_NAMES[tensor.dtype]


def numpy_dtype(name: str) -> np.dtype:
    return np.dtype(getattr(ml_dtypes, name, None) or name)


def bits(tensor: Tensor) -> Tensor:
    """The same memory as bytes where torch only carries the type; anything else as it is."""
    return tensor.view(torch.uint8) if tensor.dtype in SUB_BYTE else tensor


def fill(target: Tensor, source: Tensor) -> None:
    """Copy, whatever the type; both have the same one if torch cannot convert it."""
    if target.dtype in SUB_BYTE:
        bits(target).copy_(bits(source))
    else:
        target.copy_(source)


def cloned(tensor: Tensor) -> Tensor:
    return bits(tensor).clone().view(tensor.dtype)


def on_device(tensor: Tensor, device: str) -> Tensor:
    return bits(tensor).to(device).view(tensor.dtype)


def is_plain(dtype: np.dtype) -> bool:
    """numpy's own numbers; the kind does not tell, since ml_dtypes' float8_e5m2 has that of a float."""
    return dtype.isbuiltin == 1 and dtype.kind in "fiubc"


PLAIN = frozenset(dtype for name, dtype in TORCH_DTYPES.items() if is_plain(numpy_dtype(name)))


def crosses(name: str) -> bool:
    """Whether ONNX Runtime takes and gives arrays of this type."""
    return name in TORCH_DTYPES and is_plain(numpy_dtype(name)) and not name.startswith("complex")


def to_torch(array: np.ndarray) -> Tensor:
    """A tensor of its own memory."""
    return as_torch(np.array(array, order="C", copy=True))


def as_numpy(tensor: Tensor) -> np.ndarray:
    """numpy's view of the same memory, by its ml_dtypes name where numpy itself has none."""
    if tensor.dtype in PLAIN:
        return tensor.numpy()
    dtype = numpy_dtype(dtype_name(tensor))
    return tensor.view(torch.int16 if tensor.element_size() == 2 else torch.uint8).numpy().view(dtype)


def as_torch(array: np.ndarray) -> Tensor:
    """torch's view of the same memory, which is contiguous; of bfloat16 and friends it is by bits."""
    if is_plain(array.dtype):
        # C has two names for some integers, and torch knows one: ONNX Runtime's uint64 is the other
        return torch.from_numpy(array.view(np.uint64) if array.dtype.char == "Q" else array)
    return torch.from_numpy(array.view(f"u{array.dtype.itemsize}")).view(TORCH_DTYPES[str(array.dtype)])


def to_numpy(tensor: Tensor) -> np.ndarray:
    return as_numpy((tensor if tensor.is_cpu else tensor.cpu()).contiguous())


def packed(values: np.ndarray, width: int) -> np.ndarray:
    """Bytes with several values each, the first in the lowest bits; `values` hold one to a byte."""
    if width == 8:
        return values
    per_byte = 8 // width
    padded = np.zeros(-(-values.size // per_byte) * per_byte, np.uint8)
    padded[: values.size] = values.reshape(-1)
    made: np.ndarray = np.bitwise_or.reduce(padded.reshape(-1, per_byte) << _shifts(width), axis=1)
    return made


def unpacked(stored: np.ndarray, width: int, count: int) -> np.ndarray:
    """The first `count` values of packed bytes, one to a byte."""
    made: np.ndarray = (stored.reshape(-1, 1) >> _shifts(width)) & np.uint8((1 << width) - 1)
    return made.reshape(-1)[:count].copy()


def _shifts(width: int) -> np.ndarray:
    return np.arange(0, 8, width, dtype=np.uint8)
