"""What an engine takes: inputs by name, type and rank, and profiles, one of which must hold their sizes."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch

from ridgeline.base.guards import Term, broken
from ridgeline.base.spec import Port, TensorSpec
from ridgeline.errors import InputError, did_you_mean
from ridgeline.kernels.elements import DTYPE_NAMES
from ridgeline.options import Ranges, Values
from ridgeline.runtime.non_tensor import take_non_tensor

Feeds = Mapping[str, Any]


@dataclass(frozen=True)
class Bounds:
    """One profile, or a part of one: the sizes of inputs, and the values of shape tensors."""

    shapes: Mapping[str, Ranges]
    values: Mapping[str, Values]

    def misfits(self, specs: Mapping[str, TensorSpec]) -> Iterator[tuple[str, str, str]]:
        """Every input outside this profile: its name, what it is, what it may be."""
        for name, ranges in self.shapes.items():
            shape = specs[name].shape
            if not _hold(ranges, shape):
                yield name, _text(specs[name].dtype, shape), _text(specs[name].dtype, _texts(ranges))
        for name, values in self.values.items():
            got = specs[name].value
            if got is not None and not _hold(values, got):
                yield name, _text("values ", got), _text("values ", _texts(values))

    def padded(self, specs: Mapping[str, TensorSpec]) -> dict[str, TensorSpec] | None:
        """The smallest shapes of this profile that these fit into; None where they are too large."""
        made = dict(specs)
        for name, ranges in self.shapes.items():
            shape = specs[name].shape
            # of an empty axis there is no row to repeat
            if len(shape) != len(ranges) or any(
                s > r.max or s == 0 < r.min for s, r in zip(shape, ranges, strict=True)
            ):
                return None
            sizes = tuple(max(s, r.min) for s, r in zip(shape, ranges, strict=True))
            made[name] = replace(specs[name], shape=sizes)
        return made

    def distance(self, specs: Mapping[str, TensorSpec]) -> float:
        """How far sizes are from those that this profile was tuned for."""
        pairs = [
            (size, dim.opt)
            for name, ranges in self.shapes.items()
            for size, dim in zip(specs[name].shape, ranges, strict=True)
        ]
        return sum(abs(math.log((size + 1) / (opt + 1))) for size, opt in pairs)


class Signature:
    """Checks what callers give, and finds the plan that takes it."""

    def __init__(
        self,
        ports: Sequence[Port],
        bounds: Sequence[Bounds],
        guards: Sequence[Term] = (),
        defaults: Mapping[str, Any] | None = None,
        parts: Sequence[Bounds] | None = None,
    ) -> None:
        """`bounds` of every profile; `parts` of every plan, where profiles are tuned at several points."""
        self.guards = tuple(guards)
        self.ports = {port.name: port for port in ports if not port.is_non_tensor}
        self.non_tensor = {port.name: port for port in ports if port.is_non_tensor}
        self.bounds = tuple(bounds)
        self.parts = self.bounds if parts is None else tuple(parts)
        self.defaults = dict(defaults or {})  # of inputs that may be left out
        self.valued = tuple(port.name for port in ports if any(port.name in b.values for b in bounds))
        self._has_profile = any(b.shapes or b.values for b in bounds)

    def checked(self, feeds: Feeds) -> list[Any]:
        """The inputs in order, or one error that says all that is wrong with them."""
        if not isinstance(feeds, Mapping):
            raise InputError("run takes a mapping", got=type(feeds).__name__, want='{"input name": array}')
        known = list(self.ports)
        problems = [
            f"there is no input {name!r}: {did_you_mean(str(name), [*known, *self.non_tensor])}"
            for name in feeds
            if name not in known
        ]
        problems += [
            f"input {name!r} is missing: want {self._want(self.ports[name])}"
            for name in known
            if name not in feeds and name not in self.defaults
        ]
        if problems:
            raise InputError("the inputs do not match the engine's", rows=problems)
        arrays = []
        for port in self.ports.values():
            array = feeds[port.name] if port.name in feeds else self.defaults[port.name]
            if not isinstance(array, (np.ndarray, np.generic, torch.Tensor)):
                array = self._as_array(port, array)
            self._check_port(port, array)
            arrays.append(array)
        self._check_names(arrays)
        return arrays

    def apart(self, feeds: Feeds) -> tuple[Feeds, dict[str, Any]]:
        """Arrays and tensors, and beside them what no memory is planned for: strings, sequences."""
        if not self.non_tensor or not isinstance(feeds, Mapping):
            return feeds, {}
        rest = {name: value for name, value in feeds.items() if name not in self.non_tensor}
        return rest, take_non_tensor(self.non_tensor, feeds)

    def specs(self, arrays: Sequence[Any]) -> dict[str, TensorSpec]:
        """The inputs as specs; those of shape tensors carry their values."""
        made = {}
        for port, array in zip(self.ports.values(), arrays, strict=True):
            spec = TensorSpec(port.dtype, tuple(array.shape))
            made[port.name] = replace(spec, value=values_of(array)) if port.name in self.valued else spec
        return made

    def find(self, specs: Mapping[str, TensorSpec]) -> int | None:
        """The plan whose part holds these inputs; of several the one tuned for the nearest sizes."""
        fits = [i for i, bounds in enumerate(self.parts) if not any(bounds.misfits(specs))]
        return min(fits, key=lambda i: self.parts[i].distance(specs), default=None)

    def require_guards(self, specs: Mapping[str, TensorSpec]) -> None:
        """Raise where the module that the engine was made from would do something else at these sizes."""
        rows = self.broken(specs)
        if rows:
            raise InputError(
                "the engine was exported for other sizes: the module's code depends on them",
                rows=rows,
                got=_line(specs),
                help="build one more with an example of these sizes; ridgeline.compile does so by itself",
            )

    def broken(self, specs: Mapping[str, TensorSpec]) -> list[str]:
        """The guards that these inputs do not keep."""
        return broken(self.guards, {name: spec.shape for name, spec in specs.items()})

    def require(self, specs: Mapping[str, TensorSpec]) -> None:
        """Raise where no profile holds these inputs, or a guard does not."""
        self.require_guards(specs)
        if self.find(specs) is None:
            raise self.misfit(specs)

    def misfit(self, specs: Mapping[str, TensorSpec], why_not_padded: str = "") -> InputError:
        """The error for inputs that no profile holds: what every profile takes."""
        if len(self.bounds) > 1:
            rows = [
                f"profile {i}: {name!r} is {got}, want {want}"
                for i, bounds in enumerate(self.bounds, start=1)
                for name, got, want in bounds.misfits(specs)
            ]
            rows += [f"not padded to a larger one: {why_not_padded}"] if why_not_padded else []
            return InputError(
                f"no profile of this engine takes these inputs ({len(self.bounds)} profiles)",
                rows=rows,
                help=f"rebuild with one more: --profile '{_line(specs)}'",
            )
        misfits = [*self.bounds[0].misfits(specs)]
        if not misfits:  # the file was changed: those of a build leave nothing out
            return InputError(
                "no part of the plan takes these inputs, and its profile does",
                got=_line(specs),
                help="the file was changed: ridge build MODEL.onnx makes it again",
            )
        name, got, want = misfits[0]
        return InputError(
            f"input {name!r} does not fit this plan", got=got, want=want, help=self._cover(name, specs[name])
        )

    def _cover(self, name: str, spec: TensorSpec) -> str:
        """The option that would take these inputs as well."""
        if spec.value is not None and name not in self.bounds[0].shapes:
            return f"rebuild with --shapes '{name}=[{', '.join(map(str, spec.value))}]', or a range of values"
        ranges = self.bounds[0].shapes[name]
        cover = "x".join(
            range_text(min(r.min, s), max(r.max, s)) for r, s in zip(ranges, spec.shape, strict=True)
        )
        split = ", or split the batch" if spec.shape and spec.shape[0] > ranges[0].max else ""
        return f"rebuild with --shapes {name}={cover}{split}"

    def _as_array(self, port: Port, given: Any) -> np.ndarray:
        """Numbers and lists of them."""
        try:
            array = np.asarray(given)
        except ValueError:  # lists of several lengths
            array = np.asarray(None)
        if array.dtype.kind in "OUS":
            raise InputError(
                f"input {port.name!r} is not an array of numbers",
                got="None" if given is None else type(given).__name__,
                want=self._want(port),
                help="give a numpy array or a tensor",
            )
        return array

    def _want(self, port: Port) -> str:
        """The shape with the sizes that profiles allow; dims by name where any size will do."""
        ranges = [bounds.shapes[port.name] for bounds in self.bounds if port.name in bounds.shapes]
        if ranges:
            each = [_text(port.dtype, _texts(dims)) for dims in ranges]
            return " or ".join(dict.fromkeys(each))
        return str(port) if port.dims is None else _text(port.dtype, port.dims)

    def _check_port(self, port: Port, array: Any) -> None:
        dtype = DTYPE_NAMES.get(array.dtype) or str(array.dtype)
        dims = port.dims if port.dims is not None else tuple("?" for _ in array.shape)
        fits = dtype == port.dtype and len(dims) == len(array.shape)
        if fits and all(isinstance(d, str) or d == s for d, s in zip(dims, array.shape, strict=True)):
            return
        help_ = "check the number of dimensions and their sizes"
        if dtype != port.dtype:
            as_tensor = f"{port.name}.to(torch.{port.dtype})"
            as_array = f"np.asarray({port.name}, {port.dtype!r})"
            help_ = f"convert it: {as_tensor if isinstance(array, torch.Tensor) else as_array}"
        raise InputError(
            f"input {port.name!r} does not fit this plan",
            got=_text(dtype, array.shape),
            want=self._want(port),
            help=help_,
        )

    def _check_names(self, arrays: Sequence[Any]) -> None:
        """A dim's name stands for one size where profiles were given by it; other files misuse names."""
        if not self._has_profile:
            return
        seen: dict[str, tuple[str, int]] = {}
        for port, array in zip(self.ports.values(), arrays, strict=True):
            for dim, size in zip(port.dims or (), array.shape, strict=False):
                where, other = seen.setdefault(str(dim), (port.name, size))
                if isinstance(dim, str) and other != size:
                    raise InputError(
                        f"dim {dim!r} has two sizes",
                        rows=[f"{other} in {where!r}", f"{size} in {port.name!r}"],
                        want="one size: the model gives both dims the same name",
                    )


def values_of(array: Any) -> tuple[int, ...]:
    """The numbers in a shape tensor."""
    return tuple(int(v) for v in array.reshape(-1).tolist())


def _hold(ranges: Ranges | Values, numbers: Sequence[int]) -> bool:
    """Whether there is a range for each number, which lies inside it."""
    is_each = len(ranges) == len(numbers)
    return is_each and all(ranges[i].min <= n <= ranges[i].max for i, n in enumerate(numbers))


def _texts(ranges: Ranges | Values) -> list[str]:
    return [range_text(r.min, r.max) for r in ranges]


def range_text(low: int, high: int) -> str:
    return str(low) if low == high else f"{low}..{high}"


def _text(dtype: str, dims: Sequence[object]) -> str:
    return f"{dtype}[{', '.join(map(str, dims))}]"


def _line(specs: Mapping[str, TensorSpec]) -> str:
    return " ".join(
        f"{n}={'x'.join(map(str, s.shape)) if s.value is None else '[' + ','.join(map(str, s.value)) + ']'}"
        for n, s in specs.items()
        if s.shape
    )
