"""Levels that flip near ties: an error beyond what probes measured passes where every region is right."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import pytest
import torch

import ridgeline
from ridgeline.frontend.from_onnx import load
from ridgeline.plan.report import Check
from ridgeline.verify import divergence
from ridgeline.verify.divergence import Expected, passed_where_levels_flipped
from ridgeline.verify.levels import outputs_of_levels
from ridgeline.verify.reference import Reference

MODEL = """<ir_version: 10, opset_import: ["" : 21]>
g (float[4,8] x) => (float[4,8] y)
<float s = {0.05}, int8 z = {0}, int8[8,8] w = {WEIGHT}> {
    q = QuantizeLinear(x, s, z)
    a = DequantizeLinear(q, s, z)
    b = DequantizeLinear(w, s, z)
    p = MatMul(a, b)
    r = QuantizeLinear(p, s, z)
    y = DequantizeLinear(r, s, z)
}"""
PLAIN = """<ir_version: 10, opset_import: ["" : 21]> g (float[4,8] x) => (float[4,8] y) { y = Relu(x) }"""


def model(seed: int = 0) -> onnx.ModelProto:
    weight = np.random.default_rng(seed).integers(-100, 100, 64)
    return onnx.parser.parse_model(MODEL.replace("WEIGHT", ", ".join(map(str, weight))))


def settled(engine: Any, proto: onnx.ModelProto, error: float, note: str = "") -> Check:
    """A check that is off by so many tolerances."""
    reference = Reference(load(proto), threads=1)
    feeds = {"x": np.random.default_rng(1).standard_normal((4, 8)).astype(np.float32)}
    want = reference.run(feeds)
    expected = Expected(reference, feeds, want, reference.tolerance(feeds, want))
    row = Check("planned shapes", "y", "", error, 1.0, False, note)
    (made,) = passed_where_levels_flipped(engine, expected, [row])
    return made


@pytest.fixture(scope="module")
def engine() -> Any:
    return ridgeline.build(model(), level=0, verify="off", progress=False)


def test_regions_settle_what_probes_did_not_reach(engine: Any) -> None:
    made = settled(engine, model(), 3.0)
    assert made.passed
    assert "every region is right" in made.note


def test_far_off_is_wrong_whatever_regions_say(engine: Any) -> None:
    assert not settled(engine, model(), 5.0).passed


@pytest.mark.parametrize("error", [0.0, 3.0])
def test_nan_and_mean_distances_are_no_flips(engine: Any, error: float) -> None:
    assert not settled(engine, model(), error, "NaN or infinity where the reference has none").passed


def test_halves_may_be_off_by_a_few_steps_only() -> None:
    want = torch.full((4,), 2.0, dtype=torch.float16)
    steps = divergence.FEW_STEPS["float16"]
    assert divergence._off(want * 0, want, steps=steps) > 1
    assert divergence._off(want + 2**-9, want, steps=steps) < 1


def test_outputs_that_nothing_was_rounded_for() -> None:
    text = MODEL.replace("(float[4,8] y)", "(float[4,8] y, float[4,8] t)")
    proto = onnx.parser.parse_model(text.replace("WEIGHT", ", ".join(["1"] * 64))[:-1] + " t = Relu(x) }")
    assert outputs_of_levels(proto) == {"y"}


def test_another_model_is_not_excused(engine: Any) -> None:
    assert not settled(engine, model(seed=5), 3.0).passed


def test_a_wrong_region_is_not_excused(engine: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(divergence, "_wrong_region", lambda *_, **__: (2.0, "p"))
    assert not settled(engine, model(), 3.0).passed


def test_models_without_levels_are_held_to_rounding() -> None:
    plain = onnx.parser.parse_model(PLAIN)
    built = ridgeline.build(plain, level=0, verify="off", progress=False)
    assert not settled(built, plain, 3.0).passed
