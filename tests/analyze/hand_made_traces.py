"""Hand-made traces."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from ridgeline.plan.trace import (
    WALL_CLOCK,
    HostTime,
    MemoryUse,
    NodeWork,
    StepTime,
    Trace,
)


def step(index: int, name: str, us: float, **more: Any) -> StepTime:
    """A step that took the same time, with a little noise, in three rounds."""
    made = StepTime(
        index=index,
        name=name,
        op_types=("Gemm", "Relu"),
        sources=(f"/{name}/Gemm", f"/{name}/Relu"),
        tactic="mkl",
        config={"threads": 2},
        precision="float32",
        op_class="product",
        calls=1,
        median_us=us,
        p10_us=us * 0.9,
        p90_us=us * 1.1,
        start_us=0.0,
        bytes=4000,
        flops=100_000,
        samples_us=(us * 0.9, us, us * 1.1),
        work=(NodeWork(f"/{name}/Gemm", "Gemm", 99_000, 4000), NodeWork(f"/{name}/Relu", "Relu", 1000, 0)),
    )
    return replace(made, **more)


def trace(*steps: StepTime, **more: Any) -> Trace:
    steps = steps or (step(1, "stem", 100.0), step(3, "head", 50.0, start_us=100.0))
    total = sum(each.median_us for each in steps) * 1.02
    made = Trace(
        model="tiny",
        target="cpu:x86_64",
        device="a processor",
        threads=2,
        precision="fp32",
        shapes={"x": "float32[1,64]"},
        versions={"ridgeline": "0.1"},
        how=WALL_CLOCK,
        rounds=3,
        total_us=total,
        total_p10_us=total * 0.9,
        total_p90_us=total * 1.1,
        total_samples_us=(total * 0.9, total, total * 1.1),
        steps=tuple(steps),
        memory=MemoryUse(
            tuple(1024 * each.index for each in steps),
            1024 * steps[-1].index,
            steps[-1].index,
            4096,
            512,
            8192,
        ),
        host=HostTime(None, total * 1.1, total * 0.1),
        timer_us=0.05,
    )
    return replace(made, **more)
