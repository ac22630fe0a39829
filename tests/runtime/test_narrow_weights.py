"""Weights of every narrow type: built, verified, written to an engine file and read again."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import onnx_ir as ir
import pytest
from onnx.reference import ReferenceEvaluator

import ridgeline
from ridgeline.kernels.elements import numpy_dtype

BLOCK, ROWS, COLUMNS = 16, 64, 80
INTEGERS = ("int4", "uint4", "int2", "uint2")
FLOATS = ("float4_e2m1fn", "float8_e4m3fn", "float8_e4m3fnuz", "float8_e5m2", "float8_e5m2fnuz")


def quantised_product(name: str) -> onnx.ModelProto:
    """x times weights that are kept in a narrow type, with a scale for every block."""
    rng = np.random.default_rng(0)
    arrays = {
        "w": rng.integers(0, 4, (ROWS, COLUMNS)).astype(numpy_dtype(name)),
        "s": rng.uniform(0.1, 1, (ROWS // BLOCK, COLUMNS)).astype(np.float32),
    }
    if name in INTEGERS:
        arrays["z"] = rng.integers(0, 2, (ROWS // BLOCK, COLUMNS)).astype(numpy_dtype(name))
    weights = [ir.Value(name=n, const_value=ir.tensor(array, name=n)) for n, array in arrays.items()]
    x = ir.Value(name="x", type=ir.TensorType(ir.DataType.FLOAT), shape=ir.Shape([3, ROWS]))
    wide = ir.node("DequantizeLinear", weights, {"axis": 0, "block_size": BLOCK})
    product = ir.node("MatMul", [x, wide.outputs[0]])
    y = product.outputs[0]
    y.name, y.type, y.shape = "y", ir.TensorType(ir.DataType.FLOAT), ir.Shape([3, COLUMNS])
    graph = ir.Graph([x], [y], nodes=[wide, product], initializers=weights, opset_imports={"": 25}, name="q")
    return ir.to_proto(ir.Model(graph, ir_version=13))


@pytest.mark.parametrize("name", INTEGERS + FLOATS)
def test_the_file_gives_back_what_was_built(name: str, tmp_path: Path) -> None:
    model = quantised_product(name)
    engine = ridgeline.build(model, level=0, without=("ort",))
    x = np.random.default_rng(1).standard_normal((3, ROWS)).astype(np.float32)
    (want,) = ReferenceEvaluator(model).run(None, {"x": x})
    got = engine.run({"x": x})["y"]
    np.testing.assert_allclose(got, want, atol=64 * 2.0**-23 * np.abs(want).max())
    again = ridgeline.load(engine.save(tmp_path / "q.ridge"))
    assert {n: t.dtype for n, t in again.weights.items()} == {n: t.dtype for n, t in engine.weights.items()}
    assert np.array_equal(again.run({"x": x})["y"], got)


def test_narrow_weights_take_their_bits_in_the_file(tmp_path: Path) -> None:
    sizes = {}
    for name in ("int4", "int2"):
        engine = ridgeline.build(quantised_product(name), level=0, verify="off", without=("ort",))
        sizes[name] = engine.save(tmp_path / f"{name}.ridge").stat().st_size
    assert sizes["int4"] - sizes["int2"] >= ROWS * COLUMNS // 4 - 64


@pytest.mark.parametrize("name", INTEGERS + FLOATS)
def test_narrow_values_cross_the_border(name: str) -> None:
    kind = ir.TensorType(ir.tensor(np.zeros(1, numpy_dtype(name))).dtype)
    x = ir.Value(name="x", type=kind, shape=ir.Shape(["n", 3]))
    turned = ir.node("Transpose", [x], {"perm": [1, 0]})
    y = turned.outputs[0]
    y.name, y.type, y.shape = "y", kind, ir.Shape([3, "n"])
    graph = ir.Graph([x], [y], nodes=[turned], opset_imports={"": 25}, name="t")
    engine = ridgeline.build(ir.to_proto(ir.Model(graph, ir_version=13)), level=0, verify="off")
    array = np.arange(6).reshape(2, 3).astype(numpy_dtype(name))
    got = engine.run({"x": array})["y"]
    assert got.dtype == array.dtype
    assert got.tobytes() == np.ascontiguousarray(array.T).tobytes()
