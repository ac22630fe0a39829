"""Checks a tensor of a file before any memory is allocated: its type, dims and data must fit together."""

from __future__ import annotations

import math
import stat
from pathlib import Path

import onnx
import onnx_ir as ir

SHOWN = 80  # characters of a file name that an error shows
# the fields that hold data which is not raw; all other types use int32_data
_FIELDS = {
    "FLOAT": "float_data", "COMPLEX64": "float_data", "DOUBLE": "double_data", "COMPLEX128": "double_data",
    "INT64": "int64_data", "UINT32": "uint64_data", "UINT64": "uint64_data", "STRING": "string_data",
}  # fmt: skip


def data_problem(tensor: onnx.TensorProto) -> str | None:
    """Why the tensor's type, dims and data cannot all be true; None if they can."""
    kinds = {kind.value for kind in ir.DataType} - {ir.DataType.UNDEFINED.value}
    if tensor.data_type not in kinds:
        return f"element type {tensor.data_type} is not known"
    if any(size < 0 for size in tensor.dims):
        return f"dims {list(tensor.dims)} hold a negative size"
    if tensor.data_location == onnx.TensorProto.EXTERNAL:
        return None
    kind = ir.DataType(tensor.data_type)
    if tensor.HasField("raw_data"):
        if kind == ir.DataType.STRING:
            return "strings as raw data"
        given, wanted, unit = len(tensor.raw_data), data_bytes(tensor), "bytes"
    else:
        field = _FIELDS.get(kind.name, "int32_data")
        given, wanted, unit = len(getattr(tensor, field)), _items(tensor), f"items in {field}"
    if given != wanted:
        return f"dims {list(tensor.dims)} of {kind.name} need {wanted} {unit}, the file holds {given}"
    return None


def data_bytes(tensor: onnx.TensorProto) -> int:
    """What the tensor takes in a file, by its type and dims."""
    bits: int = ir.DataType(tensor.data_type).bitwidth
    count: int = math.prod(tensor.dims)
    return (count * bits + 7) // 8


def _items(tensor: onnx.TensorProto) -> int:
    """How many numbers or strings the typed fields hold: complex ones are pairs, narrow ones packed."""
    kind, count = ir.DataType(tensor.data_type), int(math.prod(tensor.dims))
    if kind in (ir.DataType.COMPLEX64, ir.DataType.COMPLEX128):
        return 2 * count
    return data_bytes(tensor) if kind != ir.DataType.STRING and kind.bitwidth < 8 else count


def external_problem(tensor: onnx.TensorProto, folder: Path | None) -> str | None:
    """Why the file that holds the tensor's data cannot be used; None if it can."""
    entries = {entry.key: entry.value for entry in tensor.external_data}
    location = entries.get("location", "")
    shown = repr(location if len(location) <= SHOWN else f"{location[:SHOWN]}…")
    if folder is None:
        return f"location {shown}, but the model came without a folder"
    if not location or Path(location).is_absolute() or ".." in Path(location).parts:
        return f"location {shown} leaves the model's folder"
    path = folder / location
    try:
        info = path.stat()
        is_inside = path.resolve().is_relative_to(folder.resolve())
    except FileNotFoundError:
        return f"file {shown} is missing"
    except (OSError, ValueError) as error:  # a name too long, a NUL in it, a loop of links
        return f"file {shown} cannot be read: {getattr(error, 'strerror', None) or error}"
    if not is_inside:
        return f"location {shown} is a link that leaves the model's folder"
    if not stat.S_ISREG(info.st_mode):  # a pipe or a device may never end
        return f"location {shown} is {'a folder' if stat.S_ISDIR(info.st_mode) else 'no regular file'}"
    return _range_problem(tensor, entries, f"file {shown} holds {info.st_size} bytes", info.st_size)


def _range_problem(
    tensor: onnx.TensorProto, entries: dict[str, str], holds: str, file_bytes: int
) -> str | None:
    needed = data_bytes(tensor)
    try:
        offset, length = int(entries.get("offset", 0)), int(entries.get("length", needed))
    except ValueError:
        return f"offset {entries.get('offset')!r} or length {entries.get('length')!r} is no number"
    if offset < 0 or length < 0 or offset + length > file_bytes:
        return f"{holds}, wanted up to byte {offset + length}"
    if length < needed:
        return f"length {length} is less than the {needed} bytes that its dims need"
    return None
