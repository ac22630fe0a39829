"""What flows between ops that is no plain tensor: strings, sequences, optionals and maps.

A string tensor is a numpy array of objects, a sequence an `Items`, an empty optional None, a map a dict.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import onnx
from torch import Tensor

from ridgeline.frontend.types import ELEMENT_NAMES, ONNX_TYPES
from ridgeline.kernels.elements import cloned, dtype_name, to_numpy, to_torch


class Items(list[Any]):
    """An ONNX sequence, so that nobody takes it for the several results of an op."""


def taken_in(value: Any) -> Any:
    """A value from outside as ops hold it, in memory of its own."""
    if isinstance(value, (list, tuple)):
        return Items(taken_in(item) for item in value)
    if value is None or isinstance(value, dict):
        return value
    if isinstance(value, Tensor):
        return cloned(value)
    array = np.asarray(value)
    return array.astype(object) if array.dtype.kind in "OUS" else to_torch(array)


def outside(value: Any) -> Any:
    """A value of ours as others hold it: numpy arrays, in lists where they are a sequence."""
    if isinstance(value, Tensor):
        return to_numpy(value)
    return [outside(item) for item in value] if isinstance(value, Items) else value


def type_of(value: Any) -> onnx.TypeProto:
    """The type that ONNX gives this value; an empty sequence, which could be any, is one of float32."""
    kind = onnx.TypeProto()
    if isinstance(value, Tensor):
        kind.tensor_type.elem_type = ONNX_TYPES[dtype_name(value)]
    elif isinstance(value, np.ndarray):
        kind.tensor_type.elem_type = ONNX_TYPES["string"]
    elif isinstance(value, Items):
        kind.sequence_type.elem_type.CopyFrom(type_of(value[0]) if value else _float_tensor())
    elif isinstance(value, dict):
        key, item = next(iter(value.items()), ("", 0.0))
        kind.map_type.key_type = ONNX_TYPES["string" if isinstance(key, str) else "int64"]
        element = {str: "string", int: "int64"}.get(type(item), "float32")
        kind.map_type.value_type.tensor_type.elem_type = ONNX_TYPES[element]
    else:
        kind.optional_type.elem_type.CopyFrom(_float_tensor())
    return kind


def _float_tensor() -> onnx.TypeProto:
    kind = onnx.TypeProto()
    kind.tensor_type.elem_type = ONNX_TYPES["float32"]
    return kind


def elements_of(kind: onnx.TypeProto) -> Iterator[str]:
    """The element types inside a type."""
    which = kind.WhichOneof("value")
    if which == "tensor_type":
        yield ELEMENT_NAMES[kind.tensor_type.elem_type]
    elif which in ("sequence_type", "optional_type"):
        yield from elements_of(getattr(kind, which).elem_type)
    elif which == "map_type":
        yield ELEMENT_NAMES[kind.map_type.key_type]
        yield from elements_of(kind.map_type.value_type)
