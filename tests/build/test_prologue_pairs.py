"""Pointwise ops with the product that reads them as one step, for a GPU that is not here."""

from __future__ import annotations

from functools import cache
from typing import Any

import pytest
from test_one_loop import context_of

import ridgeline
from cross_models import _array, _model, np, squeezed
from ridgeline.plan.plan import Step
from ridgeline.runtime.engine import Engine
from ridgeline.select import pairs
from ridgeline.select.context import APART

BEFORE = "triton.prologue_gemm"
BLOCKS = 2


def built(model: bytes, **options: Any) -> Engine:
    return ridgeline.build(model, target="cuda:sm_90", verify="off", progress=False, **options)


def joined_in(engine: Engine) -> list[Step]:
    return [step for step in engine.plan.steps if step.tactic == BEFORE]


@cache
def engine_of(level: int) -> Engine:
    return built(squeezed(blocks=BLOCKS), level=level)


@pytest.mark.parametrize("level", [0, 1])
def test_the_scale_of_a_block_is_no_step_of_its_own(level: int) -> None:
    engine, before = engine_of(level), built(squeezed(blocks=BLOCKS), level=level, without=[BEFORE])
    joined = joined_in(engine)
    assert len(joined) == BLOCKS
    assert len(engine.plan.steps) == len(before.plan.steps) - BLOCKS
    for step in joined:
        assert step.op_types == ("Mul", "Conv", "Add")
        assert len(step.regions) == 2
        assert len(step.outputs) == len(step.kernels) == 1
        apart = next(loser for loser in step.losers if loser.tactic == APART)
        assert apart.predicted_us is not None
        assert apart.predicted_us > (step.predicted_us or 0) > 0


def test_what_is_between_takes_no_memory() -> None:
    before = built(squeezed(blocks=BLOCKS), level=0, without=[BEFORE])
    kept, held = ({b.value for b in engine.plan.memory.blocks} for engine in (engine_of(0), before))
    assert len(held - kept) == BLOCKS
    assert before.plan.memory.unshared_bytes > engine_of(0).plan.memory.unshared_bytes


def test_a_batch_that_moves() -> None:
    engine = built(squeezed("N"), level=0, profiles={"x0": "1..16..32x64x28x28"})
    assert len(joined_in(engine)) == BLOCKS


def test_only_regions_of_pointwise_ops_are_asked_for() -> None:
    """The ops of a convolution's epilogue are pointwise too, and stay with it."""
    context = context_of(squeezed(blocks=BLOCKS), "cuda:sm_90", 1)
    found = [parts for pair in pairs.open_pairs(context) for parts in pair.parts]
    assert [[part.op_types for part in parts] for parts in found] == [[("Mul",), ("Conv", "Add")]] * BLOCKS


def test_a_value_that_others_read_stays_in_memory() -> None:
    rng = np.random.default_rng(1)
    lines = """m = GlobalAveragePool (x) e = Conv (m, g) z = Mul (x, e) p = Conv (z, w)
        q = MaxPool <kernel_shape = [3, 3], pads = [1, 1, 1, 1]> (z) y = Add (p, q)"""
    shape = "float16[16,64,28,28]"
    model = _model(
        f"net ({shape} x) => ({shape} y) {{ {lines} }}",
        {"g": _array(rng, 64, 64, 1, 1), "w": _array(rng, 64, 64, 1, 1)},
    )
    assert not joined_in(built(model, level=0))
