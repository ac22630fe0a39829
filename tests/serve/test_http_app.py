"""What is asked for over HTTP, and answered in the protocol's own forms."""

from __future__ import annotations

import gzip
import json
import logging
import zlib
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from http_rig import Rig, running

from ridgeline.serve.settings import HttpLimits

X = {"name": "x", "shape": [1, 2], "datatype": "FP32", "data": [1.5, -2]}
BINARY = {"name": "x", "shape": [1, 2], "datatype": "FP32", "parameters": {"binary_data_size": 8}}
BLOB = np.array([1.5, -2], "<f4").tobytes()


@pytest.fixture(scope="module")
def rig() -> Iterator[Rig]:
    with running(HttpLimits(body_bytes=10**6), admin=True, metrics=True) as served:
        yield served


@pytest.fixture(autouse=True)
def lives(request: pytest.FixtureRequest) -> Iterator[None]:
    yield
    if "rig" in request.fixturenames:
        request.getfixturevalue("rig").check_alive()


@pytest.mark.parametrize(
    ("path", "verb", "arguments"),
    [
        ("/v2", "server_metadata", {}),
        ("/v2/models/echo", "model_metadata", {"name": "echo", "version": ""}),
        ("/v2/models/echo/versions/12", "model_metadata", {"name": "echo", "version": "12"}),
        ("/v2/models/echo/config", "model_config", {"name": "echo", "version": ""}),
        ("/v2/models/echo/versions/1/config", "model_config", {"name": "echo", "version": "1"}),
        ("/v2/models/%65cho/stats", "statistics", {"name": "echo", "version": ""}),
        ("/v2/models/echo/versions/1/stats", "statistics", {"name": "echo", "version": "1"}),
        ("/v2/models/stats", "statistics", {"name": "", "version": ""}),
        ("/v2/ridgeline/status", "status", {}),
        ("/v2/ridgeline/status?since=3", "status", {}),
        ("/v2/logging", "log_settings", {"settings": {}}),
    ],
)
def test_a_question_is_asked_and_answered(rig: Rig, path: str, verb: str, arguments: dict[str, Any]) -> None:
    response, body = rig.ask("GET", path)
    assert response.status == 200
    assert response.headers["Content-Type"] == "application/json"
    assert json.loads(body) is not None
    assert rig.service.asked[-1] == (verb, arguments)
    head, nothing = rig.ask("HEAD", path)
    assert (head.status, head.headers["Content-Length"], nothing) == (200, str(len(body)), b"")


@pytest.mark.parametrize(
    ("path", "body", "verb", "arguments"),
    [
        ("/v2/repository/index", "", "index", {"ready": False}),
        ("/v2/repository/index", '{"ready":true,"more":1}', "index", {"ready": True}),
        ("/v2/repository/models/echo/load", "", "load", {"name": "echo", "config": ""}),
        (
            "/v2/repository/models/echo/load", '{"parameters":{"config":"{}"},"other":1}', "load",
            {"name": "echo", "config": "{}"},
        ),
        ("/v2/repository/models/echo/unload", "", "unload", {"name": "echo", "dependents": False}),
        (
            "/v2/repository/models/echo/unload", '{"parameters":{"unload_dependents":true}}', "unload",
            {"name": "echo", "dependents": True},
        ),
        (
            "/v2/logging", '{"log_verbose_level":1}', "log_settings",
            {"settings": {"log_verbose_level": 1}},
        ),
    ],
)  # fmt: skip
def test_an_order_is_given(rig: Rig, path: str, body: str, verb: str, arguments: dict[str, Any]) -> None:
    response, answer = rig.ask("POST", path, body.encode())
    assert response.status == 200
    json.loads(answer)
    assert rig.service.asked[-1] == (verb, arguments)


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/v2/repository/index", "[]"),
        ("/v2/repository/index", '{"ready":1}'),
        ("/v2/repository/index", "[" * 5000),
        ("/v2/repository/index", "\x00"),
        ("/v2/repository/models/echo/load", '{"parameters":{"config":{}}}'),
        ("/v2/repository/models/echo/load", '{"parameters":[]}'),
        ("/v2/repository/models/echo/load", '{"parameters":{"config":"{}","other":1}}'),
        ("/v2/repository/models/echo/unload", '{"parameters":{"other":true}}'),
        ("/v2/repository/models/echo/unload", '{"parameters":{"unload_dependents":"yes"}}'),
        ("/v2/logging", '["log_info"]'),
    ],
)
def test_a_wrong_order_is_refused(rig: Rig, path: str, body: str) -> None:
    asked = len(rig.service.asked)
    response, answer = rig.ask("POST", path, body.encode())
    assert response.status == 400
    assert json.loads(answer)["error"]
    assert len(rig.service.asked) == asked


@pytest.mark.parametrize("path", ["/v2/repository/index", "/v2/repository/models/echo/load"])
def test_an_upgrade_with_a_body_in_chunks_asks_for_nothing(rig: Rig, path: str) -> None:
    asked = len(rig.service.asked)
    head = f"POST {path} HTTP/1.1\r\nHost: localhost\r\nConnection: Upgrade\r\nUpgrade: h2c\r\n"
    answer = rig.raw(head.encode() + b"Transfer-Encoding: chunked\r\n\r\n2\r\n{}\r\n0\r\n\r\n")
    assert answer.startswith(b"HTTP/1.1 400")
    assert answer.count(b"HTTP/1.1") == 1
    assert len(rig.service.asked) == asked


def test_files_of_a_model_are_not_taken_from_requests(rig: Rig) -> None:
    body = b'{"parameters":{"config":"{}","file:1/model.onnx":"AAAA"}}'
    response, _ = rig.ask("POST", "/v2/repository/models/echo/load", body)
    assert response.status == 501


def test_health_is_json_with_200_or_400(rig: Rig) -> None:
    for path, good in (
        ("/v2/health/live", {"live": True}),
        ("/v2/health/ready", {"ready": True}),
        ("/v2/models/echo/ready", {"name": "echo", "ready": True}),
    ):
        response, body = rig.ask("GET", path)
        assert (response.status, json.loads(body)) == (200, good)
    rig.service.is_ready = False
    try:
        for path, bad in (
            ("/v2/health/ready", {"ready": False}),
            ("/v2/models/echo/versions/1/ready", {"name": "echo", "ready": False}),
        ):
            response, body = rig.ask("GET", path)
            assert (response.status, json.loads(body)) == (400, bad)
    finally:
        rig.service.is_ready = True


def test_metrics_are_text(rig: Rig) -> None:
    response, body = rig.ask("GET", "/metrics")
    assert (response.status, body) == (200, b"nv_inference_count 1\n")
    assert response.headers["Content-Type"].startswith("text/plain; version=0.0.4")


def test_inference_in_json_and_in_binary(rig: Rig) -> None:
    assert rig.infer({"id": "7", "inputs": [X]}) == (
        200,
        {"id": "7", "model_name": "echo", "model_version": "1", "outputs": [X]},
    )
    status, answer, blob = rig.infer_binary(
        {"inputs": [BINARY], "outputs": [{"name": "x", "parameters": {"binary_data": True}}]}, BLOB
    )
    assert (status, blob) == (200, BLOB)
    assert answer["outputs"][0]["parameters"] == {"binary_data_size": 8}
    status, answer, blob = rig.infer_binary({"inputs": [BINARY]}, BLOB)
    assert (status, answer["outputs"], blob) == (200, [X], b"")


def test_headers_of_an_answer_follow_its_form(rig: Rig) -> None:
    body = json.dumps({"inputs": [X], "parameters": {"binary_data_output": True}}).encode()
    response, answer = rig.ask("POST", "/v2/models/echo/infer", body)
    assert response.headers["Content-Type"] == "application/octet-stream"
    assert answer[int(response.headers["Inference-Header-Content-Length"]) :] == BLOB
    response, answer = rig.ask("POST", "/v2/models/echo/infer", json.dumps({"inputs": [X]}).encode())
    assert response.headers["Content-Type"] == "application/json"
    assert response.headers["Inference-Header-Content-Length"] is None


def test_large_json_goes_both_ways(rig: Rig) -> None:
    data = list(range(60_000))
    tensor = {"name": "x", "shape": [60_000], "datatype": "INT32", "data": data}
    released = rig.service.released
    assert rig.infer({"inputs": [tensor]})[1]["outputs"] == [tensor]
    assert rig.infer({"inputs": [tensor | {"data": data[1:]}]})[0] == 400
    rig.wait(f"rig.service.released == {released + 1}")


def test_numbers_that_are_not_finite_come_as_numbers(rig: Rig) -> None:
    document = {"inputs": [X | {"data": [float("nan"), float("inf")]}]}
    _, answer = rig.ask("POST", "/v2/models/echo/infer", json.dumps(document).encode())
    assert b"[NaN,Infinity]" in answer


def test_an_output_without_a_json_form_is_an_error_after_which_it_is_released(rig: Rig) -> None:
    released = rig.service.released
    half = BINARY | {"datatype": "FP16", "parameters": {"binary_data_size": 4}}
    status, answer, _ = rig.infer_binary({"inputs": [half]}, b"\0" * 4)
    assert status == 400
    assert "binary" in answer["error"]
    assert rig.service.released == released + 1


def test_a_raw_body_is_the_only_input_of_its_model(rig: Rig) -> None:
    headers = {"Inference-Header-Content-Length": "0"}
    response, answer = rig.ask("POST", "/v2/models/raw/infer", BLOB, headers)
    assert response.status == 200
    assert answer.endswith(BLOB)
    assert rig.service.requests[-1].inputs[0].shape == (1, 1, 2)
    response, answer = rig.ask("POST", "/v2/models/echo/infer", BLOB, headers)
    assert response.status == 400
    response, answer = rig.ask("POST", "/v2/models/missing/infer", BLOB, headers)
    assert response.status == 404


@pytest.mark.parametrize(("encoding", "pack"), [("gzip", gzip.compress), ("deflate", zlib.compress)])
def test_compressed_bodies_are_read(rig: Rig, encoding: str, pack: Any) -> None:
    header = json.dumps({"inputs": [BINARY]}).encode()
    # of the JSON as it was, which may be longer than what is sent
    headers = {"Content-Encoding": encoding, "Inference-Header-Content-Length": str(len(header))}
    response, answer = rig.ask("POST", "/v2/models/echo/infer", pack(header + BLOB), headers)
    assert response.status == 200
    assert json.loads(answer)["outputs"] == [X]


def test_answers_are_never_compressed(rig: Rig) -> None:
    headers = {"Accept-Encoding": "gzip, deflate, br"}
    response, _ = rig.ask("POST", "/v2/models/echo/infer", json.dumps({"inputs": [X]}).encode(), headers)
    assert response.headers["Content-Encoding"] is None


def test_classes_are_asked_for_over_http(rig: Rig) -> None:
    outputs = [{"name": "x", "parameters": {"classification": 1}}]
    status, answer = rig.infer({"inputs": [X], "outputs": outputs})
    assert status == 200
    assert answer["outputs"][0]["data"] == ["1.500000:0:cat"]


TRACE = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"


@pytest.mark.parametrize(
    ("given", "kept"),
    [(TRACE, TRACE), (TRACE.upper(), ""), ("x" * 500, ""), ("", ""), (f"00-{'0' * 32}-{'1' * 16}-01", "")],
)
def test_a_traceparent_goes_with_the_request(rig: Rig, given: str, kept: str) -> None:
    rig.infer({"inputs": [X]}, traceparent=given)
    assert rig.service.requests[-1].trace == kept


def test_a_full_queue_says_when_to_come_again(rig: Rig) -> None:
    response, body = rig.ask("POST", "/v2/models/full/infer", json.dumps({"inputs": [X]}).encode())
    assert (response.status, response.headers["Retry-After"]) == (503, "1")
    assert json.loads(body) == {"error": "Exceeds maximum queue size"}


def test_our_own_faults_are_told_to_the_log_alone(rig: Rig, caplog: pytest.LogCaptureFixture) -> None:
    status, answer = rig.infer({"inputs": [X]}, model="broken")
    assert (status, answer) == (500, {"error": "internal error"})
    assert "KeyError: '/a/path/of/the/server'" in caplog.text


def test_the_access_log_has_a_line_for_each_request(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "ridgeline.serve.access_log")
    with running(access_log=True) as rig:
        rig.infer({"inputs": [X]})
        rig.ask("GET", "/v2/nothing")
    records = [each for each in caplog.records if each.name == "ridgeline.serve.access_log"]
    told = [(each.getMessage(), each.__dict__["status"], each.__dict__["client"]) for each in records]
    assert told == [("POST /v2/models/echo/infer", 200, "127.0.0.1"), ("GET /v2/nothing", 404, "127.0.0.1")]
    first = records[0].__dict__
    assert first["received_bytes"] == len(json.dumps({"inputs": [X]}))
    assert first["sent_bytes"] > 0
    assert 0 < first["duration_ms"] < 10_000


def test_servers_of_others_may_run_the_app(rig: Rig) -> None:
    """Ray's asks for a lifespan; paths come with a prefix, and without a raw path."""

    def drive(scope: dict[str, Any], *messages: dict[str, Any]) -> list[dict[str, Any]]:
        sent: list[dict[str, Any]] = []
        waiting = list(messages)

        async def receive() -> dict[str, Any]:
            return waiting.pop(0)

        async def send(message: dict[str, Any]) -> None:
            sent.append(message)

        rig.run(rig.app(scope, receive, send))
        return sent

    kinds = [{"type": "lifespan.startup"}, {"type": "lifespan.shutdown"}]
    assert drive({"type": "lifespan"}, *kinds) == [
        {"type": "lifespan.startup.complete"}, {"type": "lifespan.shutdown.complete"},
    ]  # fmt: skip
    assert drive({"type": "websocket"}, {"type": "websocket.connect"}) == [{"type": "websocket.close"}]
    about = {
        "type": "http",
        "method": "GET",
        "path": "/served/v2/health/live",
        "root_path": "/served",
        "headers": [],
    }
    assert drive(about)[0]["status"] == 200
    start, body = drive(about | {"raw_path": b"/served/v2/models/%65cho"})
    assert (start["status"], json.loads(body["body"])["name"]) == (200, "echo")
    left = drive(about | {"method": "POST", "path": "/v2/models/echo/infer"}, {"type": "http.disconnect"})
    assert left == [], "nobody reads an answer"
