"""New shapes: served at once without compiling, planned behind it, swapped in; few are kept, and counted."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import torch
from moving_models import close, detector, expected, model_of, own, rand

import ridgeline
from ridgeline.errors import InputError, OptionError
from ridgeline.runtime.context import KEPT_INSTANCES
from ridgeline.runtime.pending_shape import PendingShape

MLP = """g (float[N,8] x) => (float[N,4] y, float[N,16] r) {
  a = MatMul(x, w) b = Add(a, c) r = Relu(b) y = MatMul(r, v) }"""
WEIGHTS = {"w": rand(8, 16), "c": rand(16, seed=1), "v": rand(16, 4, seed=2)}


@pytest.fixture
def engine():  # type: ignore[no-untyped-def]
    return own(model_of(MLP, **WEIGHTS), new_shapes="serve", profiles={"N": "1..2..64"})


def border_of(context, rows: int):  # type: ignore[no-untyped-def]
    return context._bindings[((rows, 8),)]


@pytest.mark.parametrize("rows", [1, 3, 17])
def test_a_new_shape_is_right_before_and_after_its_plan(engine, rows: int) -> None:  # type: ignore[no-untyped-def]
    context, feeds = engine.context(), {"x": rand(rows, 8)}
    want = expected(model_of(MLP, **WEIGHTS), feeds)
    close(context.run(feeds), want)
    assert isinstance(border_of(context, rows), PendingShape)
    engine.wait()
    close(context.run(feeds), want)
    assert not isinstance(border_of(context, rows), PendingShape)
    made = context.run({"x": torch.from_numpy(feeds["x"])})
    close({name: tensor.numpy() for name, tensor in made.items()}, want)


def test_the_planned_shape_needs_no_standby(engine) -> None:  # type: ignore[no-untyped-def]
    context = engine.context()
    context.run({"x": rand(2, 8)})
    assert not isinstance(border_of(context, 2), PendingShape)


def test_results_on_standby_are_the_callers_own() -> None:
    text = """g (float[N,3] x) => (float[N,3] y, float[N,3] z, float[16] c2) {
        y = Identity(x) z = Relu(x) c2 = Identity(c) }"""
    model = model_of(text, c=rand(16))
    engine = own(model, new_shapes="serve", profiles={"N": "1..2..9"})
    x = rand(5, 3)
    made = engine.run({"x": x})
    for array in made.values():
        array += 1
    close({"x": x}, {"x": rand(5, 3)})
    close(engine.run({"x": x}), expected(model, {"x": x}))


RESIZE = """g (float[1,2,N,7] x) => (float[A,B,C,D] y) {
    y = Resize<mode="linear", coordinate_transformation_mode="align_corners">(x, none, scales) }"""


@pytest.mark.parametrize(
    ("text", "array"),
    [
        (RESIZE, rand(1, 2, 9, 7)),
        ("g (float[N,6] x) => (float[N] y) { y = ReduceMax<keepdims=0>(x, axes) }", np.full((9, 6), np.nan)),
        ("g (float[N,6] x) => (int64[N] y) { y = ArgMin<axis=1, keepdims=0>(x) }", np.full((9, 6), np.nan)),
        ("g (float[N,6] x) => (float[N,6] y) { y = Clip(x, low) }", np.full((9, 6), np.inf)),
    ],
    ids=["Resize", "ReduceMax", "ArgMin", "Clip"],
)
def test_the_first_call_answers_as_later_ones_where_libraries_differ(text: str, array: np.ndarray) -> None:
    """ONNX Runtime takes each of these in another sense than the floor, and is given the whole graph here."""
    held = {
        "scales": np.array([1, 1, 0.6, 1.3], np.float32), "none": np.zeros(0, np.float32),
        "axes": np.array([1]), "low": np.float32(-1),
    }  # fmt: skip
    model = model_of(text, **{name: value for name, value in held.items() if name in text})
    engine = ridgeline.build(model, level=0, new_shapes="serve", profiles={"N": "1..4..9"})
    assert {step.tactic for step in engine.plan.steps} == {"ort"}
    feeds = {"x": array.astype(np.float32)}
    first = engine.run(feeds)
    engine.wait()
    assert np.array_equal(first["y"], engine.run(feeds)["y"], equal_nan=True)


def test_a_build_verifies_the_first_call_at_a_new_shape() -> None:
    model = model_of(MLP, **WEIGHTS)
    report = ridgeline.build(model, level=0, new_shapes="serve", profiles={"N": "1..2..64"}).report
    assert "min shapes, first call" in {check.name for check in report.checks}
    report = ridgeline.build(model, level=0, new_shapes="wait", profiles={"N": "1..2..64"}).report
    assert not [check.name for check in report.checks if "first call" in check.name]


def test_waiting_is_an_option() -> None:
    engine = own(model_of(MLP, **WEIGHTS), new_shapes="wait", profiles={"N": "1..2..64"})
    assert engine.plan.waits
    context = engine.context()
    context.run({"x": rand(5, 8)})
    assert not isinstance(border_of(context, 5), PendingShape)
    assert own(model_of(MLP, **WEIGHTS), new_shapes="serve", deterministic=True).plan.waits
    with pytest.raises(OptionError, match="serve or wait"):
        own(model_of(MLP, **WEIGHTS), new_shapes="later")


def test_what_is_wrong_with_new_shapes_is_said(engine) -> None:  # type: ignore[no-untyped-def]
    model = model_of("g (float[N,3] x, float[M,3] y) => (float[K,3] z) { z = Add(x, y) }")
    non_tensor = own(model, new_shapes="serve")
    with pytest.raises(InputError, match="shapes do not fit"):
        non_tensor.run({"x": rand(2, 3), "y": rand(5, 3)})
    close(non_tensor.run({"x": rand(5, 3), "y": rand(5, 3)}), {"z": 2 * rand(5, 3)})


def test_instances_are_bounded_and_their_memory_is_stated(engine) -> None:  # type: ignore[no-untyped-def]
    context = engine.context(wait=True)
    for rows in range(1, 30):
        context.run({"x": rand(rows, 8)})
    kept = context.memory()
    assert len(kept) == KEPT_INSTANCES
    assert kept[-1][0] == "x[29x8]"
    instance = context.instance({"x": rand(29, 8)})
    assert kept[-1][1] == instance.arena.nbytes + 29 * 8 * 4


def test_coming_back_to_a_shape_plans_nothing(engine) -> None:  # type: ignore[no-untyped-def]
    context = engine.context(wait=True)
    first = [context.instance({"x": rand(rows, 8)}) for rows in (3, 9)]
    for _ in range(20):
        assert [context.instance({"x": rand(rows, 8)}) for rows in (3, 9)] == first


def test_a_detector_is_served_at_once() -> None:
    model = detector()
    engine = own(model, new_shapes="serve", profiles={"image": "1x3x32..64..96x32..64..96"})
    feeds = {"image": rand(1, 3, 48, 80)}
    want = expected(model, feeds)
    close(engine.run(feeds), want)
    engine.wait()
    close(engine.run(feeds), want)


def test_shapes_are_observed(engine, tmp_path: Path) -> None:  # type: ignore[no-untyped-def]
    path = tmp_path / "seen.json"
    engine.run({"x": rand(2, 8)})
    with engine.observe(path) as seen:
        for rows in (1, 2, 2, 5):
            engine.run({"x": rand(rows, 8)})
    engine.run({"x": rand(2, 8)})
    assert seen.counts[(("x", (2, 8)),)] == 2
    stored = json.loads(path.read_text())
    assert stored["dims"] == {"x": ["N", 8]}
    assert {tuple(row["shapes"]["x"]): row["count"] for row in stored["seen"]} == {
        (2, 8): 2, (1, 8): 1, (5, 8): 1,
    }  # fmt: skip
    with pytest.raises(OptionError, match="there is no folder"):
        engine.observe(tmp_path / "nowhere" / "seen.json")


def test_a_saved_engine_remembers_whether_to_wait(tmp_path: Path) -> None:
    engine = own(model_of(MLP, **WEIGHTS), new_shapes="wait")
    assert ridgeline.load(engine.save(tmp_path / "e.ridge")).plan.waits
    assert np.array_equal(engine.run({"x": rand(3, 8)})["y"], engine.run({"x": rand(3, 8)})["y"])
