"""A plan is never changed: retuning makes another, which is swapped in, or the old one stays."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import FrozenInstanceError, replace
from typing import Any

import numpy as np
import onnx
import pytest
from torch import Tensor

import ridgeline
from ridgeline import Engine
from ridgeline.errors import VerifyError
from ridgeline.plan.plan import Plan
from ridgeline.plan.report import Report
from ridgeline.runtime.profiles import Variant, load_variant, load_variants

MODEL = '<ir_version: 10, opset_import: ["": 21]> g (float[N, 4] x) => (float[N, 4] y) { y = Relu(x) }'


@pytest.fixture(scope="module")
def built() -> Engine:
    profiles = [{"x": (2, 4)}, {"x": (6, 4)}]
    model = onnx.parser.parse_model(MODEL)
    return ridgeline.build(model, profiles=profiles, level=0, verify="off", progress=False)


class Planner:
    """Retunes with what it is given; asked for nothing else."""

    def __init__(self, retune: Callable[[Variant], Variant]) -> None:
        self.asked: list[tuple[Variant, Mapping[str, Tensor]]] = []
        self._retune = retune

    def retune(
        self, variant: Variant, report: Report, expected: Mapping[str, Tensor]
    ) -> tuple[Variant, Report]:
        self.asked.append((variant, expected))
        return self._retune(variant), replace(report, unverified="retuned")

    def bind_body(self, *_: Any) -> Any:
        raise AssertionError("there is no control flow")

    padded_cuts = bind_body


def predicted(plan: Plan) -> Plan:
    others = tuple(map(predicted, plan.others))
    return replace(plan, steps=tuple(replace(s, predicted_us=1.0) for s in plan.steps), others=others)


def measured(variant: Variant) -> Variant:
    steps = [replace(step, predicted_us=None, median_us=2.0) for step in variant.plan.steps]
    plan = replace(variant.plan, steps=tuple(steps))
    return load_variant(plan, variant.executable.fused, Planner(measured).bind_body)


def test_a_plan_is_made_whole_and_frozen(built: Engine) -> None:
    assert [variant.plan.memory.io_bytes for variant in built.variants] == [32, 96]
    assert built.plan.others == (built.variants[1].plan,)
    with pytest.raises(FrozenInstanceError):
        built.plan.memory = built.plan.memory  # type: ignore[misc]
    with pytest.raises(AttributeError):
        built.plan = built.plan  # type: ignore[misc]


def test_retuning_swaps_every_predicted_plan_once(built: Engine) -> None:
    planner = Planner(measured)
    expected = {"given/x": Tensor()}
    variants = load_variants(predicted(built.plan), built.fused, planner.bind_body)
    engine = Engine(variants, planner, report=built.report, expected=expected)
    before = engine.variants
    x = np.array([[-1, 2, -3, 4]] * 2, np.float32)
    old = engine.context()
    engine.retune()
    assert [variant for variant, _ in planner.asked] == list(before)
    assert [set(given) for _, given in planner.asked] == [{"given/x"}, set()], "the first run is the first's"
    assert not engine.plan.is_predicted
    assert not any(variant.plan.is_predicted for variant in engine.variants)
    assert all(variant.plan.is_predicted for variant in before), "the old plans are as they were"
    assert engine.report.unverified == "retuned"
    assert engine.expected == {}
    engine.retune()
    assert len(planner.asked) == 2, "what was measured is not measured again"
    for context in (old, engine.context()):
        np.testing.assert_array_equal(context.run({"x": x})["y"], np.maximum(x, 0))


def test_a_plan_that_fails_its_checks_is_not_swapped_in(built: Engine) -> None:
    def fail(variant: Variant) -> Variant:
        raise VerifyError("wrong", checks=())

    planner = Planner(fail)
    variants = load_variants(predicted(built.plan), built.fused, planner.bind_body)
    engine = Engine(variants, planner, report=built.report)
    before = engine.variants
    for _ in range(2):  # the next run meets the same error
        with pytest.raises(VerifyError):
            engine.retune()
    assert engine.variants == before
    assert engine.plan.is_predicted
    assert engine.report is built.report
