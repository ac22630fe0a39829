"""Requests as one batch, and its outputs as answers: which may run together, and who gets which rows."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from ridgeline.serve.datatypes import LENGTH_BYTES
from ridgeline.serve.errors import Kind, RequestError
from ridgeline.serve.hosts.hosting import Joined, memoryview_bytes
from ridgeline.serve.messages import Tensor
from ridgeline.serve.spec import ModelSpec


@dataclass(frozen=True)
class Padding:
    """Dims that a model declares safe to lengthen: the axes of each input, and of each output."""

    inputs: dict[str, Mapping[int, str]]  # by axis
    outputs: dict[str, tuple[tuple[int, str], ...]]  # axis, and the dim that says its size
    values: dict[str, float]


def padding_of(spec: ModelSpec) -> Padding | None:
    """Which axes may be padded, and where outputs find the sizes to be cut to."""
    if not spec.pad_dims:
        return None
    inputs = {port.name: spec.padded_axes(port) for port in spec.inputs}
    return Padding(
        inputs,
        {port.name: tuple(spec.padded_axes(port).items()) for port in spec.outputs},
        dict(spec.pad_values),
    )


def key_of(inputs: Sequence[Tensor], padding: Padding | None, first: int) -> tuple[object, ...]:
    """Requests with equal keys fit one batch: same inputs, same sizes but for the batch's and padded dims."""
    if padding is None:
        return tuple((tensor.name, tensor.shape[first:]) for tensor in inputs)
    return tuple(
        (
            tensor.name,
            tuple(
                -1 if axis in padding.inputs.get(tensor.name, ()) else size
                for axis, size in enumerate(tensor.shape[first:], start=first)
            ),
        )
        for tensor in inputs
    )


def join(requests: Sequence[Sequence[Tensor]], padding: Padding | None) -> list[Joined]:
    """The inputs of several requests with equal keys, each behind the other along the first dim."""
    joined = []
    for position, head in enumerate(requests[0]):
        tensors = [inputs[position] for inputs in requests]
        parts = [tensor.data for tensor in tensors]
        if len(tensors) == 1:
            joined.append(Joined(head.name, head.datatype, head.shape, parts))
            continue
        rows = sum(tensor.shape[0] for tensor in tensors)
        shapes = [tensor.shape for tensor in tensors]
        rest = tuple(map(max, zip(*(shape[1:] for shape in shapes), strict=True)))
        whole = (rows, *rest)
        if all(shape[1:] == rest for shape in shapes):
            joined.append(Joined(head.name, head.datatype, whole, parts))
        else:
            pad = 0.0 if padding is None else padding.values.get(head.name, 0.0)
            joined.append(Joined(head.name, head.datatype, whole, parts, shapes, pad))
    return joined


def rows_of(output: Tensor, counts: Sequence[int]) -> list[Tensor]:
    """The rows of each request, which has so many of them; views, not copies."""
    if len(counts) == 1:
        return [output]
    total = sum(counts)
    if not output.shape or output.shape[0] != total:
        raise RequestError(
            Kind.INTERNAL,
            f"output {output.name!r} has shape {list(output.shape)} for a batch of {total}: the model does"
            " not keep requests apart; set max_batch_size: 0 in its configuration",
            reason="BACKEND",
        )
    data, rest, parts, at = memoryview_bytes(output.data), output.shape[1:], [], 0
    row_bytes = len(data) // total if output.type.itemsize else None
    for count in counts:
        end = at + count * row_bytes if row_bytes is not None else _end_of(data, at, count, rest)
        parts.append(Tensor(output.name, output.datatype, (count, *rest), data[at:end]))
        at = end
    return parts


def _end_of(data: memoryview, at: int, rows: int, rest: tuple[int, ...]) -> int:
    """Where so many rows of a BYTES tensor end."""
    elements = rows
    for size in rest:
        elements *= size
    for _ in range(elements):
        at += LENGTH_BYTES + int.from_bytes(data[at : at + LENGTH_BYTES], "little")
    return at


def cut(output: Tensor, padding: Padding, inputs: Sequence[Tensor]) -> Tensor:
    """The output without what was computed for padding: a copy where it has to be packed anew."""
    sizes = list(output.shape)
    own = {
        dim: tensor.shape[axis]
        for tensor in inputs
        for axis, dim in padding.inputs.get(tensor.name, {}).items()
    }
    for axis, dim in padding.outputs.get(output.name, ()):
        sizes[axis] = min(sizes[axis], own.get(dim, sizes[axis]))
    shape = tuple(sizes)
    if shape == output.shape:
        return output
    element = output.type.numpy
    assert element is not None, "outputs of BYTES are never padded"
    whole = np.frombuffer(output.data, element).reshape(output.shape)
    return Tensor(output.name, output.datatype, shape, whole[tuple(map(slice, shape))].tobytes())
