"""What a machine does at most, as far as an engine file tells: its calibration, its maker's figures, or the
best that steps of the plan reach. Read without a framework, so that `ridge explain` stays quick.
"""

from __future__ import annotations

import math

from ridgeline.base.ceilings import Ceilings
from ridgeline.base.target_files import ceilings_of_arch
from ridgeline.plan.plan import Plan, Step


def step_us(step: Step) -> float | None:
    """What a step takes, measured or else predicted."""
    return step.median_us if step.median_us is not None else step.predicted_us


def run_us(plan: Plan) -> float | None:
    """What all steps take; None if that is not known of every one."""
    times = [us for step in plan.steps if (us := step_us(step)) is not None]
    return math.fsum(times) if times and len(times) == len(plan.steps) else None


def reached_ceilings(plan: Plan) -> Ceilings | None:
    """A GPU's by its architecture; of a processor, the best that steps of this plan reach.

    None if no step was timed.
    """
    target = plan.target
    if target.traits.is_gpu:
        return ceilings_of_arch(target.arch)
    timed = [(us, step.work) for step in plan.steps if (us := step_us(step))]
    moving = [(us, work) for us, work in timed if work.bytes]
    if not moving:
        return None
    computing = [work.flops / us for us, work in timed if work.flops]
    return Ceilings(
        name="plan", kind=target.kind, arch=target.arch, threads=target.threads,
        title="the best rates that steps of this plan reach",
        launch_us=min(us for us, _ in timed),
        copy=((1.0, max(work.bytes / us for us, work in moving)),),
        flops={"float32": max(computing)} if computing else {},
    )  # fmt: skip
