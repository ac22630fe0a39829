"""Targets that answer: which tactics there are, how choices are made, whether engines run here."""

from __future__ import annotations

from ridgeline.base.spec import Target
from ridgeline.errors import PlanError
from ridgeline.options import Options
from ridgeline.tactics.registry import TacticOptions
from ridgeline.targets.cpu import Cpu
from ridgeline.targets.cuda import Cuda
from ridgeline.targets.machine import Machine
from ridgeline.targets.null import NULL, NullCpu, NullCuda

__all__ = ["Machine", "TacticOptions", "machine_of", "target_named"]

# by the target's kind; `TRAITS` in base/spec.py has a line for each
MACHINES: dict[str, type[Machine]] = {"cpu": Cpu, "cuda": Cuda}
NULL_MACHINES: dict[str, type[Machine]] = {"cpu": NullCpu, "cuda": NullCuda}


def machine_of(target: Target) -> Machine:
    """The object that answers for a target."""
    if target.kind not in MACHINES:
        raise PlanError(f"there is no target {target}", want=" or ".join(MACHINES))
    return (NULL_MACHINES if target.is_null else MACHINES)[target.kind](target)


def target_named(options: Options) -> Target:
    """The machine that is built for: this one's processor, this one's GPU, or a GPU by its architecture."""
    if options.target in NULL:
        return NULL[options.target]
    kind, _, arch = options.target.partition(":")
    return MACHINES[kind].named(arch, options.cores)
