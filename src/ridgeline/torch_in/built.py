"""An engine that answers one kind of call of a module."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from itertools import count, islice
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from ridgeline.base.formats import SHORT_NAMES
from ridgeline.base.guards import broken
from ridgeline.base.progress import shown
from ridgeline.builder import build_exported
from ridgeline.errors import InputError, OptionError, PrecisionError, RidgelineError
from ridgeline.frontend.from_torch import Call, Exported, home_of, resolved
from ridgeline.kernels.elements import as_torch
from ridgeline.options import QUANTISED, Options, make_options
from ridgeline.precision.half_build import typed_options
from ridgeline.precision.samples import require_source
from ridgeline.runtime.engine import Engine
from ridgeline.targets import machine_of, target_named

NOT_AS_ASKED = "{} cannot be had for this call, which runs in {} instead: {}"
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
        given = [resolved(t.detach() if t.requires_grad else t) for t in tensors]
        made = self.engine.run(dict(zip(self.call.inputs, given, strict=True)))
        if not tensors:  # an engine without inputs answers in arrays
            made = {name: as_torch(np.asarray(array)) for name, array in made.items()}
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


def build_for_call(exported: Exported, options: Options) -> Built:
    """For a call that waits for its result: an engine in float if the precision asked for cannot be had.

    A program that runs is no place for an error about precision: some of its calls may be too small for it.
    """
    try:
        return build_call(exported, options)
    except PrecisionError as error:
        return build_instead(exported, options, _higher(options), error)


def build_instead(exported: Exported, asked: Options, options: Options, error: RidgelineError) -> Built:
    """With other options than were asked for, and a warning that says why."""
    built = build_for_call(exported, options)
    why = "; ".join(filter(None, (error.what, *error.rows[:1], error.got and f"got {error.got}")))
    text = NOT_AS_ASKED.format(asked.precision, built.engine.plan.precision, why)
    built.engine.report = replace(built.engine.report, warnings=(*built.engine.report.warnings, text))
    warnings.warn(text, RuntimeWarning, stacklevel=2)
    return built


def build_without_data(exported: Exported, options: Options, error: RidgelineError) -> Built:
    """In the module's own types, since the data does not fit this call."""
    return build_instead(exported, options, typed_options(options), error)


def _higher(options: Options) -> Options:
    """The precision that quantised products are measured against; or else the module's own types."""
    machine = machine_of(target_named(options))
    if options.precision in QUANTISED and machine.half_always_pays:
        return replace(options, precision=SHORT_NAMES[machine.half_types[0]])
    return typed_options(options)


class Replayed:
    """What an iterator gives, kept: every engine is calibrated, and an iterator can be gone through once."""

    def __init__(self, source: Iterator[Any]) -> None:
        self._source, self._kept = source, list[Any]()

    def __iter__(self) -> Iterator[Any]:
        for i in count():
            if i == len(self._kept):
                self._kept.extend(islice(self._source, 1))
            if i == len(self._kept):
                return
            yield self._kept[i]

    def __getstate__(self) -> dict[str, Any]:
        """All items: a copy of a compiled module goes through them again."""
        return {"_source": iter(()), "_kept": list(self)}


def checked_options(given: Mapping[str, Any]) -> dict[str, Any]:
    """The options of builds that calls will ask for; what is wrong in itself is refused now.

    Data becomes such as more than one build can go through.
    """
    options, data = make_options(given), given.get("data")
    if options.io is not None:
        raise OptionError(
            "a compiled module takes and gives the types of the module",
            got=f"io={options.io!r}",
            help="ridgeline.build(module, x, io=…) makes an engine with half ports",
        )
    if isinstance(data, Iterator):
        return {**given, "data": Replayed(data)}
    if data is not None:
        require_source(data)
    return dict(given)


def wants_gradients(tensors: Iterable[Tensor]) -> bool:
    return torch.is_grad_enabled() and any(tensor.requires_grad for tensor in tensors)


def refuse_gradients(tensors: Iterable[Tensor]) -> None:
    if wants_gradients(tensors):
        raise InputError(
            "an engine computes no gradients, and an input asks for them",
            help="call it under torch.no_grad(), or detach the input",
        )
