"""The backend of `torch.compile`: each piece that Dynamo hands over becomes engines of its own.

A piece that no engine can run (gradients wanted, tensors changed in place, ops without ONNX) runs in PyTorch,
and a warning says why.
"""

from __future__ import annotations

import threading
import warnings
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from torch import Tensor, fx
from torch.export import Dim

from ridgeline.errors import ModelError, OptionError, UnsupportedError, VerifyError
from ridgeline.frontend.from_torch import Flat, export_flat
from ridgeline.frontend.torch_dims import Axes
from ridgeline.plugins.entry_points import load_plugins
from ridgeline.runtime.engine import Engine
from ridgeline.torch_in.built import Built, build_for_call, checked_options, exporting, wants_gradients
from ridgeline.torch_in.layouts import Layouts
from ridgeline.torch_in.pieces import Argument, Filled, read_arguments
from ridgeline.torch_in.state import Weights, telling

GRADIENTS = (
    "gradients are wanted of it: call the module under torch.no_grad(), or detach its weights and inputs"
)


def ridgeline_backend(
    graph: fx.GraphModule,
    example_inputs: Sequence[Any],
    *,
    options: Mapping[str, Any] | None = None,
    mode: str | None = None,
) -> Callable[..., Any]:
    """What `torch.compile(module, backend="ridgeline")` calls for each piece.

    `options` are those of `ridgeline.build`; `on_engine`, a function, is told of every engine built.
    """
    load_plugins()
    given = dict(options or {})
    if mode not in (None, "default"):
        raise OptionError(
            f"the ridgeline backend has no mode {mode!r}", help='options={"level": 5} searches longer'
        )
    on_engine = given.pop("on_engine", None)
    given = checked_options(given)  # a typo is an error now, not at the first run
    return Piece(graph, read_arguments(graph), given, on_engine)


class Piece:
    """A graph from Dynamo and its engines: one for each set of weights, numbers and fixed dims."""

    def __init__(
        self,
        graph: fx.GraphModule,
        arguments: Sequence[Argument],
        options: Mapping[str, Any],
        on_engine: Callable[[Engine], object] | None,
    ) -> None:
        self.graph, self.arguments = graph, tuple(arguments)
        self._layouts = Layouts(graph)
        self._options, self._on_engine = dict(options), on_engine
        self._built: dict[tuple[Any, ...], list[tuple[Weights, Built]]] = {}
        self._refused: set[tuple[Any, ...]] = set()
        self._has_warned = False
        self._lock = threading.RLock()

    def __call__(self, *values: Any) -> Any:
        tensors = [v for a, v in zip(self.arguments, values, strict=True) if a.role == "tensor"]
        weights = [v for a, v in zip(self.arguments, values, strict=True) if a.role == "weight"]
        if wants_gradients((*tensors, *weights)):
            return self._in_torch(values, GRADIENTS)
        numbers = [a.number(v) for a, v in zip(self.arguments, values, strict=True) if a.role == "number"]
        key = (
            tuple(map(id, weights)),
            tuple(map(telling, numbers)),
            tuple((t.dtype, t.device) for t in tensors),
        )
        with self._lock:
            if key in self._refused:
                return self.graph(*values)
            try:
                built = self._find(key, tensors, weights, numbers)
            except (UnsupportedError, ModelError) as error:
                self._refused.add(key)
                return self._in_torch(values, str(error))
        results = built.run(tensors, lambda name: weights[Filled.index_of(name)])
        return self._layouts.restored(results, values, [part.kind == "made" for part in built.call.parts])

    def _find(
        self,
        key: tuple[Any, ...],
        tensors: Sequence[Tensor],
        weights: Sequence[Tensor],
        numbers: Sequence[Any],
    ) -> Built:
        known = [(state, b) for state, b in self._built.get(key, ()) if state.are_unchanged()]
        for _, built in known:
            if built.fits(tensors):
                return built
        built = self._build(tensors, weights, numbers)
        place: dict[str, Tensor | None] = {str(i): weight for i, weight in enumerate(weights)}
        self._built[key] = [*known, (Weights((place, name) for name in place), built)]
        return built

    def _build(self, tensors: Sequence[Tensor], weights: Sequence[Tensor], numbers: Sequence[Any]) -> Built:
        filled = Filled(self.graph, self.arguments, weights, numbers)
        arguments = [a for a in self.arguments if a.role == "tensor"]
        flat = Flat(filled, lambda given: filled(*given))
        names = [a.name for a in arguments]

        def build(axes: Sequence[Axes]) -> Built:
            with exporting(self._options, filled, tensors) as options:
                exported = export_flat(flat, tensors, names, axes)
                exported.model.graph.name = "piece"
                return build_for_call(exported, options)

        try:
            built = build([dict.fromkeys(a.free_axes, Dim.AUTO) for a in arguments])
        except VerifyError:
            if not any(a.free_axes for a in arguments):
                raise
            built = build([{} for _ in arguments])  # open sizes are not possible for this module
        if self._on_engine is not None:
            self._on_engine(built.engine)
        return built

    def _in_torch(self, values: Sequence[Any], why: str) -> Any:
        if not self._has_warned:
            self._has_warned = True
            warnings.warn(f"a piece runs in PyTorch, not in an engine: {why}", RuntimeWarning, stacklevel=2)
        return self.graph(*values)
