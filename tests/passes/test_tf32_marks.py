"""Which products are marked to round to TF32, and that a mark goes with its product wherever that goes."""

from __future__ import annotations

import onnx
import onnx_ir as ir

from ridgeline.base.spec import TF32, TensorSpec
from ridgeline.ir.body import Program, read_program
from ridgeline.ir.infer import infer
from ridgeline.ir.provenance import KEEP, MATH
from ridgeline.passes.partition import partition
from ridgeline.passes.pipeline import canonicalise
from ridgeline.passes.tf32 import mark_products

TWO = """<ir_version: 11, opset_import: ["": 23]>
g (float[2,8] x, float[8,8] v, float[8,8] w) => (float[2,8] y) {
  [first] a = MatMul (x, v)
  [act] b = Relu (a)
  [second] c = MatMul (b, w)
  [sum] y = Add (c, x)
}"""
SAME = """<ir_version: 11, opset_import: ["": 23]> g (float[2,8] x, float[8,8] w) => (float[2,8] y) {
  [first] a = MatMul (x, w)
  [second] b = MatMul (x, w)
  [act] c = Relu (b)
  [sum] y = Add (a, c)
}"""
OTHERS = """<ir_version: 11, opset_import: ["": 23]>
g (float[2,8] x, double[8,8] d, int32[8,8] n, float16[8,8] h, bool c) =>
  (float[2,8] y, double[8,8] z, int32[8,8] k,
  float16[8,8] f, float[2,8] s) {
  [plain] y = Softmax (x)
  [double] z = MatMul (d, d)
  [whole] k = MatMul (n, n)
  [half] f = MatMul (h, h)
  [branch] s = If (c) <
    then_branch = t () => (float[2,8] t) { u = Transpose (x) v = MatMul (x, u) t = MatMul (v, x) },
    else_branch = e () => (float[2,8] e) { e = Identity (x) }>
}"""


def named(model: ir.Model, name: str) -> ir.Node:
    return next(node for node in model.graph if node.name == name)


def fused(model: ir.Model) -> Program:
    """After all passes, with the marks set, fused, written as a file and read again."""
    canonicalise(model)
    mark_products(model, rounds=True)
    shapes = {str(v.name): TensorSpec("float32", tuple(v.shape.numpy())) for v in model.graph.inputs}
    partition(model, infer(read_program(model), shapes, {}, {}))
    proto = ir.to_proto(model)
    onnx.checker.check_model(proto, full_check=True)
    return read_program(ir.from_proto(onnx.ModelProto.FromString(proto.SerializeToString())))


def math_of(program: Program) -> list[tuple[str, str]]:
    ops, _ = program.flat_ops(program.regions)
    return [(op.op_type, op.math) for op in ops]


def test_float32_products_are_marked_and_nothing_else_is() -> None:
    made = math_of(fused(ir.from_onnx_text(TWO)))
    assert sorted(made) == [("Add", ""), ("MatMul", TF32), ("MatMul", TF32), ("Relu", "")]


def test_a_kept_product_stays_exact_through_fusion() -> None:
    model = ir.from_onnx_text(TWO)
    named(model, "second").metadata_props[KEEP] = "float32"
    program = fused(model)
    assert sorted(math_of(program)) == [("Add", ""), ("MatMul", ""), ("MatMul", TF32), ("Relu", "")]
    exact = next(region for region in program.regions if "second" in region.sources)
    assert not exact.body.may_round


def test_a_kept_product_is_not_taken_for_an_equal_one_that_rounds() -> None:
    model = ir.from_onnx_text(SAME)
    named(model, "second").metadata_props[KEEP] = "float32"
    assert sorted(math_of(fused(model)))[1:3] == [("MatMul", ""), ("MatMul", TF32)]
    assert len([op for op, _ in math_of(fused(ir.from_onnx_text(SAME))) if op == "MatMul"]) == 1


def test_only_float32_of_the_main_graph_is_marked() -> None:
    model = ir.from_onnx_text(OTHERS)
    canonicalise(model)
    mark_products(model, rounds=True)
    assert [node.name for node in model.graph.all_nodes() if MATH in node.metadata_props] == []


def test_marks_of_a_file_count_for_nothing() -> None:
    model = ir.from_onnx_text(TWO)
    for node in model.graph:
        node.metadata_props[MATH] = TF32
    mark_products(model, rounds=False)
    assert all(math == "" for _, math in math_of(read_program(model)))
