"""Half-precision spellings: casts around ops that keep float32 state anyway, products over heads."""

from __future__ import annotations

import numpy as np
import onnx_ir as ir
import pytest
from text_graphs import assert_same, count, ops, parse, random_feeds, rewritten, run, with_weights

from ridgeline.passes import canonical_index, canonical_linear, canonical_norm
from ridgeline.passes.fold_weights import BatchNormIntoWeights
from ridgeline.passes.pipeline import canonicalise
from ridgeline.passes.rule import apply_rules


def graph(lines: str, out: str = "float16[2,3,8]") -> str:
    return f"g (float16[2,3,8] x) => ({out} y) {{ w = Cast<to = 1>(x)\n {lines} }}"


def test_softmax_between_casts() -> None:
    model, refusals = rewritten(
        graph("s = Softmax<axis = 1>(w)\n y = Cast<to = 10>(s)"), canonical_norm.HALF_RULES
    )
    assert ops(model) == ["Softmax"]
    assert model.graph[0].attributes["axis"].as_int() == 1
    assert refusals == []


def test_softmax_that_leaves_in_another_type_stays() -> None:
    body = graph("s = Softmax(w)\n y = Cast<to = 11>(s)", "double[2,3,8]")
    model, (refusal,) = rewritten(body, canonical_norm.HALF_RULES)
    assert ops(model) == ["Cast", "Softmax", "Cast"]
    assert "comes out as" in refusal.reason


def test_wide_scores_that_escape_keep_the_cast() -> None:
    body = graph("s = Softmax(w)\n y = Cast<to = 10>(s)").replace("y) {", "y, float[2,3,8] w) {")
    model, _ = rewritten(body, canonical_norm.HALF_RULES)
    assert sorted(ops(model)) == ["Cast", "Softmax"]


def test_softmax_whose_wide_result_escapes_stays() -> None:
    body = graph("s = Softmax(w)\n y = Cast<to = 10>(s)").replace("y) {", "y, float[2,3,8] s) {")
    model, (refusal,) = rewritten(body, canonical_norm.HALF_RULES)
    assert ops(model) == ["Cast", "Softmax", "Cast"]
    assert refusal.reason == "Softmax result is used outside the pattern"


NORM = "n = LayerNormalization<axis = -1, epsilon = 1e-6>(w, g, b)\n y = Cast<to = 10>(n)"


@pytest.mark.parametrize("is_exact", [True, False])
def test_norm_between_casts_when_its_weights_are_half_numbers(is_exact: bool) -> None:
    body = graph(NORM).replace("x) =>", "x, float[8] g, float[8] b) =>")
    model = with_weights(body, "g", "b")
    if is_exact:
        for name in ("g", "b"):
            weight = model.graph.initializers[name]
            rounded = weight.const_value.numpy().astype(np.float16).astype(np.float32)
            weight.const_value = ir.tensor(rounded, name=name)
    feeds = random_feeds(model)
    before = run(model, feeds)
    refusals = apply_rules(model, canonical_norm.HALF_RULES)
    assert (count(model, "Cast") == 0) == is_exact
    assert [r.reason for r in refusals] == ([] if is_exact else ["w is finer than FLOAT16"])
    assert_same(before, run(model, feeds), roundings=2)


def test_batch_norm_folds_in_double_and_rounds_once() -> None:
    body = """g (float16[1,4,5,5] x, float16[6,4,3,3] w, float16[6] b, float[6] s, float[6] t, float[6] m,
        float[6] v) => (float16[1,6,3,3] y) {
        c = Conv(x, w, b)
        y = BatchNormalization<epsilon = 1e-5>(c, s, t, m, v)
    }"""
    model = with_weights(body, "w", "b", "s", "t", "m", "v")
    init = model.graph.initializers
    init["v"].const_value = ir.tensor(np.abs(init["v"].const_value.numpy()) + 0.5, name="v")
    arrays = {n: v.const_value.numpy().astype(np.float64) for n, v in init.items()}
    apply_rules(model, (BatchNormIntoWeights(),))
    assert ops(model) == ["Conv"]
    scale = arrays["s"] / np.sqrt(arrays["v"] + np.float32(1e-5))
    want = (arrays["w"] * scale[:, None, None, None]).astype(np.float16)
    np.testing.assert_array_equal(model.graph[0].inputs[1].const_value.numpy(), want)
    shift = ((arrays["b"] - arrays["m"]) * scale + arrays["t"]).astype(np.float16)
    np.testing.assert_array_equal(model.graph[0].inputs[2].const_value.numpy(), shift)


JOINED = """g (float[B,5,3,4] x, float[12,6] w, float[6] b) => (float[B,5,6] y) {
    flat = Constant<value_ints = [-1, 12]>()
    shape = Constant<value_ints = [-1, 5, 6]>()
    r = Reshape(x, flat)
    m = Gemm(r, w, b)
    y = Reshape(m, shape)
}"""


def joined(body: str) -> ir.Model:
    model = with_weights(body, "w", "b")
    feeds = random_feeds(model, {"B": 2})
    before = run(model, feeds)
    apply_rules(model, canonical_linear.RULES)
    assert_same(before, run(model, feeds))
    return model


def test_a_product_over_joined_heads_keeps_its_rows() -> None:
    assert ops(joined(JOINED)) == ["Reshape", "MatMul", "Add"]


def test_a_product_over_joined_heads_with_transposed_weights() -> None:
    body = JOINED.replace("[12,6] w", "[6,12] w").replace("Gemm(", "Gemm<transB = 1>(")
    assert ops(joined(body)) == ["Reshape", "MatMul", "Add"]


def test_rows_that_are_not_heads_stay_flat() -> None:
    body = JOINED.replace("[-1, 5, 6]", "[5, -1, 6]").replace("[B,5,6] y", "[5,B,6] y")
    assert ops(joined(body)) == ["Reshape", "Gemm", "Reshape"]


PLACED = """g (bool[B,4] x) => (bool[B,1,1,4] y) <int64[B] rows> {
    s = Shape<start = 0, end = 1>(x)
    n = Squeeze(s)
    zero = Constant<value_int = 0>()
    one = Constant<value_int = 1>()
    rows = Range(zero, n, one)
    to_row = Constant<value_ints = [1, 2, 3]>()
    last = Constant<value_ints = [-1]>()
    i0 = Unsqueeze(rows, to_row)
    j0 = Constant<value = int64[1,1,1,4] {0, 1, 2, 3}>()
    wide = Max(i0, j0)
    size = Shape(wide)
    i1 = Expand(i0, size)
    j1 = Expand(j0, size)
    i = Unsqueeze(i1, last)
    j = Unsqueeze(j1, last)
    at = Concat<axis = -1>(i, j)
    y = GatherND(x, at)
}"""


def test_indices_that_count_are_a_view() -> None:
    model = parse(PLACED)
    feeds = random_feeds(model, {"B": 3})
    before = run(model, feeds)
    canonicalise(model)
    assert ops(model) == ["Unsqueeze"]
    assert_same(before, run(model, feeds))


@pytest.mark.parametrize("places", ["{0, 1, 3, 2}", "{0, 0, 0, 0}", "{1, 2, 3, 3}"])
def test_indices_that_do_not_count_stay(places: str) -> None:
    model = parse(PLACED.replace("{0, 1, 2, 3}", places))
    feeds = random_feeds(model, {"B": 3})
    before = run(model, feeds)
    apply_rules(model, canonical_index.RULES)
    assert count(model, "GatherND") == 1
    assert_same(before, run(model, feeds))


@pytest.mark.parametrize(("batch", "rule_fires"), [(1, True), (2, True)])
def test_constant_indices_that_count(batch: int, rule_fires: bool) -> None:
    at = ", ".join(f"{b}, {k}" for b in range(batch) for k in range(4))
    body = f"""g (bool[{batch},4] x) => (bool[{batch},1,1,4] y) {{
        at = Constant<value = int64[{batch},1,1,4,2] {{{at}}}>()
        y = GatherND(x, at)
    }}"""
    model = parse(body)
    feeds = random_feeds(model)
    before = run(model, feeds)
    apply_rules(model, canonical_index.RULES)
    assert ops(model) == (["Unsqueeze"] if rule_fires else ["GatherND"])
    assert_same(before, run(model, feeds))


def test_swapped_axes_are_no_view() -> None:
    at = ", ".join(f"{i}, {j}" for j in range(3) for i in range(3))
    body = f"""g (bool[3,3] x) => (bool[3,1,3] y) {{
        at = Constant<value = int64[3,1,3,2] {{{at}}}>()
        y = GatherND(x, at)
    }}"""
    model = parse(body)
    apply_rules(model, canonical_index.RULES)
    assert ops(model) == ["GatherND"]
