"""The null targets: machines that do not exist, for plans that are the same everywhere."""

from __future__ import annotations

from ridgeline.base.spec import Target
from ridgeline.select.context import Timer
from ridgeline.targets.cpu import Cpu
from ridgeline.targets.cuda import Cuda
from ridgeline.targets.machine import Machine

NULL = {
    "null": Target("cpu", "x86_64", 2, is_null=True),
    "null:sm_90": Target("cuda", "sm_90", 1, is_null=True),
}


class Null(Machine):
    """Nothing is timed, compiled, bound or run: a rule makes the choices. The other parent says the rest."""

    def timer(self, *, is_timed: bool) -> Timer:
        return Timer()

    def prepare(self) -> None:
        """Nothing runs in this process."""


class NullCpu(Null, Cpu):
    """A processor that does not exist."""


class NullCuda(Null, Cuda):
    """A GPU that does not exist."""
