"""A body before it is parsed: inflated up to a limit, the length of its JSON header, how deep its JSON is."""

from __future__ import annotations

import zlib

import numpy as np

from ridgeline.serve.errors import Kind, RequestError, invalid, unavailable

ENCODINGS = {"gzip": 16 + zlib.MAX_WBITS, "x-gzip": 16 + zlib.MAX_WBITS, "deflate": zlib.MAX_WBITS}
ACCEPTED = "gzip, deflate"
STEP = 2**18  # bytes that one call of zlib may give back
BLOCK = 2**20  # bytes of a scan at a time
LONGEST_NUMBER = 18
MOST_RATIO = 1032  # of deflate: no byte stands for more
LARGEST_QUESTION_BYTES = 2**20  # all that is asked but inference is parsed on the event loop
_NO_STRUCTURE = bytes(sorted(set(range(256)) - set(b'[]{}"')))


class BodyBudget:
    """Bytes of all large bodies that are being received or answered: clients together are limited too."""

    def __init__(self, most: int) -> None:
        self.most, self.held = most, 0

    def take(self, nbytes: int) -> None:
        """Nothing is taken where it is refused. Bytes below 0 are given back."""
        if self.held + nbytes > self.most:
            raise unavailable("the server holds as many bytes of requests as it may; try again later")
        self.held += nbytes


class EncodingError(RequestError):
    """An encoding that is not read here: the answer says which are."""

    def __init__(self, encoding: str) -> None:
        super().__init__(
            Kind.UNSUPPORTED, f"Content-Encoding {encoding[:100]!r} is not read here: send {ACCEPTED} or none"
        )


def too_large(most_bytes: int) -> RequestError:
    return RequestError(Kind.TOO_LARGE, f"the body is larger than the {most_bytes} bytes that are taken")


def most_inflated(nbytes: int, most_bytes: int) -> int:
    """What so many compressed bytes can become, where `most_bytes` are taken."""
    return min(nbytes * MOST_RATIO, most_bytes)


def inflate(body: bytes, encoding: str, most_bytes: int) -> bytes:
    """The body that was compressed; never holds more than `most_bytes` of it."""
    window = ENCODINGS.get(encoding.strip().lower())
    if window is None:
        raise EncodingError(encoding)
    stream = zlib.decompressobj(window)
    parts: list[bytes] = []
    held, rest = 0, body
    try:
        while not stream.eof:
            part = stream.decompress(rest, STEP)
            rest = stream.unconsumed_tail
            if not part and not rest and not stream.eof:
                raise invalid(f"the body ends before its {encoding} stream does")
            held += len(part)
            if held > most_bytes:
                raise too_large(most_bytes)
            parts.append(part)
    except zlib.error:
        raise invalid(f"the body is not a {encoding} stream, as its Content-Encoding says") from None
    if stream.unused_data:
        raise invalid(f"the body goes on after its {encoding} stream")
    return b"".join(parts)


def header_length(text: str) -> int:
    """Of Inference-Header-Content-Length; that it fits the body is for whoever has the body."""
    if not (text.isascii() and text.isdecimal() and len(text) <= LONGEST_NUMBER):
        raise invalid("Inference-Header-Content-Length must be a number of bytes")
    return int(text)


def check_depth(text: bytes | memoryview, most: int) -> None:
    """JSON whose brackets nest deeper than `most` is refused before anything recurses into it."""
    data = bytes(text)
    if data.count(b"[") + data.count(b"{") <= most:
        return
    depth, parity = 0, 0
    if b"\\" in data:
        # an escaped quote ends no string; an escaped backslash escapes nothing
        data = data.replace(b"\\\\", b"").replace(b'\\"', b"")
    for start in range(0, len(data), BLOCK):
        marks = np.frombuffer(data[start : start + BLOCK].translate(None, _NO_STRUCTURE), np.uint8)
        if not marks.size:
            continue
        quotes = np.cumsum(marks == ord('"'), dtype=np.int64) + parity
        is_open = (marks == ord("[")) | (marks == ord("{"))
        is_close = (marks == ord("]")) | (marks == ord("}"))
        steps = np.where(quotes & 1, 0, is_open.astype(np.int64) - is_close)
        depths = np.cumsum(steps) + depth
        if int(depths.max()) > most:
            raise invalid(f"the JSON nests deeper than {most} levels")
        depth, parity = int(depths[-1]), int(quotes[-1]) & 1
