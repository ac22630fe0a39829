"""Bodies before they are parsed: inflated within bounds, nested within bounds."""

from __future__ import annotations

import gzip
import json
import random
import tracemalloc
import zlib

import pytest

from ridgeline.serve.codec.body import BLOCK, EncodingError, check_depth, header_length, inflate
from ridgeline.serve.errors import Kind, RequestError

TEXT = b"all that was sent " * 1000


@pytest.mark.parametrize(
    ("encoding", "body"),
    [
        ("gzip", gzip.compress(TEXT, mtime=0)),
        ("GZip", gzip.compress(TEXT, 0, mtime=0)),
        ("deflate", zlib.compress(TEXT)),
    ],
)
def test_a_body_is_inflated(encoding: str, body: bytes) -> None:
    assert inflate(body, encoding, len(TEXT)) == TEXT
    with pytest.raises(RequestError) as caught:
        inflate(body, encoding, len(TEXT) - 1)
    assert caught.value.kind is Kind.TOO_LARGE


def test_a_bomb_is_stopped_while_it_grows() -> None:
    bomb = gzip.compress(b"\0" * 20_000_000, 1)
    tracemalloc.start()
    with pytest.raises(RequestError) as caught:
        inflate(bomb, "gzip", 100_000)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert caught.value.kind is Kind.TOO_LARGE
    assert peak < 1_000_000


@pytest.mark.parametrize(
    ("encoding", "body"),
    [
        ("gzip", b""),
        ("gzip", b"no gzip"),
        ("gzip", gzip.compress(TEXT, mtime=0)[:-9]),
        ("gzip", gzip.compress(TEXT, mtime=0)[:5]),
        ("gzip", gzip.compress(TEXT, mtime=0) + b"more"),
        ("gzip", gzip.compress(TEXT, mtime=0)[:-8] + b"\0" * 8),  # wrong checksum
        ("gzip", zlib.compress(TEXT)),
        ("deflate", gzip.compress(TEXT, mtime=0)),
        ("deflate", zlib.compress(TEXT)[2:-4]),  # without zlib's container
    ],
)
def test_a_damaged_stream_is_refused(encoding: str, body: bytes) -> None:
    with pytest.raises(RequestError) as caught:
        inflate(body, encoding, 10**6)
    assert caught.value.kind is Kind.INVALID


@pytest.mark.parametrize("encoding", ["br", "zstd", "gzip, deflate", "x" * 5000])
def test_other_encodings_are_not_read(encoding: str) -> None:
    with pytest.raises(EncodingError) as caught:
        inflate(b"", encoding, 10**6)
    assert caught.value.kind is Kind.UNSUPPORTED


@pytest.mark.parametrize(
    "text", ["", "-1", "+1", "1.0", "0x10", "1e3", " 1", "1 ", "1_0", "٣", "9" * 19, "a"]
)
def test_a_length_of_the_header_is_a_plain_number(text: str) -> None:
    with pytest.raises(RequestError):
        header_length(text)
    assert header_length("0012") == 12


def depth_of(value: object) -> int:
    inner = value.values() if isinstance(value, dict) else value if isinstance(value, list) else None
    return 0 if inner is None else 1 + max(map(depth_of, inner), default=0)


def test_depth_is_counted_as_a_parser_counts_it() -> None:
    draw = random.Random(3)

    def grow(left: int) -> object:
        kind = draw.randrange(5) if left else 4
        if kind < 2:
            return [grow(left - 1) for _ in range(draw.randrange(4))]
        if kind < 4:
            return {f'{draw.choice("[{]}")}"{i}': grow(left - 1) for i in range(draw.randrange(3))}
        return draw.choice([1, "[[[", '\\"[{', "\\", '"', "]]", None])

    for _ in range(300):
        value = grow(8)
        text, depth = json.dumps(value).encode(), depth_of(value)
        check_depth(text, depth)
        if depth:
            with pytest.raises(RequestError, match="deeper"):
                check_depth(text, depth - 1)


def test_depth_is_counted_over_blocks() -> None:
    filler = b'"[' + b"a" * BLOCK + b'",'
    text = b"[[" + filler + b"[1]]]"
    check_depth(text, 3)
    with pytest.raises(RequestError):
        check_depth(text, 2)
    numbers = b"[[" + b"1," * (BLOCK // 2) + b"[1]]]"
    check_depth(numbers, 3)
    with pytest.raises(RequestError):
        check_depth(numbers, 2)
