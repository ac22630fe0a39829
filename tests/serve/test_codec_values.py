"""Elements as JSON and as bytes: every type both ways, in pieces, and what has no JSON form."""

from __future__ import annotations

import json
import tracemalloc
from math import inf, nan
from typing import Any

import numpy as np
import pytest

from ridgeline.serve.codec.codec import decode_request
from ridgeline.serve.codec.values import PIECE_ELEMENTS, check_packed, pack_json, to_json
from ridgeline.serve.datatypes import DATATYPES, join_bytes
from ridgeline.serve.errors import Kind, RequestError
from ridgeline.serve.messages import Tensor
from ridgeline.serve.settings import HttpLimits

ENDS = {
    name: [int(np.iinfo(row.numpy).min), 0, int(np.iinfo(row.numpy).max)]
    for name, row in DATATYPES.items()
    if row.numpy is not None and row.numpy.kind in "iu" and row.has_json
}
VALUES: dict[str, list[Any]] = ENDS | {
    "BOOL": [True, False, True],
    "FP32": [1.5, -0.0, float(np.float32(3.4e38))],
    "FP64": [0.1, 1e308, 5e-324],
    "BYTES": ["", "a,\"[]{}\\\n", "日本\0"],
}  # fmt: skip


def pack(name: str, data: Any, count: int) -> bytes:
    text = data if isinstance(data, bytes) else json.dumps(data).encode()
    return bytes(pack_json("x", DATATYPES[name], count, text))


@pytest.mark.parametrize("name", [name for name, row in DATATYPES.items() if row.has_json])
def test_each_type_goes_both_ways(name: str) -> None:
    values = VALUES[name]
    packed = pack(name, values, len(values))
    row = DATATYPES[name]
    if row.numpy is not None:
        assert packed == np.array(values, row.numpy).tobytes()
    else:
        assert packed == join_bytes([each.encode() for each in values])
    assert pack(name, [[[each]] for each in values], len(values)) == packed
    assert json.loads(to_json(Tensor("y", name, (len(values),), packed))) == values


@pytest.mark.parametrize("name", ["FP16", "BF16"])
def test_types_without_json_say_how_else(name: str) -> None:
    with pytest.raises(RequestError, match="binary") as caught:
        to_json(Tensor("y", name, (1,), b"\0\0"))
    assert caught.value.kind is Kind.INVALID


def test_texts_that_are_no_utf8_say_how_else() -> None:
    with pytest.raises(RequestError, match="binary"):
        to_json(Tensor("y", "BYTES", (1,), join_bytes([b"\xff"])))


@pytest.mark.parametrize("name", ["FP32", "FP64"])
def test_what_is_not_finite_never_becomes_null(name: str) -> None:
    values = np.array([1, nan, inf, -inf], DATATYPES[name].numpy)
    text = to_json(Tensor("y", name, (4,), values.tobytes()))
    assert text == b"[1.0,NaN,Infinity,-Infinity]"
    # as the one value in the last of several pieces
    many = np.zeros(3 * PIECE_ELEMENTS, DATATYPES[name].numpy)
    many[-1] = inf
    read = json.loads(to_json(Tensor("y", name, many.shape, many.tobytes())))
    assert read == many.tolist()


def test_numbers_that_are_not_finite_are_read() -> None:
    document = {
        "inputs": [{"name": "x", "shape": [2, 2], "datatype": "FP32", "data": [[1, nan], [inf, -inf]]}]
    }
    body = json.dumps(document).encode()
    request, _ = decode_request(body, None, model="m", version="", limits=HttpLimits())
    assert np.array_equal(
        np.frombuffer(request.inputs[0].data, np.float32), [1, nan, inf, -inf], equal_nan=True
    )
    with pytest.raises(RequestError, match="FP32: Expected `float`"):
        decode_request(body.replace(b"1,", b"true,"), None, model="m", version="", limits=HttpLimits())
    with pytest.raises(RequestError, match="INT32"):
        decode_request(body.replace(b"FP32", b"INT32"), None, model="m", version="", limits=HttpLimits())
    with pytest.raises(RequestError):
        decode_request(body.replace(b"Infinity", b"true"), None, model="m", version="", limits=HttpLimits())
    padded = body + b" " * 2**20  # the parser that reads it is slow
    with pytest.raises(RequestError, match="no JSON"):
        decode_request(padded, None, model="m", version="", limits=HttpLimits())


@pytest.mark.parametrize("name", ["INT64", "FP32", "FP64", "BOOL"])
@pytest.mark.parametrize("columns", [0, 7])
def test_long_lists_are_read_and_written_in_pieces(name: str, columns: int) -> None:
    values = np.arange(7 * PIECE_ELEMENTS).astype(DATATYPES[name].numpy)
    nested = values.reshape(-1, columns) if columns else values
    text = json.dumps(nested.tolist()).encode()
    assert pack(name, text, values.size) == values.tobytes()
    for wrong in (values.size - 1, values.size + 1):
        with pytest.raises(RequestError, match="elements"):
            pack(name, text, wrong)
    assert json.loads(to_json(Tensor("y", name, nested.shape, values.tobytes()))) == values.tolist()


@pytest.mark.parametrize("text", [b"[]", b"[[],[]]", b"[[[ ], [\n]]]"])
def test_no_elements_have_any_nesting(text: bytes) -> None:
    assert pack("FP32", text, 0) == b""
    assert pack("BYTES", text, 0) == b""
    assert to_json(Tensor("y", "FP32", (0, 3), b"")) == b"[]"
    assert to_json(Tensor("y", "BYTES", (0,), b"")) == b"[]"


def test_more_strings_than_lists_of_python_should_hold_are_refused() -> None:
    with pytest.raises(RequestError, match="binary"):
        pack("BYTES", b"[" + b'"",' * (2**20) + b'""]', 2**20 + 1)


def test_packed_strings_are_checked_without_being_made() -> None:
    count = 20_000
    data = memoryview(join_bytes([b"ab"] * count))
    tracemalloc.start()
    check_packed("x", DATATYPES["BYTES"], count, data)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 10_000
    for wrong, what in ((data[:-1], "ends inside element 19999"), (data[:-3], "ends inside element 19999")):
        with pytest.raises(RequestError, match=what):
            check_packed("x", DATATYPES["BYTES"], count, wrong)
    with pytest.raises(RequestError, match="6 bytes after its 19999 elements"):
        check_packed("x", DATATYPES["BYTES"], count - 1, data)
