"""Typed contents of a gRPC input → packed bytes. FP16 and BF16 have none."""

from __future__ import annotations

from typing import Any

import numpy as np

from ridgeline.serve.codec.values import MOST_STRINGS
from ridgeline.serve.datatypes import Datatype, join_bytes
from ridgeline.serve.errors import invalid
from ridgeline.serve.messages import Buffer

FIELDS = {
    "BOOL": "bool_contents", "INT8": "int_contents", "INT16": "int_contents", "INT32": "int_contents",
    "INT64": "int64_contents", "UINT8": "uint_contents", "UINT16": "uint_contents", "UINT32": "uint_contents",
    "UINT64": "uint64_contents", "FP32": "fp32_contents", "FP64": "fp64_contents", "BYTES": "bytes_contents",
}  # fmt: skip
# their packed form on the wire is the tensor's own: no element becomes an object of Python
PACKED_ALIKE = frozenset({"BOOL", "FP32", "FP64"})


def pack_contents(name: str, row: Datatype, count: int, contents: Any) -> Buffer:
    """`count` elements of the list that belongs to the type; the others must be empty."""
    field = FIELDS.get(row.name)
    if field is None:
        raise invalid(f"input {name!r} is {row.name}, which has no typed contents: use raw_input_contents")
    wrong = [other.name for other, _ in contents.ListFields() if other.name != field]
    if wrong:
        raise invalid(f"input {name!r} is {row.name}, whose elements are in {field}, not in {wrong[0]}")
    elements = getattr(contents, field)
    if len(elements) != count:
        raise invalid(f"input {name!r} has {len(elements)} elements in {field}, its shape has {count}")
    if row.numpy is None:
        if count > MOST_STRINGS:
            raise invalid(f"input {name!r} has more than {MOST_STRINGS} strings: use raw_input_contents")
        return join_bytes(list(elements))
    if not count:
        return b""
    if row.name in PACKED_ALIKE:
        contents.DiscardUnknownFields()
        return memoryview(contents.SerializeToString())[-count * row.itemsize :]
    values = np.array(elements, np.uint64 if row.name == "UINT64" else np.int64)
    ends = np.iinfo(row.numpy)
    if values.min() < ends.min or values.max() > ends.max:
        raise invalid(f"input {name!r}: a number of {field} does not fit {row.name}")
    return values.astype(row.numpy).data.cast("B")
