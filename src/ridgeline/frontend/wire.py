"""Reads an ONNX file without copying its large weights: they stay in the file, as external data of itself.

Only protobuf's outer frames are walked here. Anything unusual is left to the full parser.
"""

from __future__ import annotations

import mmap
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import NamedTuple

import onnx
import onnx_ir as ir
from google.protobuf.message import DecodeError

from ridgeline.frontend.tensor_data import data_bytes
from ridgeline.frontend.types import outside

# smaller weights travel with the graph: a place in the file would cost more than the copy
LEFT_BYTES = 1 << 16
GRAPH, INITIALIZER, RAW_DATA, EXTERNAL_DATA, DATA_LOCATION = 7, 5, 9, 13, 14
VARINT, FIXED64, BYTES, FIXED32 = 0, 1, 2, 5


class Frame(NamedTuple):
    """One field of a message: from `begin` with its tag, from `payload` without, to `end`."""

    number: int
    kind: int
    begin: int
    payload: int
    end: int


def read_light(path: Path) -> bytes | None:
    """The file's model with large weights as places in the file; None where it must be parsed whole."""
    # a link would make its own weights look like data outside the model's folder
    if path.is_symlink() or path.stat().st_size <= LEFT_BYTES:
        return None
    with path.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as content:
        try:
            return _light_model(content, path.name)
        # not a protobuf: the full parser gives the better error
        except (ValueError, IndexError, DecodeError):
            return None


def _light_model(content: mmap.mmap, location: str) -> bytes:
    def light_graph(graph: Frame) -> bytes:
        initializers = partial(_light_tensor, content, location)
        return _with_changed(content, graph.payload, graph.end, INITIALIZER, initializers)

    return _with_changed(content, 0, len(content), GRAPH, light_graph)


def _with_changed(
    content: mmap.mmap, begin: int, end: int, number: int, change: Callable[[Frame], bytes | None]
) -> bytes:
    """The message between two places with other contents in fields of this number; None keeps a field."""
    parts = []
    for field in _frames(content, begin, end):
        made = change(field) if field.number == number and field.kind == BYTES else None
        parts.append(content[field.begin : field.end] if made is None else _framed(number, made))
    return b"".join(parts)


def _light_tensor(content: mmap.mmap, location: str, tensor: Frame) -> bytes | None:
    """The tensor without its bytes; None where they are not plain raw data of the size its shape says."""
    if tensor.end - tensor.payload <= LEFT_BYTES:
        return None
    fields = list(_frames(content, tensor.payload, tensor.end))
    raw = [field for field in fields if field.number == RAW_DATA]
    if len(raw) != 1 or any(field.number in (EXTERNAL_DATA, DATA_LOCATION) for field in fields):
        return None
    rest = b"".join(content[field.begin : field.end] for field in fields if field.number != RAW_DATA)
    proto = onnx.TensorProto.FromString(rest)
    length = raw[0].end - raw[0].payload
    if length <= LEFT_BYTES or length != _plain_bytes(proto):
        return None
    return bytes(outside(proto, location, offset=raw[0].payload, length=length).SerializeToString())


def _plain_bytes(proto: onnx.TensorProto) -> int | None:
    """What whole-byte numbers of this shape take; None for strings and packed types."""
    kind = ir.DataType(proto.data_type)
    is_plain = kind not in (ir.DataType.UNDEFINED, ir.DataType.STRING) and kind.bitwidth >= 8
    return data_bytes(proto) if is_plain else None


def _framed(number: int, payload: bytes) -> bytes:
    return _varint(number << 3 | BYTES) + _varint(len(payload)) + payload


def _varint(value: int) -> bytes:
    made = bytearray()
    while value > 0x7F:
        made.append(value & 0x7F | 0x80)
        value >>= 7
    made.append(value)
    return bytes(made)


def _frames(content: mmap.mmap, begin: int, end: int) -> Iterator[Frame]:
    """The fields of the message between two places. Raises ValueError where it is none."""
    while begin < end:
        tag, at = _read_varint(content, begin)
        kind = tag & 7
        if kind == VARINT:
            _, stop = _read_varint(content, at)
        elif kind == BYTES:
            size, at = _read_varint(content, at)
            stop = at + size
        elif kind in (FIXED64, FIXED32):
            stop = at + (8 if kind == FIXED64 else 4)
        else:
            raise ValueError(f"wire type {kind} at byte {begin}")
        if stop > end or not tag >> 3:
            raise ValueError(f"a field at byte {begin} ends outside its message")
        yield Frame(tag >> 3, kind, begin, at, stop)
        begin = stop


def _read_varint(content: mmap.mmap, at: int) -> tuple[int, int]:
    value = shift = 0
    while True:
        byte = content[at]
        at += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value, at
        shift += 7
        if shift > 63:
            raise ValueError(f"a number at byte {at} never ends")
