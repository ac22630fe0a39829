"""New shapes without a stall: the plan's steps with what is there, until an instance of their own is ready.

Steps of libraries run as they will; those whose kernels are yet to be compiled run on the floor. Instances
are made one after the other in a thread of the engine; whoever runs it swaps them in at the next call.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from functools import cached_property
from typing import Any

from ridgeline.errors import LimitError
from ridgeline.runtime.instance import Instance
from ridgeline.runtime.io import AnyBinding


class PendingShape:
    """The binding of shapes that are new: it runs without compiling while its successor is made."""

    def __init__(
        self, make_uncompiled: Callable[[], AnyBinding], plan: Callable[[], Future[AnyBinding]]
    ) -> None:
        self._make_uncompiled, self._plan = make_uncompiled, plan
        self._begun: Future[AnyBinding] | None = None

    @cached_property
    def uncompiled(self) -> AnyBinding:
        return self._make_uncompiled()

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
        """The binding over a plan for these shapes; waits for it. An error of planning is raised here."""
        return self.begin().result()

    def run(self, feeds: Mapping[str, Any]) -> dict[str, Any] | None:
        try:
            made = self.uncompiled.run(feeds)
        except LimitError:
            raise
        except Exception:  # the floor fails: compiled kernels may run, or explain the error better
            return self.successor().run(feeds)
        self.begin()
        return made

    def load(self, arrays: Sequence[Any]) -> None:
        self.successor().load(arrays)
