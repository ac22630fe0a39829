"""Where an engine stops computing what its model computes."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from ridgeline.runtime.engine import Engine
from ridgeline.spec import EPSILON, Body
from ridgeline.tactics.aten import compile_body


def first_divergence(engine: Engine, feeds: Mapping[str, Any]) -> str:
    """The first step whose outputs differ from the same ops run one by one through PyTorch."""
    program = engine.program
    instance = engine.context(wait=True).instance(feeds)
    names = [n for step in instance.steps for n in step.region.outputs]
    ops, constants = program.flat_ops(program.regions)
    whole = Body(
        inputs=(*program.inputs, *engine.weights), outputs=tuple(names), ops=ops, constants=constants
    )
    run, _ = compile_body(whole, instance.settled.specs, program.opset_imports)
    with torch.inference_mode():
        given = [t.cpu().clone() for t in instance.inputs.values()]
        want = dict(zip(names, run([*given, *engine.weights.values()]), strict=True))
        worst = (0.0, "")
        for i, call in enumerate(instance.calls):
            call()
            step = engine.plan.steps[instance.call_steps[i]]
            label = f"{step.name} ({' '.join(step.op_types[:8])}) by {step.tactic}"
            for name in step.outputs:
                off = _off(instance.result(name)[0].cpu(), want[name])
                if off > 1:
                    return f"first diverging region: {label}"
                worst = max(worst, (off, label))
    return f"no region diverges much alone; the furthest off is {worst[1]}"


def _off(got: Tensor, want: Tensor) -> float:
    """Distance in units of what rounding may do to one region: 1024 eps of its largest value."""
    if got.shape != want.shape:
        return math.inf
    if not want.numel():
        return 0.0
    if not want.is_floating_point():
        return 0.0 if torch.equal(got, want) else math.inf
    eps = EPSILON.get(str(want.dtype).removeprefix("torch."), EPSILON["bfloat16"])
    distance = (got.double() - want.double()).abs()
    both_special = ~torch.isfinite(got.double()) & (got.double().nan_to_num() == want.double().nan_to_num())
    distance = torch.where(both_special, 0.0, distance.nan_to_num(nan=math.inf))
    scale = want.double().abs().nan_to_num(posinf=0.0).max()
    return float(distance.max() / (1024 * eps * scale + 1e-300))
