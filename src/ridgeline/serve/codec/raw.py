"""A raw binary request: a body without any JSON, which is the data of a model's only input."""

from __future__ import annotations

from collections.abc import Mapping
from math import prod
from typing import Any

from ridgeline.serve.codec.answer import AS_BINARY, AnswerForm
from ridgeline.serve.codec.values import check_packed
from ridgeline.serve.datatypes import BY_CONFIG, LENGTH_BYTES, Datatype
from ridgeline.serve.errors import invalid
from ridgeline.serve.messages import InferRequest, Tensor


def decode_raw(
    body: bytes, config: Mapping[str, Any], *, model: str, version: str
) -> tuple[InferRequest, AnswerForm]:
    """The body as a batch of one. `config` is the model's, with names as in the protocol's message."""
    inputs = config.get("input", [])
    if len(inputs) != 1:
        raise invalid(f"a raw binary request needs a model with one input, {model!r} has {len(inputs)}")
    row = BY_CONFIG[inputs[0]["data_type"]]
    name = str(inputs[0]["name"])
    dims = [int(size) for size in inputs[0]["dims"]]
    data = memoryview(body)
    if row.itemsize == 0:
        data = memoryview(len(body).to_bytes(LENGTH_BYTES, "little") + body)
    dims = _with_open_dim(name, dims, len(body), row)
    shape = (1, *dims) if int(config.get("max_batch_size", 0)) > 0 else tuple(dims)
    check_packed(name, row, prod(shape), data)
    return InferRequest(model, version, inputs=[Tensor(name, row.name, shape, data)]), AS_BINARY


def _with_open_dim(name: str, dims: list[int], nbytes: int, row: Datatype) -> list[int]:
    """The size that may vary is what the bytes come to."""
    is_open = [size < 0 for size in dims]
    if sum(is_open) > 1:
        raise invalid(f"a raw binary request needs an input with one open dim, {name!r} has {sum(is_open)}")
    if not any(is_open):
        return dims
    rest = row.itemsize * prod(size for size in dims if size >= 0)
    # of strings there is one, which is the whole body
    open_size = 1 if row.itemsize == 0 else nbytes // rest if rest else 0
    return [open_size if size < 0 else size for size in dims]
