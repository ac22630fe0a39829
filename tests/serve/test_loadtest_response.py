"""Where an answer ends, and what is none, however its bytes arrive."""

from __future__ import annotations

import pytest

from ridgeline.serve.loadtest.response import ResponseReader


def chunked(body: bytes, coding: bytes = b"Transfer-Encoding: chunked") -> bytes:
    return b"HTTP/1.1 200 OK\r\n" + coding + b"\r\n\r\n" + body


ANSWER = b"HTTP/1.1 200 OK\r\nContent-Type: a\r\nContent-Length: 5\r\n\r\nhello"
CHUNKED = chunked(b"3\r\nhel\r\n10\r\n0123456789abcdef\r\n0\r\n\r\n")
ANSWERS = {
    "whole": ANSWER,
    "chunked": CHUNKED,
    "no chunk": chunked(b"0\r\n\r\n"),
    "data like an end": chunked(b"9\r\nab0\r\n\r\nyz\r\n0\r\n\r\n"),
    "data that is an end": chunked(b"7\r\n\r\n0\r\n\r\n\r\n1\r\na\r\n0\r\n\r\n"),
    "extensions": chunked(b"1;a=b\r\nx\r\n0;ext\r\n\r\n"),
    "more zeros": chunked(b"0A\r\n0123456789\r\n00\r\n\r\n"),
    "trailers": chunked(b"1\r\nx\r\n0\r\nExpires: 0\r\nETag: a\r\n\r\n"),
    "no space": chunked(b"1\r\nx\r\n0\r\n\r\n", b"transfer-encoding:gzip,Chunked"),
    "two codings": chunked(b"0\r\n\r\n", b"Transfer-Encoding: gzip, chunked \r\nX: chunked"),
    "goes on": b"HTTP/1.1 100 Continue\r\n\r\n" * 2 + ANSWER,
    "empty": b"HTTP/1.1 200 OK\r\ncontent-length:0\r\n\r\n",
    "another field": b"HTTP/1.1 200 OK\r\nX-Content-Length: 9\r\nContent-Length: 1 \r\n\r\n!",
}


@pytest.mark.parametrize("answer", ANSWERS.values(), ids=list(ANSWERS))
def test_an_answer_ends_with_its_last_byte(answer: bytes) -> None:
    for size in (1, 2, 3, 7, *range(len(answer) - 12, len(answer) + 1)):
        reader = ResponseReader()
        parts = [answer[i : i + size] for i in range(0, len(answer), size)]
        assert [reader.feed(part) for part in parts] == [False] * (len(parts) - 1) + [True]
        assert reader.status == 200
        assert not reader.is_last
        assert reader.body == b""


def test_any_number_of_heads_may_come_before_an_answer() -> None:
    reader = ResponseReader()
    assert not reader.feed(b"HTTP/1.1 100 \r\n\r\n" * 4096)
    assert reader.feed(ANSWER)


@pytest.mark.parametrize("close", [b"Connection: close", b"Connection:close", b"connection:  Close, x"])
def test_an_error_keeps_its_message_and_the_connection_s_end(close: bytes) -> None:
    reader = ResponseReader()
    head = b"HTTP/1.1 503 Full\r\n" + close
    assert reader.feed(head + b'\r\ncontent-length: 14\r\n\r\n{"error": "a"}')
    assert (reader.status, reader.is_last, reader.body) == (503, True, b'{"error": "a"}')
    reader = ResponseReader()
    head += b"\r\nTransfer-Encoding: chunked\r\n\r\n"
    assert reader.feed(head + b'a\r\n{"error": \r\n4\r\n"a"}\r\n0\r\n\r\n')
    assert (reader.status, reader.is_last, reader.body) == (503, True, b'{"error": "a"}')


def test_a_refusal_without_a_body_is_an_answer() -> None:
    reader = ResponseReader()
    assert reader.feed(b"HTTP/1.1 304 Not Modified\r\nContent-Length: 9\r\n\r\n")
    assert (reader.status, reader.body) == (304, b"")


@pytest.mark.parametrize(
    "answer",
    [
        ANSWER + b"!",
        CHUNKED + b"!",
        chunked(b"x\r\n"),
        chunked(b"-1\r\n"),
        chunked(b"1\r\nxy\r\n"),
        chunked(b"1" * 70000),
        b"HTTP/1.1 200 OK\r\n\r\n",
        b"SSH-2.0-OpenSSH\r\n\r\n",
        b"HTTP/1.1 OK\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nContent-Length: x\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nContent-Length: -1\r\n\r\n",
        b"HTTP/1.1 200 OK\r\n" + b"a" * 70000,
    ],
)
def test_what_is_no_answer_is_refused(answer: bytes) -> None:
    with pytest.raises(ValueError, match="answer"):
        ResponseReader().feed(answer)
