"""The fused graph of an engine as a reference: run by another runtime, with tolerances at any inputs."""

from __future__ import annotations

from ridgeline.base.spec import TF32
from ridgeline.frontend.from_onnx import load
from ridgeline.runtime.engine import Engine
from ridgeline.verify.limited_run import LimitedRun
from ridgeline.verify.reference import Reference


def fused_reference(engine: Engine) -> Reference:
    """A build has compared this graph with the model; it needs no file but the engine's own."""
    limits, plan = engine.program.limits, engine.plan
    loaded = load(engine.fused_onnx(weights=True), limits)
    limited = LimitedRun.of(loaded.model, limits)
    return Reference(loaded, threads=plan.target.threads, limited=limited, rounds=plan.precision == TF32)
