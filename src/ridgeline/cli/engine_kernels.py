"""Kernels of a loaded engine that its file does not hold: those of plugins in CUDA C++, and descriptions."""

from __future__ import annotations

from ridgeline.analyze.kernel_report import step_key
from ridgeline.errors import PlanError
from ridgeline.kernels.triton.compiler import Compiled
from ridgeline.kernels.triton.source import Kernel
from ridgeline.plugins.gate import GatedTactic
from ridgeline.plugins.gpu_tactics import NvrtcTactic, with_resources
from ridgeline.runtime.engine import Engine
from ridgeline.tactics.offer import kernels_of


def compile_plugin_steps(engine: Engine) -> dict[str, Compiled]:
    """Kernels of plugins in CUDA C++, which no plan lists, by the key of their step."""
    made = {}
    for number, (step, site) in enumerate(engine.planned_sites(), start=1):
        tactic = engine.fused.tactics.get(step.tactic)
        tactic = tactic.tactic if isinstance(tactic, GatedTactic) else tactic
        if isinstance(tactic, NvrtcTactic):
            made[step_key(number)] = with_resources(tactic.compiled(tactic.read(site), step.config))
    return made


def describe_kernel(engine: Engine, number: int, digest: str) -> Kernel:
    """The description that a step's kernel is compiled from."""
    step, site = engine.planned_sites()[number - 1]
    for kernel in kernels_of(engine.fused.tactics, site, step.tactic, step.config):
        if kernel.digest == digest:
            return kernel
    raise PlanError(
        f"{step.name}: this version of ridgeline makes another kernel than the engine holds",
        help="--sass shows the one in the engine; ridge build MODEL.onnx makes the engine again",
    )
