"""Inputs and outputs that are no plain tensors: strings, sequences, optionals, maps.

No memory is planned for them: they are checked, handed to the steps as they are, and handed back.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import numpy as np
import onnx
from torch import Tensor

from ridgeline.base.spec import Port
from ridgeline.errors import InputError
from ridgeline.frontend.types import ELEMENT_NAMES
from ridgeline.kernels.elements import DTYPE_NAMES, as_numpy, cloned, numpy_dtype
from ridgeline.kernels.values import Items, taken_in

UNKNOWN_SIZE = 2
WORDS = ("ridge", "line", "1.5", "")


def take_non_tensor(ports: Mapping[str, Port], feeds: Mapping[str, Any]) -> dict[str, Any]:
    """The loose inputs as steps read them, or one error that says what is wrong with them."""
    problems = [
        f"input {name!r} is missing: want {port}" for name, port in ports.items() if name not in feeds
    ]
    for name, port in ports.items():
        problem = _problem(port.dtype, feeds[name]) if name in feeds else None
        if problem is not None:
            problems.append(f"input {name!r} {problem}: want {port.dtype}")
    if problems:
        raise InputError("the inputs do not match the engine's", rows=problems)
    return {name: taken_in(_as_array(port.dtype, feeds[name])) for name, port in ports.items()}


def _as_array(kind: str, value: Any) -> Any:
    """Strings may come as a list."""
    return np.asarray(value, object) if kind == "string" and isinstance(value, (list, tuple, str)) else value


def _problem(kind: str, value: Any) -> str | None:
    """What is wrong with a value for a type, in words; None if it fits."""
    outer, _, rest = kind.partition("(")
    inner = rest.removesuffix(")")
    if outer == "optional":
        return None if value is None else _problem(inner, value)
    if outer == "map":
        return None if isinstance(value, Mapping) else f"is {type(value).__name__}, not a mapping"
    if outer == "sequence":
        if not isinstance(value, (list, tuple)):
            return f"is {type(value).__name__}, not a list"
        found = ((i, _problem(inner, item)) for i, item in enumerate(value))
        return next((f"item {i} {problem}" for i, problem in found if problem is not None), None)
    dtype = "absent" if value is None else element_name(value)
    return None if dtype == kind else f"is {dtype}"


def element_name(value: Any) -> str:
    """Our name of an array's or a tensor's element type."""
    if isinstance(value, Tensor):
        return DTYPE_NAMES[value.dtype]
    dtype = np.asarray(value).dtype
    return "string" if dtype.kind in "OUS" else str(dtype)


def handed_out(value: Any, *, as_torch: bool = False) -> Any:
    """A result as callers hold it, in memory of its own: lists for sequences, None for empty optionals."""
    if isinstance(value, Items):
        return [handed_out(item, as_torch=as_torch) for item in value]
    if isinstance(value, Tensor):
        return cloned(value) if as_torch else as_numpy(cloned(value.contiguous()))
    return value.copy() if isinstance(value, np.ndarray) else value


def flattened(values: Mapping[str, Any]) -> dict[str, Any]:
    """Arrays by name, also those inside sequences and maps (`y[0]`, `y['cat']`); empty optionals left out."""
    made: dict[str, Any] = {}
    for name, value in values.items():
        if isinstance(value, (list, tuple)):
            made |= flattened({f"{name}[{i}]": item for i, item in enumerate(value)})
        elif isinstance(value, Mapping):
            made |= flattened({f"{name}[{key!r}]": np.asarray(item) for key, item in value.items()})
        elif value is not None:
            made[name] = value
    return made


def draw_non_tensor(rng: np.random.Generator, kind: onnx.TypeProto) -> Any:
    """Some value of a type: two items where it does not say how many."""
    which = kind.WhichOneof("value")
    if which == "sequence_type":
        return [draw_non_tensor(rng, kind.sequence_type.elem_type) for _ in range(UNKNOWN_SIZE)]
    if which == "optional_type":
        return draw_non_tensor(rng, kind.optional_type.elem_type)
    if which == "map_type":
        keys = ("a", "b") if ELEMENT_NAMES[kind.map_type.key_type] == "string" else (0, 1)
        return {key: draw_non_tensor(rng, kind.map_type.value_type).reshape(-1)[0] for key in keys}
    tensor = kind.tensor_type
    sizes = [dim.dim_value if dim.HasField("dim_value") else UNKNOWN_SIZE for dim in tensor.shape.dim]
    shape = sizes if tensor.HasField("shape") else [UNKNOWN_SIZE]
    dtype = ELEMENT_NAMES[tensor.elem_type]
    if dtype == "string":
        return np.array([WORDS[i] for i in rng.integers(0, len(WORDS), math.prod(shape))], object).reshape(
            shape
        )
    drawn = rng.standard_normal(shape) if "float" in dtype else rng.integers(0, 2, shape)
    return drawn.astype(numpy_dtype(dtype))
