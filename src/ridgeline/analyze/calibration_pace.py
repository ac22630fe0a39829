"""How long the sets of a calibration take on this machine, and which of them still fit into its time."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TypeAlias

from ridgeline.analyze.calibration_sets import NetworkSet

Clock: TypeAlias = Callable[[], float]  # seconds
# until a set was measured here: seconds of one unit of cost, as builds on an H200 took them
FIRST_S = 0.34


class OutOfTime(Exception):
    """The time of a calibration is over."""


@dataclass
class Pace:
    """The time of one calibration, which begins when this is made."""

    limit_s: float
    clock: Clock
    _spent_s: float = 0.0
    _cost: int = 0  # of the sets that this time went into
    _began: float = field(init=False)

    def __post_init__(self) -> None:
        self._began = self.clock()

    @property
    def left_s(self) -> float:
        return self.limit_s - (self.clock() - self._began)

    def expected_s(self, each: NetworkSet) -> float:
        """By what the sets before it took for each unit of their cost."""
        return each.cost * (self._spent_s / self._cost if self._cost else FIRST_S)

    def why_not(self, each: NetworkSet) -> str:
        """Why a set must not be started; empty if it fits into what is left."""
        expected_s, left_s = self.expected_s(each), max(self.left_s, 0.0)
        if expected_s <= left_s:
            return ""
        return f"{expected_s:.0f} s expected, {left_s:.0f} s left"

    def learn(self, each: NetworkSet, seconds: float) -> None:
        self._spent_s += seconds
        self._cost += each.cost

    def require_time(self) -> None:
        if self.left_s <= 0:
            raise OutOfTime
