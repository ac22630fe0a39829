"""Which timer makes the choices for a target."""

from __future__ import annotations

from ridgeline.base.spec import Target
from ridgeline.runtime.device import is_here
from ridgeline.select.context import Timer
from ridgeline.select.graph_replay import GraphReplay
from ridgeline.select.prediction import Prediction
from ridgeline.select.wall_clock import FirstThatRuns, WallClock


def timer_of(target: Target, *, is_timed: bool) -> Timer:
    """How choices are made for the target."""
    if target.is_null:
        return Timer()
    if target.kind == "cpu":
        return WallClock() if is_timed else FirstThatRuns()
    return GraphReplay() if is_here(target) else Prediction()
