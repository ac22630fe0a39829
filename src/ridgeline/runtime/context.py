"""A context: what one thread needs to run an engine. Holds instances, most recently used first."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from operator import methodcaller
from typing import Any

import ml_dtypes
import numpy as np
import torch

from ridgeline.errors import InputError, RidgelineError, did_you_mean, first_line
from ridgeline.options import Profile
from ridgeline.runtime.instance import Instance
from ridgeline.runtime.io import AnyBorder
from ridgeline.spec import Port, TensorSpec
from ridgeline.tactics.fallback import TORCH_DTYPES

KEPT_INSTANCES = 8
_steps = methodcaller("execute")
Feeds = Mapping[str, Any]


class Context:
    """Runs an engine for one thread at a time. Its memory is its own; the engine's weights are shared."""

    def __init__(
        self,
        inputs: Sequence[Port],
        profile: Profile,
        make_border: Callable[[dict[str, TensorSpec], Sequence[Any]], AnyBorder],
    ) -> None:
        self._ports = {port.name: port for port in inputs}
        self._profile = profile
        self._make_border = make_border
        self._borders: OrderedDict[tuple[Any, ...], AnyBorder] = OrderedDict()
        self._names = tuple(self._ports)
        self._latest: AnyBorder | None = None
        self._torch_dtypes = [TORCH_DTYPES.get(port.dtype) for port in inputs]
        self._numpy_dtypes = [_numpy_dtype(port.dtype) for port in inputs]

    def run(self, feeds: Feeds) -> dict[str, Any]:
        """Outputs by name. numpy in, numpy out; torch in, torch out; results are the caller's own.

        Arrays are read where they lie, so nobody may write to them until `run` returns.
        """
        border = self._latest
        try:
            made = border.run(feeds, _steps) if border is not None else None
            return made if made is not None else self._run(feeds, _steps)
        except RidgelineError:
            raise
        except Exception as error:  # a library refuses these values: the engine itself stays whole
            raise InputError(
                "the engine cannot run with these values",
                got=f"{type(error).__name__}: {first_line(error, 300)}",
                help="look for indices outside their table, or sizes the model does not take",
            ) from error

    def run_nothing(self, feeds: Feeds) -> dict[str, Any]:
        """All that `run` does besides the steps, so that it can be timed."""
        border = self._latest
        made = border.run(feeds, _no_steps) if border is not None else None
        return made if made is not None else self._run(feeds, _no_steps)

    def instance(self, feeds: Feeds) -> Instance:
        """The instance for these inputs, loaded with them."""
        border, arrays, _ = self._find(feeds)
        with torch.inference_mode():
            border.load(arrays)
        return border.instance

    def _run(self, feeds: Feeds, execute: Callable[[Instance], object]) -> dict[str, Any]:
        border, arrays, is_torch = self._find(feeds)
        if not is_torch:
            plain = dict(zip(self._names, map(np.asarray, arrays), strict=True))
            made = border.run(plain, execute)
            assert made is not None, "checked arrays fit the instance that was made for them"
            return made
        return border.run_tensors(arrays, execute)

    def _find(self, feeds: Feeds) -> tuple[AnyBorder, list[Any], bool]:
        """The border for these inputs, the inputs in order, and whether there are tensors among them."""
        try:
            arrays = [feeds[name] for name in self._names]
            key = tuple(array.shape for array in arrays)
        except (KeyError, AttributeError, TypeError, IndexError):
            arrays = self._checked(feeds)
            key = tuple(array.shape for array in arrays)
        if len(feeds) != len(arrays):
            arrays = self._checked(feeds)
        border = self._borders.get(key)
        if border is None:
            arrays = self._checked(feeds)
            border = self._new_border(key, arrays)
        elif len(self._borders) > 1:
            self._borders.move_to_end(key)
        is_torch = False
        for i, array in enumerate(arrays):
            is_tensor = isinstance(array, torch.Tensor)
            if array.dtype != (self._torch_dtypes if is_tensor else self._numpy_dtypes)[i]:
                self._checked(feeds)
            is_torch |= is_tensor
        self._latest = None if is_torch else border
        return border, arrays, is_torch

    def _new_border(self, key: tuple[Any, ...], arrays: Sequence[Any]) -> AnyBorder:
        specs = {
            port.name: TensorSpec(port.dtype, tuple(array.shape))
            for port, array in zip(self._ports.values(), arrays, strict=True)
        }
        border = self._borders[key] = self._make_border(specs, self._numpy_dtypes)
        while len(self._borders) > KEPT_INSTANCES:
            self._borders.popitem(last=False)
        return border

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


def _no_steps(_: Instance) -> None:
    pass
