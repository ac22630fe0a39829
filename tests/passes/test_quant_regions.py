"""Regions of quantised models: each product has its own DequantizeLinear and the QuantizeLinear after it."""

from __future__ import annotations

import numpy as np
import onnx_ir as ir
import pytest
from text_graphs import parse, run

from ridgeline.base.spec import Target, TensorSpec
from ridgeline.ir.body import Program
from ridgeline.ir.infer import Inferred
from ridgeline.ir.sites import make_site
from ridgeline.options import DEFAULT_LIMITS
from ridgeline.passes.partition import partition
from ridgeline.passes.pipeline import canonicalise
from ridgeline.runtime.inference import Inference

LAYER = """
    d{i} = DequantizeLinear(q{i}, s{i}, z)
    w{i}f = DequantizeLinear<axis = 1>(w{i}, ws{i})
    m{i} = MatMul(d{i}, w{i}f)
    b{i} = Add(m{i}, b)
    r{i} = Relu(b{i})
    q{n} = QuantizeLinear(r{i}, s{n}, z)
"""
WEIGHT = f"int8[8,8] w = {{{', '.join(str(7 * j % 255 - 127) for j in range(64))}}}"


def fused(body: str, *, target: str = "cpu") -> tuple[ir.Model, Program, Inferred]:
    model = parse(body.replace("WEIGHT", WEIGHT))
    canonicalise(model, target=Target(target, "sm_90" if target == "cuda" else ""))
    shapes = {
        str(v.name): TensorSpec(str(v.dtype.numpy()), tuple(v.shape.numpy())) for v in model.graph.inputs
    }
    unfused = Inference.of(model, DEFAULT_LIMITS).at(shapes)
    partition(model, unfused, target=Target(target, "sm_90" if target == "cuda" else ""))
    inference = Inference.of(model, DEFAULT_LIMITS)
    return model, inference.program, inference.at(shapes)


def chain(count: int) -> str:
    scales = ", ".join(f"float s{i} = {{{0.01 * (i + 1)}}}" for i in range(count + 1))
    numbers = ", ".join(f"float[8] ws{i} = {{{', '.join(f'{0.01 + 0.001 * (i + j)}' for j in range(8))}}}"
                        for i in range(count))  # fmt: skip
    weights = ", ".join(f"int8[8,8] w{i} = {{{', '.join(str((7 * j + i) % 255 - 127) for j in range(64))}}}"
                        for i in range(count))  # fmt: skip
    layers = "".join(LAYER.format(i=i, n=i + 1) for i in range(count))
    bias = "float[8] b = {0.1, 0.2, 0.3, 0.4, -0.1, -0.2, -0.3, 1.0}"
    return f"""g (float[16,8] x) => (float[16,8] y)
        <uint8 z = {{3}}, {bias}, {scales}, {numbers}, {weights}> {{
        q0 = QuantizeLinear(x, s0, z) {layers} y = DequantizeLinear(q{count}, s{count}, z) }}"""


@pytest.mark.parametrize("target", ["cpu", "cuda"])
def test_equal_layers_with_other_scales_are_one_site(target: str) -> None:
    _, program, inferred = fused(chain(4), target=target)
    products = [region for region in program.regions if "MatMul" in region.op_types]
    assert [region.op_types for region in products] == [
        ("DequantizeLinear", "DequantizeLinear", "MatMul", "Add", "Relu", "QuantizeLinear")
    ] * 4
    keys = {make_site(program, r, inferred, Target(target, "sm_90")).key for r in products}
    assert len(keys) == 1
    site = make_site(program, products[0], inferred, Target(target, "sm_90"))
    assert not site.values
    assert site.inputs[0] == TensorSpec("uint8", (16, 8))


def test_each_reader_has_a_dequantizer_of_its_own() -> None:
    _, program, _ = fused("""g (float[4,8] x) => (float[4,8] y, float[4,8] z)
        <float s = {0.1}, float ws = {0.02}, WEIGHT, int8 zero = {0}> {
        q = QuantizeLinear(x, s, zero) d = DequantizeLinear(q, s, zero) v = DequantizeLinear(w, ws, zero)
        p = MatMul(d, v) y = Add(p, d) n = Neg(d) z = MatMul(n, v) }""")
    first = program.regions[1]
    assert sorted(first.op_types) == [
        "Add",
        "DequantizeLinear",
        "DequantizeLinear",
        "DequantizeLinear",
        "MatMul",
    ]
    assert ("QuantizeLinear", "DequantizeLinear", "Neg") in [region.op_types for region in program.regions]
    assert ("DequantizeLinear", "MatMul") in [region.op_types for region in program.regions]


def test_a_norm_writes_numbers_and_levels() -> None:
    _, program, _ = fused("""g (float[4,8] x) => (float[4,8] y)
        <float s = {0.1}, float ws = {0.02}, WEIGHT, uint8 z = {128}, float[8] g = {1, 2, 3, 4, 5, 6, 7, 8}> {
        n = LayerNormalization(x, g, g) q = QuantizeLinear(n, s, z) d = DequantizeLinear(q, s, z)
        v = DequantizeLinear(w, ws) p = MatMul(d, v) y = Add(p, n) }""")
    norm, product = program.regions
    assert norm.op_types == ("LayerNormalization", "QuantizeLinear")
    assert len(norm.outputs) == 2
    assert product.op_types[-1] == "Add"


def test_a_region_does_not_end_in_a_dequantizer() -> None:
    _, program, _ = fused("""g (float[1,4,6,6] x) => (float[1,4,12,12] y)
        <float s = {0.1}, uint8 z = {3}, float[4] scales = {1.0, 1.0, 2.0, 2.0}> {
        a = Neg(x) q = QuantizeLinear(a, s, z) d = DequantizeLinear(q, s, z) y = Resize(d, , scales) }""")
    assert [region.op_types for region in program.regions] == [
        ("Neg", "QuantizeLinear"), ("DequantizeLinear",), ("Resize",)
    ]  # fmt: skip


def test_levels_cross_views_and_pools() -> None:
    body = """g (float[1,4,6,6] x) => (float[3,12] y)
        <float s = {0.1}, uint8 z = {3}, int64[2] n = {3, 12}> {
        q = QuantizeLinear(x, s, z) d = DequantizeLinear(q, s, z)
        p = MaxPool<kernel_shape = [2, 2], strides = [2, 2]>(d)
        t = Transpose<perm = [0, 2, 3, 1]>(p) r = Reshape(t, n)
        q2 = QuantizeLinear(r, s, z) y = DequantizeLinear(q2, s, z) }"""
    model = parse(body)
    feeds = {"x": np.random.default_rng(0).standard_normal((1, 4, 6, 6)).astype(np.float32) * 20}
    before = run(model, feeds)
    canonicalise(model)
    assert [n.op_type for n in model.graph] == [
        "QuantizeLinear", "MaxPool", "Transpose", "Reshape", "DequantizeLinear"
    ]  # fmt: skip
    np.testing.assert_array_equal(run(model, feeds)[0], before[0])


CONCAT = """g (float[1,4,6,6] x) => (float[1,4,6,6] y)
    <float s = {0.1}, float s2 = {0.07}, float w = {0.02}, uint8 z = {3}, int64[2] n = {2, 6}, KERNEL> {
    q = QuantizeLinear(x, s, z) d = DequantizeLinear(q, s, z) wd = DequantizeLinear(k, w)
    a = Conv(d, wd) b = Relu(a) c = Concat<axis = 1>(b, d)
    q2 = QuantizeLinear(c, s2, z) d2 = DequantizeLinear(q2, s2, z)
    t, u = Split<axis = 1>(d2, n) p = MaxPool<kernel_shape = [1, 1]>(u)
    q3 = QuantizeLinear(p, s2, z) d3 = DequantizeLinear(q3, s2, z) wd2 = DequantizeLinear(k2, w)
    y = Conv(d3, wd2) }"""
KERNEL = f"int8[4,4,1,1] k = {{{', '.join(str(7 * j % 255 - 127) for j in range(16))}}}, "
KERNEL += f"int8[4,6,1,1] k2 = {{{', '.join(str(9 * j % 255 - 127) for j in range(24))}}}"


def test_levels_cross_concat_and_split() -> None:
    """Parts of a Concat share the scale behind it, and the product before it writes levels of that scale."""
    model = parse(CONCAT.replace("KERNEL", KERNEL))
    feeds = {"x": np.random.default_rng(0).standard_normal((1, 4, 6, 6)).astype(np.float32) * 3}
    before = run(model, feeds)
    canonicalise(model)
    joined, parts = (next(n for n in model.graph if n.op_type == op) for op in ("Concat", "Split"))
    assert [value.producer().op_type for value in joined.inputs] == ["QuantizeLinear"] * 2
    assert parts.inputs[0] is joined.outputs[0]
    pool = next(n for n in model.graph if n.op_type == "MaxPool")
    assert pool.inputs[0] is parts.outputs[1]
    np.testing.assert_allclose(run(model, feeds)[0], before[0], rtol=1e-6)
    _, program, _ = fused(CONCAT.replace("KERNEL", KERNEL))
    first = next(region for region in program.regions if "Conv" in region.op_types)
    assert first.op_types[-1] == "QuantizeLinear"


@pytest.mark.parametrize(
    ("changed", "readers"),
    [
        ("DequantizeLinear(q2, s2, z)", "Concat"),
        ("DequantizeLinear(q2, s, z)", "DequantizeLinear"),
        ("DequantizeLinear(q2, s2, z2)", "DequantizeLinear"),
        ("Neg(x)", "DequantizeLinear"),
    ],
)
def test_levels_of_other_scales_are_joined_as_numbers(changed: str, readers: str) -> None:
    model = parse(f"""g (float[2,3] x) => (float[2,6] y)
        <float s = {{0.1}}, float s2 = {{0.2}}, int8 z = {{1}}, int8 z2 = {{2}}> {{
        q = QuantizeLinear(x, s2, z) d = DequantizeLinear(q, s2, z)
        m = Neg(x) q2 = QuantizeLinear(m, s2, z) e = {changed} y = Concat<axis = 1>(d, e) }}""")
    canonicalise(model)
    first = next(node for node in model.graph if node.op_type == "QuantizeLinear")
    assert {user.op_type for user, _ in first.outputs[0].uses()} == {readers}


def test_weights_stay_narrow_and_biases_do_not() -> None:
    model = parse("""g (float[2,3] x) => (float[2,2] y)
        <int8[2,3] w = {1, 2, 3, 4, 5, 6}, float[2] s = {0.5, 0.25}, int32[2] b = {10, -3},
        float[2] bs = {0.05, 0.025}> {
        v = DequantizeLinear<axis = 0>(w, s) t = Transpose(v) c = DequantizeLinear<axis = 0>(b, bs)
        p = MatMul(x, t) y = Add(p, c) }""")
    feeds = {"x": np.ones((2, 3), np.float32)}
    before = run(model, feeds)
    canonicalise(model)
    assert [n.op_type for n in model.graph] == ["DequantizeLinear", "MatMul", "Add"]
    assert model.graph.node(0).inputs[0].const_value.shape == (3, 2)
    np.testing.assert_array_equal(run(model, feeds)[0], before[0])


def test_a_quantised_weight_of_training_becomes_levels() -> None:
    model = parse("""g (float[2,2] x) => (float[2,2] y)
        <float[2,2] w = {0.26, -3.0, 100.0, 0.25}, float s = {0.5}, int8 z = {0}> {
        q = QuantizeLinear(w, s, z) v = DequantizeLinear(q, s, z) y = MatMul(x, v) }""")
    canonicalise(model)
    assert [n.op_type for n in model.graph] == ["DequantizeLinear", "MatMul"]
    np.testing.assert_array_equal(model.graph.node(0).inputs[0].const_value.numpy(), [[1, -6], [127, 0]])


ATTENDED = """g (float[2,16,32] x) => (float[2,16,32] y)
    <float s = {0.05}, float t = {0.02}, int8 z = {0}> {
    xq = QuantizeLinear(x, s, z)
    qd = DequantizeLinear(xq, s, z)
    kd = DequantizeLinear(xq, s, z)
    vd = DequantizeLinear(xq, s, z)
    a = Attention<q_num_heads = 2, kv_num_heads = 2>(qd, kd, vd)
    aq = QuantizeLinear(a, t, z)
    y = DequantizeLinear(aq, t, z) }"""


@pytest.mark.parametrize(
    ("target", "inside"),
    [("cuda", {"DequantizeLinear", "Attention", "QuantizeLinear"}), ("cpu", {"Attention"})],
)
def test_attention_takes_levels_where_a_kernel_reads_them(target: str, inside: set[str]) -> None:
    """On a GPU from levels to levels; elsewhere the numbers are made before it."""
    _, program, _ = fused(ATTENDED, target=target)
    (region,) = [region for region in program.regions if "Attention" in region.op_types]
    assert set(region.op_types) == inside


def test_attention_of_levels_with_a_zero_point_reads_numbers() -> None:
    _, program, _ = fused(ATTENDED.replace("int8 z = {0}", "int8 z = {3}"), target="cuda")
    (region,) = [region for region in program.regions if "Attention" in region.op_types]
    assert region.op_types == ("Attention",)
