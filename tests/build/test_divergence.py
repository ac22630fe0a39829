"""Faults are planted in every stage of a build; the error of the build names the stage, and what in it."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnx.parser
import onnx_ir as ir
import pytest
import torch

import ridgeline
from ridgeline.errors import VerifyError
from ridgeline.frontend import from_onnx
from ridgeline.passes import canonical_norm, fold, partition, pipeline
from ridgeline.tactics.base import Launch
from ridgeline.tactics.cpu.cpp import CppReduce
from ridgeline.verify import divergence

# a spelled LayerNorm, a constant to fold, a chain to fuse, a product
MODEL = """<ir_version: 10, opset_import: ["": 20]>
g (float[3,16] x) => (float[3,8] y) {
  m = ReduceMean <keepdims = 1> (x, axes) d = Sub(x, m) q = Mul(d, d) v = ReduceMean <keepdims = 1> (q, axes)
  e = Add(v, eps) r = Sqrt(e) n = Div(d, r) l = Mul(n, scale)
  half = Mul(scale, two)
  h = Mul(l, half) t = Tanh(h) u = Sigmoid(t)
  y = MatMul(u, w)
}"""


@pytest.fixture(scope="module")
def model() -> onnx.ModelProto:
    made = onnx.parser.parse_model(MODEL)
    rng = np.random.default_rng(0)
    arrays = {
        "axes": np.array([-1]),
        "eps": np.array([1e-5], np.float32),
        "scale": rng.uniform(0.5, 1.5, 16).astype(np.float32),
        "two": np.full(16, 2, np.float32),
        "w": rng.standard_normal((16, 8)).astype(np.float32),
    }
    made.graph.initializer.extend(onnx.numpy_helper.from_array(a, name) for name, a in arrays.items())
    return made


def failure(model: onnx.ModelProto) -> str:
    with pytest.raises(VerifyError) as caught:
        ridgeline.build(model, level=0, without=("ort",))
    return str(caught.value)


def scaled(value: ir.Value) -> None:
    value.const_value = ir.tensor(value.const_value.numpy() * np.float32(1.01), name=value.name)


def test_a_wrong_conversion(model: onnx.ModelProto, monkeypatch: pytest.MonkeyPatch) -> None:
    right = from_onnx.to_canonical

    def wrong(*arguments: Any) -> ir.Model:
        made = right(*arguments)
        scaled(made.graph.initializers["w"])
        return made

    monkeypatch.setattr(from_onnx, "to_canonical", wrong)
    assert "the first stage that is wrong: reading the model" in failure(model)


def test_a_wrong_fold(model: onnx.ModelProto, monkeypatch: pytest.MonkeyPatch) -> None:
    right = fold._run
    monkeypatch.setattr(fold, "_run", lambda *given: [array + 0.01 for array in right(*given)])
    assert "the first stage that is wrong: pass 'fold', first at 'half'" in failure(model)


def test_a_wrong_rule(model: onnx.ModelProto, monkeypatch: pytest.MonkeyPatch) -> None:
    def wrong(self: Any, op: Any, m: Any) -> ir.Value:
        return op.LayerNormalization(m.x, canonical_norm._row(op, m, "w"), None, axis=-1, epsilon=0.1)

    monkeypatch.setattr(canonical_norm.LayerNorm, "rewrite", wrong)
    assert "the first stage that is wrong: pass 'norms', rule LayerNorm" in failure(model)


@pytest.mark.parametrize("name", [stage.name for stage in pipeline.PASSES if not stage.is_by_index])
def test_any_wrong_pass(model: onnx.ModelProto, monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    """A pass that changes a weight, and not one node."""

    def wrong(stage: pipeline.Stage) -> pipeline.Stage:
        def run(graph: ir.Model) -> Any:
            refusals = stage.run(graph)
            if graph.graph.initializers["w"].const_value.name != "spoilt":
                scaled(graph.graph.initializers["w"])
                graph.graph.initializers["w"].const_value.name = "spoilt"
            return refusals

        return replace(stage, run=run)

    passes = [wrong(stage) if stage.name == name else stage for stage in pipeline.PASSES]
    monkeypatch.setattr(pipeline, "PASSES", tuple(passes))
    assert f"the first stage that is wrong: pass {name!r}" in failure(model)


def test_a_wrong_fusion(model: onnx.ModelProto, monkeypatch: pytest.MonkeyPatch) -> None:
    right = partition.outline

    def wrong(graph: ir.Model, *arguments: Any, **options: Any) -> None:
        right(graph, *arguments, **options)
        for function in graph.functions.values():
            for node in function:
                node.op_type = "Sin" if node.op_type == "Tanh" else node.op_type

    monkeypatch.setattr(partition, "outline", wrong)
    assert "the first stage that is wrong: fusion" in failure(model)


@pytest.mark.parametrize("error", [0.01, 0.0001])
def test_a_wrong_kernel(model: onnx.ModelProto, monkeypatch: pytest.MonkeyPatch, error: float) -> None:
    right = CppReduce._bind

    def wrong(self: Any, *arguments: Any) -> Launch:
        launch = right(self, *arguments)

        def call(inputs: Any, outputs: Any) -> None:
            launch.call(inputs, outputs)
            outputs[0].mul_(1 + error)

        return Launch(call, writes_out=True)

    monkeypatch.setattr(CppReduce, "_bind", wrong)
    said = failure(model)
    assert "wrong: " not in said
    assert "by cpp.reduce" in said


def test_a_right_build_looks_for_nothing(tiny_model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    looked = "ridgeline.verify.trials.find_culprit"
    monkeypatch.setattr(looked, lambda *_, **__: pytest.fail("nothing is wrong"))
    ridgeline.build(tiny_model, level=0)


def test_levels_that_flip_at_a_tie_are_no_divergence() -> None:
    """Of 1,000 levels a few may be off by one; none by more, and not all of them."""
    want = torch.arange(1000).remainder(200).to(torch.uint8)
    few, many, far = want.clone(), want + 1, want.clone()
    few[:20] += 1
    far[3] += 2
    assert divergence._off_levels(want, want) == 0
    assert 0 < divergence._off_levels(few, want) <= 1
    assert divergence._off_levels(many, want) > 1
    assert divergence._off_levels(far, want) == float("inf")
    assert divergence._off_levels(want[:1] + 1, want[:1]) <= 1
    assert divergence._off_levels(want[:0], want[:0]) == 0
    assert divergence._off_levels(want[:5], want) == float("inf")
