"""ONNX Runtime's own ops, and the files its optimiser writes, against ONNX Runtime."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import onnxruntime as ort
import pytest
from contrib_cases import CASES

import ridgeline
from ridgeline.errors import BuildError
from ridgeline.runtime.engine import Engine

# one step of the output's scale: sums are rounded once here, and after every product there
QUANTISED = {"qadd": 0.0201, "qcat": 0.0301, "qpool": 0.0201, "qgemm": 1e-5}
# these stay ops: packed weights, a cache that is written in place, an inverse, keys that are no queries' own
LEFT = {
    "nbits": "MatMulNBits", "gqa": "GroupQueryAttention", "inverse": "Inverse",
    "mha_causal_keys": "MultiHeadAttention",
}  # fmt: skip
NUMPY_TYPES = {1: np.float32, 2: np.uint8, 6: np.int32, 7: np.int64}


def read(name: str) -> onnx.ModelProto:
    opset, text = CASES[name]
    return onnx.parser.parse_model(
        f'<ir_version: 9, opset_import: ["" : {opset}, "com.microsoft" : 1]> files {text}'
    )


def drawn(model: onnx.ModelProto) -> dict[str, np.ndarray]:
    rng = np.random.default_rng(0)
    feeds = {}
    for port in model.graph.input:
        tensor = port.type.tensor_type
        shape = [dim.dim_value for dim in tensor.shape.dim]
        dtype = NUMPY_TYPES[tensor.elem_type]
        if dtype is np.float32:
            feeds[port.name] = rng.standard_normal(shape).astype(dtype)
        else:
            feeds[port.name] = rng.integers(0, 256 if dtype is np.uint8 else 2, shape).astype(dtype)
        if port.name == "mask":  # the second row is shorter
            feeds[port.name] = (np.arange(shape[1]) < np.array([[shape[1]], [shape[1] - 2]])).astype(dtype)
    return feeds


def session_of(model: onnx.ModelProto, *, written_to: Path | None = None) -> ort.InferenceSession:
    options = ort.SessionOptions()
    options.log_severity_level = 4
    if written_to is not None:
        options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_ENABLE_EXTENDED
        options.optimized_model_filepath = str(written_to)
    return ort.InferenceSession(model.SerializeToString(), options, ["CPUExecutionProvider"])


def foreign_ops(engine: Engine) -> set[str]:
    return {op.op_type for region in engine.program.regions for op in region.body.ops if op.domain}


@pytest.mark.parametrize("name", CASES)
def test_a_contrib_op_means_what_its_runtime_makes_of_it(name: str) -> None:
    model = read(name)
    feeds = drawn(model)
    engine = ridgeline.build(model, level=0, verify="off", without=("ort",))
    made = engine.run(feeds)
    session = session_of(model)
    for port, wanted in zip(session.get_outputs(), session.run(None, feeds), strict=True):
        assert made[port.name].dtype == wanted.dtype
        assert made[port.name].shape == wanted.shape
        step = QUANTISED.get(name, 5e-6)
        np.testing.assert_allclose(made[port.name], wanted, rtol=2e-5, atol=step, err_msg=port.name)
    assert foreign_ops(engine) == ({LEFT[name]} if name in LEFT else set())
    assert all("run by ONNX Runtime" in note for note in engine.plan.slow_ops)
    assert bool(engine.plan.slow_ops) == (name in LEFT)


def test_integers_without_a_zero_point_are_those_of_the_input() -> None:
    text = "(int8[4] a, int8[4] b, float s) => (int8[4] y) { y = com.microsoft.QLinearAdd(a,s,,b,s,,s) }"
    model = onnx.parser.parse_model(
        f'<ir_version: 9, opset_import: ["" : 17, "com.microsoft" : 1]> files {text}'
    )
    engine = ridgeline.build(model, level=0, verify="off", without=("ort",))
    feeds = {"a": np.array([-100, -3, 5, 100], np.int8), "b": np.array([-100, 1, 2, 100], np.int8)}
    made = engine.run({**feeds, "s": np.array(0.5, np.float32)})["y"]
    assert made.dtype == np.int8
    assert made.tolist() == [-128, -2, 7, 127]


def test_an_activation_without_its_parameters_is_left_to_its_runtime() -> None:
    model = onnx.parser.parse_model("""
        <ir_version: 9, opset_import: ["" : 17, "com.microsoft" : 1]>
        files (float[3,4] x, float[4,5] w) => (float[3,5] y)
        { y = com.microsoft.FusedGemm<activation = "HardSigmoid">(x, w) }""")
    with pytest.raises(BuildError, match="FusedGemm"):
        ridgeline.build(model, level=0, verify="off")


ENCODER = """
<ir_version: 8, opset_import: ["" : {opset}]>
encoder (float[2,5,16] x) => (float[2,5,16] y)
<float[16,16] wq, float[16,16] wk, float[16,16] wv, float[16,32] w1, float[32] b1, float[32,16] w2,
 float[16] b2, float[16] g = {{{ones}}}, float[16] b = {{{zeros}}},
 int64[4] heads = {{0, 0, 4, 4}}, int64[3] flat = {{0, 0, 16}},
 float eight = {{2.0}}, float root2 = {{1.4142135}}, float one = {{1.0}}, float half = {{0.5}},
 float two = {{2.0}}, float eps = {{0.00001}}>
{{
    q0 = MatMul(x, wq) q1 = Reshape(q0, heads) q = Transpose<perm = [0, 2, 1, 3]>(q1)
    k0 = MatMul(x, wk) k1 = Reshape(k0, heads) k = Transpose<perm = [0, 2, 3, 1]>(k1)
    v0 = MatMul(x, wv) v1 = Reshape(v0, heads) v = Transpose<perm = [0, 2, 1, 3]>(v1)
    s0 = MatMul(q, k) s1 = Div(s0, eight) p = Softmax<axis = -1>(s1)
    c0 = MatMul(p, v) c1 = Transpose<perm = [0, 2, 1, 3]>(c0) c = Reshape(c1, flat)
    r = Add(c, x) m = ReduceMean<axes = [-1]>(r) d = Sub(r, m) d2 = Pow(d, two)
    var = ReduceMean<axes = [-1]>(d2)
    e = Add(var, eps) sd = Sqrt(e) n0 = Div(d, sd) n1 = Mul(n0, g) n = Add(n1, b)
    h0 = MatMul(n, w1) h = Add(h0, b1)
    e0 = Div(h, root2) e1 = Erf(e0) e2 = Add(e1, one) e3 = Mul(h, e2) gelu = Mul(e3, half)
    f0 = MatMul(gelu, w2) f = Add(f0, b2) y = Add(f, n)
}}
"""


def encoder(opset: int) -> onnx.ModelProto:
    text = ENCODER.format(opset=opset, ones=", ".join(["1.0"] * 16), zeros=", ".join(["0.0"] * 16))
    rng = np.random.default_rng(1)
    for shape in ("16,16", "16,32", "32", "32,16", "16"):
        size = int(np.prod([int(n) for n in shape.split(",")]))
        for name in ("wq", "wk", "wv", "w1", "b1", "w2", "b2"):
            numbers = ", ".join(f"{v:.6f}" for v in rng.standard_normal(size) * 0.3)
            text = text.replace(f"float[{shape}] {name},", f"float[{shape}] {name} = {{{numbers}}},")
    return onnx.parser.parse_model(text)


@pytest.mark.parametrize("opset", [12, 17])
def test_a_file_of_the_optimiser_is_read_as_the_model_it_came_from(tmp_path: Path, opset: int) -> None:
    """Norms in an opset that has none, fused products and activations."""
    model, path = encoder(opset), tmp_path / "optimised.onnx"
    session = session_of(model, written_to=path)
    written = {node.op_type for node in onnx.load(path).graph.node}
    assert {"SkipLayerNormalization", "BiasGelu", "FusedMatMul"} & written
    engine = ridgeline.build(path, level=0, verify="full", without=("ort",))
    feeds = drawn(model)
    np.testing.assert_allclose(engine.run(feeds)["y"], session.run(None, feeds)[0], rtol=1e-4, atol=1e-5)
    assert not foreign_ops(engine)
    assert not engine.plan.slow_ops


def test_fused_convolutions_of_the_optimiser_are_plain_ones(tmp_path: Path) -> None:
    model = onnx.parser.parse_model("""
        <ir_version: 8, opset_import: ["" : 13]>
        net (float[1,3,8,8] x, float[4,3,3,3] w, float[4] b) => (float[1,4,8,8] y)
        <float low = {0.0}, float high = {6.0}>
        { c = Conv<pads = [1, 1, 1, 1]>(x, w, b) y = Clip(c, low, high) }""")
    path = tmp_path / "optimised.onnx"
    session = session_of(model, written_to=path)
    assert "FusedConv" in {node.op_type for node in onnx.load(path).graph.node}
    engine = ridgeline.build(path, level=0, verify="full", without=("ort",))
    feeds = drawn(model)
    np.testing.assert_allclose(engine.run(feeds)["y"], session.run(None, feeds)[0], rtol=1e-4, atol=1e-5)
    assert not foreign_ops(engine)
