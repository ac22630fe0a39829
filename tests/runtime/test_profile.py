"""What `engine.profile()` measures: on a clock of the test's own, and on real engines."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx.parser
import pytest

import ridgeline
from fake_clock import World
from ridgeline.base.timing import time_stepped
from ridgeline.errors import DeviceError, OptionError
from ridgeline.ir.work import body_bytes, body_flops
from ridgeline.plan.trace import WALL_CLOCK, Trace

NO_ORT = ("ort",)


def test_steps_and_the_whole_run_take_turns(monkeypatch: pytest.MonkeyPatch) -> None:
    world = World()
    world.rule(monkeypatch)
    calls = [world.call("a", 10.0), world.call("b", 30.0)]
    found = time_stepped(calls, [world.call("whole", 41.0)], rounds=3)
    assert world.log == ["whole", "a", "b"] * 3
    assert [timing.samples_us for timing in found.steps] == [(10.0,) * 3, (30.0,) * 3]
    assert found.starts_us == (0.0, 10.0)
    assert found.others[0].samples_us == (41.0,) * 3


def test_the_cost_of_a_time_stamp_is_taken_off(monkeypatch: pytest.MonkeyPatch) -> None:
    """A clock that moves by 2 µs whenever somebody looks at it."""
    world = World()

    def looked_at() -> int:
        world.now_ns += 2000
        return world.now_ns

    monkeypatch.setattr("ridgeline.base.timing.perf_counter_ns", looked_at)
    found = time_stepped([world.call("a", 10.0), world.call("b", 30.0)], [], rounds=2)
    assert found.timer_us == pytest.approx(2.0, rel=0.02)
    assert [timing.median_us for timing in found.steps] == pytest.approx([10.0, 30.0], abs=0.05)


@pytest.fixture(scope="module")
def build(tiny_model: Path) -> Callable[..., ridgeline.Engine]:
    def make(**options: Any) -> ridgeline.Engine:
        return ridgeline.build(tiny_model, verify="off", **{"level": 0, **options})

    return make


@pytest.fixture(scope="module")
def engine(build: Callable[..., ridgeline.Engine]) -> ridgeline.Engine:
    return build(without=NO_ORT)


def test_every_step_that_does_work_is_in_it(engine: ridgeline.Engine) -> None:
    trace = engine.profile(rounds=5)
    assert trace.how == WALL_CLOCK
    classes = {step.op_types[0]: step.op_class for step in trace.steps if step.op_types != ("Flatten",)}
    assert classes == {"Conv": "convolution", "GlobalAveragePool": "norm/reduction", "Gemm": "product"}
    for step in trace.steps:
        planned = engine.plan.steps[step.index - 1]
        assert (step.name, step.tactic, step.sources) == (planned.name, planned.tactic, planned.sources)
        assert len(step.samples_us) == trace.rounds == 5
        assert step.median_us > 0
        assert step.precision == "float32"
    assert [step.start_us for step in trace.steps] == sorted(step.start_us for step in trace.steps)
    assert trace.host.run_us is not None
    assert Trace.from_json(trace.to_json()) == trace


def test_a_view_takes_no_time_and_has_no_row() -> None:
    text = """<ir_version: 10, opset_import: ["": 20]>
        g (float[4,8,8] x, float[64,16] w) => (float[4,16] y) {
            r = Relu (x)
            f = Flatten <axis = 1> (r)
            y = MatMul (f, w)
        }"""
    engine = ridgeline.build(onnx.parser.parse_model(text), level=0, verify="off", without=NO_ORT)
    assert "Flatten" in [step.op_types[0] for step in engine.plan.steps]
    trace = engine.profile(rounds=1)
    assert [step.op_types[0] for step in trace.steps] == ["Relu", "MatMul"]
    assert [step.index for step in trace.steps] == [1, 3]


def test_work_is_that_of_the_site_and_its_ops_add_up_to_it(engine: ridgeline.Engine) -> None:
    sites = {step.name: site for step, site in engine.planned_sites()}
    for step in engine.profile(rounds=1).steps:
        site = sites[step.name]
        assert step.bytes == body_bytes(site.body, site.specs) == sum(op.bytes for op in step.work)
        assert step.flops == body_flops(site.body, site.specs) == sum(op.flops for op in step.work)
        assert [op.op_type for op in step.work] == list(step.op_types)


def test_other_shapes_have_their_own_work_and_memory(engine: ridgeline.Engine) -> None:
    one, four = (engine.profile({"x": np.zeros((n, 3, 32, 32), np.float32)}, rounds=1) for n in (1, 4))
    assert four.shapes == {"x": "float32[4,3,32,32]"}
    assert four.steps[0].flops == 4 * one.steps[0].flops
    assert four.memory.peak_bytes == 4 * one.memory.peak_bytes
    assert four.memory.peak_step in [step.index for step in four.steps]


def test_a_session_of_onnx_runtime_tells_of_its_nodes(build: Callable[..., ridgeline.Engine]) -> None:
    engine = build(without=("cpp", "onednn", "mkl"), level=1)
    trace = engine.profile(rounds=3)
    spans = [step for step in trace.steps if step.tactic == "ort"]
    assert spans, [step.tactic for step in trace.steps]
    for span in spans:
        assert span.inside, trace.notes
        assert {source for node in span.inside for source in node.sources} <= set(span.sources)
        # the times of its nodes are part of the step's
        assert all(node.us >= 0 for node in span.inside)
        assert any(node.sources for node in span.inside)


@pytest.mark.parametrize("without", [(), NO_ORT])
@pytest.mark.parametrize(
    ("text", "feeds", "classes"),
    [
        (
            "(float[N] x) => (int64[1,M] y, float[N] z) { y = NonZero (x) z = Relu (x) }",
            {"x": np.array([1, 0, 2], np.float32)},
            {"library span", "other", "pointwise"},
        ),
        (
            "(bool c, float[4] x) => (float[4] y) { y = If (c) <then_branch = t () => (float[4] a)"
            " { a = Relu (x) }, else_branch = e () => (float[4] b) { b = Neg (x) }> }",
            {"c": np.array(True), "x": np.ones(4, np.float32)},
            {"control"},
        ),
        (
            "(string[N] s, float[4] x) => (string[N] y, float[4] z) { y = Identity (s) z = Exp (x) }",
            {"s": np.array(["a", "b"], object), "x": np.ones(4, np.float32)},
            {"movement", "pointwise"},
        ),
        (
            "(float[4,4] x) => (float[16] y) { y = Reshape (x, n) }",
            {"x": np.ones((4, 4), np.float32)},
            set(),
        ),
    ],
)
def test_islands_strings_and_views_alone(
    text: str, feeds: dict[str, Any], classes: set[str], without: tuple[str, ...]
) -> None:
    text = text.replace("{ y = Reshape", "{ n = Constant <value = int64[1] {16}> () y = Reshape")
    model = onnx.parser.parse_model(f'<ir_version: 10, opset_import: ["": 20]> g {text}')
    trace = ridgeline.build(model, level=0, verify="off", without=without).profile(feeds, rounds=2)
    assert {step.op_class for step in trace.steps} <= classes
    assert bool(trace.steps) == bool(classes)
    assert not [note for note in trace.notes if "not timed" in note]
    assert Trace.from_json(trace.to_json()) == trace


def test_rounds_and_machines_that_are_not_there(
    engine: ridgeline.Engine, build: Callable[..., ridgeline.Engine]
) -> None:
    with pytest.raises(OptionError, match="at least one round"):
        engine.profile(rounds=0)
    with pytest.raises(DeviceError, match="no GPU"):
        build(target="cuda:sm_90", without=("triton",)).profile()
