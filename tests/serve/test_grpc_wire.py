"""Large messages are cut before protobuf sees them: the same request, no copies, and bounded counts."""

from __future__ import annotations

import gzip
import zlib
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from ridgeline.serve.errors import Kind, RequestError
from ridgeline.serve.grpc import wire as grpc_wire
from ridgeline.serve.grpc.codec import decode_request
from ridgeline.serve.grpc.wire import CUT_BYTES, cut, inflated, is_compressed
from ridgeline.serve.protocol import messages
from ridgeline.serve.settings import HttpLimits

LIMITS = HttpLimits(body_bytes=2**20, tensors=8)
FILLER = b"\x3a\x80\x80\x02" + bytes(CUT_BYTES)  # a raw content that makes a message large enough


def large(**fields: Any) -> Any:
    made = messages.ModelInferRequest(model_name="m", **fields)
    made.inputs.add(name="x", datatype="UINT8", shape=[CUT_BYTES])
    made.raw_input_contents.append(bytes(range(256)) * (CUT_BYTES // 256))
    return made


def test_raw_contents_are_views_of_the_message() -> None:
    body = large(id="1").SerializeToString()
    given_ = cut(body, LIMITS)
    assert given_.raw is not None
    (raw,) = given_.raw
    assert isinstance(raw, memoryview)
    assert raw.obj is body
    assert raw == bytes(range(256)) * (CUT_BYTES // 256)
    assert decode_request(body, LIMITS).id == "1"


def test_a_small_message_is_left_to_protobuf() -> None:
    body = b"\x0a\x01m"
    assert cut(body, LIMITS) == grpc_wire.Cut(body, None)


UNKNOWN = (b"", b"\xa2\x06\x02hi", b"\xa0\x06\x07", b"\xa1\x06" + b"8" * 8, b"\xa5\x06abcd")  # field 100
TENSORS = st.lists(
    st.tuples(st.text(max_size=5), st.lists(st.integers(-(2**63), 2**63 - 1), max_size=4)), max_size=8
)


@settings(max_examples=25, deadline=None)
@given(
    st.text(max_size=200), TENSORS, st.lists(st.binary(max_size=300), max_size=3), st.sampled_from(UNKNOWN)
)
def test_cutting_changes_nothing(name: str, tensors: Any, raw: list[bytes], unknown: bytes) -> None:
    made = messages.ModelInferRequest(model_name=name, raw_input_contents=raw)
    for tensor, shape in tensors:
        made.inputs.add(name=tensor, shape=shape)
    body = unknown + made.SerializeToString() + unknown
    parts = grpc_wire._cut(memoryview(body), LIMITS)
    got = messages.ModelInferRequest.FromString(parts.head)
    got.raw_input_contents.extend(map(bytes, parts.raw or ()))
    assert got == messages.ModelInferRequest.FromString(body)


def test_a_message_that_ends_early_is_no_message() -> None:
    """A tensor is not cut short to what has come of it, though its shape may fit that."""
    made = large()
    made.inputs[0].shape[0] -= 10
    body = made.SerializeToString()
    with pytest.raises(RequestError, match="no ModelInferRequest"):
        decode_request(body[:-10], LIMITS)


def test_numbers_of_fields_are_not_endless() -> None:
    overlong = b"\xba" + b"\x80" * 10 + b"\x00\x00"  # 7 << 3 | 2, in more bytes than a number has
    with pytest.raises(RequestError, match="no ModelInferRequest"):
        cut(FILLER + overlong, LIMITS)


def is_answered_well(body: bytes) -> bool:
    try:
        decode_request(body, LIMITS)
    except RequestError as error:
        return error.kind in (Kind.INVALID, Kind.UNSUPPORTED)
    return True


@settings(max_examples=150, deadline=None)
@given(st.binary(max_size=200), st.booleans())
@example(b"\x3a\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff", True)
@example(b"\x3a\x7f", True)
@example(b"\x09abc", True)
@example(b"\x08", True)
@example(b"\x2a\x02\x0a\x09", True)
def test_any_bytes_are_a_request_or_refused(body: bytes, is_large: bool) -> None:
    assert is_answered_well(FILLER + body if is_large else body)


WHOLE = large(id="1").SerializeToString()


@settings(max_examples=150, deadline=None)
@given(st.lists(st.tuples(st.integers(0, 40), st.integers(0, 255)), min_size=1, max_size=4))
def test_a_damaged_request_is_a_request_or_refused(damage: list[tuple[int, int]]) -> None:
    body = bytearray(WHOLE)
    for at, byte in damage:
        body[at] = byte
    assert is_answered_well(bytes(body))


def of(number: int, payload: bytes) -> bytes:
    return grpc_wire._begin(number, len(payload)) + payload


AMPLIFIED = {
    "inputs": of(5, b"") * 20000,
    "outputs": of(6, b"") * 20000,
    "raw contents": of(7, b"") * 20000,
    "parameters": of(4, b"") * 20000,
    "parameters of an input": of(5, of(4, b"") * 20000),
    "parameters of an output": of(6, of(2, b"") * 20000),
    "dims": of(5, b"\x18\x01" * 20000),
    "packed dims": of(5, of(3, b"\x01" * 40000)),
}


@pytest.mark.parametrize("what", AMPLIFIED)
def test_counts_are_checked_before_protobuf_allocates(what: str) -> None:
    with pytest.raises(RequestError, match=r"more than \d+ ") as caught:
        cut(AMPLIFIED[what], LIMITS)
    assert caught.value.kind is Kind.INVALID


def test_fields_of_all_tensors_together_are_counted() -> None:
    limits = HttpLimits()
    for number in (5, 6):
        tensors = of(number, of(4, b"") * 250) * limits.tensors
        with pytest.raises(RequestError, match="the message has more than 8192 fields") as caught:
            cut(tensors, limits)
        assert caught.value.kind is Kind.INVALID
    with pytest.raises(RequestError, match="more than 8 inputs or outputs"):
        cut(FILLER + of(5, b"") * 9, LIMITS)
    cut(FILLER + of(5, b"") * 8 + of(6, b"") * 8, LIMITS)


def test_strings_of_typed_contents_are_counted_before_protobuf_allocates(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(grpc_wire, "MOST_STRINGS", 100)
    contents = of(5, of(8, b"") * 10_000)
    for body in (of(5, contents), of(5, contents) * 2, of(5, contents * 2)):
        with pytest.raises(RequestError, match=r"more than \d+ fields") as caught:
            decode_request(body, LIMITS)
        assert caught.value.kind is Kind.INVALID
    with pytest.raises(RequestError, match="no ModelInferRequest"):
        grpc_wire.check_contents(of(5, of(5, b"\x42\x7f" * 200)))
    texts = messages.ModelInferRequest(model_name="m")
    texts.inputs.add(name="x", datatype="BYTES", shape=[50]).contents.bytes_contents.extend([b"text"] * 50)
    assert len(decode_request(texts.SerializeToString(), LIMITS).inputs[0].data) == 400


def test_decoding_is_slow_where_elements_are_objects() -> None:
    numbers = messages.ModelInferRequest(model_name="m")
    numbers.inputs.add(name="x", datatype="INT64").contents.int64_contents.extend([2**40] * 20000)
    texts = large()
    texts.inputs[0].datatype = "BYTES"
    assert cut(numbers.SerializeToString(), LIMITS).is_slow
    assert cut(texts.SerializeToString(), LIMITS).is_slow
    assert not cut(large().SerializeToString(), LIMITS).is_slow
    assert not cut(b"\x0a\x05BYTES", LIMITS).is_slow


@pytest.mark.parametrize("compress", [gzip.compress, zlib.compress], ids=["gzip", "deflate"])
def test_compressed_messages_are_inflated_up_to_a_limit(compress: Any) -> None:
    body = large().SerializeToString()
    packed = compress(body)
    assert is_compressed(packed)
    assert not is_compressed(body)
    assert inflated(packed, LIMITS.body_bytes) == body
    with pytest.raises(RequestError) as caught:
        inflated(compress(bytes(LIMITS.body_bytes + 1)), LIMITS.body_bytes)
    assert caught.value.kind is Kind.TOO_LARGE
    for damaged in (packed[:-6], packed[:2] + b"damaged", packed + b"more"):
        with pytest.raises(RequestError, match=r"is no (gzip|deflate) stream") as caught:
            inflated(damaged, LIMITS.body_bytes)
        assert caught.value.kind is Kind.INVALID
