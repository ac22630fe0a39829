"""A request against its model: every input there once, of the right type and shape, outputs that exist."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from ridgeline.serve.errors import RequestError, invalid
from ridgeline.serve.messages import InferRequest, Tensor, Wanted
from ridgeline.serve.spec import ModelSpec, TensorSpec


@dataclass(slots=True)
class Admitted:
    """What a model runs: inputs in the order of its ports, with the shapes that its engine has."""

    inputs: list[Tensor]
    size: int  # along the batch; 1 where there is none
    wanted: list[Wanted]


class Admission:
    """What a model takes, looked up once: this is on the way of every request."""

    def __init__(self, spec: ModelSpec) -> None:
        self._spec = spec
        self._ports = [(port.name, port, _fixed(spec.whole_dims(port))) for port in spec.inputs]
        self._rank = {port.name: len(spec.whole_dims(port)) for port in spec.inputs}
        self._all = [Wanted(port.name) for port in spec.outputs]
        self._outputs = {port.name for port in spec.outputs}
        self._padded = {port.name: spec.padded_axes(port) for port in spec.inputs} if spec.pad_dims else {}

    def admit(self, request: InferRequest) -> Admitted:
        given = {tensor.name: tensor for tensor in request.inputs}
        spec, size, inputs = self._spec, -1, []
        for name, port, fixed in self._ports:
            tensor = given.pop(name, None)
            if tensor is None:
                if port.is_optional:
                    continue
                raise self._refused(f"input {name!r} of model {spec.name!r} is missing")
            shape = tensor.shape
            if tensor.datatype != port.datatype or len(shape) != self._rank[name]:
                raise self._misfit(port, tensor)
            for axis, want in fixed:
                if shape[axis] != want:
                    raise self._misfit(port, tensor)
            if spec.has_batch and shape[0] != size:
                if size > 0 or not 1 <= shape[0] <= spec.max_batch_size:
                    raise self._wrong_batch(port, shape[0], size)
                size = shape[0]
            if port.reshape is not None:
                first = 1 if spec.has_batch else 0
                tensor = replace(tensor, shape=(*shape[:first], *inward(port, shape[first:])))
            inputs.append(tensor)
        if given:
            raise self._refused(f"model {spec.name!r} has no input {next(iter(given))!r}")
        if self._padded:
            self._check_padded(inputs)
        return Admitted(inputs, max(size, 1), self._wanted(request.outputs))

    def _check_padded(self, inputs: Sequence[Tensor]) -> None:
        """Beside longer requests of its batch a contradiction of one's own would be padded away."""
        sizes: dict[str, tuple[str, int]] = {}
        for tensor in inputs:
            for axis, dim in self._padded[tensor.name].items():
                other, size = sizes.setdefault(dim, (tensor.name, tensor.shape[axis]))
                if size != tensor.shape[axis]:
                    raise invalid(
                        f"inputs of model {self._spec.name!r} differ in {dim!r}: {other!r} has {size},"
                        f" {tensor.name!r} has {tensor.shape[axis]}"
                    )

    def _wanted(self, asked: Sequence[Wanted] | None) -> list[Wanted]:
        if not asked:
            return self._all
        for each in asked:
            if each.name not in self._outputs:
                names = ", ".join(port.name for port in self._spec.outputs)
                raise invalid(f"model {self._spec.name!r} has no output {each.name!r}: it gives {names}")
        return list(asked)

    def _refused(self, what: str) -> RequestError:
        return invalid(f"{what}: it takes {', '.join(port.name for port in self._spec.inputs)}")

    def _misfit(self, port: TensorSpec, tensor: Tensor) -> RequestError:
        about = f"input {port.name!r} of model {self._spec.name!r}"
        if tensor.datatype != port.datatype:
            return invalid(f"{about} has type {tensor.datatype}, want {port.datatype}")
        want = list(self._spec.whole_dims(port))
        return invalid(f"{about} has shape {list(tensor.shape)}, want {want}")

    def _wrong_batch(self, port: TensorSpec, size: int, other: int) -> RequestError:
        if other > 0:
            return invalid(
                f"inputs of model {self._spec.name!r} differ in their batch: {port.name!r} has {size},"
                f" another {other}"
            )
        return invalid(
            f"input {port.name!r} has batch size {size}, model {self._spec.name!r} takes 1 to"
            f" {self._spec.max_batch_size}"
        )


def _fixed(dims: Sequence[int]) -> list[tuple[int, int]]:
    return [(axis, dim) for axis, dim in enumerate(dims) if dim != -1]


def inward(port: TensorSpec, dims: tuple[int, ...]) -> tuple[int, ...]:
    """The dims that the engine has, without a batch; those that are open are the client's, in their order."""
    if port.reshape is None:
        return dims
    open_sizes = iter([size for dim, size in zip(port.dims, dims, strict=True) if dim == -1])
    return tuple(next(open_sizes) if dim == -1 else dim for dim in port.reshape)


def outward(spec: ModelSpec, port: TensorSpec, output: Tensor) -> Tensor:
    """An output as clients see it, where the configuration gives it another shape than the engine."""
    if port.reshape is None:
        return output
    first = 1 if spec.has_batch else 0
    pairs = zip(port.reshape, output.shape[first:], strict=True)
    open_sizes = iter([size for dim, size in pairs if dim == -1])
    shape = tuple(next(open_sizes) if dim == -1 else dim for dim in port.dims)
    return replace(output, shape=(*output.shape[:first], *shape))
