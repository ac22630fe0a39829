"""Answers to inference as bodies of HTTP: JSON, then the outputs that were asked for as binary data."""

from __future__ import annotations

from dataclasses import dataclass
from math import isfinite
from typing import Any

import msgspec

from ridgeline.serve.codec.values import OFF_LOOP_BYTES, to_json
from ridgeline.serve.messages import Buffer, InferResponse, Parameter

_ENCODER = msgspec.json.Encoder()


@dataclass(slots=True)
class AnswerForm:
    """Which outputs are wanted as binary data: all of them, or those named. The others come as JSON."""

    is_binary: bool = False
    names: frozenset[str] = frozenset()

    def has_binary(self, output: str) -> bool:
        return self.is_binary or output in self.names


AS_JSON, AS_BINARY = AnswerForm(), AnswerForm(is_binary=True)


@dataclass(slots=True)
class Encoded:
    """A body, and where its JSON ends; None if it is all JSON."""

    body: bytes
    header_length: int | None


def is_slow_to_encode(response: InferResponse, form: AnswerForm) -> bool:
    return sum(len(each.data) for each in response.outputs if not form.has_binary(each.name)) > OFF_LOOP_BYTES


def encode_response(response: InferResponse, form: AnswerForm) -> Encoded:
    """Copies what it needs: the response may be released when this returns."""
    blobs: list[Buffer] = []
    outputs = []
    for each in response.outputs:
        told: dict[str, Any] = {"name": each.name, "datatype": each.datatype, "shape": each.shape}
        if form.has_binary(each.name):
            data = memoryview(each.data)
            told["parameters"] = {"binary_data_size": data.nbytes}
            if data.nbytes:
                blobs.append(data)
        else:
            told["data"] = msgspec.Raw(to_json(each))
        outputs.append(told)
    answer: dict[str, Any] = {"id": response.id} if response.id else {}
    answer["model_name"], answer["model_version"] = response.model, response.version
    if response.parameters:
        answer["parameters"] = {name: _finite(value) for name, value in response.parameters.items()}
    answer["outputs"] = outputs
    header = _ENCODER.encode(answer)
    if not blobs:
        return Encoded(header, None)
    return Encoded(b"".join((header, *blobs)), len(header))


def _finite(value: Parameter) -> Parameter:
    """As text where JSON has no number for it."""
    return str(value) if isinstance(value, float) and not isfinite(value) else value
