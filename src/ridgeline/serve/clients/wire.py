"""An inference as bytes of HTTP, and the bytes of an answer as tensors: the client's side of the protocol."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from reprlib import repr as brief
from typing import Any
from urllib.parse import quote

from ridgeline.errors import InputError
from ridgeline.serve.clients.address import Address
from ridgeline.serve.clients.tensors import TensorInfo, from_json, tensor_info, to_tensor
from ridgeline.serve.messages import Buffer, Parameter, Tensor

HEADER_LENGTH = "Inference-Header-Content-Length"


@dataclass(frozen=True)
class Answer:
    """What came back of an inference."""

    model: str
    version: str
    id: str
    outputs: tuple[Tensor, ...]
    parameters: Mapping[str, Parameter]


def model_path(model: str, version: str = "", verb: str = "") -> str:
    """``/v2/models/NAME/versions/2/infer``"""
    parts = ["", "v2", "models", quote(model, safe="")]
    parts += ["versions", quote(version, safe="")] if version else []
    return "/".join([*parts, verb] if verb else parts)


def infer_body(
    tensors: Iterable[Tensor],
    *,
    outputs: Sequence[str] | None = None,
    parameters: Mapping[str, Parameter] | None = None,
    id: str = "",
) -> tuple[int, bytes]:
    """The body of a binary request, with binary outputs, and the length of its JSON."""
    inputs, blobs = [], []
    for tensor in tensors:
        inputs.append({
            "name": tensor.name, "shape": list(tensor.shape), "datatype": tensor.datatype,
            "parameters": {"binary_data_size": len(tensor.data)},
        })  # fmt: skip
        blobs.append(tensor.data)
    head: dict[str, Any] = {
        "inputs": inputs,
        "parameters": {**(parameters or {}), "binary_data_output": True},
    }
    if id:
        head["id"] = id
    if outputs is not None:
        head["outputs"] = [{"name": name, "parameters": {"binary_data": True}} for name in outputs]
    text = json.dumps(head, separators=(",", ":")).encode("utf-8")
    return len(text), b"".join([text, *blobs])


def request_bytes(
    address: Address,
    path: str,
    *,
    body: Buffer = b"",
    headers: Mapping[str, str] | None = None,
    method: str = "POST",
) -> bytes:
    """A whole request of HTTP/1.1, as a connection sends it."""
    lines = [f"{method} {path} HTTP/1.1", f"Host: {address}", f"Content-Length: {len(body)}"]
    lines += [f"{name}: {value}" for name, value in (headers or {}).items()]
    return "\r\n".join([*lines, "", ""]).encode("latin-1") + bytes(body)


def parse_json(text: bytes) -> Any:
    """`ValueError` for JSON that is nested too deeply as well."""
    try:
        return json.loads(text)
    except RecursionError as error:
        raise ValueError("the JSON is nested too deeply") from error


def read_answer(body: bytes, head_length: int | None) -> Answer:
    """`head_length` is what the answer's header says, if it has one. `ValueError` for anything malformed."""
    if head_length is not None and not 0 <= head_length <= len(body):
        raise ValueError(f"the JSON has {head_length} bytes, and the whole answer has {len(body)}")
    view = memoryview(body)
    told = parse_json(bytes(view[:head_length]))
    at = len(body) if head_length is None else head_length
    outputs = []
    try:
        for each in told["outputs"]:
            info = tensor_info(each["name"], each["datatype"], each["shape"])
            size = (each.get("parameters") or {}).get("binary_data_size")
            if size is None:
                outputs.append(_from_json(info, each["data"]))
                continue
            if type(size) is not int or not 0 <= size <= len(body) - at:
                raise ValueError(
                    f"output {info.name!r} has {brief(size)} bytes, and {len(body) - at} are left"
                )
            outputs.append(Tensor(info.name, info.datatype, info.shape, view[at : at + size]))
            at += size
        parameters = told.get("parameters") or {}
        return Answer(
            told["model_name"], told.get("model_version", ""), told.get("id", ""), tuple(outputs), parameters
        )
    except (KeyError, TypeError, AttributeError) as error:
        raise ValueError(f"no answer to an inference: {error!r}") from error


def _from_json(info: TensorInfo, data: Any) -> Tensor:
    try:
        return to_tensor(info, from_json(info, data).reshape(info.shape))
    except (InputError, RecursionError) as error:  # of texts, a list that is nested deeply may be an element
        got = error.got if isinstance(error, InputError) else "it is nested too deeply"
        raise ValueError(f"the data of output {info.name!r} does not read: {got}") from error
