"""An engine that answers one kind of call of a module."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from ridgeline.base.guards import broken
from ridgeline.base.progress import shown
from ridgeline.builder import build_exported
from ridgeline.errors import InputError
from ridgeline.frontend.from_torch import Call, Exported, home_of, resolved
from ridgeline.kernels.elements import TORCH_DTYPES, as_numpy, is_plain
from ridgeline.options import Options, make_options
from ridgeline.runtime.engine import Engine

# shapes for which an engine remembers whether they fit
KEPT_VERDICTS = 256


@dataclass(frozen=True)
class Built:
    """An engine, and how tensors become its inputs and its outputs become the result."""

    engine: Engine
    call: Call
    _verdicts: dict[tuple[torch.Size, ...], bool] = field(default_factory=dict, compare=False)

    def fits(self, tensors: Sequence[Tensor]) -> bool:
        """Whether these shapes fit the dims and guards of the engine. The engine itself checks ranges."""
        shapes = tuple([tensor.shape for tensor in tensors])
        known = self._verdicts.get(shapes)
        if known is None:
            if len(self._verdicts) >= KEPT_VERDICTS:
                self._verdicts.clear()
            known = self._verdicts[shapes] = self._takes(shapes)
        return known

    def _takes(self, shapes: Sequence[torch.Size]) -> bool:
        sizes: dict[str, int] = {}
        for port, shape in zip(self.engine.inputs, shapes, strict=True):
            if port.dims is None:
                continue
            if len(port.dims) != len(shape):
                return False
            for dim, size in zip(port.dims, shape, strict=True):
                if (dim if isinstance(dim, int) else sizes.setdefault(dim, size)) != size:
                    return False
        return not broken(self.engine.plan.guards, dict(zip(self.call.inputs, shapes, strict=True)))

    def run(self, tensors: Sequence[Tensor], own: Callable[[str], Tensor]) -> Any:
        """What the module would return. On the CPU, tensors are read and made where they lie."""
        if self.engine.plan.target.traits.is_gpu:
            made = self.engine.run(dict(zip(self.call.inputs, map(resolved, tensors), strict=True)))
        else:
            given = [resolved(t.detach() if t.requires_grad else t) for t in tensors]
            feeds = {name: as_numpy(t) for name, t in zip(self.call.inputs, given, strict=True)}
            made = {name: as_tensor(array) for name, array in self.engine.run(feeds).items()}
        return self.call.result(made, tensors, own)


@contextmanager
def exporting(given: Mapping[str, Any], module: nn.Module, tensors: Sequence[Tensor]) -> Iterator[Options]:
    """The options of a build for one call, with progress shown from the export on."""
    target = given.get("target") or home_of(module, tensors)
    # with another number of threads than PyTorch's, Dynamo would compile again
    options = make_options({"threads": torch.get_num_threads(), **given, "target": target})
    with shown(options.progress) as progress:
        options = replace(options, progress=progress)
        options.tell("export", 0, 0)
        yield options


def build_call(exported: Exported, options: Options) -> Built:
    assert exported.call is not None, "a module's call is known"
    return Built(build_exported(exported, options), exported.call)


def as_tensor(array: Any) -> Tensor:
    """A tensor over the memory of a result."""
    array = np.asarray(array)
    if is_plain(array.dtype):
        return torch.from_numpy(array)
    return torch.from_numpy(array.view(f"u{array.dtype.itemsize}")).view(TORCH_DTYPES[str(array.dtype)])


def wants_gradients(tensors: Iterable[Tensor]) -> bool:
    return torch.is_grad_enabled() and any(tensor.requires_grad for tensor in tensors)


def refuse_gradients(tensors: Iterable[Tensor]) -> None:
    if wants_gradients(tensors):
        raise InputError(
            "an engine computes no gradients, and an input asks for them",
            help="call it under torch.no_grad(), or detach the input",
        )
