"""Arrays as the protocol's tensors and back, and random arrays that fit a model's metadata."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import prod
from reprlib import repr as brief
from typing import Any

import numpy as np

from ridgeline.errors import InputError, OptionError, did_you_mean
from ridgeline.serve.datatypes import DATATYPES, LENGTH_BYTES, join_bytes, nbytes_of, split_bytes
from ridgeline.serve.messages import Tensor

ANY = -1  # a dim of any size, in metadata
MOST_DIMS = 64  # of numpy's arrays; of older ones 32
LARGEST_SIZE = 2**40  # of one dim: arrays of it cannot be, and numpy has several errors for those
MOST_RANDOM = 2**31  # elements that are made up for one input


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
            tuple(
                tensor_info(each["name"], each["datatype"], each["shape"], least=ANY)
                for each in metadata[kind]
            )
            for kind in ("inputs", "outputs")
        )
        versions = tuple(str(version) for version in metadata.get("versions") or ())
        return ModelInfo(str(metadata["name"]), versions, str(metadata.get("platform", "")), inputs, outputs)
    except (KeyError, TypeError, AttributeError, RecursionError) as error:
        raise ValueError(f"no metadata of a model: {error!r}") from error


def tensor_info(name: Any, datatype: Any, shape: Any, *, least: int = 0) -> TensorInfo:
    """What a server says of a tensor, checked; `ValueError` for a type or sizes that no tensor has."""
    if not name or not isinstance(name, str):
        raise ValueError(f"{brief(name)} is no name of a tensor")
    if not isinstance(datatype, str) or datatype not in DATATYPES:
        raise ValueError(f"{name!r} has the unknown type {brief(datatype)}")
    if not isinstance(shape, (list, tuple)) or len(shape) > MOST_DIMS:
        raise ValueError(f"{name!r} has the shape {brief(shape)}")
    return TensorInfo(name, datatype, tuple(_size(size, least, name) for size in shape))


def _size(told: Any, least: int, name: str) -> int:
    """Protobuf's own JSON, which some servers send, has numbers of 64 bits as strings."""
    if isinstance(told, str) and re.fullmatch(r"-?[0-9]{1,18}", told):
        told = int(told)
    if type(told) is not int or not least <= told <= LARGEST_SIZE:
        raise ValueError(f"{name!r} has a dim of the size {brief(told)}")
    return told


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
        count = prod(tensor.shape)
        # before anything is allocated: a server may say that there are a thousand million
        if LENGTH_BYTES * count > len(tensor.data):
            raise ValueError(f"{len(tensor.data)} bytes for {count} elements of BYTES")
        elements = np.empty(count, dtype=object)
        elements[:] = split_bytes(memoryview(tensor.data), count)
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
    if prod(shape) > MOST_RANDOM:
        raise OptionError(
            f"input {info.name!r} is too large for random values", got=f"{prod(shape):,} elements: {info}",
            want=f"at most {MOST_RANDOM:,}", help=f"give --shapes {info.name}=… or --input {info.name}=FILE",
        )  # fmt: skip
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
