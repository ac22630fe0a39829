"""Folding: constants, shapes, branches, and arithmetic that moves into weights."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import onnx_ir as ir
import pytest
from text_graphs import changed, count, ops, parse, rewritten, with_weights

from ridgeline.passes.fold import MAX_GROWN_BYTES, fold_constants
from ridgeline.passes.fold_shape import elements, reshape_target, sizes
from ridgeline.passes.fold_weights import RULES
from ridgeline.passes.rule import apply_rules


def folded(body: str, sizes: dict[str, int] | None = None) -> ir.Model:
    model = parse(body)
    changed(model, lambda: fold_constants(model), sizes)
    return model


def test_constants_are_evaluated() -> None:
    model = folded("""g (float[3] x) => (float[3] y) <float[3] a = {1., 2., 3.}> {
        b = Constant<value = float {2.0}>()
        c = Mul(a, b)
        d = Sqrt(c)
        y = Add(x, d)
    }""")
    assert ops(model) == ["Add"]
    assert not any(node.op_type == "Constant" for node in model.graph)


def test_an_output_that_is_constant_keeps_its_node() -> None:
    model = folded(
        "g (float[3] x) => (float[3] y, float[3] z) <float[3] a = {1., 2., 3.}> { y = Neg(a) z = Neg(x) }"
    )
    assert ops(model) == ["Neg", "Neg"]


def test_random_and_quantised_constants_stay() -> None:
    model = parse("""g (float[2] x) => (float[2] y, float[2] z)
        <int8[2] w = {1, 2}, float s = {0.5}, int8 p = {0}> {
        d = DequantizeLinear(w, s, p)
        y = Mul(x, d)
        r = RandomNormal<shape = [2]>()
        z = Add(r, x)
    }""")
    fold_constants(model)
    assert ops(model) == ["DequantizeLinear", "Mul", "RandomNormal", "Add"]


def test_a_constant_that_would_swell_stays() -> None:
    count_ = MAX_GROWN_BYTES // 4 + 1
    model = parse(f"""g (float x) => (float[N] y) <int64[1] n = {{{count_}}}> {{
        c = ConstantOfShape(n)
        y = Add(c, x)
    }}""")
    fold_constants(model)
    assert count(model, "ConstantOfShape") == 1


def test_static_dims_are_read_off_partly_known_shapes() -> None:
    model = folded("""g (float[B,4,6] x) => (float[B,24] y)
        <int64 one = {1}, int64[1] zero = {0}, int64[1] m = {-1}> {
        s = Shape(x)
        h = Gather(s, one)
        u = Unsqueeze(h, zero)
        w = Shape<start = 2>(x)
        n = Mul(u, w)
        t = Concat<axis = 0>(m, n)
        y = Reshape(x, t)
    }""", {"B": 3})  # fmt: skip
    assert ops(model) == ["Reshape"]


def test_reshape_by_named_dims_becomes_constant() -> None:
    model = folded("""g (float[B,S,12] x) => (float[B,S,3,4] y) <int64[1] m = {-1}, int64[1] four = {4}> {
        b = Shape<start = 0, end = 1>(x)
        s = Shape<start = 1, end = 2>(x)
        t = Concat<axis = 0>(b, s, m, four)
        y = Reshape<allowzero = 1>(x, t)
    }""", {"B": 2, "S": 5})  # fmt: skip
    assert ops(model) == ["Reshape"]
    assert model.graph[0].inputs[1].const_value.numpy().tolist() == [0, 0, 3, 4]


def test_question_marks_are_not_one_size() -> None:
    model = parse("""g (float[N,M] x) => (float[P,Q] y) <int64[2] i = {1, 0}> {
        s = Shape(x)
        t = Gather(s, i)
        y = Reshape(x, t)
    }""")
    model.graph.inputs[0].shape = ir.Shape(["?", "?"])
    first, second = sizes(model.graph.inputs[0]) or ()
    assert first != second
    assert elements(model.graph[1].outputs[0]) == (second, first)
    assert reshape_target(model.graph[2]) == (second, first)


@pytest.mark.parametrize(("rank", "op"), [("B,2", "Neg"), ("B,2,3", "Abs")])
def test_a_branch_on_the_rank_is_spliced_in(rank: str, op: str) -> None:
    model = folded(f"""g (float[{rank}] x) => (float[{rank}] y) <int64 two = {{2}}> {{
        s = Shape(x)
        r = Size(s)
        c = Equal(r, two)
        z = If(c) <then_branch = t () => (float[{rank}] n) {{ n = Neg(x) }},
                   else_branch = e () => (float[{rank}] n) {{ n = Abs(x) }}>
        y = Relu(z)
    }}""", {"B": 3})  # fmt: skip
    assert ops(model) == [op, "Relu"]


def test_a_branch_that_hands_a_value_through() -> None:
    model = folded("""g (float[2] x) => (float[2] y) <bool c = {1}> {
        y = If(c) <then_branch = t () => (float[2] n) { n = Identity(x) },
                   else_branch = e () => (float[2] o) { o = Abs(x) }>
    }""")
    assert ops(model) == ["Identity"]


def test_nested_branches_and_their_weights() -> None:
    model = folded("""g (float[2] x) => (float[2] y) <bool c = {1}> {
        y = If(c) <then_branch = t () => (float[2] n) <float[2] w = {1., 2.}, bool d = {0}> {
                n = If(d) <then_branch = tt () => (float[2] p) { p = Neg(x) },
                           else_branch = ee () => (float[2] p) { p = Mul(x, w) }> },
            else_branch = e () => (float[2] o) { o = Abs(x) }>
    }""")
    assert ops(model) == ["Mul"]
    assert [value.name for value in model.graph.outputs] == ["y"]


BN = """<float[2] gamma = {1., 2.}, float[2] beta = {0.5, -1.}, float[2] mean = {0.1, 0.2},
    float[2] var = {1., 3.}"""


@pytest.mark.parametrize(("weight", "line", "shape"), [
    ("float[2,1,2,2] w = {1., 2., 3., 4., 5., 6., 7., 8.}", "c = Conv(x, w)", "B,1,4,4"),
    ("float[2,1,2,2] w = {1., 2., 3., 4., 5., 6., 7., 8.}", "c = Conv(x, w, beta)", "B,1,4,4"),
    ("float[1,2,2,2] w = {1., 2., 3., 4., 5., 6., 7., 8.}",
     "c = ConvTranspose<strides = [2, 2]>(x, w)", "B,1,4,4"),
    ("float[2,1,2,2] w = {1., 2., 3., 4., 5., 6., 7., 8.}", "c = ConvTranspose<group = 2>(x, w)", "B,2,4,4"),
    ("float[3,2] w = {1., 2., 3., 4., 5., 6.}", "c = Gemm(x, w, beta)", "B,3"),
    ("float[2,3] w = {1., 2., 3., 4., 5., 6.}", "c = Gemm<transB = 1>(x, w, beta)", "B,3"),
    ("float[3,2] w = {1., 2., 3., 4., 5., 6.}", "c = MatMul(x, w)", "B,3"),
])  # fmt: skip
def test_batch_norm_moves_into_weights(weight: str, line: str, shape: str) -> None:
    out = "P,Q,R,T" if shape.count(",") == 3 else "P,Q"
    body = f"""g (float[{shape}] x) => (float[{out}] y) {BN}, {weight}> {{
        {line}
        y = BatchNormalization<epsilon = 1e-3>(c, gamma, beta, mean, var)
    }}"""
    model, refusals = rewritten(body, RULES, {"B": 3})
    assert count(model, "BatchNormalization") == 0
    assert ops(model)[0] == line.split("= ")[1].split("(")[0].split("<")[0]
    assert count(model, "Mul") == 0
    assert refusals == []


def test_batch_norm_of_a_product_with_a_vector_stays_behind_it() -> None:
    """Its channels are rows of the input, not columns of the weight."""
    body = f"""g (float[B,2,2] x) => (float[B,2] y) {BN}, float[2] w = {{3., 4.}}> {{
        c = MatMul(x, w)
        y = BatchNormalization(c, gamma, beta, mean, var)
    }}"""
    assert ops(rewritten(body, RULES, {"B": 3})[0]) == ["MatMul", "Mul", "Add"]


def test_batch_norm_alone_and_behind_a_shared_conv() -> None:
    body = f"""g (float[B,2,3,3] x) => (float[B,2,3,3] y) {BN}> {{
        y = BatchNormalization(x, gamma, beta, mean, var)
    }}"""
    assert ops(rewritten(body, RULES, {"B": 2})[0]) == ["Mul", "Add"]
    shared = f"""g (float[B,1,3,3] x) => (float[B,2,3,3] y, float[B,2,3,3] c)
        {BN}, float[2,1,1,1] w = {{1., 2.}}> {{
        c = Conv(x, w)
        y = BatchNormalization(c, gamma, beta, mean, var)
    }}"""
    model, _ = rewritten(shared, RULES, {"B": 2})
    assert ops(model) == ["Conv", "Mul", "Add"]


CONV = "float[2,1,1,1] w = {1., 2.}, float[2] b = {3., 4.}"


@pytest.mark.parametrize(("const", "expr"), [
    ("float s = {2.}", "Mul(c, s)"),
    ("float[1] s = {2.}", "Mul(s, c)"),
    ("float[2,1,1] s = {2., 3.}", "Mul(c, s)"),
    ("float[1,2,1,1] s = {2., 3.}", "Add(c, s)"),
    ("float[1] s = {2.}", "Add(s, c)"),
])  # fmt: skip
@pytest.mark.parametrize("conv", ["Conv(x, w)", "Conv(x, w, b)"])
def test_scale_and_shift_move_into_conv(const: str, expr: str, conv: str) -> None:
    body = f"g (float[B,1,3,3] x) => (float[B,2,3,3] y) <{CONV}, {const}> {{ c = {conv} y = {expr} }}"
    assert ops(rewritten(body, RULES, {"B": 2})[0]) == ["Conv"]


@pytest.mark.parametrize("const", ["float[3] s = {2., 3., 4.}", "float[3,1] s = {2., 3., 4.}"])
def test_a_scale_over_space_stays(const: str) -> None:
    body = f"g (float[B,1,3,3] x) => (float[B,2,3,3] y) <{CONV}, {const}> {{ c = Conv(x, w) y = Mul(c, s) }}"
    model, (refusal,) = rewritten(body, RULES, {"B": 2})
    assert ops(model) == ["Conv", "Mul"]
    assert "is not per channel" in refusal.reason


def test_a_chain_collapses_in_one_sweep() -> None:
    lines = "c = Conv(x, w) d = Mul(c, s) y = Add(d, s)"
    model = parse(f"g (float[2,1,3,3] x) => (float[2,2,3,3] y) <{CONV}, float s = {{2.}}> {{ {lines} }}")
    apply_rules(model, RULES, order="inputs first")
    assert ops(model) == ["Conv"]


def pad(op: str, pads: str = "0,0,1,0,0,0,0,1", mode: str = "constant", fill: str = "0.0") -> str:
    return f"""g (float[B,1,4,4] x) => (float[B,C,P,Q] y)
        <int64[8] pads = {{{pads}}}, float fill = {{{fill}}}, float[1,1,2,2] w = {{1., 2., 3., 4.}}> {{
        p = Pad<mode = "{mode}">(x, pads, fill)
        y = {op}
    }}"""


@pytest.mark.parametrize(
    "op", ["Conv(p, w)", "Conv<pads = [1, 1, 0, 0]>(p, w)", "AveragePool<kernel_shape = [2, 2]>(p)"]
)
def test_zero_padding_moves_into_the_window(op: str) -> None:
    assert len(ops(rewritten(pad(op), RULES, {"B": 2})[0])) == 1


@pytest.mark.parametrize(("body", "reason"), [
    (pad("Conv(p, w)", mode="reflect"), "pads by reflect"),
    (pad("Conv(p, w)", fill="1.0"), "pads with 1.0"),
    (pad("Conv(p, w)", pads="0,0,-1,0,0,0,0,1"), "crops"),
    (pad("Conv(p, w)", pads="1,0,0,0,0,0,0,1"), "batch or channels"),
    (pad('Conv<auto_pad = "SAME_UPPER">(p, w)'), "auto_pad"),
    (pad("MaxPool<kernel_shape = [2, 2]>(p)"), "pads a maximum"),
    (pad("AveragePool<kernel_shape = [2, 2], pads = [1, 0, 0, 0]>(p)"), "uncounted padding"),
    (pad("AveragePool<kernel_shape = [2, 2], ceil_mode = 1>(p)"), "rounds its size up"),
    (pad("AveragePool<kernel_shape = [2, 2]>(p)", pads="0,0,2,0,0,0,0,0"), "not smaller than the window"),
])  # fmt: skip
def test_padding_refusals(body: str, reason: str) -> None:
    model, (refusal,) = rewritten(body, RULES, {"B": 2})
    assert count(model, "Pad") == 1
    assert reason in refusal.reason


def test_weights_are_folded_in_double() -> None:
    body = f"""g (float[B,2,1,1] x) => (float[B,2,1,1] y) {BN}> {{
        y = BatchNormalization<epsilon = 0.0>(x, gamma, beta, mean, var)
    }}"""
    model, _ = rewritten(body, RULES, {"B": 2})
    scale = model.graph[0].inputs[1].const_value.numpy().reshape(-1)
    np.testing.assert_array_equal(scale, (np.array([1.0, 2.0]) / np.sqrt([1.0, 3.0])).astype(np.float32))


@pytest.mark.parametrize("kind", ["float16", "bfloat16"])
def test_long_sums_of_half_weights_are_folded_wide(kind: str) -> None:
    """The weight norm of a convolution: in half precision the sum stops growing long before its end."""
    model = with_weights(
        f"""g ({kind}[16] x, {kind}[256,32,16] w, {kind}[1,1,16] gain) => ({kind}[256,32,16] y)
        <int64[2] axes = {{0, 1}}> {{
            norm = ReduceL2(w, axes)
            unit = Div(w, norm)
            v = Mul(unit, gain)
            y = Mul(v, x)
        }}""",
        "w", "gain",
    )  # fmt: skip
    w, gain = (model.graph.initializers[n].const_value.numpy().astype(np.float64) for n in ("w", "gain"))
    fold_constants(model)
    assert ops(model) == ["Mul"]
    got = model.graph.initializers["v"].const_value.numpy()
    assert got.dtype == model.graph.inputs[0].dtype.numpy()
    want = w / np.sqrt((w * w).sum((0, 1), keepdims=True)) * gain
    slack = 4 * float(ml_dtypes.finfo(got.dtype).eps)
    np.testing.assert_allclose(got.astype(np.float64), want, rtol=slack, atol=slack * np.abs(want).max())


def test_a_target_of_another_rank_than_the_file_says() -> None:
    model = parse("""g (float[B,4,C] x, int64[1] n) => (float[P,Q] y) <int64[1] m = {-1}> {
        t = Concat<axis = 0>(n, m)
        y = Reshape(x, t)
    }""")
    node = model.graph[1]
    node.outputs[0].shape = ir.Shape(["P"])
    target = reshape_target(node)
    assert target is not None
    assert len(target) == 2


def test_integers_past_the_ends_of_their_type_stay_unknown() -> None:
    model = parse("""g (float[2] x) => (int32[1] y, int64[1] z)
        <int64[1] big = {1099511627776}, int64[1] place = {5}> {
        small = Cast<to = 6>(big)
        y = Identity(small)
        s = Shape(x)
        z = Gather(s, place)
    }""")
    by_name = {node.outputs[0].name: node.outputs[0] for node in model.graph}
    assert elements(by_name["small"]) == ("small[0]",)
    assert elements(by_name["z"]) == ("z[0]",)
    fold_constants(model)
