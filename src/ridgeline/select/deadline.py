"""When choosing has to end, so that a build keeps its time limit."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from time import perf_counter

# of a build's time limit: choosing ends when this share has passed, and the checks have the rest
CHOOSING = 2 / 3
# and has at least this share, however long what came before it took
LEAST = 1 / 6


@dataclass(frozen=True)
class Deadline:
    """A moment on a clock; without a limit it never comes."""

    end_s: float = math.inf
    limit_s: float | None = None  # of the whole build, for those who are told of it
    clock: Callable[[], float] = perf_counter

    @staticmethod
    def of_choosing(
        limit_s: float | None, *, spent_s: float, is_verified: bool, clock: Callable[[], float] = perf_counter
    ) -> Deadline:
        """For a build that began `spent_s` ago, and that verifies its engine afterwards or does not."""
        if limit_s is None:
            return Deadline(clock=clock)
        share = CHOOSING if is_verified else 1.0
        left_s = max(share * limit_s - spent_s, LEAST * limit_s)
        return Deadline(clock() + left_s, limit_s, clock)

    @property
    def left_s(self) -> float:
        return max(self.end_s - self.clock(), 0.0)

    @property
    def is_over(self) -> bool:
        return self.left_s <= 0

    def part(self, share: float) -> Deadline:
        """The moment when this share of what is left will have passed."""
        return replace(self, end_s=self.clock() + share * self.left_s)
