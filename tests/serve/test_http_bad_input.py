"""Bodies over HTTP that are too large, too slow, cut or packed wrongly. The server lives after each."""

from __future__ import annotations

import gzip
import json
import socket
import struct
import time
import zlib
from collections.abc import Iterator
from typing import Any

import pytest
from http_rig import Rig, read_all, running

from ridgeline.serve.http.exchange import SMALL_REST
from ridgeline.serve.settings import HttpLimits

LIMIT = 200_000
X = {"name": "x", "shape": [1, 2], "datatype": "FP32", "data": [1.5, -2]}
BODY = json.dumps({"inputs": [X]}).encode()
POST = b"POST /v2/models/echo/infer HTTP/1.1\r\nHost: a\r\n"


@pytest.fixture(scope="module")
def rig() -> Iterator[Rig]:
    with running(HttpLimits(body_bytes=LIMIT, body_seconds=0.3)) as served:
        yield served


@pytest.fixture(autouse=True)
def lives(rig: Rig) -> Iterator[None]:
    yield
    rig.check_alive()


def error_of(answer: bytes) -> tuple[int, str]:
    """Status and message of the one answer in `answer`."""
    head, _, body = answer.partition(b"\r\n\r\n")
    return int(head.split(b" ")[1]), json.loads(body)["error"]


def sized(body: bytes, size: int | None = None) -> bytes:
    return POST + b"Content-Length: %d\r\n\r\n" % (len(body) if size is None else size) + body


def chunked(*chunks: bytes, end: bytes = b"0\r\n\r\n") -> bytes:
    parts = b"".join(b"%x\r\n%s\r\n" % (len(chunk), chunk) for chunk in chunks)
    return POST + b"Transfer-Encoding: chunked\r\n\r\n" + parts + end


def test_a_body_that_says_it_is_too_large_is_not_read(rig: Rig) -> None:
    assert error_of(rig.one(sized(b"", 10**15)))[0] == 413
    assert error_of(rig.one(sized(b"x" * 1000, LIMIT + 1)))[0] == 413


def test_a_client_that_sends_on_still_sees_why(rig: Rig) -> None:
    answer = rig.one(sized(b" " * (5 * LIMIT)))
    assert error_of(answer)[0] == 413
    assert b"connection: close" in answer


def test_a_body_that_grows_too_large_is_stopped(rig: Rig) -> None:
    answer = rig.one(chunked(*[b" " * 50_000] * 5))
    assert error_of(answer)[0] == 413
    assert b"connection: close" in answer


def test_a_body_of_the_most_bytes_is_taken(rig: Rig) -> None:
    status, _ = rig.infer(BODY + b" " * (LIMIT - len(BODY)))
    assert status == 200
    status, answer = rig.infer(BODY + b" " * (LIMIT - len(BODY) + 1))
    assert status == 413
    assert str(LIMIT) in answer["error"]


@pytest.mark.parametrize(
    "sent",
    [sized(BODY[:-5], len(BODY)), sized(b"", 5), chunked(BODY[:20], end=b""), chunked(BODY, end=b"")],
    ids=["short", "none", "chunks stop", "no last chunk"],
)
def test_a_body_that_does_not_end_is_given_up(rig: Rig, sent: bytes) -> None:
    began = time.monotonic()
    answer = rig.raw(sent)
    assert error_of(answer)[0] == 408
    assert b"connection: close" in answer
    assert 0.25 < time.monotonic() - began < 5


def test_a_body_byte_by_byte_is_given_up(rig: Rig) -> None:
    with rig.socket() as connection:
        connection.sendall(POST + b"Content-Length: 1000\r\n\r\n")
        connection.settimeout(0.02)
        answer = b""
        for _ in range(200):
            try:
                connection.sendall(b" ")
                answer += connection.recv(1000)
            except TimeoutError:
                continue
            except ConnectionError:
                break
            if not answer:
                continue
            break
        assert error_of(answer)[0] == 408


def test_a_head_byte_by_byte_is_given_up(rig: Rig) -> None:
    with rig.socket() as connection:
        began = time.monotonic()
        connection.sendall(b"GET /v2/health/live HTTP/1.1\r\n")
        connection.settimeout(0.05)
        answer = b""
        while not answer and time.monotonic() < began + 5:
            try:
                connection.sendall(b"a: b\r\n")
                answer = connection.recv(1000)
            except TimeoutError:
                continue
        assert error_of(answer)[0] == 408


def test_a_connection_that_says_nothing_is_closed(rig: Rig) -> None:
    began = time.monotonic()
    assert rig.raw(b"") == b""
    assert time.monotonic() - began < 5


@pytest.mark.parametrize(
    "length", ["-1", "abc", "1e2", "0x5", "999999", "9" * 25, "1 2", "", "٣".encode().decode("latin-1")]
)
def test_a_wrong_header_length_is_refused(rig: Rig, length: str) -> None:
    status, answer, _ = rig.infer_binary({"inputs": [X]}, b"", length)
    assert status == 400
    assert "Inference-Header-Content-Length" in answer["error"]


@pytest.mark.parametrize("off", [-3, -1, 1, 3])
def test_a_header_length_that_is_off_is_refused(rig: Rig, off: int) -> None:
    document = {"inputs": [X | {"data": None, "parameters": {"binary_data_size": 8}}]}
    del document["inputs"][0]["data"]
    length = len(json.dumps(document)) + off
    assert rig.infer_binary(document, b"\0" * 8, str(length))[0] == 400


def test_two_header_lengths_are_refused(rig: Rig) -> None:
    one = b"Inference-Header-Content-Length: %d\r\n"
    head = POST + one % len(BODY) + one % 5 + b"Connection: close\r\nContent-Length: %d\r\n\r\n" % len(BODY)
    assert error_of(rig.raw(head + BODY))[0] == 400


def test_a_gzip_bomb_is_stopped(rig: Rig) -> None:
    bomb = gzip.compress(b" " * 20_000_000, 1)
    assert len(bomb) < LIMIT
    response, answer = rig.ask("POST", "/v2/models/echo/infer", bomb, {"Content-Encoding": "gzip"})
    assert response.status == 413
    assert json.loads(answer)["error"]


@pytest.mark.parametrize(
    ("encoding", "body", "status"),
    [
        ("gzip", BODY, 400),
        ("gzip", gzip.compress(BODY, mtime=0)[:-4], 400),
        ("deflate", gzip.compress(BODY, mtime=0), 400),
        ("deflate", zlib.compress(BODY) + b"x", 400),
        ("gzip", b"", 400),
        ("br", BODY, 501),
        ("gzip, gzip", gzip.compress(gzip.compress(BODY, mtime=0), mtime=0), 501),
        ("\xff", BODY, 501),
    ],
)
def test_wrong_compression_is_refused(rig: Rig, encoding: str, body: bytes, status: int) -> None:
    response, answer = rig.ask("POST", "/v2/models/echo/infer", body, {"Content-Encoding": encoding})
    assert response.status == status
    assert json.loads(answer)["error"]
    assert response.headers["Accept-Encoding"] == ("gzip, deflate" if status == 501 else None)


@pytest.mark.parametrize(
    "body",
    [
        b"", b"\0" * 100, b"[" * 100_000, b'{"inputs":' * 20_000, b"\xff\xfe", b"null", b"1e999", BODY + BODY,
        b'{"inputs":[{"name":"x","shape":[9999999999999],"datatype":"FP32","data":[1]}]}',
        b'{"inputs":[{"name":"x","shape":[4294967296,4294967296],"datatype":"FP32","data":[]}]}',
        b'{"inputs":[' + b'{"name":"x","shape":[1],"datatype":"FP32","data":[1]},' * 2000 + b"{}]}",
        b'{"id":"\\ud800","inputs":[{"name":"x","shape":[1],"datatype":"FP32","data":[NaN]}]}',
        json.dumps({"inputs": [X], "parameters": {"a": "b" * 2**16}}).encode(),
    ],
    ids=["nothing", "zeros", "deep lists", "deep objects", "no UTF-8", "null", "infinity", "two", "huge",
         "overflow", "many", "half a surrogate beside NaN", "long parameter"],
)  # fmt: skip
def test_hostile_json_is_refused(rig: Rig, body: bytes) -> None:
    status, answer = rig.infer(body)
    assert (status, set(answer)) == (400, {"error"})


@pytest.mark.parametrize(
    "path",
    ["/v2/models/missing/infer", "/v2/models/../infer", "/v2/nothing", "/v2/repository/models/echo/load"],
)
def test_a_refusal_before_the_body_leaves_nothing_for_the_next_request(rig: Rig, path: str) -> None:
    smuggled = b"GET /v2/health/live HTTP/1.1\r\nHost: a\r\n\r\n"
    for size in (len(smuggled), SMALL_REST + 1):
        body = smuggled.ljust(size, b" ")
        head = b"POST %s HTTP/1.1\r\nHost: a\r\nContent-Length: %d\r\n\r\n" % (path.encode(), size)
        last = b"GET /v2/health/ready HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n"
        answer = rig.raw(head + body + last)
        assert b'"live"' not in answer
        # small rests are skipped, with large ones the connection is closed
        assert (b'"ready"' in answer) == (size <= SMALL_REST or path.endswith("missing/infer"))


def test_clients_that_reset_in_their_body_are_forgotten(rig: Rig) -> None:
    for _ in range(20):
        with rig.socket() as connection:
            connection.sendall(sized(BODY[:-5], len(BODY)))
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    rig.wait("not rig.server.connections")


def test_a_client_that_says_it_sends_no_more_gets_what_it_asked_for_or_nothing(rig: Rig) -> None:
    with rig.socket() as connection:
        connection.sendall(sized(BODY))
        connection.shutdown(socket.SHUT_WR)
        answer = read_all(connection)
    assert answer == b"" or answer.startswith(b"HTTP/1.1 200")
    with rig.socket() as connection:
        connection.sendall(sized(BODY[:10], len(BODY)))
        connection.shutdown(socket.SHUT_WR)
        assert read_all(connection) == b""
    rig.wait("not rig.server.connections")


def test_bodies_of_all_clients_together_are_bounded() -> None:
    with running(HttpLimits(body_bytes=2**20)) as rig:
        rig.app._budget.most = 2**20
        with rig.socket() as first:
            first.sendall(sized(b" " * 800_000, 2**20))
            rig.wait("rig.app._budget.held > 700_000")
            response, _ = rig.ask("POST", "/v2/models/echo/infer", b" " * 900_000)
            assert response.status == 503
            assert response.headers["Retry-After"]
            packed = gzip.compress(BODY + b" " * 900_000, mtime=0)
            encoding = {"Content-Encoding": "gzip"}
            # it is refused before it is inflated, so that what is wrong with it is not seen
            for body in (packed, packed[:-4]):
                assert rig.ask("POST", "/v2/models/echo/infer", body, encoding)[0].status == 503
            status: Any = rig.infer(BODY)[0]
            assert status == 200, "small ones go on"
        rig.wait("rig.app._budget.held == 0")
