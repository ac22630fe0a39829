"""A build reads each state of the model once, and infers the shapes of each at each set of inputs once."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from typing import Any

import numpy as np
import onnx
import pytest

import ridgeline
from ridgeline.base.spec import TensorSpec
from ridgeline.ir.body import Program
from ridgeline.ir.infer import Inferred
from ridgeline.options import DEFAULT_LIMITS
from ridgeline.runtime import inference as subject
from ridgeline.runtime.inference import KEPT_SHAPES, Inference
from ridgeline.verify import trials

FIVE_NODES = """<ir_version: 10, opset_import: ["": 21]>
g (float[N, 16] x) => (float[N, 16] y) {
    h = MatMul(x, w)
    c = Add(h, b)
    r = Relu(c)
    s = Sigmoid(r)
    y = Mul(s, x)
}"""


def five_nodes() -> onnx.ModelProto:
    model = onnx.parser.parse_model(FIVE_NODES)
    for name, shape in (("w", (16, 16)), ("b", (16,))):
        model.graph.initializer.append(onnx.numpy_helper.from_array(np.ones(shape, np.float32), name))
    return model


class Counts:
    """How often the program was read, and how often shapes were inferred of which program at which inputs."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.reads: Counter[str] = Counter()
        self.inferred: Counter[tuple[int, str]] = Counter()
        self._programs: list[Program] = []  # so that no id is used twice
        read, infer = subject.read_program, subject.infer

        def counted_read(*arguments: Any) -> Program:
            program = read(*arguments)
            self._programs.append(program)
            self.reads[" ".join(region.function for region in program.regions)] += 1
            return program

        def counted_infer(program: Program, inputs: Mapping[str, TensorSpec], *rest: Any) -> Inferred:
            self.inferred[id(program), str(sorted(inputs.items()))] += 1
            return infer(program, inputs, *rest)

        monkeypatch.setattr(subject, "read_program", counted_read)
        monkeypatch.setattr(trials, "read_program", counted_read)
        monkeypatch.setattr(subject, "infer", counted_infer)


@pytest.mark.parametrize("level", [0, 1])
def test_five_nodes_without_verification(monkeypatch: pytest.MonkeyPatch, level: int) -> None:
    counts = Counts(monkeypatch)
    ridgeline.build(five_nodes(), profiles={"x": (4, 16)}, level=level, verify="off", progress=False)
    assert list(counts.reads.values()) == [1, 1], "before and after fusion"
    assert list(counts.inferred.values()) == [1, 1]


def test_five_nodes_verified_and_run(monkeypatch: pytest.MonkeyPatch) -> None:
    counts = Counts(monkeypatch)
    engine = ridgeline.build(five_nodes(), profiles={"x": (4, 16)}, level=0, progress=False)
    assert sum(counts.reads.values()) == 3, "before fusion, after it, and as it is written and read again"
    before = dict(counts.inferred)
    engine.run(engine.example_inputs(1))
    assert counts.inferred == before, "running at planned shapes infers nothing"
    assert set(counts.inferred.values()) == {1}, "no program at the same shapes twice"


def test_a_profile_with_corners(monkeypatch: pytest.MonkeyPatch) -> None:
    counts = Counts(monkeypatch)
    ridgeline.build(five_nodes(), profiles={"x": ((1, 4, 8), 16)}, level=0, progress=False)
    assert set(counts.inferred.values()) == {1}


def test_the_memo_is_bounded() -> None:
    loaded = ridgeline.frontend.from_onnx.load(five_nodes())
    inference = Inference.of(loaded.model, DEFAULT_LIMITS)
    specs = [{"x": TensorSpec("float32", (rows, 16))} for rows in range(1, KEPT_SHAPES + 4)]
    made = [inference.at(each) for each in specs]
    assert len(inference._made) == KEPT_SHAPES
    assert inference.at(specs[-1]) is made[-1]
    assert inference.at(specs[0]) is not made[0]
    assert inference.at(specs[0]).specs["y"].shape == (1, 16)
