"""Answers as bodies: JSON or binary as asked, and classification."""

from __future__ import annotations

import json
from math import inf, nan
from typing import Any

import numpy as np
import pytest

from ridgeline.serve.classify import classify
from ridgeline.serve.codec.answer import AS_BINARY, AS_JSON, AnswerForm, encode_response, is_slow_to_encode
from ridgeline.serve.datatypes import split_bytes
from ridgeline.serve.errors import Kind, RequestError
from ridgeline.serve.messages import InferResponse, Parameter, Tensor

A = Tensor("a", "FP32", (1, 2), np.array([1, 2.5], np.float32).tobytes())
B = Tensor("b", "INT8", (1,), memoryview(b"\x07"))
EMPTY = Tensor("e", "FP32", (0,), b"")


def response(*outputs: Tensor, id: str = "", parameters: dict[str, Parameter] | None = None) -> InferResponse:
    return InferResponse("m", "3", id, list(outputs), parameters or {})


def told(tensor: Tensor, **more: Any) -> dict[str, Any]:
    return {"name": tensor.name, "datatype": tensor.datatype, "shape": list(tensor.shape), **more}


def test_all_json_has_no_header_length() -> None:
    encoded = encode_response(response(A, B, id="7", parameters={"p": 1, "q": nan}), AS_JSON)
    assert encoded.header_length is None
    assert json.loads(encoded.body) == {
        "id": "7", "model_name": "m", "model_version": "3", "parameters": {"p": 1, "q": "nan"},
        "outputs": [told(A, data=[1.0, 2.5]), told(B, data=[7])],
    }  # fmt: skip


def test_an_answer_without_an_id_has_none() -> None:
    assert set(json.loads(encode_response(response(A), AS_JSON).body)) == {
        "model_name", "model_version", "outputs",
    }  # fmt: skip


def test_binary_outputs_follow_in_their_order() -> None:
    encoded = encode_response(response(B, EMPTY, A), AS_BINARY)
    at = encoded.header_length
    assert at is not None
    sizes = [each["parameters"]["binary_data_size"] for each in json.loads(encoded.body[:at])["outputs"]]
    assert sizes == [1, 0, 8]
    assert encoded.body[at:] == b"\x07" + bytes(A.data)


def test_each_output_has_the_form_that_was_asked_for() -> None:
    encoded = encode_response(response(A, B), AnswerForm(names=frozenset({"b"})))
    at = encoded.header_length
    assert at is not None
    outputs = json.loads(encoded.body[:at])["outputs"]
    assert outputs == [told(A, data=[1.0, 2.5]), told(B, parameters={"binary_data_size": 1})]
    assert encoded.body[at:] == b"\x07"


def test_only_empty_binary_outputs_need_no_header_length() -> None:
    # a client that finds sizes above 0 without the header fails, one that finds 0 does not
    encoded = encode_response(response(EMPTY), AS_BINARY)
    assert encoded.header_length is None
    assert json.loads(encoded.body)["outputs"] == [told(EMPTY, parameters={"binary_data_size": 0})]


def test_long_json_is_written_off_the_loop() -> None:
    large = Tensor("l", "UINT8", (100_000,), bytes(100_000))
    assert is_slow_to_encode(response(large), AS_JSON)
    assert not is_slow_to_encode(response(large), AS_BINARY)
    assert not is_slow_to_encode(response(A), AS_JSON)


def classes(tensor: Tensor, count: int, *labels: str, has_batch: bool = True) -> tuple[Any, list[bytes]]:
    best = classify(tensor, count, labels, has_batch=has_batch)
    assert best.datatype == "BYTES"
    return best.shape, split_bytes(memoryview(best.data), int(np.prod(best.shape)))


def scores(dtype: str, *rows: list[float], datatype: str = "FP32") -> Tensor:
    array = np.array(rows, dtype)
    return Tensor("y", datatype, array.shape, array.tobytes())


def test_classes_are_the_best_elements_of_each_row() -> None:
    shape, texts = classes(scores("<f4", [0.5, 2, -1], [3, nan, 3]), 2, "cat", "dog")
    assert shape == (2, 2)
    assert texts == [b"2.000000:1:dog", b"0.500000:0:cat", b"3.000000:0:cat", b"3.000000:2"]


def test_classes_are_at_most_the_elements() -> None:
    assert classes(scores("<f4", [1, 2]), 99)[0] == (1, 2)
    shape, texts = classes(scores("<f4", [nan, 2]), 99, has_batch=False)
    assert shape == (2,)
    assert texts == [b"2.000000:1", b"nan:0"]


@pytest.mark.parametrize(("datatype", "dtype"), [("UINT8", "u1"), ("INT64", "<i8"), ("UINT64", "<u8")])
def test_integers_are_classified_as_integers(datatype: str, dtype: str) -> None:
    ends = np.iinfo(dtype)
    table = np.array([[ends.min, ends.max, 5]], dtype)
    assert classes(Tensor("y", datatype, (1, 3), table.tobytes()), 3)[1] == [
        f"{ends.max}:1".encode(),
        *([b"5:2", f"{ends.min}:0".encode()]),
    ]


def test_bf16_and_fp16_are_classified() -> None:
    bits = np.array([[0x3F80, 0x4000]], "<u2")  # 1, 2
    assert classes(Tensor("y", "BF16", (1, 2), bits.tobytes()), 1)[1] == [b"2.000000:1"]
    assert classes(scores("<f2", [1, 2], datatype="FP16"), 1)[1] == [b"2.000000:1"]


@pytest.mark.parametrize("datatype", ["BYTES", "BOOL"])
def test_what_has_no_order_is_not_classified(datatype: str) -> None:
    with pytest.raises(RequestError):
        classify(Tensor("y", datatype, (1, 1), b"\0"), 1, has_batch=True)


@pytest.mark.parametrize("count", [1, 3, 20, 59, 60, 99])
@pytest.mark.parametrize("dtype", ["<f4", "u1"])
def test_of_equal_elements_the_first_comes_first(count: int, dtype: str) -> None:
    values = [float(each % 7) for each in range(0, 600, 10)]
    if dtype == "<f4":
        values[3:60:9] = [nan, -inf, inf, nan, -inf, inf, nan]
    keys = [-inf if each != each else each for each in values]
    best = sorted(range(60), key=lambda at: (-keys[at], at))[:count]
    datatype = "FP32" if dtype == "<f4" else "UINT8"
    _, texts = classes(scores(dtype, values, datatype=datatype), count)
    assert [int(each.split(b":")[1]) for each in texts] == best


def test_too_many_classes_are_an_error() -> None:
    many = Tensor("y", "UINT8", (2, 6000), bytes(12000))
    with pytest.raises(RequestError, match="12000 classes, at most 10000") as caught:
        classify(many, 2**62, has_batch=True)
    assert caught.value.kind is Kind.INVALID
    assert classes(many, 5000)[0] == (2, 5000)
