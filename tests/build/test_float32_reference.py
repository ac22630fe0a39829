"""Half models are verified against the same graph in single precision."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import onnx
import onnx.parser
import onnxruntime as ort
import pytest

import ridgeline
from ridgeline.frontend.from_onnx import load
from ridgeline.verify.compare import compare
from ridgeline.verify.float32_reference import Float32Model, coarsest, halves_inside
from ridgeline.verify.reference import Reference

GRAPH = """
<ir_version: 10, opset_import: ["" : 21]>
half ({kind}[4, 64] x) => ({kind}[4, 64] y)
{{
    a = MatMul(x, w)
    b = Add(a, one)
    c = Cast<to = {number}>(b)
    y = Softmax(c)
}}
"""
NUMBERS = {"float16": 10, "bfloat16": 16}


def half_model(kind: str, one: tuple[int, ...] = (1,)) -> onnx.ModelProto:
    model = onnx.parser.parse_model(GRAPH.format(kind=kind, number=NUMBERS[kind]))
    rng = np.random.default_rng(0)
    weight = rng.standard_normal((64, 64)).astype(getattr(ml_dtypes, kind, np.float16))
    model.graph.initializer.append(onnx.numpy_helper.from_array(weight, "w"))
    model.graph.initializer.append(onnx.numpy_helper.from_array(np.ones(one, weight.dtype), "one"))
    return model


@pytest.fixture
def feeds() -> dict[str, Any]:
    return {"x": np.random.default_rng(1).standard_normal((4, 64)).astype(np.float16)}


@pytest.mark.parametrize("one", [(1,), ()], ids=["row", "scalar"])
@pytest.mark.parametrize("kind", ["float16", "bfloat16"])
def test_the_reference_computes_in_float32(kind: str, one: tuple[int, ...], feeds: dict[str, Any]) -> None:
    model = half_model(kind, one)
    dtype = np.dtype(getattr(ml_dtypes, kind, np.float16))
    x = feeds["x"].astype(dtype)
    reference = Reference(load(model), threads=1)
    (got,) = reference.run({"x": x}).values()
    weight = onnx.numpy_helper.to_array(model.graph.initializer[0]).astype(np.float64)
    scores = x.astype(np.float64) @ weight + 1
    want = np.exp(scores - scores.max(-1, keepdims=True))
    want /= want.sum(-1, keepdims=True)
    assert "in float32" in reference.who
    assert [limit.note for limit in reference.tolerance({"x": x}, {"y": got}).values()] == [""]
    assert got.dtype == dtype
    # one rounding, that of the output itself
    assert np.abs(got.astype(np.float64) - want).max() <= 2**-8 * want.max()
    limit = reference.tolerance({"x": x}, {"y": got})["y"]
    assert 0 < limit.distance < want.max()


def test_every_half_tensor_is_widened() -> None:
    model = half_model("float16")
    assert coarsest(halves_inside(model).values()) == "float16"
    wide = Float32Model(model, "")
    assert wide.weights["w"].dtype == np.float32
    assert coarsest(halves_inside(wide.proto).values()) == ""
    onnx.checker.check_model(half_model("float16"))
    kinds = {a.i for n in wide.proto.graph.node for a in n.attribute if a.name == "to"}
    assert kinds == {onnx.TensorProto.FLOAT}


def test_a_half_model_builds_and_is_verified(tmp_path: Path, feeds: dict[str, Any]) -> None:
    engine = ridgeline.build(half_model("float16"), level=1)
    assert "float32" in engine.report.reference
    assert all(check.passed for check in engine.report.checks)
    assert engine.run(feeds)["y"].dtype == np.float16


INSIDE = """
<ir_version: 10, opset_import: ["" : 21]>
g (float[1,8] x) => (float[1,4] y, float[1,8] z)
{{
    h = Cast<to = {number}>(x)
    {weights}
    a = MatMul(h, v)
    b = Tanh(a)
    c = Mul(b, a)
    d = MatMul(c, w)
    y = Cast<to = 1>(d)
    s = Shape(c)
    e = ConstantOfShape(s)
    f = ReduceSum<keepdims = 0>(e)
    g = Add(x, f)
    z = Exp(g)
}}
"""


def half_inside(kind: str, *, cast_weights: bool, seed: int = 0) -> onnx.ModelProto:
    """float32 in and out, half between: as `half_net(x.half()).float()`, or with the weights cast as well."""
    casts = "v = Cast<to = {number}>(v32) w = Cast<to = {number}>(w32)" if cast_weights else ""
    number = NUMBERS[kind]
    model = onnx.parser.parse_model(INSIDE.format(number=number, weights=casts.format(number=number)))
    rng = np.random.default_rng(seed)
    dtype = np.float32 if cast_weights else np.dtype(getattr(ml_dtypes, kind, np.float16))
    for name, shape in (("v", (8, 16)), ("w", (16, 4))):
        array = (rng.standard_normal(shape) / 2).astype(dtype)
        name = f"{name}32" if cast_weights else name
        model.graph.initializer.append(onnx.numpy_helper.from_array(array, name))
    return model


@pytest.mark.parametrize("kind", ["float16", "bfloat16"])
@pytest.mark.parametrize("cast_weights", [False, True])
def test_the_half_inside_decides_the_tolerance(kind: str, cast_weights: bool) -> None:
    model = half_inside(kind, cast_weights=cast_weights)
    assert halves_inside(model) == {"y": kind, "z": ""}
    engine = ridgeline.build(model, level=0, without="ort")
    limits = {c.output: c.tolerance for c in engine.report.checks if c.name == "planned shapes"}
    # a few half steps for what half values reach; float32's for what only their shape reaches
    assert 1e-4 < limits["y"] < 0.5
    assert limits["z"] < 1e-4


def test_a_wrong_result_is_seen_through_the_half_inside() -> None:
    reference = Reference(load(half_inside("float16", cast_weights=False)), threads=1)
    feeds = {"x": np.random.default_rng(1).standard_normal((1, 8)).astype(np.float32)}
    want = reference.run(feeds)
    (row,) = (r for r in compare("", {**want, "y": want["y"] * 1.05}, want,
              reference.tolerance(feeds, want), "") if r.output == "y")  # fmt: skip
    assert not row.passed


def test_types_inside_functions_and_branches_are_seen() -> None:
    text = """<ir_version: 10, opset_import: ["" : 21, "l" : 1]>
    g (bool p, float[2] x) => (float[2] y, float[2] z, float[2] u) {
      y = If(p) <
        then_branch = t () => (float[2] a) { h = Cast<to = 10>(x) a = Cast<to = 1>(h) },
        else_branch = e () => (float[2] b) { b = Relu(x) }
      >
      z = l.round(x)
      u = Relu(x)
    }
    <domain: "l", opset_import: ["" : 21]> round (x) => (y) { h = Cast<to = 16>(x) y = Cast<to = 1>(h) }"""
    assert halves_inside(onnx.parser.parse_model(text)) == {"y": "float16", "z": "bfloat16", "u": ""}


def test_a_single_precision_model_keeps_its_tolerance(tiny_model: Path) -> None:
    assert set(halves_inside(onnx.load(tiny_model)).values()) == {""}


def test_casts_that_a_converter_appended_at_the_end() -> None:
    """`keep_io_types` as some converters write it: the cast of an input comes after its readers."""
    model = half_inside("float16", cast_weights=False)
    nodes = list(model.graph.node)
    del model.graph.node[:]
    model.graph.node.extend([*nodes[1:], nodes[0]])
    assert ridgeline.build(model, level=0, without="ort").report.verified


UNREAD = """
<ir_version: 10, opset_import: ["" : 21]>
g (float16[4, 8] x, bool[1] c, float16[2] default) => (float16[4, 8] y, float16[8] told)
{
    s = Squeeze(c)
    y = If <then_branch = t () => (float16[4, 8] a) { a = Mul(x, branch) },
            else_branch = e () => (float16[4, 8] b) { b = Softmax(x) }> (s)
}
"""


def test_weights_that_no_node_reads_do_not_hinder_the_reference() -> None:
    model = onnx.parser.parse_model(UNREAD)
    for name, size in {"told": 8, "default": 2, "nobody": 3, "branch": 1}.items():
        weight = np.arange(3, 3 + size, dtype=np.float16)
        model.graph.initializer.append(onnx.numpy_helper.from_array(weight, name))
    x = np.random.default_rng(1).standard_normal((4, 8)).astype(np.float16)
    wide = Float32Model(model, "")
    assert wide.weights.keys() == {"branch", "told"}
    for run in (
        wide.rounding_session(ort.SessionOptions()),
        wide.session(ort.SessionOptions(), wide.weights),
    ):
        made = run({"x": x, "c": np.array([True])})
        np.testing.assert_array_equal(made["y"], x * np.float16(3))
        np.testing.assert_array_equal(made["told"], np.arange(3, 11))


def test_an_unread_weight_leaves_the_tolerance_as_it_is() -> None:
    tolerances = []
    for is_more in (False, True):
        model = half_model("float16")
        if is_more:
            model.graph.initializer.append(onnx.numpy_helper.from_array(np.ones(3, np.float16), "nobody"))
        tolerances.append(ridgeline.build(model, level=0, threads=1).report.checks[0].tolerance)
    assert tolerances[0] == tolerances[1]
