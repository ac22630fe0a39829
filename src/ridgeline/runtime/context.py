"""A context: what one thread needs to run an engine. Holds instances, most recently used first."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import ml_dtypes
import numpy as np
import torch

from ridgeline.errors import InputError, RidgelineError, did_you_mean, first_line
from ridgeline.options import Profile
from ridgeline.runtime.instance import Instance, as_numpy
from ridgeline.spec import Port, TensorSpec
from ridgeline.tactics.fallback import TORCH_DTYPES

KEPT_INSTANCES = 8
Feeds = Mapping[str, Any]


class Plain:
    """The quick way for an instance that never enters PyTorch, and arrays of the shapes it was made for."""

    def __init__(self, instance: Instance, dtypes: Sequence[Any]) -> None:
        shapes = [tuple(tensor.shape) for tensor in instance.inputs.values()]
        self._inputs = list(zip(instance.inputs, shapes, dtypes, instance.input_arrays, strict=True))
        self._names = instance.program.outputs
        self._copied = instance.copied_output
        self.execute = instance.execute

    def takes(self, feeds: Feeds) -> bool:
        """Copy the inputs in, if all of them fit; what does not is explained on the other way."""
        if feeds.__class__ is not dict or len(feeds) != len(self._inputs):
            return False
        for name, shape, dtype, buffer in self._inputs:
            array = feeds.get(name)
            if array.__class__ is not np.ndarray or array.shape != shape or array.dtype != dtype:
                return False
            np.copyto(buffer, array)
        return True

    def read(self) -> dict[str, Any]:
        return {name: self._copied(name) for name in self._names}


class Context:
    """Runs an engine for one thread at a time. Its memory is its own; the engine's weights are shared."""

    def __init__(
        self,
        inputs: Sequence[Port],
        profile: Profile,
        make_instance: Callable[[dict[str, TensorSpec]], Instance],
    ) -> None:
        self._ports = {port.name: port for port in inputs}
        self._profile = profile
        self._make_instance = make_instance
        self._instances: OrderedDict[tuple[Any, ...], Instance] = OrderedDict()
        self._names = tuple(self._ports)
        self._plain: Plain | None = None
        self._torch_dtypes = [TORCH_DTYPES.get(port.dtype) for port in inputs]
        self._numpy_dtypes = [_numpy_dtype(port.dtype) for port in inputs]

    def run(self, feeds: Feeds) -> dict[str, Any]:
        """Outputs by name. numpy in, numpy out; torch in, torch out; results are the caller's own."""
        plain = self._plain
        try:
            if plain is not None and plain.takes(feeds):
                plain.execute()
                return plain.read()
            with torch.inference_mode():
                instance, is_torch = self._load(feeds)
                instance.execute()
                if not is_torch:
                    return read_arrays(instance)
        except RidgelineError:
            raise
        except Exception as error:  # a library refuses these values: the engine itself stays whole
            raise InputError(
                "the engine cannot run with these values",
                got=f"{type(error).__name__}: {first_line(error, 300)}",
                help="look for indices outside their table, or sizes the model does not take",
            ) from error
        # outside: callers may write to tensors of their own, and to inference tensors nobody may
        return {name: instance.result(name)[0].clone() for name in instance.program.outputs}

    def run_nothing(self, feeds: Feeds) -> dict[str, Any]:
        """All that `run` does besides the steps, so that it can be timed."""
        plain = self._plain
        if plain is not None and plain.takes(feeds):
            return plain.read()
        with torch.inference_mode():
            return read_arrays(self._load(feeds)[0])

    def instance(self, feeds: Feeds) -> Instance:
        """The instance for these inputs, loaded with them."""
        with torch.inference_mode():
            return self._load(feeds)[0]

    def _load(self, feeds: Feeds) -> tuple[Instance, bool]:
        try:
            arrays = [feeds[name] for name in self._names]
            key = tuple(array.shape for array in arrays)
        except (KeyError, AttributeError, TypeError, IndexError):
            arrays = self._checked(feeds)
            key = tuple(array.shape for array in arrays)
        if len(feeds) != len(arrays):
            arrays = self._checked(feeds)
        instance = self._instances.get(key)
        if instance is None:
            arrays = self._checked(feeds)
            instance = self._new_instance(key, arrays)
        elif len(self._instances) > 1:
            self._instances.move_to_end(key)
        self._plain = None if instance.calls_torch else Plain(instance, self._numpy_dtypes)
        is_torch = False
        for i, (array, buffer) in enumerate(zip(arrays, instance.inputs.values(), strict=True)):
            if isinstance(array, torch.Tensor):
                if array.dtype != self._torch_dtypes[i]:
                    self._checked(feeds)
                buffer.copy_(array)
                is_torch = True
            else:
                if array.dtype != self._numpy_dtypes[i]:
                    self._checked(feeds)
                np.copyto(instance.input_arrays[i], array)
        return instance, is_torch

    def _new_instance(self, key: tuple[Any, ...], arrays: Sequence[Any]) -> Instance:
        specs = {
            port.name: TensorSpec(port.dtype, tuple(array.shape))
            for port, array in zip(self._ports.values(), arrays, strict=True)
        }
        instance = self._make_instance(specs)
        self._instances[key] = instance
        while len(self._instances) > KEPT_INSTANCES:
            self._instances.popitem(last=False)
        return instance

    def _checked(self, feeds: Feeds) -> list[Any]:
        """The inputs in order, or one error that says all that is wrong with them."""
        if not isinstance(feeds, Mapping):
            raise InputError("run takes a mapping", got=type(feeds).__name__, want='{"input name": array}')
        known = list(self._ports)
        problems = [
            f"there is no input {name!r}: {did_you_mean(str(name), known)}"
            for name in feeds
            if name not in known
        ]
        problems += [
            f"input {name!r} is missing: want {self._ports[name]}" for name in known if name not in feeds
        ]
        if problems:
            raise InputError("the inputs do not match the engine's", rows=problems)
        arrays = []
        for port in self._ports.values():
            array = feeds[port.name]
            if not isinstance(array, (np.ndarray, np.generic, torch.Tensor)):
                array = np.asarray(array)
            self._check_port(port, array)
            arrays.append(array)
        return arrays

    def _is_of_model(self, port: Port, array: Any) -> bool:
        dims = port.dims if port.dims is not None else array.shape
        return all(isinstance(d, str) or d == s for d, s in zip(dims, array.shape, strict=True))

    def _check_port(self, port: Port, array: Any) -> None:
        dtype = str(array.dtype).removeprefix("torch.")
        ranges = self._profile.get(port.name)
        dims = port.dims if port.dims is not None else tuple("?" for _ in array.shape)
        want = list(map(str, dims)) if ranges is None else [_range_text(r.min, r.max) for r in ranges]
        fits = dtype == port.dtype and len(dims) == len(array.shape)
        fits = fits and all(isinstance(d, str) or d == s for d, s in zip(dims, array.shape, strict=True))
        if fits and ranges is not None:
            fits = all(r.min <= s <= r.max for r, s in zip(ranges, array.shape, strict=True))
        if fits:
            return
        got_shape = ", ".join(map(str, array.shape))
        help_ = "check the number of dimensions and their sizes"
        if dtype != port.dtype:
            convert = (
                f".to(torch.{port.dtype})" if isinstance(array, torch.Tensor) else f".astype({port.dtype!r})"
            )
            help_ = f"convert it: {port.name}{convert}"
        elif ranges is not None and len(ranges) == len(array.shape) and self._is_of_model(port, array):
            help_ = f"rebuild with --shapes {port.name}={_cover(ranges, array.shape)}"
            if array.shape and array.shape[0] > ranges[0].max:
                help_ += ", or split the batch"
        raise InputError(
            f"input {port.name!r} does not fit this plan",
            got=f"{dtype}[{got_shape}]",
            want=f"{port.dtype}[{', '.join(want)}]",
            help=help_,
        )


def _range_text(low: int, high: int) -> str:
    return str(low) if low == high else f"{low}..{high}"


def _cover(ranges: Sequence[Any], shape: Sequence[int]) -> str:
    """A profile that takes this shape as well."""
    return "x".join(
        _range_text(min(r.min, size), max(r.max, size)) for r, size in zip(ranges, shape, strict=True)
    )


def _numpy_dtype(name: str) -> Any:
    return np.dtype(getattr(ml_dtypes, name)) if hasattr(ml_dtypes, name) else np.dtype(name)


def read_arrays(instance: Instance) -> dict[str, np.ndarray]:
    """Outputs in the caller's own memory."""
    made = {}
    for name in instance.program.outputs:
        tensor, is_reused = instance.result(name)
        made[name] = instance.copied_output(name) if is_reused else as_numpy(tensor.contiguous())
    return made
