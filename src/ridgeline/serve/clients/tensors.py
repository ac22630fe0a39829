"""Arrays as the protocol's tensors and back, and random arrays that fit a model's metadata."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import prod
from typing import Any

import numpy as np

from ridgeline.errors import InputError, OptionError, did_you_mean
from ridgeline.serve.datatypes import DATATYPES, join_bytes, nbytes_of, split_bytes
from ridgeline.serve.messages import Tensor

ANY = -1  # a dim of any size, in metadata


@dataclass(frozen=True)
class TensorInfo:
    """An input or an output, as a server describes it."""

    name: str
    datatype: str
    shape: tuple[int, ...]

    def __str__(self) -> str:
        return f"{self.datatype}[{', '.join(map(str, self.shape))}]"


@dataclass(frozen=True)
class ModelInfo:
    """A model, as a server describes it."""

    name: str
    versions: tuple[str, ...]
    platform: str
    inputs: tuple[TensorInfo, ...]
    outputs: tuple[TensorInfo, ...]


def model_info(metadata: Any) -> ModelInfo:
    """From the protocol's JSON; `ValueError` for anything else."""
    try:
        inputs, outputs = (
            tuple(_tensor_info(each) for each in metadata[kind]) for kind in ("inputs", "outputs")
        )
        versions = tuple(str(version) for version in metadata.get("versions") or ())
        return ModelInfo(str(metadata["name"]), versions, str(metadata.get("platform", "")), inputs, outputs)
    except (KeyError, TypeError, AttributeError) as error:
        raise ValueError(f"no metadata of a model: {error!r}") from error


def _tensor_info(told: Mapping[str, Any]) -> TensorInfo:
    if told["datatype"] not in DATATYPES:
        raise ValueError(f"{told['name']!r} has the unknown type {told['datatype']!r}")
    return TensorInfo(str(told["name"]), told["datatype"], tuple(int(size) for size in told["shape"]))


def to_tensor(info: TensorInfo, array: np.ndarray) -> Tensor:
    """The array's elements packed. Other types than the model's are refused, but for float32 as BF16."""
    array = np.asarray(array)
    if info.datatype == "BYTES":
        data = join_bytes([_as_bytes(element) for element in array.ravel().tolist()])
    else:
        element = DATATYPES[info.datatype].numpy
        assert element is not None, "only BYTES has no type of numpy's"
        if info.datatype == "BF16":
            array = _bfloat16_bits(array)
        if array.dtype != element:
            raise InputError(
                f"input {info.name!r} has another type than the model's",
                got=str(array.dtype),
                want=f"{DATATYPES[info.datatype].engine}: {info}",
            )
        data = array.tobytes()
    return Tensor(info.name, info.datatype, array.shape, data)


def to_array(tensor: Tensor) -> np.ndarray:
    """BF16 as float32, which holds every value of it; BYTES as an array of objects."""
    if tensor.datatype == "BYTES":
        elements = np.empty(prod(tensor.shape), dtype=object)
        elements[:] = split_bytes(memoryview(tensor.data), elements.size)
        return elements.reshape(tensor.shape)
    if len(tensor.data) != nbytes_of(tensor.type, tensor.shape):
        raise ValueError(f"{len(tensor.data)} bytes for {tensor.datatype}{list(tensor.shape)}")
    array = np.frombuffer(tensor.data, tensor.type.numpy).reshape(tensor.shape)
    if tensor.datatype == "BF16":
        return (array.astype(np.uint32) << 16).view(np.float32)
    return array


def from_json(info: TensorInfo, data: Any) -> np.ndarray:
    """Nested lists, or a flat one with the model's own shape, as an array of the input's type."""
    row = DATATYPES[info.datatype]
    try:
        if info.datatype == "BYTES":
            array = np.array(data, dtype=object)
        else:
            array = np.array(data, dtype=np.float32 if info.datatype == "BF16" else row.numpy)
    except (TypeError, ValueError, OverflowError) as error:
        raise InputError(
            f"the data of input {info.name!r} does not read", got=str(error), want=str(info)
        ) from None
    if array.ndim == 1 and len(info.shape) > 1 and ANY not in info.shape:
        array = array.reshape(info.shape) if array.size == prod(info.shape) else array
    return array


def random_arrays(
    info: ModelInfo,
    given: Mapping[str, np.ndarray],
    *,
    shapes: Mapping[str, Sequence[int]],
    batch: int | None,
    seed: int,
) -> dict[str, np.ndarray]:
    """The given arrays, and random ones for the other inputs.

    An open first dim is `batch`, or as long as that of the given arrays.
    Whole numbers are 0 or 1, which masks and tables of tokens take; others lie between 0 and 1.
    """
    known = {each.name: each for each in info.inputs}
    for name in (*given, *shapes):
        if name not in known:
            raise OptionError(f"the model has no input {name!r}", help=did_you_mean(name, list(known)))
    rows = batch or next((a.shape[0] for name, a in given.items() if a.ndim and _is_open(known[name])), 1)
    rng = np.random.default_rng(seed)
    made = {}
    for name, port in known.items():
        made[name] = (
            given[name] if name in given else _random(port, _sizes(port, shapes.get(name), rows), rng)
        )
    return made


def _is_open(info: TensorInfo) -> bool:
    return bool(info.shape) and info.shape[0] == ANY


def _sizes(info: TensorInfo, asked: Sequence[int] | None, rows: int) -> tuple[int, ...]:
    if asked is not None:
        return tuple(asked)
    shape = (rows, *info.shape[1:]) if _is_open(info) else info.shape
    if ANY in shape:
        example = "x".join(
            str(rows if i == 0 else 16) if size == ANY else str(size) for i, size in enumerate(info.shape)
        )
        raise OptionError(
            f"input {info.name!r} has dims of any size",
            got=str(info),
            help=f"say which: --shapes {info.name}={example}, or give --input {info.name}=FILE",
        )
    return shape


def _random(info: TensorInfo, shape: tuple[int, ...], rng: np.random.Generator) -> np.ndarray:
    element = DATATYPES[info.datatype].numpy
    if element is None:
        words = np.empty(prod(shape), dtype=object)
        words[:] = [b"%08x" % number for number in rng.integers(0, 2**32, words.size)]
        return words.reshape(shape)
    if element.kind == "f" or info.datatype == "BF16":
        return rng.random(shape, dtype=np.float32).astype(np.float32 if info.datatype == "BF16" else element)
    return rng.integers(0, 2, shape).astype(element)


def _as_bytes(element: object) -> bytes:
    return element if isinstance(element, bytes) else str(element).encode("utf-8")


def _bfloat16_bits(array: np.ndarray) -> np.ndarray:
    """The upper half of float32, rounded to the nearest even. Arrays of two-byte bits stay as they are."""
    if array.dtype.itemsize == 2 and array.dtype.kind != "f":
        return array.view("<u2")
    if array.dtype != np.float32:
        return array
    bits = np.ascontiguousarray(array).view(np.uint32)
    rounded = (bits + 0x7FFF + ((bits >> 16) & 1)) >> 16
    return np.where(np.isnan(array), (bits >> 16) | 0x40, rounded).astype("<u2")
