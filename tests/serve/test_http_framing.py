"""Requests as bytes on a connection: pipelines, chunks, heads, what is no HTTP. It survives all."""

from __future__ import annotations

import json
import re
import time
from collections.abc import Iterator

import pytest
from http_rig import Rig, read_all, running

from ridgeline.serve.http.protocol import HEAD_BYTES, MOST_CHUNKS, MOST_HEADERS, MOST_PIPELINED
from ridgeline.serve.settings import HttpLimits

X = {"name": "x", "shape": [1, 2], "datatype": "FP32", "data": [1.5, -2]}
BODY = json.dumps({"inputs": [X]}).encode()
LIVE = b"GET /v2/health/live HTTP/1.1\r\nHost: a\r\n"
POST = b"POST /v2/models/%s/infer HTTP/1.1\r\nHost: a\r\n"
CLOSE = b"Connection: close\r\n"
ALIVE = b'{"live":true}'


@pytest.fixture(scope="module")
def rig() -> Iterator[Rig]:
    with running(HttpLimits(body_seconds=5)) as served:
        yield served


@pytest.fixture(autouse=True)
def lives(rig: Rig) -> Iterator[None]:
    yield
    rig.check_alive()


def infer(model: bytes = b"echo", *headers: bytes, body: bytes = BODY) -> bytes:
    return POST % model + b"".join(headers) + b"Content-Length: %d\r\n\r\n" % len(body) + body


def statuses(answers: bytes) -> list[int]:
    return [int(each[:3]) for each in answers.split(b"HTTP/1.1 ")[1:]]


def assert_is_error(answer: bytes, status: int) -> None:
    head, _, body = answer.partition(b"\r\n\r\n")
    assert statuses(answer) == [status]
    assert b"\r\ncontent-type: application/json\r\n" in head
    assert b"\r\nconnection: close" in head
    assert set(json.loads(body)) == {"error"}


def test_pipelined_requests_are_answered_in_their_order(rig: Rig) -> None:
    missing = b"GET /v2/nothing HTTP/1.1\r\nHost: a\r\n\r\n"
    sent = LIVE + b"\r\n" + infer() + missing + infer(b"full") + LIVE + CLOSE + b"\r\n"
    assert statuses(rig.raw(sent)) == [200, 200, 404, 503, 200]


def test_a_pipeline_byte_by_byte_is_the_same(rig: Rig) -> None:
    with rig.socket() as connection:
        for byte in LIVE + b"\r\n" + infer() + LIVE + CLOSE + b"\r\n":
            connection.sendall(bytes([byte]))
        assert statuses(read_all(connection)) == [200, 200, 200]


def test_a_pipeline_without_end_is_cut(rig: Rig) -> None:
    with rig.socket() as connection:
        connection.sendall(infer(b"gate") + (LIVE + b"\r\n") * (MOST_PIPELINED + 5))
        rig.wait("rig.service.waiting == 1")
        rig.loop.call_soon_threadsafe(rig.service.gate.set)
        # the first is answered as ever, and is the last
        answers = read_all(connection)
    assert statuses(answers) == [200]
    assert b"connection: close" in answers


def test_garbage_behind_a_request_is_not_its_answer(rig: Rig) -> None:
    rig.loop.call_soon_threadsafe(rig.service.gate.clear)
    with rig.socket() as connection:
        connection.sendall(infer(b"gate") + b"GARBAGE\r\n\r\n")
        rig.wait("rig.service.waiting == 1")
        rig.loop.call_soon_threadsafe(rig.service.gate.set)
        assert statuses(read_all(connection)) == [200]


@pytest.mark.parametrize(
    "sent",
    [
        b"GARBAGE\r\n\r\n",
        b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03",  # the start of TLS
        b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
        b"GET /v2/health/live HTTP/9.9\r\n\r\n",
        b"GET /v2/health/live HTTP/1.1\r\nno colon\r\n\r\n",
        b"GET /v2/health/live HTTP/1.1\r\nname : value\r\n\r\n",
        b"GET /v2/health/live HTTP/1.1\r\na: b\x00c\r\n\r\n",
        b"GET /v2/\xff HTTP/1.1\r\n\r\n",
        b"GET v2 HTTP/1.1\r\n\r\n",
        b"GET [::1 HTTP/1.1\r\n\r\n",
        b"CONNECT a:1 HTTP/1.1\r\nHost: a\r\n\r\n",
        POST % b"echo" + b"Content-Length: 5\r\nContent-Length: 6\r\n\r\nhello!",
        POST % b"echo" + b"Content-Length: -5\r\n\r\n",
        POST % b"echo" + b"Content-Length: +5\r\n\r\nhello",
        POST % b"echo" + b"Content-Length: 5,5\r\n\r\nhello",
        POST % b"echo" + b"Content-Length: 0x5\r\n\r\nhello",
        POST % b"echo" + b"Content-Length: 99999999999999999999999\r\n\r\n",
        POST % b"echo" + b"Content-Length: 5\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
        POST % b"echo" + b"Transfer-Encoding: chunked\r\nContent-Length: 5\r\n\r\n0\r\n\r\n",
        POST % b"echo" + b"Transfer-Encoding: gzip\r\n\r\nhello",
        POST % b"echo" + b"Transfer-Encoding: chunked, identity\r\n\r\n0\r\n\r\n",
        POST % b"echo" + b"Transfer-Encoding: chunked\r\n\r\nxyz\r\n",
        POST % b"echo" + b"Transfer-Encoding: chunked\r\n\r\n-1\r\n",
        POST % b"echo" + b"Transfer-Encoding: chunked\r\n\r\nffffffffffffffffff\r\n",
        POST % b"echo" + b"Transfer-Encoding: chunked\r\n\r\n5\r\nhello!\r\n0\r\n\r\n",
    ],
)  # fmt: skip
def test_what_is_no_http_is_refused(rig: Rig, sent: bytes) -> None:
    assert_is_error(rig.raw(sent), 400)


def test_chunks_are_put_together(rig: Rig) -> None:
    chunks = b"".join(b"%X;ext=1\r\n%c\r\n" % (1, byte) for byte in BODY)
    sent = POST % b"echo" + b"Transfer-Encoding: chunked\r\n\r\n" + chunks + b"0\r\nTrailer: x\r\n\r\n"
    assert statuses(rig.raw(sent + LIVE + CLOSE + b"\r\n")) == [200, 200]


def test_trailers_are_no_headers(rig: Rig) -> None:
    sent = POST % b"echo" + b"Transfer-Encoding: chunked\r\n\r\n%x\r\n%s\r\n0\r\n" % (len(BODY), BODY)
    sent += b"Inference-Header-Content-Length: 5\r\nContent-Encoding: gzip\r\n\r\n"
    assert statuses(rig.raw(sent + LIVE + CLOSE + b"\r\n")) == [200, 200]


def test_a_flood_of_chunks_is_stopped(rig: Rig) -> None:
    sent = POST % b"echo" + b"Transfer-Encoding: chunked\r\n\r\n" + b"1\r\n \r\n" * (MOST_CHUNKS + 1)
    answer = rig.raw(sent)
    assert_is_error(answer, 400)
    assert str(MOST_CHUNKS).encode() in answer


@pytest.mark.parametrize(
    "start",
    [
        LIVE + b"X: ",
        LIVE + b"X",
        b"GET /",
        POST % b"echo" + b"Transfer-Encoding: chunked\r\n\r\n1;ext=",
        POST % b"echo" + b"Transfer-Encoding: chunked\r\n\r\n1\r\n \r\n0\r\nTrailer: ",
    ],
    ids=["value", "name", "path", "extension", "trailer"],
)
def test_what_never_ends_is_cut(rig: Rig, start: bytes) -> None:
    with rig.socket() as connection:
        connection.sendall(start)
        try:
            for _ in range(5000):
                connection.sendall(b"a" * 8192)
        except ConnectionError:
            pass
        else:
            pytest.fail("it was all taken")


def test_heads_are_bounded(rig: Rig) -> None:
    fits = LIVE + b"X: %s\r\n" % (b"a" * (HEAD_BYTES - 1000)) + CLOSE + b"\r\n"
    assert statuses(rig.raw(fits)) == [200]
    large = LIVE + b"X: %s\r\n\r\n" % (b"a" * HEAD_BYTES)
    assert_is_error(rig.raw(large), 431)
    many = LIVE + b"".join(b"x%d: a\r\n" % i for i in range(MOST_HEADERS)) + b"\r\n"
    assert_is_error(rig.raw(many), 431)
    whole = rig.raw(LIVE + b"".join(b"x%d: a\r\n" % i for i in range(MOST_HEADERS - 2)) + CLOSE + b"\r\n")
    assert statuses(whole) == [200]


def test_many_trailers_are_cut(rig: Rig) -> None:
    start = POST % b"echo" + b"Transfer-Encoding: chunked\r\n\r\n1\r\n \r\n0\r\n"
    answer = rig.raw(start + b"a: b\r\n" * 60_000)
    assert answer == b"" or statuses(answer) == [431]


def test_a_client_may_ask_before_it_sends(rig: Rig) -> None:
    with rig.socket() as connection:
        head = b"Expect: 100-continue\r\nContent-Length: %d\r\n" % len(BODY) + CLOSE
        connection.sendall(POST % b"echo" + head + b"\r\n")
        assert connection.recv(100) == b"HTTP/1.1 100 Continue\r\n\r\n"
        connection.sendall(BODY)
        assert statuses(read_all(connection)) == [200]
    # and is told before it sends that it need not
    refused = rig.one(POST % b"echo" + b"Expect: 100-continue\r\nContent-Length: 99999999999\r\n\r\n")
    assert statuses(refused) == [413]


def test_nothing_is_upgraded(rig: Rig) -> None:
    for protocol in (b"websocket", b"h2c"):
        upgrade = b"Connection: Upgrade\r\nUpgrade: " + protocol + b"\r\nSec-WebSocket-Version: 13\r\n"
        answer = rig.raw(LIVE + upgrade + b"Sec-WebSocket-Key: AAAA\r\n\r\n" + LIVE + b"\r\n")
        assert statuses(answer) == [200]
        assert statuses(rig.raw(infer(b"echo", upgrade))) == [200]
        # its body may come later, and in parts
        with rig.socket() as connection:
            for at, part in enumerate(re.split(rb"(?<=\n)|(?<=1.5)", infer(b"echo", upgrade))):
                connection.sendall(part)
                if at > 6:
                    time.sleep(0.005)
            assert statuses(read_all(connection)) == [200]
        assert_is_error(
            rig.raw(POST % b"echo" + upgrade + b"Transfer-Encoding: chunked\r\n\r\n0\r\n\r\n"), 400
        )


def test_old_clients_are_answered(rig: Rig) -> None:
    answer = rig.raw(b"GET /v2/health/live HTTP/1.0\r\n\r\n")
    assert answer.endswith(ALIVE)
    assert rig.raw(b"GET /v2/health/live\r\n\r\n").endswith(ALIVE)
    assert statuses(rig.one(b"OPTIONS * HTTP/1.1\r\nHost: a\r\n\r\n")) == [404]
    absolute = b"GET http:" + b"//other/v2/health/live HTTP/1.1\r\nHost: a\r\n" + CLOSE + b"\r\n"
    assert rig.raw(absolute).endswith(ALIVE)


def test_a_connection_is_kept_between_requests(rig: Rig) -> None:
    with rig.socket() as connection:
        for _ in range(3):
            connection.sendall(LIVE + b"\r\n")
            assert connection.recv(1000).endswith(ALIVE)
            time.sleep(0.01)


def test_a_request_for_one_and_the_half_of_the_next(rig: Rig) -> None:
    with rig.socket() as connection:
        connection.sendall(LIVE + b"\r\n" + LIVE[:20])
        assert connection.recv(1000).endswith(ALIVE)
        connection.sendall(LIVE[20:] + b"\r\n")
        assert connection.recv(1000).endswith(ALIVE)
