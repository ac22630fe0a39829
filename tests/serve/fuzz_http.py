"""Damaged requests over HTTP: `python tests/serve/fuzz_http.py --seconds 600`. 1: one broke it"""

from __future__ import annotations

import argparse
import json
import random
import re
import socket
import sys
import traceback
import zlib
from contextlib import suppress
from math import inf
from time import monotonic
from typing import Any

from http_rig import Rig, running

from ridgeline.serve.codec.answer import AnswerForm, encode_response
from ridgeline.serve.codec.body import header_length, inflate
from ridgeline.serve.codec.codec import decode_request
from ridgeline.serve.datatypes import nbytes_of
from ridgeline.serve.errors import RequestError
from ridgeline.serve.messages import InferResponse
from ridgeline.serve.settings import HttpLimits

LIMITS = HttpLimits(body_bytes=2**18, tensors=16, json_depth=30, body_seconds=5)
JSON_INPUT = {"name": "x", "shape": [1, 2], "datatype": "FP32", "data": [1.5, -2]}
BINARY_INPUT = {"name": "b", "shape": [3], "datatype": "INT8", "parameters": {"binary_data_size": 3}}
TEXT_INPUT = {"name": "t", "shape": [2], "datatype": "BYTES", "data": ["a", "é\n"]}
OUTPUTS = [
    {"name": "x", "parameters": {"binary_data": True}},
    {"name": "t", "parameters": {"classification": 1}},
]
SEEDS = (
    ({"id": "1", "inputs": [JSON_INPUT]}, None),
    ({"inputs": [JSON_INPUT, TEXT_INPUT], "outputs": OUTPUTS, "parameters": {"priority": 1, "k": "v"}}, None),
    ({"inputs": [BINARY_INPUT], "parameters": {"binary_data_output": True, "timeout": 5}}, b"\1\2\3"),
    ({"inputs": [BINARY_INPUT, JSON_INPUT], "outputs": [{"name": "b"}]}, b"\1\2\3"),
)
TOKENS = (
    b"[", b"]", b"{", b"}", b'"', b",", b":", b"\\", b"null", b"true", b"-1", b"1e999", b"NaN", b"Infinity",
    b"0.5", b"9" * 30, b"18446744073709551618", b"\xff", b"\xed\xa0\x80", b"\\ud800", b"\x00", b"BYTES",
    b"BOOL", b"FP16", b"UINT64", b'"binary_data_size":4', b'"shape":[0]', b'"data":[]', b"[" * 40,
)  # fmt: skip
HTTP_TOKENS = (
    *TOKENS, b"\r\n", b"\r\n\r\n", b"\n", b"Content-Length: 5\r\n", b"Transfer-Encoding: chunked\r\n",
    b"Content-Encoding: gzip\r\n", b"Inference-Header-Content-Length: 7\r\n", b"Expect: 100-continue\r\n",
    b"Connection: close\r\n", b"Upgrade: websocket\r\nConnection: upgrade\r\n", b"HTTP/1.0", b"%2e%2e%2f",
    b"%", b"/..", b"0\r\n\r\n", b"ffffffffffffffff\r\n",
    b"GET / HTTP/1.1\r\n\r\n", b":" * 50, b"\x16\x03\x01", b"Origin: null\r\n", b"Host: a\r\n",
    b"0\r\nInference-Header-Content-Length: 7\r\n\r\n",
)  # fmt: skip
STATUS = re.compile(rb"HTTP/1\.1 (\d{3}) [^\r\n]*\r\n")


def mutated(draw: random.Random, data: bytes, tokens: tuple[bytes, ...]) -> bytes:
    """Up to four damages: bytes flipped, cut, doubled, moved, or replaced by what a parser may trip over."""
    held = bytearray(data)
    for _ in range(draw.randrange(1, 5)):
        at = draw.randrange(len(held) + 1)
        end = min(len(held), at + draw.choice((0, 1, 1, 2, 8, 40)))
        match draw.randrange(6):
            case 0:
                held[at:end] = draw.choice(tokens)
            case 1:
                held[at:at] = draw.choice(tokens)
            case 2:
                del held[at:end]
            case 3:
                held[at:at] = held[at:end] * draw.choice((1, 2, 50))
            case 4 if at < len(held):
                held[at] ^= 1 << draw.randrange(8)
            case 5:
                del held[at : draw.choice((len(held), end))]
    return bytes(held)


def random_body(draw: random.Random) -> tuple[bytes, int | None]:
    document, blobs = draw.choice(SEEDS)
    header = json.dumps(document).encode()
    if blobs is None:
        return mutated(draw, header, TOKENS), None
    if draw.random() < 0.3:
        return mutated(draw, header + blobs, TOKENS), len(header)
    header = mutated(draw, header, TOKENS)
    return header + blobs, max(0, len(header) + draw.choice((0, 0, 0, 1, -1)))


def check_codec(body: bytes, length: int | None) -> bool:
    """Whether it was a request. Whatever it is, nothing escapes but `RequestError`."""
    try:
        request, _ = decode_request(body, length, model="m", version="", limits=LIMITS)
    except RequestError:
        return False
    for tensor in request.inputs:
        assert nbytes_of(tensor.type, tensor.shape) in (None, len(tensor.data))
    names = frozenset(tensor.name for tensor in request.inputs[::2])
    try:
        encoded = encode_response(
            InferResponse("m", "1", request.id, request.inputs), AnswerForm(names=names)
        )
    except RequestError:
        return True
    json.loads(encoded.body[: encoded.header_length])
    return True


def check_body_parts(draw: random.Random) -> None:
    packed = mutated(draw, zlib.compress(json.dumps(SEEDS[0][0]).encode()), TOKENS)
    for work in (
        lambda: inflate(packed, draw.choice(("gzip", "deflate", "br")), 1000),
        lambda: header_length(mutated(draw, b"12", HTTP_TOKENS).decode("latin-1")),
    ):
        with suppress(RequestError):
            work()


def random_exchange(draw: random.Random) -> bytes:
    """A damaged request, some of them with others before or behind it on the same connection."""
    body, length = random_body(draw) if draw.random() < 0.3 else (json.dumps(SEEDS[0][0]).encode(), None)
    path = draw.choice(
        ("/v2/models/echo/infer", "/v2/health/live", "/v2/repository/index", "/v2/models/echo")
    )
    method = "POST" if "infer" in path or "index" in path else "GET"
    head = f"{method} {path} HTTP/1.1\r\nHost: a\r\n"
    if length is not None:
        head += f"Inference-Header-Content-Length: {length}\r\n"
    if draw.random() < 0.3:
        head += "Transfer-Encoding: chunked\r\n"
        body = b"%x\r\n%s\r\n0\r\n\r\n" % (len(body), body) if body else b"0\r\n\r\n"
    elif method == "POST":
        head += f"Content-Length: {len(body)}\r\n"
    else:
        body = b""
    whole = head.encode() + b"\r\n" + body
    return mutated(draw, whole, HTTP_TOKENS) + whole * draw.randrange(2)


def check_socket(rig: Rig, draw: random.Random) -> None:
    """What comes back is whole answers of HTTP, and JSON where it tells an error."""
    sent = random_exchange(draw)
    with rig.socket() as connection:
        connection.settimeout(0.02)
        got = bytearray()
        try:
            cut = draw.randrange(len(sent) + 1) if draw.random() < 0.3 else len(sent)
            connection.sendall(sent[:cut])
            if cut < len(sent):
                connection.sendall(sent[cut:])
            while part := connection.recv(65536):
                got += part
        except (TimeoutError, ConnectionError):
            pass
        if draw.random() < 0.3:
            # closes with a reset
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\1\0\0\0\0\0\0\0")
    try:
        check_answers(bytes(got), is_head=b"HEAD" in sent)
    except Exception as error:
        raise AssertionError(f"{sent!r} was answered with {bytes(got)!r}") from error


def check_answers(got: bytes, *, is_head: bool) -> None:
    while got and not is_head:
        if got.startswith(b"HTTP/1.1 100 Continue\r\n\r\n"):
            got = got[25:]
            continue
        status = STATUS.match(got)
        assert status, "no status line"
        head, _, rest = got.partition(b"\r\n\r\n")
        found = re.search(rb"\r\ncontent-length: (\d+)", head)
        assert found, "no length"
        body, got = rest[: int(found[1])], rest[int(found[1]) :]
        assert len(body) == int(found[1]), "cut"
        assert int(status[1]) < 600
        if int(status[1]) >= 400 and b"ready" not in body:
            assert isinstance(json.loads(body)["error"], str)
        assert status[1] != b"500", body


def fuzz(seconds: float, seed: int, *, with_sockets: bool = True) -> tuple[int, int]:
    """How many were tried, and how many of them were requests for the codec."""
    draw, tried, right = random.Random(seed), 0, 0
    end = monotonic() + seconds
    with running(LIMITS) as rig:
        while monotonic() < end:
            for _ in range(50):
                right += check_codec(*random_body(draw))
                check_body_parts(draw)
            for _ in range(10 if with_sockets else 0):
                check_socket(rig, draw)
            tried += 60
            rig.check_alive()
    return tried, right


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=600)
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    try:
        tried, right = fuzz(options.seconds, options.seed)
    except Exception:
        sys.stdout.write(f"seed {options.seed}: {traceback.format_exc()}\n")
        return 1
    sys.stdout.write(f"{tried} damaged requests, {right} of them still requests; nothing broke\n")
    return 0


HOSTILE: tuple[Any, ...] = (None, True, -1, 0, 2**64, 0.5, inf, "", "x", "\0", [], [[]], {}, {"a": []})


if __name__ == "__main__":
    sys.exit(main())
