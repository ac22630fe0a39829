"""ModelInferRequest → request, and answer → ModelInferResponse: every rule that needs no model."""

from __future__ import annotations

import struct
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from ridgeline.serve.datatypes import join_bytes
from ridgeline.serve.errors import Kind, RequestError
from ridgeline.serve.grpc import contents
from ridgeline.serve.grpc.codec import decode_request, encode_response, encode_stream_response
from ridgeline.serve.messages import InferResponse, Tensor, Wanted
from ridgeline.serve.protocol import messages
from ridgeline.serve.settings import HttpLimits

LIMITS = HttpLimits(body_bytes=2**16, tensors=4)
INT64, UINT64 = 2**63, 2**64


def request(
    datatype: str = "INT8", shape: tuple[int, ...] = (2,), raw: bytes | None = b"\1\2", **contents: Any
) -> Any:
    made = messages.ModelInferRequest(model_name="m")
    tensor = made.inputs.add(name="x", datatype=datatype, shape=shape)
    if raw is not None:
        made.raw_input_contents.append(raw)
    for name, values in contents.items():
        getattr(tensor.contents, name).extend(values)
    return made


def decode(made: Any) -> Any:
    return decode_request(made.SerializeToString(), LIMITS)


def refusal(made: Any) -> RequestError:
    with pytest.raises(RequestError) as caught:
        decode(made)
    return caught.value


def test_a_request_is_read_whole() -> None:
    made = request(datatype="FP16", shape=(1, 2), raw=b"abcd")
    made.model_version, made.id = "3", "req-1"
    made.outputs.add(name="y").parameters["classification"].int64_param = 5
    made.outputs.add(name="z").parameters["binary_data"].bool_param = True
    made.parameters["priority"].uint64_param = 2
    made.parameters["timeout"].int64_param = 1500
    made.parameters["mode"].string_param = "fast"
    made.parameters["gain"].double_param = 0.5
    made.parameters["large"].uint64_param = UINT64 - 1
    made.parameters["on"].bool_param = True
    got = decode(made)
    assert (got.model, got.version, got.id) == ("m", "3", "req-1")
    assert [(t.name, t.datatype, t.shape, bytes(t.data)) for t in got.inputs] == [
        ("x", "FP16", (1, 2), b"abcd")
    ]
    assert got.outputs == [Wanted("y", 5), Wanted("z")]
    assert (got.priority, got.timeout_us) == (2, 1500)
    assert got.parameters == {"mode": "fast", "gain": 0.5, "large": UINT64 - 1, "on": True}


def test_without_outputs_all_are_wanted() -> None:
    assert decode(request()).outputs is None


@pytest.mark.parametrize(
    ("field", "value"),
    [("int64_param", 7), ("uint64_param", 7), ("double_param", 7.0), ("string_param", "7")],
)
@pytest.mark.parametrize("name", ["priority", "timeout"])
def test_numbers_come_in_any_variant(name: str, field: str, value: Any) -> None:
    made = request()
    setattr(made.parameters[name], field, value)
    got = decode(made)
    assert (got.priority if name == "priority" else got.timeout_us) == 7


TYPED = {
    "BOOL": ("bool_contents", [True, False, True], "?"),
    "INT8": ("int_contents", [-128, 0, 127], "i1"),
    "INT16": ("int_contents", [-(2**15), 0, 2**15 - 1], "<i2"),
    "INT32": ("int_contents", [-(2**31), 0, 2**31 - 1], "<i4"),
    "INT64": ("int64_contents", [-INT64, 0, INT64 - 1], "<i8"),
    "UINT8": ("uint_contents", [0, 1, 255], "u1"),
    "UINT16": ("uint_contents", [0, 1, 2**16 - 1], "<u2"),
    "UINT32": ("uint_contents", [0, 1, 2**32 - 1], "<u4"),
    "UINT64": ("uint64_contents", [0, 1, UINT64 - 1], "<u8"),
    "FP32": ("fp32_contents", [1.5, float("-inf"), -0.0], "<f4"),
    "FP64": ("fp64_contents", [1.5, float("inf"), -0.0], "<f8"),
}


@pytest.mark.parametrize("datatype", TYPED)
def test_typed_contents_become_packed_bytes(datatype: str) -> None:
    field, values, numpy_type = TYPED[datatype]
    (tensor,) = decode(request(datatype, (3,), None, **{field: values})).inputs
    assert bytes(tensor.data) == np.array(values, numpy_type).tobytes()


def test_typed_nan_keeps_its_bits() -> None:
    quiet, signalling = b"\x01\x00\xc0\x7f", b"\x01\x00\x80\x7f"
    made = messages.ModelInferRequest.FromString(
        b"\x0a\x01m\x2a\x18\x0a\x01x\x12\x04FP32\x1a\x01\x02\x2a\x0a\x32\x08" + quiet + signalling
    )
    assert bytes(decode(made).inputs[0].data) == quiet + signalling


def test_typed_contents_with_a_field_from_the_future() -> None:
    made = request("FP32", (1,), None, fp32_contents=[2.0])
    made.inputs[0].contents.MergeFromString(b"\xa2\x06\x04late")  # field 100
    assert bytes(decode(made).inputs[0].data) == struct.pack("<f", 2.0)


def test_typed_bytes_and_raw_bytes_are_the_same() -> None:
    texts = [b"", b"a\0b", "é".encode()]
    typed = decode(request("BYTES", (3,), None, bytes_contents=texts)).inputs[0]
    raw = decode(request("BYTES", (3,), join_bytes(texts))).inputs[0]
    assert bytes(typed.data) == bytes(raw.data) == join_bytes(texts)


def test_more_typed_strings_than_lists_of_python_should_hold_are_refused(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(contents, "MOST_STRINGS", 2)
    decode(request("BYTES", (2,), None, bytes_contents=[b"a", b"b"]))
    assert "use raw_input_contents" in refusal(request("BYTES", (3,), None, bytes_contents=[b""] * 3)).message


def test_inputs_together_are_no_larger_than_a_body() -> None:
    """Each of these numbers is one byte of the message, and eight of the tensor."""
    made = request("INT64", (5000,), None, int64_contents=[1] * 5000)
    decode(made)
    made.inputs.append(made.inputs[0])
    made.inputs[1].name = "z"
    assert "'z': its shape is of more bytes" in refusal(made).message


@pytest.mark.parametrize("raw", [b"", None], ids=["raw", "typed"])
def test_a_tensor_of_no_elements(raw: bytes | None) -> None:
    (tensor,) = decode(request("FP32", (4, 0, 2), raw)).inputs
    assert (tensor.shape, bytes(tensor.data)) == ((4, 0, 2), b"")


def test_a_scalar_has_one_element() -> None:
    assert decode(request("BF16", (), b"\x80\x3f")).inputs[0].shape == ()


def changed(change: Callable[[Any], None], **fields: Any) -> Any:
    made = request(**fields)
    change(made)
    return made


def typed(datatype: str, count: int, **contents: Any) -> Any:
    return request(datatype, (count,), None, **contents)


def with_parameter(name: str, field: str, value: Any) -> Any:
    return changed(lambda made: setattr(made.parameters[name], field, value))


BAD = {
    "no inputs": (messages.ModelInferRequest(model_name="m"), "at least one input"),
    "unknown type": (request("FLOAT"), "datatype 'FLOAT', known: BOOL"),
    "negative dim": (request(shape=(-1,)), "a dim of its shape is not from 0"),
    "too few bytes": (request(raw=b"\1"), "unexpected size for input 'x': 1 bytes, .* need 2"),
    "too many bytes": (request(raw=b"\1\2\3"), "unexpected size for input 'x': 3 bytes"),
    "bytes, none expected": (request(shape=(0,)), "unexpected size"),
    "huge product": (request(shape=(2**62, 2**62)), "more bytes than this server takes"),
    "huge dims beside a zero": (request(shape=(0, 2**62), raw=b""), "more bytes than this server takes"),
    "more bytes than a body": (request("FP64", (2**13 + 1,)), "more bytes than this server takes"),
    "too many dims": (request(shape=(1,) * 33), "33 dims, at most 32"),
    "same input twice": (
        changed(lambda m: (m.inputs.append(m.inputs[0]), m.raw_input_contents.append(b"\1\2"))),
        "the name 'x' twice",
    ),
    "same output twice": (
        changed(lambda m: (m.outputs.add(name="y"), m.outputs.add(name="y"))), "the name 'y' twice",
    ),
    "too many inputs": (changed(lambda m: m.inputs.extend(m.inputs[:1] * 4)), "5 inputs, at most 4"),
    "too many outputs": (
        changed(lambda m: [m.outputs.add(name=str(at)) for at in range(5)]), "5 outputs, at most 4",
    ),
    "nameless input": (changed(lambda m: m.inputs[0].ClearField("name")), "names of 1 to"),
    "long id": (changed(lambda m: setattr(m, "id", "i" * 5000)), "at most 4096 characters"),
    "long parameter": (with_parameter("a", "string_param", "b" * 2**16), "at most 65536 characters"),
    "surplus raw": (changed(lambda m: m.raw_input_contents.append(b"")), "1 inputs and 2 raw_input_contents"),
    "missing raw": (
        changed(lambda m: m.inputs.add(name="z", datatype="INT8", shape=[2])), "2 inputs and 1 raw",
    ),
    "raw and typed": (request(int_contents=[1, 2]), "has contents, and the request has raw_input_contents"),
    "raw and empty typed": (
        changed(lambda m: m.inputs[0].contents.SetInParent()), "has contents, and the request has raw",
    ),
    "no contents": (request(raw=None), "0 elements in int_contents, its shape has 2"),
    "typed, too many": (typed("INT8", 1, int_contents=[1, 2]), "2 elements in int_contents, its shape has 1"),
    "typed, wrong list": (typed("INT8", 1, int64_contents=[1]), "in int_contents, not in int64_contents"),
    "typed, two lists": (
        typed("INT8", 1, int_contents=[1], fp32_contents=[1]), "in int_contents, not in fp32_contents",
    ),
    "typed FP16": (typed("FP16", 1, fp32_contents=[1]), "FP16, which has no typed contents"),
    "typed BF16": (typed("BF16", 1, fp32_contents=[1]), "BF16, which has no typed contents"),
    "typed, above": (typed("INT8", 1, int_contents=[128]), "does not fit INT8"),
    "typed, below": (typed("INT16", 1, int_contents=[-(2**15) - 1]), "does not fit INT16"),
    "typed, unsigned": (typed("UINT8", 1, uint_contents=[256]), "does not fit UINT8"),
    "BYTES cut": (request("BYTES", (2,), b"\1\0\0\0a\1\0\0\0"), "ends inside element 1 of 2"),
    "BYTES surplus": (request("BYTES", (1,), b"\1\0\0\0ab"), "1 bytes after its 1 elements"),
    "BYTES length beyond": (request("BYTES", (1,), b"\xff\xff\xff\xff"), "ends inside element 0"),
    "BYTES of many": (request("BYTES", (60000,), b"\0" * 8), "ends inside element 2 of 60000"),
    "BOOL of two": (request("BOOL", (2,), b"\0\2"), "neither 0 nor 1"),
    "negative priority": (with_parameter("priority", "int64_param", -1), "'priority' must be an integer"),
    "half a timeout": (with_parameter("timeout", "double_param", 0.5), "'timeout' must be an integer"),
    "timeout of nan": (with_parameter("timeout", "double_param", float("nan")), "'timeout' must be"),
    "timeout in words": (with_parameter("timeout", "string_param", "soon"), "'timeout' must be"),
    "priority of truth": (with_parameter("priority", "bool_param", True), "'priority' must be"),
    "reserved": (with_parameter("triton_x", "bool_param", True), "'triton_x' is reserved"),
    "headers": (with_parameter("headers", "string_param", "x"), "'headers' is reserved"),
    "empty parameter": (changed(lambda m: m.parameters["mode"].SetInParent()), "'mode' has no value"),
    "classes in words": (
        changed(
            lambda m: setattr(m.outputs.add(name="y").parameters["classification"], "string_param", "all")
        ),
        "'classification' must be an integer",
    ),
}  # fmt: skip


@pytest.mark.parametrize("what", BAD)
def test_a_request_that_is_wrong_is_refused(what: str) -> None:
    made, message = BAD[what]
    error = refusal(made)
    assert error.kind is Kind.INVALID
    with pytest.raises(RequestError, match=message):
        raise error


UNSERVED = {
    "sequence by number": with_parameter("sequence_id", "int64_param", 4),
    "sequence by name": with_parameter("sequence_id", "string_param", "talk"),
    "start": with_parameter("sequence_start", "bool_param", True),
    "end": with_parameter("sequence_end", "bool_param", True),
    "input in shared memory": changed(
        lambda m: setattr(m.inputs[0].parameters["shared_memory_region"], "string_param", "r")
    ),
    "output in shared memory": changed(
        lambda m: setattr(m.outputs.add(name="y").parameters["shared_memory_region"], "string_param", "r")
    ),
}


@pytest.mark.parametrize("what", UNSERVED)
def test_what_is_not_served_says_so(what: str) -> None:
    assert refusal(UNSERVED[what]).kind is Kind.UNSUPPORTED


@pytest.mark.parametrize(
    ("name", "field", "value"),
    [
        ("sequence_id", "int64_param", 0),
        ("sequence_id", "string_param", ""),
        ("sequence_start", "bool_param", False),
        ("sequence_end", "bool_param", False),
        (
            "triton_enable_empty_final_response",
            "bool_param",
            False,
        ),  # of every request of Triton's C++ client
        ("triton_enable_empty_final_response", "bool_param", True),
    ],
)
def test_what_clients_send_without_meaning_it_is_taken(name: str, field: str, value: Any) -> None:
    assert decode(with_parameter(name, field, value)).parameters == {}


@pytest.mark.parametrize("body", [b"\xff", b"\x0a\x05m", b"\x0a\x01\xff", b"\x1b\x08\x01\x1c" * 20000])
def test_bytes_that_are_no_message(body: bytes) -> None:
    with pytest.raises(RequestError, match="no ModelInferRequest") as caught:
        decode_request(body, LIMITS)
    assert caught.value.kind is Kind.INVALID


def answer() -> InferResponse:
    nan = b"\x01\x00\x80\x7f\x00\x00\x80\xff"
    outputs = [
        Tensor("logits", "FP32", (1, 2), memoryview(nan)),
        Tensor("none", "BF16", (0, 3), b""),
        Tensor("long", "UINT8", (300,), bytearray(300)),
        Tensor("cast", "INT32", (2,), np.arange(2, dtype="<i4").data),
    ]
    return InferResponse("m", "12", "id", outputs, {"a": 1, "b": -0.5, "c": "x", "d": True, "e": UINT64 - 1})


def test_an_answer_has_one_raw_content_for_each_output() -> None:
    got = messages.ModelInferResponse.FromString(encode_response(answer()))
    assert (got.model_name, got.model_version, got.id) == ("m", "12", "id")
    assert [(each.name, each.datatype, tuple(each.shape)) for each in got.outputs] == [
        ("logits", "FP32", (1, 2)), ("none", "BF16", (0, 3)),
        ("long", "UINT8", (300,)), ("cast", "INT32", (2,)),
    ]  # fmt: skip
    assert list(got.raw_output_contents) == [bytes(each.data) for each in answer().outputs]
    values = {name: value.WhichOneof("parameter_choice") for name, value in got.parameters.items()}
    assert values == {
        "a": "int64_param", "b": "double_param", "c": "string_param", "d": "bool_param", "e": "uint64_param",
    }  # fmt: skip
    assert got.parameters["e"].uint64_param == UINT64 - 1


def test_an_answer_in_a_stream_is_the_same() -> None:
    got = messages.ModelStreamInferResponse.FromString(encode_stream_response(answer()))
    assert got.infer_response.SerializeToString(deterministic=True) == messages.ModelInferResponse.FromString(
        encode_response(answer())
    ).SerializeToString(deterministic=True)
    assert not got.error_message
