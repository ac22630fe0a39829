"""The client of the protocol: addresses, tensors, answers good and bad, against a server that obeys."""

from __future__ import annotations

import json
from pathlib import Path

import ml_dtypes
import numpy as np
import pytest
from protocol_stand_in import StandIn, stand_in

from ridgeline.errors import InputError, OptionError
from ridgeline.serve.clients.address import Address, parse_address
from ridgeline.serve.clients.client import Client, ServerError, error_text
from ridgeline.serve.clients.tensors import (
    ModelInfo,
    TensorInfo,
    from_json,
    model_info,
    random_arrays,
    to_array,
    to_tensor,
)
from ridgeline.serve.clients.wire import infer_body, model_path, read_answer
from ridgeline.serve.datatypes import DATATYPES
from ridgeline.serve.messages import Tensor

INFER = "/v2/models/add_one/infer"


def full(scheme: str, place: str) -> str:
    """A URL. The repository's own files hold none."""
    return f"{scheme}:" + f"//{place}"


@pytest.mark.parametrize(
    ("text", "address"),
    [
        ("localhost:8000", Address("localhost", 8000)),
        ("localhost", Address("localhost", 8000)),
        ("9000", Address("127.0.0.1", 9000)),
        (":9000", Address("127.0.0.1", 9000)),
        ("[::1]:9000", Address("::1", 9000)),
        (full("http", "localhost:80/"), Address("localhost", 80)),
        (full("HTTPS", "host"), Address("host", 8000, tls=True)),
        (full("grpc", "host:1"), Address("host", 1)),
    ],
)
def test_addresses_as_users_write_them(text: str, address: Address) -> None:
    assert parse_address(text) == address


def test_another_protocol_has_another_port() -> None:
    assert parse_address("localhost", port=8001) == Address("localhost", 8001)
    assert str(Address("::1", 9)) == "[::1]:9"


@pytest.mark.parametrize("text", ["", full("ftp", "a"), "a:b", "a:70000", "a/v2", "user@a", "a b", "a?x"])
def test_what_is_no_address_is_refused(text: str) -> None:
    with pytest.raises(OptionError, match="no address of a server"):
        parse_address(text)


@pytest.mark.parametrize("name", [name for name in DATATYPES if name not in ("BYTES", "BF16")])
def test_tensors_are_the_bytes_of_arrays(name: str) -> None:
    array = np.arange(6).reshape(2, 3).astype(DATATYPES[name].numpy)
    tensor = to_tensor(TensorInfo("x", name, (-1, 3)), array[:, ::-1])
    assert bytes(tensor.data) == array[:, ::-1].tobytes()
    back = to_array(tensor)
    assert back.dtype == array.dtype
    np.testing.assert_array_equal(back, array[:, ::-1])


def test_another_type_is_refused() -> None:
    for dtype in ("float64", ">f4", "int32"):
        with pytest.raises(InputError, match=r"(?s)another type.*want  float32"):
            to_tensor(TensorInfo("x", "FP32", (3,)), np.zeros(3, dtype))


def test_texts_travel_with_their_lengths() -> None:
    info = TensorInfo("x", "BYTES", (-1,))
    tensor = to_tensor(info, np.array(["ab", "", "µ"]))
    assert bytes(tensor.data) == b"\x02\0\0\0ab\0\0\0\0\x02\0\0\0\xc2\xb5"
    assert to_array(tensor).tolist() == [b"ab", b"", "µ".encode()]


def test_bfloat16_is_rounded_as_others_round_it() -> None:
    info = TensorInfo("x", "BF16", (-1,))
    values = np.random.default_rng(0).normal(size=2000).astype(np.float32)
    values[:6] = [0.0, -0.0, np.inf, -np.inf, np.nan, 3.4e38]
    rounded = values.astype(ml_dtypes.bfloat16)
    assert bytes(to_tensor(info, values).data)[10:] == rounded.tobytes()[10:]
    assert bytes(to_tensor(info, rounded).data) == rounded.tobytes()
    back = to_array(to_tensor(info, rounded))
    np.testing.assert_array_equal(back, rounded.astype(np.float32))
    quiet = np.array([0x7F800001, 0x7FFFFFFF], np.uint32).view(np.float32)  # not a number only by low bits
    assert np.isnan(to_array(to_tensor(info, np.append(values[4], quiet)))).all()


@pytest.mark.parametrize("shape", [(3,), (0, 2**40, 2**40)])
def test_data_of_the_wrong_length_is_refused(shape: tuple[int, ...]) -> None:
    with pytest.raises(ValueError, match="8 bytes for FP32"):
        to_array(Tensor("y", "FP32", shape, b"\0" * 8))


def test_texts_are_counted_before_there_is_room_for_them() -> None:
    """The array of a thousand million objects would take 8 GB."""
    with pytest.raises(ValueError, match="4 bytes for 1000000000 elements"):
        to_array(Tensor("y", "BYTES", (10**9,), b"\0" * 4))


def test_random_arrays_are_not_endless() -> None:
    with pytest.raises(OptionError, match=r"(?s)too large for random values.*--shapes a="):
        random_arrays(_info(("a", "FP32", (2**40, 2**40))), {}, shapes={}, batch=None, seed=0)


def test_json_data_takes_the_type_of_the_input() -> None:
    assert from_json(TensorInfo("x", "INT32", (-1, 2)), [[1, 2]]).dtype == np.int32
    assert from_json(TensorInfo("x", "FP32", (2, 2)), [1, 2, 3, 4]).shape == (2, 2)
    assert from_json(TensorInfo("x", "BYTES", (-1,)), ["a"]).dtype == object
    for bad in ("word", [1, [2]], [2**70], {}):
        with pytest.raises(InputError, match="data of input 'x' does not read"):
            from_json(TensorInfo("x", "INT32", (-1,)), bad)


def _info(*ports: tuple[str, str, tuple[int, ...]]) -> ModelInfo:
    return ModelInfo("m", ("1",), "", tuple(TensorInfo(*port) for port in ports), ())


def test_random_arrays_fit_the_metadata() -> None:
    info = _info(("a", "FP32", (-1, 3)), ("b", "INT64", (-1,)), ("c", "BYTES", (2,)), ("d", "BF16", (1,)))
    made = random_arrays(info, {}, shapes={}, batch=4, seed=1)
    assert {name: array.shape for name, array in made.items()} == {
        "a": (4, 3),
        "b": (4,),
        "c": (2,),
        "d": (1,),
    }
    assert set(made["b"].tolist()) <= {0, 1}
    for port in info.inputs:
        to_tensor(port, made[port.name])
    again = random_arrays(info, {}, shapes={}, batch=4, seed=1)
    assert all(np.array_equal(made[name], again[name]) for name in made)


def test_random_arrays_are_as_long_as_given_ones() -> None:
    info = _info(("a", "FP32", (-1, 3)), ("b", "FP32", (-1, -1)))
    given = {"a": np.zeros((5, 3), np.float32)}
    assert random_arrays(info, given, shapes={"b": (5, 9)}, batch=None, seed=0)["b"].shape == (5, 9)
    with pytest.raises(OptionError, match=r"(?s)dims of any size.*--shapes b=5x16"):
        random_arrays(info, given, shapes={}, batch=None, seed=0)
    with pytest.raises(OptionError, match="no input 'z'"):
        random_arrays(info, {"z": np.zeros(1)}, shapes={}, batch=None, seed=0)


def test_paths_hold_no_character_of_their_own() -> None:
    assert model_path("a b/c", "2", "infer") == "/v2/models/a%20b%2Fc/versions/2/infer"


def test_a_request_is_the_protocol_s() -> None:
    length, body = infer_body(
        [Tensor("x", "UINT8", (2,), b"\1\2")], outputs=["y"], parameters={"k": 1}, id="7"
    )
    assert json.loads(body[:length]) == {
        "id": "7",
        "inputs": [{"name": "x", "shape": [2], "datatype": "UINT8", "parameters": {"binary_data_size": 2}}],
        "outputs": [{"name": "y", "parameters": {"binary_data": True}}],
        "parameters": {"k": 1, "binary_data_output": True},
    }
    assert body[length:] == b"\1\2"


def test_answers_in_json_are_read_as_well() -> None:
    told = {"model_name": "m", "outputs": [{"name": "y", "datatype": "INT8", "shape": [2], "data": [1, -1]}]}
    answer = read_answer(json.dumps(told).encode(), None)
    assert to_array(answer.outputs[0]).tolist() == [1, -1]


def _output(**parts: object) -> dict[str, object]:
    return {"model_name": "m", "outputs": [{"name": "y", "datatype": "FP32", "shape": [1], **parts}]}


@pytest.mark.parametrize(
    "told",
    [
        {},
        {"outputs": [{}]},
        {"outputs": 5, "model_name": "m"},
        _output(parameters={"binary_data_size": 4}),
        _output(parameters={"binary_data_size": -4}),
        _output(parameters={"binary_data_size": 0.0}),
        _output(datatype="FP99", data=[1]),
        _output(datatype="FP99", parameters={"binary_data_size": 0}),
        _output(datatype=["FP32"], data=[1]),
        _output(shape=["a"], data=[1]),
        _output(shape=[1.0], data=[1]),
        _output(shape=[-1], data=[1]),
        _output(shape=[True], data=[1]),
        _output(shape=[2**63], data=[1]),
        _output(shape=[1] * 65, data=[1]),
        _output(shape="1", data=[1]),
        _output(name=1, data=[1]),
        _output(data=["word"]),
        _output(data={}),
        [],
    ],
)  # fmt: skip
def test_what_is_no_answer_is_an_error(told: object) -> None:
    with pytest.raises(ValueError, match=r"no answer|left|unknown type|dim of the size|the shape|name|data"):
        read_answer(json.dumps(told).encode(), None)


DEEP = b"[" * 100_000 + b"]" * 100_000


def test_json_that_is_nested_deeply_is_no_answer() -> None:
    with pytest.raises(ValueError, match="nested too deeply"):
        read_answer(DEEP, None)
    assert error_text(DEEP, 500).startswith("the server answered with status 500: [[[")


@pytest.mark.parametrize("length", [-1, 3])
def test_the_json_of_an_answer_is_not_longer_than_the_answer(length: int) -> None:
    with pytest.raises(ValueError, match="the whole answer has 2"):
        read_answer(b"{}", length)


def test_metadata_is_checked() -> None:
    for told in (None, [], {"name": "m"}, {"name": "m", "inputs": [{"name": "x"}], "outputs": []}):
        with pytest.raises(ValueError, match="no metadata of a model"):
            model_info(told)
    for row, message in (
        ({"datatype": "FP8", "shape": []}, "unknown type"),
        ({"datatype": "FP32", "shape": [float("inf")]}, "a dim of the size inf"),
        ({"datatype": "FP32", "shape": [-2]}, "a dim of the size -2"),
        ({"datatype": "FP32", "shape": [2.5]}, r"a dim of the size 2\.5"),
        ({"datatype": "FP32", "shape": None}, "has the shape None"),
    ):
        with pytest.raises(ValueError, match=message):
            model_info({"name": "m", "outputs": [], "inputs": [{"name": "x", **row}]})
    texts = {"name": "x", "datatype": "FP32", "shape": ["-1", "3"]}  # as protobuf's own JSON has them
    assert model_info({"name": "m", "outputs": [], "inputs": [texts]}).inputs[0].shape == (-1, 3)


def test_one_connection_serves_many_calls() -> None:
    with stand_in() as server, Client(server.url, headers={"X-Team": "search"}) as client:
        x = np.ones((2, 3), np.float32)
        assert client.is_live()
        assert client.is_ready("add_one")
        for _ in range(3):
            np.testing.assert_array_equal(client.infer("add_one", {"x": x})["y"], x + 1)
        assert client.statistics("add_one")["model_stats"][0]["inference_count"] == 3
        assert client.metadata("add_one").inputs == (TensorInfo("x", "FP32", (-1, 3)),)
        assert [path for _, path, _, _ in server.seen].count("/v2/models/add_one") == 1
        assert all(headers["x-team"] == "search" for _, _, headers, _ in server.seen)
        assert server.connections == 1


def _fails(server: StandIn, match: str, status: int) -> None:
    with Client(server.url) as client, pytest.raises(ServerError, match=match) as caught:
        client.infer("add_one", {"x": np.ones((1, 3), np.float32)})
    assert caught.value.status == status


def test_the_server_s_message_is_the_error() -> None:
    with stand_in() as server:
        server.replies[INFER] = 503, {}, b'{"error": "queue is full\\u001b[2J"}'
        _fails(server, r"^queue is full\\x1b", 503)
        server.replies[INFER] = 502, {}, b"<html>bad gateway"
        _fails(server, "status 502: <html>bad gateway", 502)
        server.replies[INFER] = 500, {}, b""
        _fails(server, "the server answered with status 500$", 500)


def test_answers_that_do_not_read_are_errors() -> None:
    with stand_in() as server:
        server.replies[INFER] = 200, {}, b"not json"
        _fails(server, "does not read", 0)
        server.replies[INFER] = 200, {"Inference-Header-Content-Length": "many"}, b"{}"
        _fails(server, "does not read", 0)
        server.replies[INFER] = b"HTTP/1.1 200 OK\r\nContent-Length: 50\r\n\r\n{}"
        _fails(server, "no answer from", 0)
        server.replies[INFER] = b"SSH-2.0\r\n"
        _fails(server, "no answer from", 0)
        server.replies[INFER] = b"HTTP/1.1 200 OK\r\nContent-Length: 99999999999999999999\r\n\r\n{}"
        _fails(server, "no answer from", 0)
        server.replies[INFER] = 200, {}, DEEP
        _fails(server, "nested too deeply", 0)
        server.replies[INFER] = 500, {}, DEEP
        _fails(server, r"status 500: \[\[\[", 500)
        server.replies["/v2/models/add_one"] = 200, {}, DEEP
        _fails(server, "is no JSON", 0)
        server.replies["/v2/models/add_one"] = 200, {}, b"{}"
        _fails(server, "no metadata of a model", 0)


def test_no_server_is_an_error_with_a_way_out() -> None:
    with Client("127.0.0.1:1") as client:
        assert not client.is_live()
        with pytest.raises(ServerError, match=r"(?s)no answer from 127.0.0.1:1.*refused.*ridge serve"):
            client.metadata("m")


def test_a_question_is_asked_again_if_the_connection_was_closed_meanwhile() -> None:
    with stand_in(close_after=1, closes_unsaid=True) as server, Client(server.url) as client:
        for _ in range(3):
            assert client.statistics("add_one")["model_stats"]
        assert server.connections == 3
    with Client(server.url) as client, pytest.raises(ServerError, match="refused"):
        client.statistics("add_one")


def test_an_inference_is_asked_once() -> None:
    """The server may have computed it."""
    with stand_in(close_after=1, closes_unsaid=True) as server:
        _fails(server, "no answer from", 0)
        assert server.answered == 0


def test_a_host_that_is_no_name_is_an_error() -> None:
    with Client("a..b:1") as client, pytest.raises(ServerError, match="no answer from"):
        client.metadata("m")


def test_a_wrong_certificate_file_is_told(tmp_path: Path) -> None:
    (tmp_path / "ca.pem").write_text("nothing")
    with pytest.raises(OptionError, match=r"ca\.pem"):
        Client(full("https", "localhost"), ca=tmp_path / "ca.pem")
