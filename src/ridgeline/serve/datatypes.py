"""The protocol's types of elements, beside the names that engines, config.pbtxt and numpy have for them."""

from __future__ import annotations

from dataclasses import dataclass
from math import prod

import numpy as np

LENGTH_BYTES = 4  # before each element of BYTES, little-endian


@dataclass(frozen=True)
class Datatype:
    """One row. BF16 has no numpy type: its bits travel as uint16. BYTES elements have no fixed size."""

    name: str
    engine: str  # as a `Port` of an engine names it
    config: str  # as config.pbtxt names it
    numpy: np.dtype | None
    itemsize: int
    has_json: bool = True


def _row(
    name: str, engine: str, config: str, numpy: str | None, itemsize: int, has_json: bool = True
) -> Datatype:
    return Datatype(name, engine, config, None if numpy is None else np.dtype(numpy), itemsize, has_json)


DATATYPES = {
    row.name: row
    for row in (
        _row("BOOL", "bool", "TYPE_BOOL", "?", 1),
        _row("UINT8", "uint8", "TYPE_UINT8", "u1", 1),
        _row("UINT16", "uint16", "TYPE_UINT16", "<u2", 2),
        _row("UINT32", "uint32", "TYPE_UINT32", "<u4", 4),
        _row("UINT64", "uint64", "TYPE_UINT64", "<u8", 8),
        _row("INT8", "int8", "TYPE_INT8", "i1", 1),
        _row("INT16", "int16", "TYPE_INT16", "<i2", 2),
        _row("INT32", "int32", "TYPE_INT32", "<i4", 4),
        _row("INT64", "int64", "TYPE_INT64", "<i8", 8),
        _row("FP16", "float16", "TYPE_FP16", "<f2", 2, has_json=False),
        _row("FP32", "float32", "TYPE_FP32", "<f4", 4),
        _row("FP64", "float64", "TYPE_FP64", "<f8", 8),
        _row("BF16", "bfloat16", "TYPE_BF16", "<u2", 2, has_json=False),
        _row("BYTES", "string", "TYPE_STRING", None, 0),
    )
}
BY_ENGINE = {row.engine: row for row in DATATYPES.values()}
BY_CONFIG = {row.config: row for row in DATATYPES.values()}


def nbytes_of(datatype: Datatype, shape: tuple[int, ...]) -> int | None:
    """Bytes of a tensor; None for BYTES, whose elements have lengths of their own."""
    return prod(shape) * datatype.itemsize if datatype.itemsize else None


def split_bytes(data: memoryview, count: int) -> list[bytes]:
    """The elements of a BYTES tensor; `ValueError` where they are not exactly `count`."""
    elements: list[bytes] = []
    at = 0
    for _ in range(count):
        end = at + LENGTH_BYTES
        if end > len(data):
            raise ValueError(f"ends inside element {len(elements)} of {count}")
        at, end = end, end + int.from_bytes(data[at:end], "little")
        if end > len(data):
            raise ValueError(f"ends inside element {len(elements)} of {count}")
        elements.append(bytes(data[at:end]))
        at = end
    if at != len(data):
        raise ValueError(f"has {len(data) - at} bytes after its {count} elements")
    return elements


def join_bytes(elements: list[bytes]) -> bytes:
    parts = []
    for element in elements:
        parts.append(len(element).to_bytes(LENGTH_BYTES, "little"))
        parts.append(element)
    return b"".join(parts)
