"""A request against its model: every input there once, of the right type and shape, outputs that exist."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from ridgeline.serve.errors import invalid
from ridgeline.serve.messages import InferRequest, Tensor, Wanted
from ridgeline.serve.spec import ModelSpec, TensorSpec


@dataclass(slots=True)
class Admitted:
    """What a model runs: inputs in the order of its ports, with the shapes that its engine has."""

    inputs: list[Tensor]
    size: int  # along the batch; 1 where there is none
    wanted: list[Wanted]
    nbytes: int


def admit(spec: ModelSpec, request: InferRequest) -> Admitted:
    given = {tensor.name: tensor for tensor in request.inputs}
    inputs, size, nbytes = [], 0, 0
    for port in spec.inputs:
        tensor = given.pop(port.name, None)
        if tensor is None:
            if port.is_optional:
                continue
            raise invalid(
                f"input {port.name!r} of model {spec.name!r} is missing: it takes"
                f" {', '.join(p.name for p in spec.inputs)}"
            )
        _check(spec, port, tensor)
        if spec.has_batch:
            if size and tensor.shape[0] != size:
                raise invalid(
                    f"inputs of model {spec.name!r} differ in their batch: {port.name!r} has"
                    f" {tensor.shape[0]}, another {size}"
                )
            size = tensor.shape[0]
        nbytes += len(tensor.data)
        inputs.append(tensor if port.reshape is None else _reshaped(port, port.reshape, tensor, spec))
    if given:
        raise invalid(
            f"model {spec.name!r} has no input {next(iter(given))!r}: it takes"
            f" {', '.join(p.name for p in spec.inputs)}"
        )
    return Admitted(inputs, size or 1, _wanted(spec, request.outputs), nbytes)


def _check(spec: ModelSpec, port: TensorSpec, tensor: Tensor) -> None:
    if tensor.datatype != port.datatype:
        raise invalid(
            f"input {port.name!r} of model {spec.name!r} has type {tensor.datatype}, want {port.datatype}"
        )
    dims = spec.whole_dims(port)
    fits = len(dims) == len(tensor.shape) and all(
        want in (-1, size) for want, size in zip(dims, tensor.shape, strict=True)
    )
    if not fits:
        raise invalid(
            f"input {port.name!r} of model {spec.name!r} has shape {list(tensor.shape)}, want {list(dims)}"
        )
    if spec.has_batch and not 1 <= tensor.shape[0] <= spec.max_batch_size:
        raise invalid(
            f"input {port.name!r} has batch size {tensor.shape[0]}, model {spec.name!r} takes"
            f" 1 to {spec.max_batch_size}"
        )


def _reshaped(port: TensorSpec, reshape: tuple[int, ...], tensor: Tensor, spec: ModelSpec) -> Tensor:
    """The shape the engine has; its open dims are the client's, in their order."""
    first = 1 if spec.has_batch else 0
    pairs = zip(port.dims, tensor.shape[first:], strict=True)
    open_sizes = iter([size for dim, size in pairs if dim == -1])
    shape = tuple(next(open_sizes) if dim == -1 else dim for dim in reshape)
    return replace(tensor, shape=(*tensor.shape[:first], *shape))


def _wanted(spec: ModelSpec, asked: Sequence[Wanted] | None) -> list[Wanted]:
    if not asked:
        return [Wanted(port.name) for port in spec.outputs]
    for each in asked:
        if spec.output(each.name) is None:
            raise invalid(
                f"model {spec.name!r} has no output {each.name!r}: it gives"
                f" {', '.join(p.name for p in spec.outputs)}"
            )
    return list(asked)


def outward(spec: ModelSpec, output: Tensor) -> Tensor:
    """An output as clients see it, where the configuration gives it another shape than the engine."""
    port = spec.output(output.name)
    if port is None or port.reshape is None:
        return output
    first = 1 if spec.has_batch else 0
    pairs = zip(port.reshape, output.shape[first:], strict=True)
    open_sizes = iter([size for dim, size in pairs if dim == -1])
    shape = tuple(next(open_sizes) if dim == -1 else dim for dim in port.dims)
    return replace(output, shape=(*output.shape[:first], *shape))
