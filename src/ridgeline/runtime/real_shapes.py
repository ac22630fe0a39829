"""An engine that was planned for guessed shapes is planned again, once, when real ones have come a few times.

A process of its own does it, so that neither the interpreter's lock nor timings are shared with whoever runs
the engine. Until it is done, runs go on with the plan there is.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping, Sequence
from typing import Any
from weakref import WeakSet

from ridgeline.base.spec import TensorSpec
from ridgeline.runtime.forking import PerProcess, process
from ridgeline.runtime.instance import Instance
from ridgeline.runtime.io import AnyBinding

# shapes that come once or twice are not worth a plan of their own
RUNS = 3
Specs = dict[str, TensorSpec]


class RealShapes:
    """Counts runs at shapes other than the guessed ones, and has the engine planned again at those."""

    def __init__(self, own: PerProcess, plan_again: Callable[[Specs], bool], *, is_guess: bool) -> None:
        """`plan_again` returns whether a new plan was taken over; it may take minutes, and does not raise."""
        self._own, self._plan_again = own, plan_again
        self._runs = 0
        self._latest: Specs | None = None
        self._thread: threading.Thread | None = None
        self._forks = process.forks
        self._untuned: WeakSet[UntunedBinding] = WeakSet()
        self.is_open = is_guess  # another plan may still come

    def bound(self, specs: Specs, make: Callable[[], AnyBinding]) -> AnyBinding:
        """A binding at shapes that nobody guessed; it is made anew when the engine has another plan."""
        binding = make()
        if not self.is_open:
            return binding
        untuned = UntunedBinding(binding, make, lambda: self.met(specs))
        with self._own.lock:
            if self.is_open:
                self._untuned.add(untuned)
                return untuned
        return make()

    def wait(self) -> None:
        """Return when the engine is planned for real shapes, if any have come."""
        if self._latest is not None:
            self._begin(self._latest)
        if self._thread is not None and self._forks == process.forks:  # a child has none of its threads
            self._thread.join()

    def met(self, specs: Specs) -> None:
        """Count a run."""
        self._latest = specs
        self._runs += 1
        if self._runs == RUNS:
            self._begin(specs)

    def _begin(self, specs: Specs) -> None:
        with self._own.lock:
            if self._thread is not None or not self.is_open:
                return
            self._forks = process.forks
            # nobody waits for it when the process ends
            self._thread = threading.Thread(
                target=self._run, args=(specs,), name="ridgeline-plan-again", daemon=True
            )
            self._thread.start()

    def _run(self, specs: Specs) -> None:
        is_taken = self._plan_again(specs)
        with self._own.lock:
            self.is_open = False
            waiting = list(self._untuned)
        for binding in waiting:
            binding.settle(is_taken=is_taken)


class UntunedBinding:
    """Runs by the plan for guessed shapes, says so each time, and has a successor when that is settled."""

    def __init__(
        self, binding: AnyBinding, make: Callable[[], AnyBinding], on_run: Callable[[], None]
    ) -> None:
        self._binding, self._make, self._on_run = binding, make, on_run
        self._successor: AnyBinding | None = None

    def settle(self, *, is_taken: bool) -> None:
        """Bind what the new plan makes of these shapes; the present one stays where that cannot be bound."""
        try:
            self._successor = self._make() if is_taken else self._binding
        except Exception:  # a shape that the new plan does not run: the old one does
            self._successor = self._binding

    @property
    def is_ready(self) -> bool:
        return self._successor is not None

    def successor(self) -> AnyBinding:
        return self._successor or self._binding

    @property
    def instance(self) -> Instance:
        return self._binding.instance

    def run(self, feeds: Mapping[str, Any]) -> dict[str, Any] | None:
        made = self._binding.run(feeds)
        self._on_run()
        return made

    def load(self, arrays: Sequence[Any]) -> None:
        self._binding.load(arrays)
