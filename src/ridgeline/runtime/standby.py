"""New shapes without a stall: the whole graph op by op through PyTorch, until a plan for them is ready.

The floor needs no shapes before it runs, so it takes any at once. Plans are made one after the other in a
thread of the engine; whoever runs the engine swaps them in at the next call.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from functools import cached_property
from typing import Any

import numpy as np
import torch
from torch import Tensor

from ridgeline.errors import LimitError
from ridgeline.kernels.elements import as_numpy, cloned, to_torch
from ridgeline.passes.body import Program
from ridgeline.runtime.instance import Instance
from ridgeline.runtime.io import AnyBorder
from ridgeline.spec import Body, TensorSpec
from ridgeline.tactics.aten import compile_body


class Standby:
    """One engine's graph on the floor. Holds no memory of a run, so threads share it."""

    def __init__(
        self, program: Program, weights: Mapping[str, Tensor], specs: Callable[[], Mapping[str, TensorSpec]]
    ) -> None:
        self._program, self._weights, self._specs = program, weights, specs

    @cached_property
    def _run(self) -> Callable[[Sequence[Any]], list[Any]]:
        program = self._program
        ops, constants = program.flat_ops(program.regions)
        body = Body((*program.inputs, *self._weights), program.outputs, ops, constants)
        # sizes in these specs are the planned ones; types, which is what the floor asks for, are the same
        return compile_body(body, self._specs(), program.opset_imports, limits=program.limits)[0]

    def __call__(self, inputs: Sequence[Tensor]) -> dict[str, Tensor]:
        """Outputs by name, in memory that nothing else uses."""
        with torch.inference_mode():
            made = self._run([*inputs, *self._weights.values()])
        lent = [*inputs, *self._weights.values()]
        taken = {tensor.untyped_storage().data_ptr() for tensor in lent}
        owned = {}
        for name, tensor in zip(self._program.outputs, made, strict=True):
            place = tensor.untyped_storage().data_ptr()
            owned[name] = cloned(tensor) if place in taken or tensor.is_inference() else tensor
            taken.add(place)
        return owned


class Newcomer:
    """The border of shapes that are new: runs on standby while its successor is made."""

    def __init__(self, standby: Standby, plan: Callable[[], Future[AnyBorder]]) -> None:
        self._standby, self._plan = standby, plan
        self._begun: Future[AnyBorder] | None = None

    def begin(self) -> Future[AnyBorder]:
        """Plan. This comes after the first answer: two threads of Python take turns, and both are late."""
        if self._begun is None:
            self._begun = self._plan()
        return self._begun

    @property
    def is_ready(self) -> bool:
        return self._begun is not None and self._begun.done()

    @property
    def instance(self) -> Instance:
        return self.successor().instance

    def wait(self) -> None:
        self.begin().exception()

    def successor(self) -> AnyBorder:
        """The border over a plan for these shapes; waits for it. What was wrong with them is raised here."""
        return self.begin().result()

    def run(self, feeds: Mapping[str, Any], execute: Callable[[Instance], object]) -> dict[str, Any] | None:
        inputs = [to_torch(np.asarray(array)) for array in feeds.values()]
        try:
            made = self._standby(inputs)
        except LimitError:
            raise
        except Exception:  # the floor cannot: the plan may, or says better what is wrong
            return self.successor().run(feeds, execute)
        self.begin()
        return {name: as_numpy(tensor.contiguous()) for name, tensor in made.items()}

    def run_tensors(self, arrays: Sequence[Any], execute: Callable[[Instance], object]) -> dict[str, Tensor]:
        inputs = [a if isinstance(a, Tensor) else to_torch(np.asarray(a)) for a in arrays]
        try:
            made = self._standby(inputs)
        except LimitError:
            raise
        except Exception:
            return self.successor().run_tensors(arrays, execute)
        self.begin()
        return made

    def load(self, arrays: Sequence[Any]) -> None:
        self.successor().load(arrays)
