"""Reads an ONNX file without copying its large weights: they stay in the file, as external data of itself.

Only protobuf's outer frames are walked here. Anything unusual is left to the full parser.
"""

from __future__ import annotations

import math
import mmap
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import onnx
import onnx_ir as ir
from google.protobuf.message import DecodeError

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
        except (
            ValueError,
            IndexError,
            DecodeError,
        ):  # not a protobuf: the full parser gives the better error
            return None


def _light_model(content: mmap.mmap, location: str) -> bytes:
    parts = []
    for field in _frames(content, 0, len(content)):
        if field.number == GRAPH and field.kind == BYTES:
            graph = _light_graph(content, field, location)
            parts.append(_framed(GRAPH, graph))
        else:
            parts.append(content[field.begin : field.end])
    return b"".join(parts)


def _light_graph(content: mmap.mmap, graph: Frame, location: str) -> bytes:
    parts = []
    for field in _frames(content, graph.payload, graph.end):
        light = None
        if field.number == INITIALIZER and field.end - field.payload > LEFT_BYTES:
            light = _light_tensor(content, field, location)
        parts.append(content[field.begin : field.end] if light is None else _framed(INITIALIZER, light))
    return b"".join(parts)


def _light_tensor(content: mmap.mmap, tensor: Frame, location: str) -> bytes | None:
    """The tensor without its bytes; None where they are not plain raw data of the size its shape says."""
    fields = list(_frames(content, tensor.payload, tensor.end))
    raw = [field for field in fields if field.number == RAW_DATA]
    if len(raw) != 1 or any(field.number in (EXTERNAL_DATA, DATA_LOCATION) for field in fields):
        return None
    rest = b"".join(content[field.begin : field.end] for field in fields if field.number != RAW_DATA)
    proto = onnx.TensorProto.FromString(rest)
    length = raw[0].end - raw[0].payload
    if length <= LEFT_BYTES or length != _plain_bytes(proto):
        return None
    proto.data_location = onnx.TensorProto.EXTERNAL
    for key, value in (("location", location), ("offset", raw[0].payload), ("length", length)):
        proto.external_data.add(key=key, value=str(value))
    return bytes(proto.SerializeToString())


def _plain_bytes(proto: onnx.TensorProto) -> int | None:
    """What whole-byte numbers of this shape take; None for strings and packed types."""
    kind = ir.DataType(proto.data_type)
    if kind in (ir.DataType.UNDEFINED, ir.DataType.STRING) or kind.bitwidth < 8:
        return None
    return int(math.prod(proto.dims) * kind.bitwidth // 8)


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
