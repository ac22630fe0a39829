"""Fusion by what ops are: hits, misses with their reasons, and the same meaning before and after."""

from __future__ import annotations

import numpy as np
import onnx
import onnx_ir as ir
import onnxruntime as ort
import pytest

from ridgeline.base.choices import Refusal
from ridgeline.base.spec import EPSILON, TensorSpec
from ridgeline.ir.body import read_program
from ridgeline.ir.infer import infer
from ridgeline.passes.partition import partition


def fused(
    body: str, *, x: str = "float[2,8]", y: str = "float[2,8]", more: str = ""
) -> tuple[ir.Model, list[Refusal]]:
    """The body fused, checked and compared with itself unfused."""
    text = f'<ir_version: 10, opset_import: ["": 20]> g ({x} x{more}) => ({y} y) {{ {body} }}'
    model = ir.from_onnx_text(text)
    before = ir.to_proto(ir.from_onnx_text(text))
    program = read_program(model)
    shapes = {str(v.name): TensorSpec("float32", tuple(v.shape.numpy())) for v in model.graph.inputs}
    state = infer(program, shapes, {}, {})
    refusals = partition(model, state)
    after = ir.to_proto(model)
    onnx.checker.check_model(after, full_check=True)
    rng = np.random.default_rng(0)
    feeds = {n: rng.standard_normal(s.shape).astype(np.float32) for n, s in shapes.items()}
    want, got = (run(p, feeds) for p in (before, after))
    np.testing.assert_allclose(got, want, rtol=0, atol=8 * EPSILON["float32"] * np.abs(want).max())
    return model, refusals


def run(proto: onnx.ModelProto, feeds: dict[str, np.ndarray]) -> np.ndarray:
    return np.asarray(ort.InferenceSession(proto.SerializeToString()).run(["y"], feeds)[0])


def kinds(model: ir.Model) -> list[str]:
    """Op lists of the main graph's nodes; a region's are those of its function."""
    listed = []
    for node in model.graph:
        function = model.functions.get(node.op_identifier())
        ops = [n.op_type for n in function] if function is not None else [node.op_type]
        listed.append(" ".join(op for op in ops if op != "Constant"))
    return listed


W = ", float[8,8] w, float[8] b"


def test_a_product_takes_its_epilogue() -> None:
    model, _ = fused("m = MatMul(x, w) a = Add(m, b) y = Relu(a)", more=W)
    assert kinds(model) == ["MatMul Add Relu"]


def test_silu_brings_two_readers_back_to_one_value() -> None:
    model, _ = fused("m = MatMul(x, w) s = Sigmoid(m) y = Mul(m, s)", more=W)
    assert kinds(model) == ["MatMul Sigmoid Mul"]


def test_a_residual_sum_joins_the_product() -> None:
    model, _ = fused("m = MatMul(x, w) y = Add(m, x)", more=W)
    assert kinds(model) == ["MatMul Add"]


def test_an_inner_value_that_is_needed_elsewhere_stops_the_epilogue() -> None:
    model, refusals = fused("m = MatMul(x, w) r = Relu(m) s = Softmax(m) y = Add(r, s)", more=W)
    assert "MatMul Relu" not in kinds(model)
    assert any("readers" in r.reason for r in refusals)


def test_no_region_waits_for_itself() -> None:
    """m → Softmax → Add(m): fusing MatMul with the Add would need the softmax first."""
    model, _ = fused("m = MatMul(x, w) s = Softmax(m) y = Add(m, s)", more=W)
    assert kinds(model)[0] == "MatMul"


def test_a_result_that_grows_stays_outside() -> None:
    model, refusals = fused("m = MatMul(x, w) y = Add(m, z)", more=W + ", float[3,2,8] z", y="float[3,2,8]")
    assert kinds(model) == ["MatMul", "Add"]
    assert any("its result is float32[3,2,8]" in r.reason for r in refusals)


def test_a_row_takes_what_feeds_and_follows_it() -> None:
    model, _ = fused("a = Mul(x, x) s = Softmax(a) y = Mul(s, x)")
    assert kinds(model) == ["Mul Softmax Mul"]


def test_pointwise_chains_become_one_region() -> None:
    model, _ = fused("a = Exp(x) c = Neg(a) d = Abs(c) y = Sqrt(d)")
    assert kinds(model) == ["Exp Neg Abs Sqrt"]


def test_boundaries_carry_reason_culprit_and_bytes() -> None:
    _, refusals = fused("m = MatMul(x, w) n = MatMul(m, w) y = Relu(n)", more=W)
    refusal = next(r for r in refusals if r.rule == "MatMul epilogue")
    assert "starts a region of its own" in refusal.reason
    assert refusal.bytes_lost == 2 * 2 * 8 * 4


def test_equal_layers_share_one_function() -> None:
    layer = "m{0} = MatMul({1}, w) a{0} = Add(m{0}, b) v{0} = Relu(a{0}) "
    body = layer.format(1, "x") + layer.format(2, "v1") + layer.format(3, "v2") + "y = Identity(v3)"
    model, _ = fused(body, more=W)
    assert kinds(model)[:2] == ["MatMul Add Relu"] * 2
    assert len(model.functions) == 2  # the last takes the Identity as well


def test_sources_name_the_original_nodes() -> None:
    model, _ = fused("m = MatMul(x, w) a = Add(m, b) y = Relu(a)", more=W)
    assert read_program(model).regions[0].sources == ("m", "a", "y")


@pytest.mark.parametrize("op", ["Transpose", "Reshape"])
def test_movement_is_named_as_such(op: str) -> None:
    tail = (
        "y = Transpose(m)" if op == "Transpose" else "s = Constant <value_ints = [8, 2]> () y = Reshape(m, s)"
    )
    _, refusals = fused(f"m = MatMul(x, w) {tail}", more=W, y="float[8,2]")
    assert any(op in r.reason for r in refusals)
