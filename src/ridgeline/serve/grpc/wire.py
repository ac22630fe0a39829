"""Bytes of gRPC's messages that protobuf does not see: inflated, cut and joined here.

A tensor's bytes are views of the message that arrived, and are copied once into the one that leaves.
Counts are checked before protobuf allocates: a message of empty fields takes 40 times its size in memory.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

from ridgeline.serve.codec.body import inflate
from ridgeline.serve.codec.values import MOST_DIMS, MOST_STRINGS, OFF_LOOP_BYTES
from ridgeline.serve.errors import Kind, RequestError, invalid
from ridgeline.serve.messages import Buffer
from ridgeline.serve.parameters import MOST_PARAMETERS
from ridgeline.serve.protocol import messages
from ridgeline.serve.settings import HttpLimits

CUT_BYTES = 2**15  # smaller messages are left to protobuf: it copies them faster than Python finds views
OTHER_FIELDS = 16  # besides those that are counted by themselves
MOST_FIELDS = 2**13  # of a message and its tensors: each is a step of Python on the event loop
LEAST_FIELD_BYTES = 2
VARINT_BYTES = 10
# no message of ours begins like gzip or zlib: they would be field 3 of an unknown kind, and field 15
ENCODINGS = {0x1F: "gzip", 0x78: "deflate"}
INPUTS, OUTPUTS, RAW_INPUTS = 5, 6, 7  # numbers of fields: of a request,
SHAPE, CONTENTS = 3, 5  # of a tensor,
RAW_OUTPUTS = 6  # of an answer,
INFER_RESPONSE = 2  # and of a message of a stream
VARINT, FIXED64, LENGTH, FIXED32 = 0, 1, 2, 5


@dataclass(slots=True)
class Cut:
    """A ModelInferRequest: what protobuf has to read, and raw_input_contents where they are apart from it."""

    head: bytes
    raw: list[Buffer] | None

    @property
    def is_slow(self) -> bool:
        """Whether decoding would keep an event loop from others: contents of objects, or BYTES."""
        return len(self.head) > OFF_LOOP_BYTES or (self.raw is not None and b"BYTES" in self.head)


def cut(body: bytes, limits: HttpLimits) -> Cut:
    if len(body) < CUT_BYTES:
        return Cut(body, None)
    try:
        return _cut(memoryview(body), limits)
    except IndexError:
        raise malformed("ModelInferRequest") from None


def parse(kind: Any, body: bytes) -> Any:
    try:
        return kind.FromString(body)
    except messages.DecodeError:
        raise malformed(kind.DESCRIPTOR.name) from None


def is_compressed(body: bytes) -> bool:
    return bool(body) and body[0] in ENCODINGS


def inflated(body: bytes, most_bytes: int) -> bytes:
    """gRPC is told not to inflate: up to version 1.83 it did so before it looked at the size."""
    try:
        return inflate(body, ENCODINGS[body[0]], most_bytes)
    except RequestError as error:
        if error.kind is Kind.TOO_LARGE:
            raise
        raise invalid(f"the message is no {ENCODINGS[body[0]]} stream") from None


def join_answer(head: bytes, outputs: Iterable[Buffer]) -> bytes:
    """A ModelInferResponse out of one without raw_output_contents, and these."""
    return b"".join(_answer(head, outputs))


def join_stream_answer(head: bytes, outputs: Iterable[Buffer]) -> bytes:
    """The same as a ModelStreamInferResponse."""
    parts = _answer(head, outputs)
    return b"".join((_begin(INFER_RESPONSE, sum(memoryview(part).nbytes for part in parts)), *parts))


def _answer(head: bytes, outputs: Iterable[Buffer]) -> list[Buffer]:
    parts: list[Buffer] = [head]
    for data in outputs:
        parts.append(_begin(RAW_OUTPUTS, memoryview(data).nbytes))
        parts.append(data)
    return parts


def _begin(number: int, length: int) -> bytes:
    """What stands before a field of so many bytes."""
    begin = bytearray((number << 3 | LENGTH,))
    while length > 0x7F:
        begin.append(length & 0x7F | 0x80)
        length >>= 7
    begin.append(length)
    return bytes(begin)


def check_contents(head: bytes) -> None:
    """That typed contents have no more elements than lists of Python should hold.

    It walks over them, which takes a while where they are many: for another thread than the event loop's.
    """
    if len(head) <= LEAST_FIELD_BYTES * MOST_STRINGS:
        return
    fields = _Fields(MOST_STRINGS + MOST_FIELDS)
    try:
        for tensor in _parts(memoryview(head), INPUTS, fields):
            for contents in _parts(tensor, CONTENTS, fields):
                for _ in fields.of(contents):
                    pass
    except IndexError:
        raise malformed("ModelInferRequest") from None


def _parts(message: memoryview, wanted: int, fields: _Fields) -> Iterator[memoryview]:
    for number, kind, _, payload, end in fields.of(message):
        if number == wanted and kind == LENGTH:
            yield message[payload:end]


def _cut(body: memoryview, limits: HttpLimits) -> Cut:
    head: list[memoryview] = []
    raw: list[Buffer] = []
    fields, tensors = _Fields(MOST_FIELDS), Counter[int]()
    most = 3 * limits.tensors + MOST_PARAMETERS + OTHER_FIELDS
    for number, kind, start, payload, end in fields.of(body, most):
        if number == RAW_INPUTS and kind == LENGTH:
            raw.append(body[payload:end])
            continue
        if number in (INPUTS, OUTPUTS):
            tensors[number] += 1
            if tensors[number] > limits.tensors:
                raise invalid(f"the request has more than {limits.tensors} inputs or outputs")
            _check_tensor(body[payload:end], fields)
        head.append(body[start:end])
    return Cut(b"".join(head), raw)


def _check_tensor(tensor: memoryview, fields: _Fields) -> None:
    most = MOST_DIMS + MOST_PARAMETERS + OTHER_FIELDS
    for number, _, _, payload, end in fields.of(tensor, most):
        if number == SHAPE and end - payload > MOST_DIMS * VARINT_BYTES:
            raise invalid(f"a tensor of the request has more than {MOST_DIMS} dims")


class _Fields:
    """Walks over a message and its parts, which together have at most `most` fields."""

    def __init__(self, most: int) -> None:
        self._most, self._found = most, 0

    def of(self, message: memoryview, most: int = 0) -> Iterator[tuple[int, int, int, int, int]]:
        """As `_fields`, of which this part has at most `most`."""
        for field in _fields(message, most or self._most):
            self._found += 1
            if self._found > self._most:
                raise invalid(f"the message has more than {self._most} fields")
            yield field


def _fields(message: memoryview, most: int) -> Iterator[tuple[int, int, int, int, int]]:
    """Number and kind of each field, where it begins, where its payload does, where it ends.

    `IndexError` where the message ends too early.
    """
    at = found = 0
    while at < len(message):
        found += 1
        if found > most:
            raise invalid(f"the message has a part of more than {most} fields")
        start = at
        tag, at = _varint(message, at)
        kind = tag & 7
        if kind == LENGTH:
            length, at = _varint(message, at)
            payload, at = at, at + length
        elif kind == VARINT:
            payload, at = at, _varint(message, at)[1]
        elif kind in (FIXED64, FIXED32):
            payload, at = at, at + (8 if kind == FIXED64 else 4)
        else:
            raise IndexError
        if at > len(message):
            raise IndexError
        yield tag >> 3, kind, start, payload, at


def _varint(message: memoryview, at: int) -> tuple[int, int]:
    value = shift = 0
    while shift < 7 * VARINT_BYTES:
        byte = message[at]
        at += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value, at
        shift += 7
    raise IndexError


def malformed(name: str) -> RequestError:
    return invalid(f"the message is no {name}")
