"""What a build asks of the machine it is for."""

from __future__ import annotations

from collections.abc import Sequence

from ridgeline.base.spec import Target
from ridgeline.options import MAX_LEVEL, Options
from ridgeline.runtime.device import is_here
from ridgeline.select.context import Timer
from ridgeline.tactics.base import Tactic
from ridgeline.tactics.registry import TacticOptions, plugin_tactics


class Machine:
    """A target that answers. There is one class for each kind of target."""

    plans_bodies = False  # bodies of control flow are planned as the main graph is

    # seconds that a build should take by its level, if it was not given other ones; None: any time
    time_limits_s: Sequence[float | None] = (None,) * (MAX_LEVEL + 1)

    half_always_pays = False  # a half type is faster than float32 wherever it is exact enough

    def __init__(self, target: Target) -> None:
        self.target = target

    @property
    def half_types(self) -> tuple[str, ...]:
        """Those that it computes with natively, the one with more digits first."""
        return ()

    @property
    def is_here(self) -> bool:
        """Whether candidates can be timed, and engines verified."""
        return is_here(self.target)

    @property
    def device_key(self) -> str:
        """The GPU that timings are taken on."""
        return ""

    @staticmethod
    def named(arch: str, cores: int) -> Target:
        """The target that a user names; without an architecture it is this machine."""
        raise NotImplementedError

    def time_limit_s(self, options: Options, plans: int = 1) -> float | None:
        """For a build of so many plans: what was asked for is for all of them, the level's own for each."""
        own_s = self.time_limits_s[options.level]
        if options.time_limit is not None or own_s is None:
            return options.time_limit
        return own_s * plans

    def own_tactics(self, options: TacticOptions) -> tuple[Tactic, ...]:
        """Those of ours, in order of preference when times are equal."""
        raise NotImplementedError

    def tactics(self, options: TacticOptions) -> tuple[Tactic, ...]:
        """Everything that may run a region there."""
        return (*plugin_tactics(options.store), *self.own_tactics(options))

    def missing_tools(self) -> tuple[str, ...]:
        """What this machine lacks to make kernels for the target, and what runs instead."""
        return ()

    def timer(self, *, is_timed: bool) -> Timer:
        """How choices are made: `is_timed` unless the level asks for none and no lock pins them."""
        raise NotImplementedError

    def prepare(self) -> None:
        """Set this process up before anything is bound or timed."""
