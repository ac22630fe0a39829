"""A ModelInferRequest to a request, and an answer to a ModelInferResponse."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from ridgeline.serve.codec.codec import check_id, check_names, row_of
from ridgeline.serve.codec.values import MOST_INT64, check_packed, count_of
from ridgeline.serve.errors import invalid
from ridgeline.serve.grpc.contents import pack_contents
from ridgeline.serve.grpc.wire import Cut, check_contents, cut, join_answer, join_stream_answer, parse
from ridgeline.serve.messages import Buffer, InferRequest, InferResponse, Parameter, Tensor, Wanted
from ridgeline.serve.parameters import natural, read_parameters, refuse_shared_memory
from ridgeline.serve.protocol import messages
from ridgeline.serve.settings import HttpLimits

# Triton's C++ client sends it with every request. It asks for an empty message after the last answer of a
# model that answers more than once; no model here does
EMPTY_FINAL_RESPONSE = "triton_enable_empty_final_response"
NUMBERS = ("priority", "timeout")


def decode_request(body: bytes, limits: HttpLimits) -> InferRequest:
    return decode(cut(body, limits), limits)


def decode(given: Cut, limits: HttpLimits) -> InferRequest:
    """Everything that can be checked without the model is."""
    check_contents(given.head)
    message = parse(messages.ModelInferRequest, given.head)
    raw = list(message.raw_input_contents) if given.raw is None else given.raw
    parameters = _parameters(message.parameters)
    parameters.pop(EMPTY_FINAL_RESPONSE, None)
    for name in NUMBERS:
        value = parameters.get(name)
        if isinstance(value, float) and value.is_integer():
            parameters[name] = int(value)
    known = read_parameters(parameters)
    check_id(message.id)
    return InferRequest(
        message.model_name,
        message.model_version,
        message.id,
        _inputs(message.inputs, raw, limits),
        _outputs(message.outputs, limits),
        known.own,
        known.priority,
        known.timeout_us,
    )


def encode_response(response: InferResponse) -> bytes:
    """Copies what it needs: the response may be released when this returns."""
    return join_answer(_head(response), [each.data for each in response.outputs])


def encode_stream_response(response: InferResponse) -> bytes:
    return join_stream_answer(_head(response), [each.data for each in response.outputs])


def encode_stream_error(message: str, request_id: str) -> bytes:
    answer = messages.ModelStreamInferResponse(error_message=message)
    if request_id:
        # a client tells by it which of its requests failed
        answer.infer_response.id = request_id
    return bytes(answer.SerializeToString())


def _head(response: InferResponse) -> bytes:
    head = messages.ModelInferResponse(
        model_name=response.model, model_version=response.version, id=response.id
    )
    for name, value in response.parameters.items():
        _set(head.parameters[name], value)
    for each in response.outputs:
        head.outputs.add(name=each.name, datatype=each.datatype, shape=each.shape)
    return bytes(head.SerializeToString())


def _inputs(given: Any, raw: list[Buffer], limits: HttpLimits) -> list[Tensor]:
    check_names("inputs", given, limits)
    if not given:
        raise invalid("a request has at least one input")
    if raw and len(raw) != len(given):
        raise invalid(f"the request has {len(given)} inputs and {len(raw)} raw_input_contents")
    tensors, left = [], limits.body_bytes
    for at, each in enumerate(given):
        name, datatype, shape = each.name, each.datatype, tuple(each.shape)
        row = row_of(name, datatype)
        if each.parameters:
            refuse_shared_memory(name, each.parameters)
        count = count_of(name, row, shape, left)
        data: Buffer
        if raw:
            if each.HasField("contents"):
                raise invalid(f"input {name!r} has contents, and the request has raw_input_contents")
            data = raw[at]
            check_packed(name, row, count, memoryview(data))
        else:
            data = pack_contents(name, row, count, each.contents)
        left -= len(data)
        tensors.append(Tensor(name, datatype, shape, data))
    return tensors


def _outputs(given: Any, limits: HttpLimits) -> list[Wanted] | None:
    if not given:
        return None
    check_names("outputs", given, limits)
    wanted = []
    for each in given:
        classes = 0
        if each.parameters:
            parameters = _parameters(each.parameters)
            refuse_shared_memory(each.name, parameters)
            if "classification" in parameters:
                classes = natural("classification", parameters["classification"], most=MOST_INT64)
        wanted.append(Wanted(each.name, classes))
    return wanted


def _parameters(given: Mapping[str, Any]) -> dict[str, Parameter]:
    return dict(_values(given)) if given else {}


def _values(given: Mapping[str, Any]) -> Iterable[tuple[str, Parameter]]:
    for name, parameter in given.items():
        choice = parameter.WhichOneof("parameter_choice")
        if choice is None:
            raise invalid(f"parameter {name!r} has no value")
        yield name, getattr(parameter, choice)


def _set(parameter: Any, value: Parameter) -> None:
    if isinstance(value, bool):
        parameter.bool_param = value
    elif isinstance(value, str):
        parameter.string_param = value
    elif isinstance(value, float):
        parameter.double_param = value
    elif value > MOST_INT64:
        parameter.uint64_param = value
    else:
        parameter.int64_param = value
