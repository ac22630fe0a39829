"""New shapes without a stall: the plan's steps with what is there, until an instance of their own is ready.

Steps of libraries run as they will; those whose kernels are yet to be compiled run on the floor. Instances
are made one after the other in a thread of the engine; whoever runs it swaps them in at the next call.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from functools import cached_property
from typing import Any

from torch import Tensor

from ridgeline.errors import LimitError
from ridgeline.runtime.instance import Instance
from ridgeline.runtime.io import AnyBinding


class PendingShape:
    """The border of shapes that are new: runs without compiling while its successor is made."""

    def __init__(self, make_lean: Callable[[], AnyBinding], plan: Callable[[], Future[AnyBinding]]) -> None:
        self._make_lean, self._plan = make_lean, plan
        self._begun: Future[AnyBinding] | None = None

    @cached_property
    def lean(self) -> AnyBinding:
        return self._make_lean()

    def begin(self) -> Future[AnyBinding]:
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

    def successor(self) -> AnyBinding:
        """The border over a plan for these shapes; waits for it. What was wrong with them is raised here."""
        return self.begin().result()

    def run(self, feeds: Mapping[str, Any], execute: Callable[[Instance], object]) -> dict[str, Any] | None:
        try:
            made = self.lean.run(feeds, execute)
        except LimitError:
            raise
        except Exception:  # the floor cannot: compiled kernels may, or say better what is wrong
            return self.successor().run(feeds, execute)
        self.begin()
        return made

    def run_tensors(self, arrays: Sequence[Any], execute: Callable[[Instance], object]) -> dict[str, Tensor]:
        try:
            made = self.lean.run_tensors(arrays, execute)
        except LimitError:
            raise
        except Exception:
            return self.successor().run_tensors(arrays, execute)
        self.begin()
        return made

    def load(self, arrays: Sequence[Any]) -> None:
        self.successor().load(arrays)
