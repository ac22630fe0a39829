"""`ridgeline.compile`: a module that runs engines instead of its own code."""

from __future__ import annotations

import functools
import inspect
import threading
import warnings
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from operator import attrgetter
from typing import Any, TypeAlias

import torch
from torch import Tensor, nn
from torch.export import Dim

from ridgeline.errors import InputError, SampleShapeError, UnsupportedError, VerifyError
from ridgeline.frontend.from_torch import Exported, bind, export_module, read_example
from ridgeline.frontend.torch_dims import Axes
from ridgeline.frontend.torch_tree import Tree, flatten
from ridgeline.options import Options
from ridgeline.plugins.entry_points import load_plugins
from ridgeline.runtime.engine import Engine
from ridgeline.torch_in.built import (
    Built,
    build_call,
    build_for_call,
    build_without_data,
    checked_options,
    exporting,
    refuse_gradients,
)
from ridgeline.torch_in.state import Structure, Weights, surroundings, telling

# structure of a call, its values that are not tensors, types and ranks of its tensors, autocast
Kind = tuple[Tree | tuple[str, ...], tuple[Any, ...], tuple[Any, ...], tuple[Any, ...]]
Build: TypeAlias = Callable[[Exported, Options], Built]
# arguments that need not be taken apart
PLAIN = (Tensor, int, float, str, type(None))
# methods that call the module itself many times, where users expect engines
LOOPS = frozenset({"generate"})
NO_ENGINE = "calls the module, not its engines: write the loop around the compiled module"
# attributes of a compiled module that are made anew in a copy of it
OF_ENGINES = frozenset(
    {"forward", "_signature", "_built", "_weights", "_structure", "_lock", "_wants_gradients"}
)
# engines for one kind of call if the module's code depends on sizes; the oldest is dropped
MANY_ENGINES, MAX_ENGINES = 8, 32
BRANCHES = (
    "the module's code depends on the sizes of its inputs: {} engines for one kind of call so far, each "
    "for its own sizes, and the last {} are kept; pad inputs to a few sizes, or keep sizes out of Python code"
)
NO_GRADIENTS = (
    "results of engines carry no gradients, and the module's weights want them: call it under "
    "torch.no_grad(), or module.requires_grad_(False)"
)


def compile_module(
    module: nn.Module, example_inputs: Any = None, *, dynamic_shapes: Any = None, **options: Any
) -> CompiledModule:
    """A drop-in for `module` that runs engines: same arguments, same result.

    With example inputs its engine is built now, else at the first call. A call of another kind (other
    arguments, types, numbers or fixed dims) gets an engine of its own. `dynamic_shapes` names the dims that
    may change, as torch.export takes it or with strings; without it, a dim is taken to change once it has.
    `options` are those of `ridgeline.build`.
    """
    if not isinstance(module, nn.Module):
        raise InputError("this is not a module", got=type(module).__name__, want="a torch.nn.Module")
    load_plugins()
    compiled = CompiledModule(module, dynamic_shapes, options)
    if example_inputs is not None:
        args, kwargs = read_example(example_inputs)
        compiled.prepare(*args, **kwargs)
    return compiled


class CompiledModule(nn.Module):
    """A module whose calls are answered by engines, one for each kind of call."""

    def __init__(self, module: nn.Module, dynamic_shapes: Any, options: Mapping[str, Any]) -> None:
        super().__init__()
        self.module = module
        self.training = module.training
        self._dynamic_shapes = dynamic_shapes
        self._given = checked_options(options)
        self._start()

    def _start(self) -> None:
        """Start without engines."""
        self._signature = inspect.signature(self.module.forward)
        self._built: dict[Kind, list[Built]] = {}
        self._weights: Weights | None = None
        self._structure: Structure | None = None
        self._lock = threading.RLock()
        self._wants_gradients: bool | None = None  # by its weights; False once that was said

        @functools.wraps(self.module.forward)  # the signature is the module's
        def forward(*args: Any, **kwargs: Any) -> Any:
            return self._answer(args, kwargs)

        self.__dict__["forward"] = forward

    def __getstate__(self) -> dict[str, Any]:
        """Module and options: a copy builds engines of its own."""
        return {name: value for name, value in self.__dict__.items() if name not in OF_ENGINES}

    def __setstate__(self, state: dict[str, Any]) -> None:
        super().__setstate__(state)  # type: ignore[no-untyped-call]
        self._start()

    def __getattr__(self, name: str) -> Any:
        try:
            return super().__getattr__(name)
        except AttributeError:
            if name in LOOPS and not self.__dict__.get("_has_warned"):
                self.__dict__["_has_warned"] = True
                warnings.warn(f"{name}() is the module's own and {NO_ENGINE}", RuntimeWarning, stacklevel=2)
            return getattr(super().__getattr__("module"), name)

    def state_dict(self, *args: Any, **kwargs: Any) -> Any:
        return self.module.state_dict(*args, **kwargs)

    def load_state_dict(self, *args: Any, **kwargs: Any) -> Any:
        """Into the module; engines of the old weights are dropped at the next call."""
        return self.module.load_state_dict(*args, **kwargs)

    @property
    def engines(self) -> tuple[Engine, ...]:
        """Those built so far."""
        return tuple(built.engine for kind in self._built.values() for built in kind)

    def prepare(self, *args: Any, **kwargs: Any) -> Engine:
        """The engine for such a call, built if there is none yet."""
        kind, tensors = self._read(args, kwargs)
        return self._find(kind, tensors, args, kwargs, build_call).engine

    def refresh(self) -> None:
        """Build anew at the next call: for changes that leave no trace, such as a write to `weight.data`."""
        with self._lock:
            self._built.clear()
            self._weights = self._structure = None

    def _answer(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
        kind, tensors = self._read(args, kwargs)
        refuse_gradients(tensors)
        built = self._find(kind, tensors, args, kwargs, build_for_call)
        if self._wants_gradients and torch.is_grad_enabled():
            self._wants_gradients = False
            warnings.warn(NO_GRADIENTS, RuntimeWarning, stacklevel=4)
        return built.run(tensors, lambda name: attrgetter(name)(self.module))

    def _read(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> tuple[Kind, list[Tensor]]:
        if self.training or self.module.training:
            raise UnsupportedError("the module is in training mode", help="call .eval() first")
        arguments = bind(self._signature, args, kwargs).arguments
        leaves: list[Any] = list(arguments.values())
        tree: Tree | tuple[str, ...] = tuple(arguments)
        if not all(isinstance(leaf, PLAIN) for leaf in leaves):
            leaves, tree = flatten(dict(arguments))
        tensors = [leaf for leaf in leaves if isinstance(leaf, Tensor)]
        fixed = tuple(None if isinstance(leaf, Tensor) else telling(leaf) for leaf in leaves)
        kind = (tree, fixed, tuple((t.dtype, t.ndim, t.device) for t in tensors), surroundings())
        try:
            hash(kind)
        except TypeError as error:
            raise InputError(
                "an argument is neither a tensor nor a plain value",
                got=str(error),
                want="tensors, numbers, strings, None, and tuples, lists or dicts of them",
            ) from error
        return kind, tensors

    def _find(
        self,
        kind: Kind,
        tensors: Sequence[Tensor],
        args: Sequence[Any],
        kwargs: Mapping[str, Any],
        build: Build,
    ) -> Built:
        with self._lock:
            if not self._is_unchanged():
                self._built.clear()
                self._weights = Weights.of(self.module)
            known = self._built.setdefault(kind, [])
            for built in known:
                if built.fits(tensors):
                    return built
            with exporting(self._given, self.module, tensors) as options:
                try:
                    built = self._build(
                        known, tensors, args, kwargs, lambda exported: build(exported, options)
                    )
                except SampleShapeError as error:
                    if build is not build_for_call or not self.engines:
                        raise
                    # the data served earlier calls: this one has sizes that it cannot have
                    in_float = partial(build_without_data, options=options, error=error)
                    built = self._build(known, tensors, args, kwargs, in_float)
            # taken now, since tracing a module may set its attributes
            self._structure = Structure(self.module)
            if self._wants_gradients is None:
                self._wants_gradients = any(p.requires_grad for p in self.module.parameters())
            if len(known) == MANY_ENGINES:
                warnings.warn(BRANCHES.format(len(known) + 1, MAX_ENGINES), RuntimeWarning, stacklevel=5)
            del known[: max(0, len(known) + 1 - MAX_ENGINES)]
            known.append(built)
            return built

    def _build(
        self,
        known: Sequence[Built],
        tensors: Sequence[Tensor],
        args: Sequence[Any],
        kwargs: Mapping[str, Any],
        build: Callable[[Exported], Built],
    ) -> Built:
        """An engine for these sizes and all that its guards take; for these only if dims cannot be open."""
        given = self._dynamic_shapes
        axes = _changed(known, tensors) if given is None else None
        try:
            return build(export_module(self.module, args, kwargs, dynamic_shapes=given, axes=axes))
        except (UnsupportedError, VerifyError):
            if not known:
                raise
            axes = [{} for _ in tensors]
        except SampleShapeError as error:
            if given is not None:
                raise
            # the data has other sizes than this call: those may change
            axes = [dict.fromkeys(range(tensor.ndim), Dim.AUTO) for tensor in tensors]
            try:
                return build(export_module(self.module, args, kwargs, axes=axes))
            except SampleShapeError:
                raise error from None
        return build(export_module(self.module, args, kwargs, axes=axes))

    def _is_unchanged(self) -> bool:
        if self._weights is None or self._structure is None:
            return False
        return self._structure.is_unchanged() and self._weights.are_unchanged()


def _changed(known: Sequence[Built], tensors: Sequence[Tensor]) -> list[Axes]:
    """Dims that were another size in an earlier call of this kind: they may change again."""
    axes: list[Axes] = [{} for _ in tensors]
    for built in known:
        for tensor, name, entry in zip(tensors, built.call.inputs, axes, strict=True):
            planned = built.engine.plan.planned_shapes[name].shape
            sizes = enumerate(zip(tensor.shape, planned, strict=True))
            entry.update((axis, Dim.AUTO) for axis, (size, other) in sizes if size != other)
    return axes
