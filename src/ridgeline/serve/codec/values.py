"""Elements of a tensor: JSON lists ↔ packed bytes, and whether packed bytes are what they should be.

Numbers are read and written in pieces: other threads get their turn in between, and the lists of Python
objects stay small.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Annotated, Any

import msgspec
import numpy as np
import numpy.typing as npt

from ridgeline.serve.datatypes import DATATYPES, LENGTH_BYTES, Datatype, join_bytes, split_bytes
from ridgeline.serve.errors import RequestError, invalid
from ridgeline.serve.messages import Buffer, Tensor

PIECE_BYTES = 2**16  # of JSON
PIECE_ELEMENTS = 2**13
MOST_STRINGS = 2**20
OFF_LOOP_BYTES = 2**16  # more JSON than this is read or written on another thread
_BRACKETS, _EMPTY = b"[]", b"[], \t\r\n"
MOST_DIMS = 32
MOST_INT64 = 2**63 - 1


def _decoder(row: Datatype) -> msgspec.json.Decoder[list[Any]] | None:
    if row.numpy is None or not row.has_json:
        return None
    if row.numpy.kind in "iu":
        ends = np.iinfo(row.numpy)
        # limits of msgspec are at most 64 bits with a sign; numpy refuses what is beyond UINT64
        limits = msgspec.Meta(ge=int(ends.min), le=int(ends.max) if ends.max <= MOST_INT64 else None)
        return msgspec.json.Decoder(list[Annotated[int, limits]])
    return msgspec.json.Decoder(list[bool] if row.numpy.kind == "b" else list[float])


_NUMBERS = {name: decoder for name, row in DATATYPES.items() if (decoder := _decoder(row)) is not None}
_STRINGS = msgspec.json.Decoder(list[str])


def pack_json(name: str, row: Datatype, count: int, data: bytes) -> Buffer:
    """`count` elements out of JSON, a flat list or nested ones."""
    if not row.has_json:
        raise invalid(f"input {name!r} is {row.name}, which has no JSON form: send it as binary data")
    if data[:1] != b"[":
        raise invalid(f"input {name!r}: data must be a list")
    if count == 0:
        if data.translate(None, _EMPTY):
            raise invalid(f"input {name!r} has elements in its data, its shape has none")
        return b""
    if row.numpy is None:
        return _pack_strings(name, count, data)
    numbers = data.translate(None, _BRACKETS)
    have = numbers.count(b",") + 1 if numbers.strip() else 0
    _check_count(name, have, count)
    packed = np.empty(count, row.numpy)
    start = at = 0
    while start < len(numbers):
        end = numbers.find(b",", start + PIECE_BYTES)
        end = len(numbers) if end < 0 else end
        values = _numbers(name, row, b"[" + numbers[start:end] + b"]")
        if at + len(values) > count:
            raise invalid(f"input {name!r}: data is not a list of {row.name}")
        packed[at : at + len(values)] = values
        start, at = end + 1, at + len(values)
    _check_count(name, at, count)
    return packed.data.cast("B")


def _numbers(name: str, row: Datatype, piece: bytes) -> npt.NDArray[Any]:
    try:
        try:
            values = _NUMBERS[row.name].decode(piece)
        except msgspec.ValidationError:
            raise
        except msgspec.DecodeError:
            if row.numpy is None or row.numpy.kind != "f":
                raise
            values = [_float(value) for value in json.loads(piece)]  # NaN, Infinity
        if row.name != "FP32":
            return np.array(values, row.numpy)
        wide = np.array(values, np.float64)
        with np.errstate(over="ignore"):
            narrow = wide.astype(row.numpy)
        if bool((np.isinf(narrow) & np.isfinite(wide)).any()):
            raise invalid(f"input {name!r}: a number of its data does not fit FP32")
    except RequestError:
        raise
    except (ValueError, OverflowError, RecursionError) as error:
        what = str(error).split(" - at ", 1)[0]
        raise invalid(f"input {name!r}: data is not a list of {row.name}: {what}") from None
    return narrow


def _float(value: object) -> float:
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        raise ValueError("Expected `float`")  # noqa: TRY004 -- it is the client's value that is wrong
    return float(value)


def _pack_strings(name: str, count: int, data: bytes) -> bytes:
    if count > MOST_STRINGS:
        raise invalid(f"input {name!r} has more than {MOST_STRINGS} strings: send it as binary data")
    try:
        try:
            texts = _STRINGS.decode(data)
        except msgspec.ValidationError:
            texts = _flat(msgspec.json.decode(data))
        _check_count(name, len(texts), count)
        return join_bytes([text.encode() for text in texts])
    except RequestError:
        raise
    except (ValueError, RecursionError):
        raise invalid(f"input {name!r}: data is not a list of strings in UTF-8") from None


def _flat(lists: Any) -> list[str]:
    found: list[str] = []
    waiting = [iter(lists)]
    while waiting:
        for each in waiting[-1]:
            if isinstance(each, list):
                waiting.append(iter(each))
                break
            if not isinstance(each, str):
                raise ValueError("not a string")  # noqa: TRY004 -- it is the client's value that is wrong
            found.append(each)
        else:
            waiting.pop()
    return found


def _check_count(name: str, have: int, count: int) -> None:
    if have != count:
        raise invalid(f"input {name!r} has {have} elements in its data, its shape has {count}")


def count_of(name: str, row: Datatype, shape: Sequence[int], most_bytes: int) -> int:
    """Elements of a shape; whoever allocates them knows that they are not too many."""
    if len(shape) > MOST_DIMS:
        raise invalid(f"input {name!r} has {len(shape)} dims, at most {MOST_DIMS} are taken")
    count = extent = 1
    for size in shape:
        if not 0 <= size <= MOST_INT64:
            raise invalid(f"input {name!r}: a dim of its shape is not from 0 to {MOST_INT64}")
        count *= size
        extent *= size or 1
    # of an empty tensor too: whoever allocates its other dims meets their product
    if extent * (row.itemsize or 1) > most_bytes:
        raise invalid(f"input {name!r}: its shape is of more bytes than this server takes")
    return count


def check_packed(name: str, row: Datatype, count: int, data: memoryview) -> None:
    """Bytes that came packed: as many as the shape says, texts whole, truth values 0 or 1."""
    if row.itemsize:
        if len(data) != count * row.itemsize:
            raise invalid(
                f"unexpected size for input {name!r}: {len(data)} bytes, its shape and type need"
                f" {count * row.itemsize}"
            )
        if row.name == "BOOL" and count and int(np.frombuffer(data, np.uint8).max()) > 1:
            raise invalid(f"input {name!r} is BOOL and has bytes that are neither 0 nor 1")
        return
    _check_strings(name, count, data)


def _check_strings(name: str, count: int, data: memoryview) -> None:
    """Without the strings themselves: as objects they would take many times the bytes that came."""
    at, size = 0, len(data)
    for index in range(count):
        start = at + LENGTH_BYTES
        at = start + int.from_bytes(data[at:start], "little")
        if at > size:
            raise invalid(f"input {name!r} ends inside element {index} of {count}")
    if at != size:
        raise invalid(f"input {name!r} has {size - at} bytes after its {count} elements")


def to_json(tensor: Tensor) -> bytes:
    """A flat list, row-major."""
    row = tensor.type
    if not row.has_json:
        raise invalid(
            f"output {tensor.name!r} is {row.name}, which has no JSON form: ask for it with"
            ' "binary_data": true'
        )
    if row.numpy is None:
        return _strings_to_json(tensor)
    values = np.frombuffer(tensor.data, row.numpy)
    # the fast encoder writes null for what is not finite
    is_finite = values.dtype.kind != "f" or bool(np.isfinite(values).all())
    pieces = [
        _json_piece(values[at : at + PIECE_ELEMENTS].tolist(), is_finite)
        for at in range(0, values.size, PIECE_ELEMENTS)
    ]
    return b"[" + b",".join(pieces) + b"]"


def _json_piece(values: list[Any], is_finite: bool) -> bytes:
    text = msgspec.json.encode(values) if is_finite else json.dumps(values, separators=(",", ":")).encode()
    return text[1:-1]


def _strings_to_json(tensor: Tensor) -> bytes:
    count = 1
    for size in tensor.shape:
        count *= size
    try:
        texts = [str(element, "utf-8") for element in split_bytes(memoryview(tensor.data), count)]
    except UnicodeDecodeError:
        raise invalid(
            f'output {tensor.name!r} is not UTF-8, which JSON needs: ask for it with "binary_data": true'
        ) from None
    return msgspec.json.encode(texts)
