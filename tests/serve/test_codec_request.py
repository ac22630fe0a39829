"""Bodies of inference requests: what they say, and each way in which one can be wrong."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from ridgeline.serve.codec.answer import AnswerForm
from ridgeline.serve.codec.codec import decode_request, is_slow_to_decode
from ridgeline.serve.codec.raw import decode_raw
from ridgeline.serve.errors import Kind, RequestError
from ridgeline.serve.messages import InferRequest
from ridgeline.serve.settings import HttpLimits

LIMITS = HttpLimits(body_bytes=10_000, tensors=4, json_depth=20)
X = {"name": "x", "shape": [2], "datatype": "INT32", "data": [1, 2]}
BINARY = {"name": "x", "shape": [2], "datatype": "INT32", "parameters": {"binary_data_size": 8}}


def decode(
    document: Any, blobs: bytes | None = None, limits: HttpLimits = LIMITS
) -> tuple[InferRequest, AnswerForm]:
    header = document if isinstance(document, bytes) else json.dumps(document).encode()
    length = None if blobs is None else len(header)
    return decode_request(header + (blobs or b""), length, model="m", version="3", limits=limits)


def refusal(document: Any, blobs: bytes | None = None) -> RequestError:
    with pytest.raises(RequestError) as caught:
        decode(document, blobs)
    return caught.value


def only_input(request: InferRequest, dtype: str) -> list[Any]:
    return np.frombuffer(request.inputs[0].data, dtype).tolist()


def test_a_json_request_has_everything_that_it_says() -> None:
    request, form = decode(
        {
            "id": "a7", "unknown": {"x": [1]},
            "parameters": {"priority": 2, "timeout": 1500, "mine": "v", "sequence_id": 0},
            "inputs": [X, {"name": "y", "shape": [1, 2], "datatype": "BYTES", "data": [["a", "é"]]}],
            "outputs": [
                {"name": "p", "parameters": {"binary_data": True}},
                {"name": "q", "parameters": {"classification": 3}},
            ],
        }
    )  # fmt: skip
    assert (request.model, request.version, request.id) == ("m", "3", "a7")
    assert (request.priority, request.timeout_us, dict(request.parameters)) == (2, 1500, {"mine": "v"})
    assert only_input(request, "<i4") == [1, 2]
    assert bytes(request.inputs[1].data) == b"\x01\0\0\0a\x02\0\0\0\xc3\xa9"
    assert request.inputs[1].shape == (1, 2)
    assert request.outputs is not None
    assert [(each.name, each.classes) for each in request.outputs] == [("p", 0), ("q", 3)]
    assert (form.has_binary("p"), form.has_binary("q")) == (True, False)


def test_binary_tensors_follow_the_header_in_the_order_of_the_inputs() -> None:
    parameters = {"binary_data_size": 2}
    document = {
        "inputs": [
            BINARY,
            {"name": "j", "shape": [1], "datatype": "BOOL", "data": [True]},
            {"name": "h", "shape": [1], "datatype": "FP16", "parameters": parameters},
            {"name": "e", "shape": [0, 4], "datatype": "FP32", "parameters": {"binary_data_size": 0}},
        ]
    }
    request, _ = decode(document, b"\x01\0\0\0\x02\0\0\0\x00\x3c")
    assert only_input(request, "<i4") == [1, 2]
    assert [bytes(each.data) for each in request.inputs[1:]] == [b"\x01", b"\x00\x3c", b""]
    assert isinstance(request.inputs[0].data, memoryview), "binary data is not copied"


@pytest.mark.parametrize(
    ("outputs", "parameters", "is_binary"),
    [
        (None, {}, False),
        (None, {"binary_data_output": True}, True),
        ([], {"binary_data_output": True}, True),
        ([{"name": "y"}], {"binary_data_output": True}, False),
        ([{"name": "y", "parameters": {"binary_data": True}}], {}, True),
        ([{"name": "y", "parameters": {"binary_data": False}}], {}, False),
    ],
)
def test_which_outputs_are_binary(outputs: Any, parameters: dict[str, Any], is_binary: bool) -> None:
    document = {"inputs": [X], "parameters": parameters}
    _, form = decode(document if outputs is None else document | {"outputs": outputs})
    assert form.has_binary("y") == is_binary


def with_input(**changes: Any) -> dict[str, Any]:
    return {"inputs": [{name: value for name, value in (X | changes).items() if value is not None}]}


NAN_INPUT = b'{"name":"x","shape":[1],"datatype":"FP32","data":[NaN]}'
BAD_JSON = {
    "empty": b"",
    "no object": b"[]",
    "text": b'"x"',
    "cut": b'{"inputs":[{"name":"x"',
    "two documents": json.dumps({"inputs": [X]}).encode() * 2,
    "no UTF-8": b'{"inputs":[{"name":"\xff","shape":[1],"datatype":"INT8","data":[1]}]}',
    "half a surrogate": b'{"inputs":[{"name":"\\ud800","shape":[1],"datatype":"INT8","data":[1]}]}',
    "UTF-16": json.dumps({"inputs": [X]}).encode("utf-16"),
    "deep": b'{"x":' + b"[" * 30 + b"]" * 30 + b"}",
    "very deep": b"[" * 250_000,
    "deep with objects": b'{"x":' * 5000,
    "closers first": b"]" * 100 + b"[" * 100,
    "NaN in place of all": b"NaN",
    "NaN as inputs": b'{"inputs":NaN}',
    "NaN and no UTF-8": b'{"inputs":NaN,"x":"\xff"}',
    "NaN beside half a surrogate as id": b'{"id":"\\ud800","inputs":[%s]}' % NAN_INPUT,
    "NaN beside half a surrogate as output": b'{"outputs":[{"name":"\\udfff"}],"inputs":[%s]}' % NAN_INPUT,
    "NaN beside half a surrogate as parameter": b'{"parameters":{"a":"\\ud800"},"inputs":[%s]}' % NAN_INPUT,
    "NaN beside half a surrogate as name of a parameter": (
        b'{"parameters":{"\\ud800":1},"inputs":[%s]}' % NAN_INPUT
    ),
    "NaN beside a number of many digits": b'{"parameters":{"a":%s},"inputs":[%s]}' % (b"9" * 400, NAN_INPUT),
    "NaN as a shape": b'{"inputs":[{"name":"x","shape":[NaN],"datatype":"FP32","data":[1]}]}',
}
BAD = {
    "deep where nobody looks": {"inputs": [X], "unknown": json.loads("[" * 21 + "]" * 21)},
    "no inputs": {},
    "inputs are no list": {"inputs": {}},
    "inputs are empty": {"inputs": []},
    "input is no object": {"inputs": [1]},
    "no name": with_input(name=None),
    "empty name": with_input(name=""),
    "long name": with_input(name="n" * 2000),
    "number as name": with_input(name=3),
    "null as name": {"inputs": [X | {"name": None}]},
    "no datatype": with_input(datatype=None),
    "unknown datatype": with_input(datatype="INT4"),
    "lower case datatype": with_input(datatype="int32"),
    "no shape": with_input(shape=None),
    "number as shape": with_input(shape=2),
    "negative dim": with_input(shape=[-1]),
    "negative dims whose product fits": with_input(shape=[-1, -2]),
    "float as dim": with_input(shape=[2.0]),
    "boolean as dim": with_input(shape=[True]),
    "text as dim": with_input(shape=["2"]),
    "huge dim": with_input(shape=[2**63 - 1]),
    "dim beyond 64 bits": with_input(shape=[2**64]),
    "dim that wraps to 2": with_input(shape=[2**64 + 2]),
    "dim of many digits": with_input(shape=[10**400]),
    "product that wraps to 2": with_input(shape=[2**63, 2, 2]),
    "zero hides a huge dim": with_input(shape=[0, 2**64], data=[]),
    "zero hides a huge product": with_input(shape=[0, 2**62], data=[]),
    "too many dims": with_input(shape=[1] * 40, data=[1]),
    "no data": with_input(data=None),
    "null as data": {"inputs": [X | {"data": None}]},
    "number as data": with_input(data=5),
    "object as data": with_input(data={"a": 1}),
    "text as data": with_input(data="1,2"),
    "too few": with_input(data=[1]),
    "too many": with_input(data=[1, 2, 3]),
    "none": with_input(data=[]),
    "some where the shape has none": with_input(shape=[0], data=[1]),
    "empty lists inside": with_input(data=[[1], []]),
    "float as integer": with_input(data=[1, 2.5]),
    "boolean as integer": with_input(data=[1, True]),
    "text as integer": with_input(data=[1, "2"]),
    "commas in a text": with_input(data=["1,2"]),
    "object among integers": with_input(data=[1, {"a": 2}]),
    "null among integers": with_input(data=[1, None]),
    "beyond the type": with_input(data=[1, 2**31]),
    "below the type": with_input(data=[1, -(2**31) - 1]),
    "beyond 64 bits": with_input(datatype="UINT64", data=[1, 2**64]),
    "negative without a sign": with_input(datatype="UINT64", data=[1, -1]),
    "FP16 as JSON": with_input(datatype="FP16", data=[1.0, 2.0]),
    "BF16 as JSON": with_input(datatype="BF16", data=[1.0, 2.0]),
    "beyond FP32": with_input(datatype="FP32", data=[1.0, 1e39]),
    "beyond FP64": b'{"inputs":[{"name":"x","shape":[1],"datatype":"FP64","data":[1e400]}]}',
    "number as text": with_input(datatype="BYTES", data=["a", 2]),
    "list in place of a text": with_input(datatype="BYTES", data=["a", [["b"], 3]]),
    "number as truth": with_input(datatype="BOOL", data=[True, 1]),
    "the same name twice": {"inputs": [X, X]},
    "too many inputs": {"inputs": [X | {"name": f"x{i}"} for i in range(5)]},
    "too many outputs": {"inputs": [X], "outputs": [{"name": f"y{i}"} for i in range(5)]},
    "the same output twice": {"inputs": [X], "outputs": [{"name": "y"}, {"name": "y"}]},
    "output without a name": {"inputs": [X], "outputs": [{}]},
    "outputs are no list": {"inputs": [X], "outputs": "y"},
    "binary_data is a number": {"inputs": [X], "outputs": [{"name": "y", "parameters": {"binary_data": 1}}]},
    "classes below 0": {"inputs": [X], "outputs": [{"name": "y", "parameters": {"classification": -1}}]},
    "number as id": {"inputs": [X], "id": 7},
    "long id": {"inputs": [X], "id": "i" * 5000},
    "list as parameter": {"inputs": [X], "parameters": {"a": [1]}},
    "null as parameter": {"inputs": [X], "parameters": {"a": None}},
    "parameters are no object": {"inputs": [X], "parameters": [1]},
    "too many parameters": {"inputs": [X], "parameters": {f"p{i}": i for i in range(300)}},
    "long parameter": {"inputs": [X], "parameters": {"a": "b" * 2**16}},
    "long names of parameters": {"inputs": [X], "parameters": {"a" * 2**15: 1, "b" * 2**15: "c"}},
    "parameter beyond 64 bits": {"inputs": [X], "parameters": {"a": 2**64}},
    "reserved parameter": {"inputs": [X], "parameters": {"triton_enable_empty_final_response": True}},
    "reserved headers": {"inputs": [X], "parameters": {"headers": "x"}},
    "negative priority": {"inputs": [X], "parameters": {"priority": -1}},
    "float as timeout": {"inputs": [X], "parameters": {"timeout": 1.5}},
    "boolean as timeout": {"inputs": [X], "parameters": {"timeout": True}},
    "text as binary_data_output": {"inputs": [X], "parameters": {"binary_data_output": "yes"}},
    "binary without the header": {"inputs": [BINARY]},
}  # fmt: skip


@pytest.mark.parametrize("document", [*BAD_JSON.values(), *BAD.values()], ids=[*BAD_JSON, *BAD])
def test_what_is_wrong_is_refused(document: Any) -> None:
    error = refusal(document)
    assert error.kind is Kind.INVALID
    assert error.message


def binary(size: Any = 8, **changes: Any) -> dict[str, Any]:
    return {"inputs": [BINARY | {"parameters": {"binary_data_size": size}} | changes]}


BAD_BINARY = {
    "short": (binary(), b"\0" * 7),
    "long": (binary(), b"\0" * 9),
    "size and type differ": (binary(4), b"\0" * 4),
    "beyond the body": (binary(2**62), b"\0" * 8),
    "negative size": (binary(-8), b"\0" * 8),
    "float size": (binary(8.0), b"\0" * 8),
    "boolean size": (binary(True), b"\0" * 8),
    "data as well": (binary(data=[1, 2]), b"\0" * 8),
    "no size": ({"inputs": [X]}, b"\0" * 8),
    "BOOL of 2": (binary(2, datatype="BOOL"), b"\x01\x02"),
    "BYTES without a length": (binary(3, datatype="BYTES", shape=[1]), b"abc"),
    "BYTES whose length is too long": (binary(6, datatype="BYTES", shape=[1]), b"\xff\xff\xff\xffab"),
    "BYTES with a rest": (binary(6, datatype="BYTES", shape=[1]), b"\x01\0\0\0ab"),
    "BYTES of too few": (binary(5, datatype="BYTES"), b"\x01\0\0\0a"),
    "BYTES of huge count": (binary(8, datatype="BYTES", shape=[10_000]), b"\0" * 8),
}


@pytest.mark.parametrize(("document", "blobs"), BAD_BINARY.values(), ids=BAD_BINARY)
def test_wrong_binary_data_is_refused(document: Any, blobs: bytes) -> None:
    assert refusal(document, blobs).kind is Kind.INVALID


@pytest.mark.parametrize(
    "document",
    [
        {"inputs": [X], "parameters": {"sequence_id": 1}},
        {"inputs": [X], "parameters": {"sequence_id": "a"}},
        {"inputs": [X], "parameters": {"sequence_start": True}},
        with_input(parameters={"shared_memory_region": "r"}),
        {"inputs": [X], "outputs": [{"name": "y", "parameters": {"shared_memory_region": "r"}}]},
    ],
)
def test_what_is_not_served_is_said_to_be(document: Any) -> None:
    error = refusal(document)
    assert error.kind is Kind.UNSUPPORTED
    assert "'r'" not in error.message, "names of regions are nobody's business"


def test_a_surrogate_pair_beside_nan_is_a_character() -> None:
    request, _ = decode(b'{"id":"\\ud83d\\ude00","inputs":[%s]}' % NAN_INPUT)
    assert request.id == "\U0001f600"


def test_a_header_longer_than_the_body_is_refused() -> None:
    with pytest.raises(RequestError, match="the body has 2 bytes"):
        decode_request(b"{}", 3, model="m", version="", limits=LIMITS)


def test_all_tensors_together_are_bounded_before_they_are_made() -> None:
    half = X | {"shape": [5000], "datatype": "UINT8", "data": [0] * 5000}
    decode({"inputs": [half, half | {"name": "y"}]})
    assert refusal({"inputs": [half, half | {"name": "y"}, X | {"name": "z"}]}).kind is Kind.INVALID
    # ten thousand FP64 are 80 kB, of 20 kB of JSON
    assert refusal(with_input(shape=[9000], datatype="FP64", data=[1] * 9000)).kind is Kind.INVALID


def test_large_json_and_strings_are_parsed_off_the_loop() -> None:
    small, large = b"x" * 100, b"x" * 100_000
    assert not is_slow_to_decode(small, None)
    assert is_slow_to_decode(large, None)
    assert not is_slow_to_decode(large, 100)
    assert is_slow_to_decode(b'"BYTES"' + large, 100)


def test_a_raw_body_is_the_only_input() -> None:
    def raw(
        body: bytes, max_batch: int, *inputs: tuple[str, list[Any]]
    ) -> tuple[str, tuple[int, ...], bytes]:
        config = {
            "max_batch_size": max_batch,
            "input": [{"name": "x", "data_type": kind, "dims": dims} for kind, dims in inputs],
        }
        request, form = decode_raw(body, config, model="m", version="")
        assert form.has_binary("any")
        return request.inputs[0].datatype, request.inputs[0].shape, bytes(request.inputs[0].data)

    assert raw(b"\0" * 24, 8, ("TYPE_FP32", [-1, 2])) == ("FP32", (1, 3, 2), b"\0" * 24)
    assert raw(b"\0" * 8, 0, ("TYPE_INT64", ["1"])) == ("INT64", (1,), b"\0" * 8)
    assert raw(b"hello", 8, ("TYPE_STRING", [1])) == ("BYTES", (1, 1), b"\x05\0\0\0hello")
    for body, inputs in (
        (b"\0" * 25, [("TYPE_FP32", [-1, 2])]),
        (b"\0" * 8, [("TYPE_FP32", [-1, -1])]),
        (b"\0" * 8, [("TYPE_FP32", [-1, 0])]),
        (b"\0" * 8, [("TYPE_FP32", [1]), ("TYPE_FP32", [1])]),
        (b"\0" * 8, []),
        (b"hello", [("TYPE_STRING", [2])]),
        (b"", [("TYPE_FP32", [2])]),
    ):
        with pytest.raises(RequestError):
            raw(body, 8, *inputs)


def test_a_size_beyond_the_body_is_told_as_such() -> None:
    assert "the body has 7 bytes left" in refusal(binary(), b"\0" * 7).message


def test_limits_are_the_servers() -> None:
    document = {"inputs": [X | {"name": f"x{i}"} for i in range(5)]}
    request, _ = decode(document, limits=replace(LIMITS, tensors=5))
    assert len(request.inputs) == 5
