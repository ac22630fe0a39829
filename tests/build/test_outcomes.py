"""Engines at the values that told rewrites from the model: the outcome is the model's, at every call."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np
import onnx
import onnx.parser
import onnx_ir as ir
import pytest
from onnx.reference import ReferenceEvaluator

import ridgeline

INF, NAN = np.inf, np.nan
ATTENTION = """kt = Transpose<perm = [0, 1, 3, 2]>(k) s = MatMul(q, kt) d = Mul(s, half) a = Add(d, m)
    p = Softmax(a) y = MatMul(p, v)"""
HEADS = "float[B,2,S,4] q, float[B,2,T,4] k, float[B,2,T,4] v"
CONSTS = "float half = {0.5}, float zero = {0.0}, int64[1] last = {-1}, float eps = {1e-5}"
GUARDED = ATTENTION.replace("p = Softmax(a)", "w = Softmax(a) n = IsNaN(w) p = Where(n, zero, w)")
NORM = """mu = ReduceMean(x, last) d = Sub(x, mu) q = Mul(d, d) v = ReduceMean(q, last) g = Add(v, eps)
    s = Sqrt(g) y = Div(d, s)"""


@dataclass(frozen=True)
class Case:
    """A model, the shapes it is built for, and special values by input and index."""

    inputs: str
    output: str
    lines: str
    shapes: Mapping[str, str]
    special: Mapping[str, list[tuple[tuple[object, ...], float]]] = field(default_factory=dict)
    moved: Mapping[str, tuple[int, ...]] = field(default_factory=dict)  # other shapes, for a second call


ROWS = {"x": "1..5..5x6"}
SCORES = {"q": "2x2x3x4", "k": "2x2x5x4", "v": "2x2x5x4", "m": "2x1x3x5"}
ONE_KEY = {"q": (2, 2, 3, 4), "k": (2, 2, 5, 4), "v": (2, 2, 5, 4), "m": (2, 1, 3, 1)}
CASES = {
    "shares of exponentials": Case(
        "float[B,6] x", "float[B,6] y", "e = Exp(x) t = ReduceSum(e, last) y = Div(e, t)", ROWS,
        {"x": [((0, 0), 200.0)]}, {"x": (5, 6)},
    ),
    "a norm of large numbers": Case(
        "float[B,6] x", "float[B,6] y", NORM, ROWS, {"x": [((0, slice(0, 2)), 1e21), ((0, 2), -2e21)]},
        {"x": (5, 6)},
    ),
    "a norm in double": Case("double[B,6] x", "double[B,6] y", NORM, ROWS, {}, {"x": (2, 6)}),
    "a norm between integers": Case(
        "int64[B,6] n", "int64[B,6] y",
        "x = Cast<to = 1>(n) q = Mul(x, x) v = ReduceMean(q, last) g = Add(v, eps) s = Sqrt(g) r = Div(x, s)"
        " y = Cast<to = 7>(r)", {"n": "3x6"},
    ),
    "the largest of nothing": Case(
        "float[B,N] x", "float[B] y", "y = ReduceMax<keepdims = 0>(x, last)", {"x": "3x0..6..6"}, {},
        {"x": (3, 0)},
    ),
    "a query that sees no key": Case(
        f"{HEADS}, float[B,1,S,T] m", "float[B,2,S,4] y", ATTENTION, SCORES, {"m": [((0, 0, 1), -INF)]},
    ),
    "a guarded query that sees no key": Case(
        f"{HEADS}, float[B,1,S,T] m", "float[B,2,S,4] y", GUARDED, SCORES,
        {"m": [((0, 0, 1), -INF)], "q": [((1, 0, 2), NAN)], "v": [((1, 1, 2, 3), INF)]},
    ),
    "a mask that is spread over the keys": Case(
        f"{HEADS}, float[B,1,S,M] m", "float[B,2,S,4] y", ATTENTION, {**SCORES, "m": "2x1x3x1..5..5"}, {},
        ONE_KEY,
    ),
    "queries that are spread over a mask": Case(
        f"{HEADS}, float[4,M] m", "float[B,2,R,4] y", ATTENTION,
        {"q": "2x2x1..4..4x4", "k": "2x2x5x4", "v": "2x2x5x4", "m": "4x5"}, {},
        {"q": (2, 2, 1, 4), "k": (2, 2, 5, 4), "v": (2, 2, 5, 4), "m": (4, 5)},
    ),
}  # fmt: skip


def reference(model: onnx.ModelProto, feeds: Mapping[str, np.ndarray]) -> np.ndarray:
    with np.errstate(all="ignore"):
        (result,) = ReferenceEvaluator(model).run(None, dict(feeds))
    return np.asarray(result)


def check(engine: ridgeline.Engine, model: onnx.ModelProto, feeds: Mapping[str, np.ndarray]) -> None:
    want = reference(model, feeds)
    for _ in range(2):
        got = engine.run(feeds)["y"]
        np.testing.assert_allclose(got, want, rtol=2e-5, atol=2e-5)


@pytest.mark.parametrize("without", [(), ("ort",)], ids=["all tactics", "without ort"])
@pytest.mark.parametrize("name", CASES)
def test_outcome(name: str, without: tuple[str, ...]) -> None:
    case = CASES[name]
    text = f"g ({case.inputs}) => ({case.output}) <{CONSTS}> {{ {case.lines} }}"
    if "double" in text:
        text = text.replace("float eps", "double eps")
    model = onnx.parser.parse_model(f'<ir_version: 10, opset_import: ["": 23]> {text}')
    engine = ridgeline.build(model, level=0, verify="fast", profiles=dict(case.shapes), without=without)
    rng = np.random.default_rng(3)
    kinds = {p.name: ir.DataType(p.type.tensor_type.elem_type).numpy() for p in model.graph.input}

    def drawn(shapes: Mapping[str, tuple[int, ...]]) -> dict[str, np.ndarray]:
        feeds = {n: (rng.standard_normal(shape) * 3).astype(kinds[n]) for n, shape in shapes.items()}
        for name, places in case.special.items():
            for place, value in places:
                feeds[name][place] = value
        return feeds

    check(
        engine,
        model,
        drawn({n: tuple(int(d.split("..")[-1]) for d in s.split("x")) for n, s in case.shapes.items()}),
    )
    if case.moved:
        check(engine, model, drawn(case.moved))


def test_scores_before_a_softcap_are_verified_by_who_has_them() -> None:
    """ONNX Runtime gives out those behind it, whatever mode is asked for."""
    model = onnx.parser.parse_model(f"""<ir_version: 11, opset_import: ["": 23]>
        g ({HEADS}) => (float[B,2,S,4] y, float[B,2,S,T] scores) {{
            y, key, value, scores = Attention<softcap = 1.0>(q, k, v)
        }}""")
    model.graph.node[0].output[1:3] = ["", ""]
    engine = ridgeline.build(model, level=0, progress=False, profiles={"B": "2", "S": "3", "T": "5"})
    assert engine.report.verified
    assert "reference evaluator" in engine.report.reference


@pytest.mark.parametrize("norm", [
    "y = GroupNormalization<num_groups = 4>(x, w, w)",
    "r = Reshape(x, groups) i = InstanceNormalization(r, ones, zeros) s = Shape(x) u = Reshape(i, s)"
    " c = Reshape(w, channels) m = Mul(u, c) y = Add(m, c)",
])  # fmt: skip
def test_groups_far_from_zero_are_verified(norm: str) -> None:
    """ONNX Runtime's own expansion of GroupNormalization is off by more than rounding there."""
    model = onnx.parser.parse_model(f"""<ir_version: 10, opset_import: ["": 21]>
        g (float[N,8,8,8] given) => (float[N,8,8,8] y) <float far = {{20.0}}, int64[3] groups = {{0, 4, -1}},
          int64[3] channels = {{-1, 1, 1}}, float[8] w = {{1., 2., 3., 4., 5., 6., 7., 8.}},
          float[4] ones = {{1., 1., 1., 1.}}, float[4] zeros = {{0., 0., 0., 0.}}> {{
            x = Add(given, far) {norm}
        }}""")
    report = ridgeline.build(model, level=0, progress=False, profiles={"N": "1..2..3"}).report
    assert report.verified
    assert any(check.name == "fused against unfused graph" for check in report.checks)
