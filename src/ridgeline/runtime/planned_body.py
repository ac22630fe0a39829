"""A planned body of control flow at work: instances by shape, and states that stay where the next run finds
them.

On a GPU a run is one launch of a CUDA graph, which ends with the copies of the states to the inputs.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import torch
from torch import Tensor

from ridgeline.base.spec import Site, TensorSpec
from ridgeline.errors import DeviceError, InputError, LimitError, first_line
from ridgeline.kernels.elements import cloned, fill, to_torch
from ridgeline.plan.plan import Step
from ridgeline.runtime.fused_model import FusedModel
from ridgeline.runtime.instance import Instance, empty
from ridgeline.tactics.control import Cycle, RunBody

# shapes of one body that keep an instance; a state that grows for longer runs on the floor from there on
KEPT_BODIES = 64
# counts, conditions and the like, which a launch can hold itself
NUMBERS = frozenset({torch.bool, torch.int32, torch.int64, torch.float16, torch.float32, torch.float64})


class BodyExecutable(Protocol):
    """What an island needs of the executable of a subgraph."""

    fused: FusedModel
    planned_shapes: dict[str, TensorSpec]

    def instance(self, inputs: Mapping[str, TensorSpec], *, compiles: bool = True) -> Instance: ...

    def every_planned_site(self) -> list[tuple[Step, Site]]: ...


class PlannedBody:
    """A body that was planned, as a function from its inputs to its outputs. Every thread has its own."""

    reuses_memory = True

    def __init__(
        self,
        executable: BodyExecutable,
        names: Sequence[str],
        floor: RunBody,
        cycle: Cycle,
        tell: Callable[[str], None],
    ) -> None:
        self._executable, self._floor, self._tell = executable, floor, tell
        self._names = tuple(executable.fused.program.inputs)
        self._places = [names.index(name) for name in self._names]
        self._planned = tuple(executable.planned_shapes[name].shape for name in self._names)
        self._cycle = _at_inputs(cycle, self._places)
        self._local = threading.local()
        self._has_told = False

    def begin(self) -> None:
        """What is captured may be new from here on."""
        self._local.latest = None

    def __call__(self, values: Sequence[Any]) -> list[Any]:
        given = [values[place] for place in self._places]
        found = self._found(tuple(tuple(value.shape) for value in given))
        is_next, self._local.latest = getattr(self._local, "latest", None) is found, found
        if found is None:
            return self._floor(values)
        return found.run(given, is_next=is_next)

    def _found(self, key: tuple[tuple[int, ...], ...]) -> BodyInstance | None:
        """The one for these shapes, from their first run on: the same input then gives the same bits again.

        None where there are too many, for as long as these are kept.
        """
        local = self._local
        if not hasattr(local, "instances"):
            local.instances = {}
        kept: dict[tuple[tuple[int, ...], ...], BodyInstance] = local.instances
        if key in kept:
            return kept[key]
        if len(kept) >= KEPT_BODIES:
            self._fall_back(f"its states took more than {KEPT_BODIES} different shapes")
            return None
        specs = self._executable.planned_shapes
        given = {n: TensorSpec(specs[n].dtype, shape) for n, shape in zip(self._names, key, strict=True)}
        is_planned = key == self._planned
        try:
            # a state that grows has a shape for every trip: a compiler would never keep up with it
            made = self._executable.instance(given, compiles=is_planned)
        except (InputError, LimitError, DeviceError) as error:  # the floor takes it, or says what is wrong
            self._fall_back(first_line(error))
            return None
        if kept:
            made.take_turns_with(next(iter(kept.values())).instance)
        kept[key] = BodyInstance(made, self._cycle, is_planned=is_planned)
        return kept[key]

    def _fall_back(self, reason: str) -> None:
        """Say once that the floor takes further shapes."""
        if not self._has_told:
            self._has_told = True
            self._tell(f"{self._executable.fused.name}: at further shapes it runs op by op: {reason}")


def _put(target: Tensor, value: Tensor) -> None:
    """A copy; of one number from the host to a GPU without a wait for what is under way there."""
    if target.is_cuda and value.device.type == "cpu" and value.numel() == 1 and value.dtype in NUMBERS:
        target.fill_(value.item())
    else:
        fill(target, value)


def _at_inputs(cycle: Cycle, places: Sequence[int]) -> Cycle:
    """The cycle with each input by its place among those that the body reads."""
    of = {place: i for i, place in enumerate(places)}
    carried = {result: of[place] for result, place in cycle.carried.items() if place in of}
    return Cycle(carried, None if cycle.counter is None else of.get(cycle.counter), cycle.decides)


@dataclass(frozen=True)
class Ending:
    """What ends a run: results that lie in inputs are saved, then states go where the next run reads them.

    It holds the values of its instance, not the instance: nothing refers to itself.
    """

    tensors: Mapping[str, Tensor]
    dynamic_values: Mapping[str, Any]
    saved: Sequence[tuple[Tensor, str]]  # to, from
    carried: Sequence[tuple[Tensor, Tensor | None, str]]  # to, where it was saved, else from
    counter: Tensor | None

    def __call__(self) -> None:
        for place, name in self.saved:
            fill(place, self._value(name))
        for target, saved, name in self.carried:
            fill(target, self._value(name) if saved is None else saved)
        if self.counter is not None:
            self.counter.add_(1)

    def warm(self) -> None:
        """Load what it launches, which a CUDA graph could not hold; states stay as they are."""
        for place in (*(place for place, _ in self.saved), *(target for target, _, _ in self.carried)):
            fill(cloned(place), place)
        if self.counter is not None:
            cloned(self.counter).add_(1)

    def _value(self, name: str) -> Tensor:
        found: Tensor = self.tensors[name] if name in self.tensors else self.dynamic_values[name]
        return found


class BodyInstance:
    """A body at one set of shapes. States of a loop stay in its inputs, from where the next run goes on."""

    def __init__(self, instance: Instance, cycle: Cycle, *, is_planned: bool) -> None:
        self.instance, self._decides = instance, cycle.decides
        self._prepares = is_planned  # other shapes are captured only if they come again
        self._targets = list(instance.inputs.values())
        # the very objects that the inputs were filled from
        self._holds: list[Any] = [None] * len(self._targets)
        read = {name for step in instance.steps for name in step.io.inputs} | {*instance.program.outputs}
        self._loaded = [i for i, name in enumerate(instance.inputs) if name in read]
        self._counter, self._count = cycle.counter if cycle.counter in self._loaded else None, -1
        inferred, self._outputs = instance.inferred, list(instance.program.outputs)
        # what the host reads is taken from the host, if it is known there
        decides = "" if cycle.decides is None else self._outputs[cycle.decides]
        self._known = to_torch(inferred.values[decides]) if decides in inferred.values else None
        self._unchanged = {k: i for k, i in cycle.carried.items() if self._is_at(self._outputs[k], i)}
        self._carried = {
            k: i
            for k, i in cycle.carried.items()
            if k not in self._unchanged
            and i in self._loaded
            and (k != cycle.decides or self._known is None)
            and inferred.specs.get(self._outputs[k]) == inferred.specs[list(instance.inputs)[i]]
        }
        # results that lie in an input would be lost with it
        self._saved = {
            k: empty(inferred.specs[name], instance.device)
            for k, name in enumerate(self._outputs)
            if k not in self._unchanged and self._lies_in_input(name)
        }
        self._results = [(self._place(k), name) for k, name in enumerate(self._outputs)]
        self._stays = (*self._carried.values(), *self._unchanged.values())
        if self._carried or self._saved or self._counter is not None:
            self._end()

    def run(self, given: Sequence[Any], *, is_next: bool) -> list[Any]:
        """The results, valid until the next run. `is_next`: the run before was one of this instance."""
        self.instance.begin_turn()
        self._load(given, is_next=is_next)
        if self._prepares:
            self.instance.execute()
        else:
            self.instance.execute_once()
            self._prepares = True
        self._count += 1
        for i in self._stays:
            self._holds[i] = self._targets[i]
        found = self.instance.dynamic_values
        made = [found[name] if place is None else place for place, name in self._results]
        if self._decides is not None:
            made[self._decides] = self._decided(made[self._decides], given)
        return made

    def _decided(self, made: Tensor, given: Sequence[Any]) -> Any:
        """What the host reads: the very object that was given, or that was made before, if it is the same."""
        assert self._decides is not None, "only asked of loops"
        place = self._unchanged.get(self._decides)
        if place is not None:
            self._holds[place] = given[place]
            return given[place]
        if self._known is not None:
            return self._known
        other = made.view(made.shape)
        if self._decides in self._carried:
            self._holds[self._carried[self._decides]] = other
        return other

    def _load(self, given: Sequence[Any], *, is_next: bool) -> None:
        for i in self._loaded:
            target, value = self._targets[i], given[i]
            if i == self._counter and value.device.type == "cpu":
                count = int(value)
                if not (is_next and count == self._count):
                    _put(target, value)
                self._count = count
            elif not (is_next and value is self._holds[i]):
                if value is not target:
                    _put(target, value)
                self._holds[i] = value

    def _place(self, k: int) -> Tensor | None:
        """Where a result lies after every run; None if a library allocates it."""
        place = self._unchanged.get(k, self._carried.get(k))
        if place is not None:
            return self._targets[place]
        return self._saved.get(k, self.instance.tensors.get(self._outputs[k]))

    def _end(self) -> None:
        """Every run ends with what the next one needs."""
        targets, names = self._targets, self._outputs
        ending = Ending(
            self.instance.tensors,
            self.instance.dynamic_values,
            [(place, names[k]) for k, place in self._saved.items()],
            [(targets[i], self._saved.get(k), names[k]) for k, i in self._carried.items()],
            None if self._counter is None else targets[self._counter],
        )
        ending.warm()
        self.instance.ending = ending

    # where results lie

    def _is_at(self, output: str, place: int) -> bool:
        """Whether an output is that input itself."""
        lies, target = self.instance.tensors.get(output), self._targets[place]
        return (
            lies is not None
            and lies.data_ptr() == target.data_ptr()
            and (lies.shape, lies.stride(), lies.dtype) == (target.shape, target.stride(), target.dtype)
        )

    def _lies_in_input(self, output: str) -> bool:
        lies = self.instance.tensors.get(output)
        inputs = {target.untyped_storage().data_ptr() for target in self._targets}
        return isinstance(lies, Tensor) and lies.untyped_storage().data_ptr() in inputs
