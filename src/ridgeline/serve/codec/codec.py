"""Bodies of HTTP inference as requests: a JSON header, then binary tensors. `codec.answer` is the reverse."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import msgspec

from ridgeline.serve.codec.answer import AS_BINARY, AS_JSON, AnswerForm
from ridgeline.serve.codec.body import check_depth
from ridgeline.serve.codec.values import MOST_INT64, OFF_LOOP_BYTES, check_packed, count_of, pack_json
from ridgeline.serve.datatypes import DATATYPES, Datatype
from ridgeline.serve.errors import RequestError, invalid
from ridgeline.serve.messages import Buffer, InferRequest, Parameter, Tensor, Wanted
from ridgeline.serve.parameters import (
    RequestParameters,
    natural,
    read_parameters,
    refuse_shared_memory,
    switch,
)
from ridgeline.serve.settings import HttpLimits

LONGEST_ID = 4096
LONGEST_NAME = 1024
LONGEST_KEPT, KEPT_HEADERS = 2048, 512
LOOKED_INTO = frozenset({"BYTES", "BOOL"})  # not every sequence of bytes is a tensor of these
MOST_NOT_FINITE_BYTES = 2**20  # of JSON with NaN or Infinity, which only a slow parser reads
_NOTHING = msgspec.Raw(b"")


class _Input(msgspec.Struct, gc=False):
    name: str
    shape: list[int]
    datatype: str
    parameters: dict[str, Parameter] | None = None
    data: msgspec.Raw = _NOTHING


class _Output(msgspec.Struct, gc=False):
    name: str
    parameters: dict[str, Parameter] | None = None


class _Request(msgspec.Struct, gc=False):
    """Other members are ignored, as Triton ignores them."""

    inputs: list[_Input]
    outputs: list[_Output] = []
    id: str = ""
    parameters: dict[str, Parameter] | None = None


_HEADER = msgspec.json.Decoder(_Request)


def is_slow_to_decode(body: Buffer, header_length: int | None) -> bool:
    """Whether parsing would keep an event loop from others for milliseconds."""
    if len(body) <= OFF_LOOP_BYTES:
        return False
    # strings are looked at one by one, binary or not
    return header_length is None or header_length > OFF_LOOP_BYTES or b"BYTES" in body[:header_length]


def decode_request(
    body: bytes, header_length: int | None, *, model: str, version: str, limits: HttpLimits
) -> tuple[InferRequest, AnswerForm]:
    """`header_length` is Inference-Header-Content-Length, None where the body is all JSON."""
    if header_length is not None and header_length > len(body):
        raise invalid(f"Inference-Header-Content-Length is {header_length}, the body has {len(body)} bytes")
    whole = memoryview(body)
    if header_length is not None and header_length <= LONGEST_KEPT:
        known = _known_header(body[:header_length], limits)
        if known is not None:
            return known.request_with(whole[header_length:], model, version), known.form
    header = _read_header(whole[:header_length], limits)
    blobs = None if header_length is None else whole[header_length:]
    given = read_parameters(header.parameters or {})
    check_id(header.id)
    inputs = _read_inputs(header.inputs, blobs, limits)
    outputs, names = _read_outputs(header.outputs, limits)
    request = InferRequest(
        model, version, header.id, inputs, outputs, given.own, given.priority, given.timeout_us
    )
    return request, _form_of(outputs, names, given)


@dataclass(frozen=True, slots=True)
class _Known:
    """A header whose tensors are all binary: clients send the same one again and again."""

    id: str
    inputs: tuple[tuple[_Input, Datatype, int, tuple[int, ...], int, int], ...]  # …, shape, begin, end
    outputs: list[Wanted] | None
    given: RequestParameters
    form: AnswerForm

    def request_with(self, blobs: memoryview, model: str, version: str) -> InferRequest:
        tensors, end = [], 0
        for each, row, count, shape, begin, end in self.inputs:
            data = _blob(each, blobs, begin, end)
            if row.name in LOOKED_INTO:
                check_packed(each.name, row, count, data)
            tensors.append(Tensor(each.name, each.datatype, shape, data))
        if end != len(blobs):
            raise _additional(len(blobs) - end)
        given = self.given
        return InferRequest(
            model, version, self.id, tensors, self.outputs, given.own, given.priority, given.timeout_us
        )


@lru_cache(maxsize=KEPT_HEADERS)
def _known_header(text: bytes, limits: HttpLimits) -> _Known | None:
    """None where a tensor is not binary, or its size is wrong: then all of the body is looked at."""
    header = _read_header(memoryview(text), limits)
    if not header.inputs or any("binary_data_size" not in (each.parameters or {}) for each in header.inputs):
        return None
    given = read_parameters(header.parameters or {})
    check_id(header.id)
    check_names("inputs", header.inputs, limits)
    inputs, at, left = [], 0, limits.body_bytes
    for each in header.inputs:
        row, parameters = row_of(each.name, each.datatype), each.parameters or {}
        count = count_of(each.name, row, each.shape, left)
        refuse_shared_memory(each.name, parameters)
        end = at + natural("binary_data_size", parameters["binary_data_size"])
        if memoryview(each.data) or (row.itemsize and end - at != count * row.itemsize):
            return None
        left -= end - at
        inputs.append((each, row, count, tuple(each.shape), at, end))
        at = end
    outputs, names = _read_outputs(header.outputs, limits)
    return _Known(header.id, tuple(inputs), outputs, given, _form_of(outputs, names, given))


def _form_of(outputs: list[Wanted] | None, names: frozenset[str], given: RequestParameters) -> AnswerForm:
    if outputs is None:
        return AS_BINARY if given.binary_outputs else AS_JSON
    return AnswerForm(names=names) if names else AS_JSON


def check_id(id: str) -> None:
    if len(id) > LONGEST_ID:
        raise invalid(f"the id of a request has at most {LONGEST_ID} characters")


def _additional(count: int) -> RequestError:
    return invalid(f"unexpected additional input data: {count} bytes after the last input")


def row_of(name: str, datatype: str) -> Datatype:
    row = DATATYPES.get(datatype)
    if row is None:
        raise invalid(f"input {name!r} has datatype {datatype!r}, known: {', '.join(DATATYPES)}")
    return row


def _read_header(text: memoryview, limits: HttpLimits) -> _Request:
    check_depth(text, limits.json_depth)
    try:
        return _HEADER.decode(text)
    except msgspec.ValidationError as error:
        raise invalid(f"the request is not as the protocol has it: {error}") from None
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raw = bytes(text)
        if len(raw) <= MOST_NOT_FINITE_BYTES and (b"NaN" in raw or b"Infinity" in raw):
            return _read_not_finite(raw)
        raise _malformed(error) from None


def _malformed(error: Exception) -> RequestError:
    what = str(error) if isinstance(error, msgspec.MsgspecError) else "it is not UTF-8, or nests too deep"
    return invalid(f"the request is no JSON: {what}")


def _read_not_finite(text: bytes) -> _Request:
    """JSON with NaN or Infinity, which Triton reads and clients write, and msgspec does not."""
    try:
        document = json.loads(text.decode())
        if isinstance(document, dict) and isinstance(document.get("inputs"), list):
            for each in document["inputs"]:
                if isinstance(each, dict) and "data" in each:
                    each["data"] = msgspec.Raw(json.dumps(each["data"]).encode())
        request = msgspec.convert(document, _Request)
        # half a surrogate, which this parser lets through, could not be sent on
        msgspec.json.encode(request)
    except msgspec.ValidationError as error:
        raise invalid(f"the request is not as the protocol has it: {error}") from None
    except (ValueError, OverflowError, RecursionError):
        raise invalid("the request is no JSON in UTF-8, or has a number beyond 64 bits") from None
    return request


def _read_inputs(given: list[_Input], blobs: memoryview | None, limits: HttpLimits) -> list[Tensor]:
    check_names("inputs", given, limits)
    if not given:
        raise invalid("a request has at least one input")
    tensors, at, left = [], 0, limits.body_bytes
    for each in given:
        row = row_of(each.name, each.datatype)
        count = count_of(each.name, row, each.shape, left)
        parameters = each.parameters or {}
        refuse_shared_memory(each.name, parameters)
        size = parameters.get("binary_data_size")
        data: Buffer
        if size is None:
            packed = memoryview(each.data)
            if not packed:
                raise invalid(f"input {each.name!r} has no data, neither JSON nor binary")
            data = pack_json(each.name, row, count, bytes(packed))
        else:
            end = at + natural("binary_data_size", size)
            data = _blob(each, blobs, at, end)
            check_packed(each.name, row, count, data)
            at = end
        left -= len(data)
        tensors.append(Tensor(each.name, each.datatype, tuple(each.shape), data))
    if blobs is not None and at != len(blobs):
        raise _additional(len(blobs) - at)
    return tensors


def _blob(given: _Input, blobs: memoryview | None, at: int, end: int) -> memoryview:
    if blobs is None:
        raise invalid(
            f"input {given.name!r} has binary_data_size, which needs Inference-Header-Content-Length"
        )
    if memoryview(given.data):
        raise invalid(f"input {given.name!r} has both data and binary_data_size")
    if end > len(blobs):
        raise invalid(
            f"unexpected size for input {given.name!r}: binary_data_size is {end - at},"
            f" the body has {len(blobs) - at} bytes left"
        )
    return blobs[at:end]


def _read_outputs(given: list[_Output], limits: HttpLimits) -> tuple[list[Wanted] | None, frozenset[str]]:
    if not given:
        return None, frozenset()
    check_names("outputs", given, limits)
    wanted, binary = [], []
    for each in given:
        parameters, classes = each.parameters, 0
        if parameters:
            refuse_shared_memory(each.name, parameters)
            if switch("binary_data", parameters.get("binary_data", False)):
                binary.append(each.name)
            if "classification" in parameters:
                classes = natural("classification", parameters["classification"], most=MOST_INT64)
        wanted.append(Wanted(each.name, classes))
    return wanted, frozenset(binary)


def check_names(what: str, given: Sequence[Any], limits: HttpLimits) -> None:
    """Inputs or outputs, of JSON or of a message: not too many, with names, no name twice."""
    if len(given) > limits.tensors:
        raise invalid(f"the request has {len(given)} {what}, at most {limits.tensors} are taken")
    seen: set[str] = set()
    for each in given:
        name = each.name
        if not 0 < len(name) <= LONGEST_NAME:
            raise invalid(f"{what} have names of 1 to {LONGEST_NAME} characters")
        if name in seen:
            raise invalid(f"{what} of the request have the name {name!r} twice")
        seen.add(name)
