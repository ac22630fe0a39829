"""The null targets: machines that do not exist, for plans that are the same everywhere."""

from __future__ import annotations

from ridgeline.base.spec import Target
from ridgeline.select.context import Timer
from ridgeline.tactics.base import Tactic
from ridgeline.tactics.registry import TacticOptions
from ridgeline.targets.machine import Machine

NULL = {
    "null": Target("cpu", "x86_64", 2, is_null=True),
    "null:sm_90": Target("cuda", "sm_90", 1, is_null=True),
}


class Null(Machine):
    """Like another kind of target, but nothing is timed, compiled, bound or run: a rule makes the choices."""

    def __init__(self, like: Machine) -> None:
        super().__init__(like.target)
        self.like = like
        self.plans_bodies = like.plans_bodies

    def own_tactics(self, options: TacticOptions) -> tuple[Tactic, ...]:
        return self.like.own_tactics(options)

    def missing_tools(self) -> tuple[str, ...]:
        return self.like.missing_tools()

    def timer(self, *, is_timed: bool) -> Timer:
        return Timer()
