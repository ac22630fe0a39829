"""Tensors of the protocol as numpy arrays over the same memory, and arrays as tensors. Engine side."""

from __future__ import annotations

from math import prod
from typing import Any

import ml_dtypes
import numpy as np

from ridgeline.serve.datatypes import DATATYPES, Datatype, join_bytes, split_bytes
from ridgeline.serve.hosts.hosting import BatchError, PortInfo, memoryview_bytes
from ridgeline.serve.messages import Tensor

BFLOAT16: np.dtype = np.dtype(ml_dtypes.bfloat16)
# smaller copies take less time than giving up the interpreter's lock for them
LARGE_BYTES = 1 << 16


def element_type(datatype: Datatype) -> np.dtype:
    """As engines take and give it."""
    if datatype.name == "BF16":
        return BFLOAT16
    return np.dtype(object) if datatype.numpy is None else datatype.numpy


def array_of(tensor: Tensor, *, as_text: bool) -> np.ndarray:
    """A read-only view; of BYTES an array of objects: text, or bytes as they are."""
    try:
        if tensor.datatype == "BYTES":
            return _objects(tensor, as_text=as_text)
        array = np.frombuffer(tensor.data, element_type(tensor.type)).reshape(tensor.shape)
    except ValueError as error:
        raise BatchError(f"input {tensor.name!r} {error}", is_input=True) from error
    array.flags.writeable = False
    if tensor.datatype == "BOOL" and array.size and array.view(np.uint8).max() > 1:
        # compiled code takes a byte for what it says, and such a one is neither
        raise BatchError(f"input {tensor.name!r} has a byte that is neither 0 nor 1", is_input=True)
    return array


def _objects(tensor: Tensor, *, as_text: bool) -> np.ndarray:
    count = prod(tensor.shape)
    elements: list[Any] = list(split_bytes(memoryview_bytes(tensor.data), count))
    if as_text:
        try:
            elements = [element.decode() for element in elements]
        except UnicodeDecodeError as error:
            raise ValueError(f"holds bytes that are no UTF-8: {error}") from error
    array = np.empty(count, object)
    array[:] = elements
    return array.reshape(tensor.shape)


def tensor_of(port: PortInfo, value: Any) -> Tensor:
    """The result of a run, packed; `BatchError` for what is not of the port's type."""
    datatype = DATATYPES[port.datatype]
    if not isinstance(value, np.ndarray):
        raise BatchError(f"output {port.name!r} is {type(value).__name__}, not an array")
    if datatype.name == "BYTES" and value.dtype.kind in "OUS":
        return Tensor(port.name, port.datatype, value.shape, join_bytes(_encoded(port.name, value)))
    if datatype.name == "BF16" and value.dtype == np.uint16:
        value = value.view(BFLOAT16)
    if value.dtype != element_type(datatype) or value.dtype.kind == "O":
        raise BatchError(f"output {port.name!r} is {value.dtype}, not {port.datatype}")
    packed = np.ascontiguousarray(value).reshape(-1).view(np.uint8)
    return Tensor(port.name, port.datatype, value.shape, packed.data)


def _encoded(name: str, value: np.ndarray) -> list[bytes]:
    elements = []
    for element in value.reshape(-1).tolist():
        if not isinstance(element, (str, bytes)):
            raise BatchError(f"output {name!r} holds {type(element).__name__}, not text or bytes")
        elements.append(element.encode(errors="surrogatepass") if isinstance(element, str) else element)
    return elements


def require_dims(port: PortInfo, tensor: Tensor) -> None:
    """`BatchError` where a result has other dims than its port says."""
    fits = len(port.dims) == len(tensor.shape) and all(
        isinstance(dim, str) or dim in (-1, size) for dim, size in zip(port.dims, tensor.shape, strict=True)
    )
    if not fits:
        raise BatchError(f"output {port.name!r} has shape {list(tensor.shape)}, not {list(port.dims)}")


def copy_bytes(target: memoryview, source: memoryview) -> None:
    """Other threads go on during a large one."""
    if len(source) < LARGE_BYTES:
        target[:] = source
    else:
        np.copyto(np.frombuffer(target, np.uint8), np.frombuffer(source, np.uint8))
