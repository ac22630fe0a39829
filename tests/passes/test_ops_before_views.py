"""Pointwise ops behind the views between images and rows: moved with their operands, or a reason."""

from __future__ import annotations

import numpy as np
import onnx_ir as ir
import pytest
from text_graphs import assert_same, ops, random_feeds, run, with_weights

from ridgeline.base.choices import Refusal
from ridgeline.base.spec import Target
from ridgeline.passes.canonical_image import RULES
from ridgeline.passes.clean import remove_unused
from ridgeline.passes.ops_before_views import ops_before_views
from ridgeline.passes.pipeline import canonicalise
from ridgeline.passes.rule import apply_rules
from ridgeline.passes.shapes import infer_shapes


def given(body: str, *weights: str) -> ir.Model:
    model = with_weights(body, *weights)
    apply_rules(model, RULES)
    remove_unused(model)
    infer_shapes(model)
    return model


def moved(body: str, *weights: str) -> tuple[ir.Model, list[Refusal]]:
    """The model behind the pass, checked to compute the same, and what was refused."""
    model = given(body, *weights)
    feeds = random_feeds(model, {"N": 2})
    before = run(model, feeds)
    refusals = ops_before_views(model)
    remove_unused(model)
    assert_same(before, run(model, feeds))
    return model, refusals


def after(body: str, *weights: str) -> list[str]:
    return ops(moved(body, *weights)[0])


def why_not(body: str, *weights: str) -> str:
    """The one reason why nothing was moved."""
    before = ops(given(body, *weights))
    made, refusals = moved(body, *weights)
    assert ops(made) == before
    return refusals[0].reason if refusals else ""


TO_ROWS = """g (float[N,4,4,5] x, float[6,1,3,3] w, float[6,1,3,3] u, float[6,4,1,1] v{more})
    => ({outputs}) {{
    to = Constant<value_ints = [0, 6, 20]>()
    half = Constant<value_float = 0.5>()
    p = Conv(x, v)
    c = Conv<group = 6, pads = [1, 1, 1, 1]>(p, w)
    r = Reshape(c, to)
    t = Transpose<perm = [0, 2, 1]>(r)
    {lines}
}}"""
WEIGHTS = ("w", "u", "v")


def to_rows(lines: str, more: str = "", outputs: str = "float[N,20,6] y") -> str:
    return TO_ROWS.format(lines=lines, more=more, outputs=outputs)


VIEWS = ["Transpose", "Reshape"]


@pytest.mark.parametrize(
    ("lines", "kinds"),
    [
        ("y = Gelu(t)", ["Gelu"]),
        ("s = Sigmoid(t)\n y = Mul(t, s)", ["Sigmoid", "Mul"]),
        ("a = Mul(t, half)\n b = Relu(a)\n y = Cast<to = 1>(b)", ["Mul", "Relu", "Cast"]),
        ("y = Clip(t, , half)", ["Clip"]),
        ("s = Mul(t, half)\n h = Less(t, s)\n y = Where(h, t, half)", ["Mul", "Less", "Where"]),
        ("y = Add(t, t)", ["Add"]),
        ("a = Relu(t)\n b = Neg(t)\n y = Add(a, b)", ["Relu", "Neg", "Add"]),
    ],
)
def test_ops_behind_rows_of_a_convolution_join_it(lines: str, kinds: list[str]) -> None:
    assert after(to_rows(lines), *WEIGHTS) == ["Conv", "Conv", *kinds, *VIEWS]


@pytest.mark.parametrize("shape", ["6", "1,6", "1,1,6", "1", "1,1,1"])
@pytest.mark.parametrize("is_weight", [False, True])
def test_operands_of_channels_move_along(shape: str, is_weight: bool) -> None:
    body = to_rows("a = Mul(k, t)\n b = PRelu(a, k)\n y = Sub(k, b)", f", float[{shape}] k")
    made = [kind for kind in after(body, *WEIGHTS, *(["k"] if is_weight else [])) if kind != "Reshape"]
    assert made == ["Conv", "Conv", "Mul", "PRelu", "Sub", "Transpose"]


def test_operands_of_a_batch_and_its_channels_move_along() -> None:
    body = to_rows("y = Mul(t, k)", ", float[N,1,6] k")
    assert after(body, *WEIGHTS) == ["Conv", "Conv", "Reshape", "Mul", *VIEWS]


def test_what_the_same_views_made_moves_along() -> None:
    lines = """d = Conv<group = 6, pads = [1, 1, 1, 1]>(p, u)
    e = Reshape(d, to)
    f = Transpose<perm = [0, 2, 1]>(e)
    g = Sigmoid(f)
    y = Mul(t, g)"""
    made = after(to_rows(lines), *WEIGHTS)
    assert sorted(made) == sorted(["Conv"] * 3 + ["Sigmoid", "Mul", *VIEWS])
    assert made[-2:] == VIEWS


def test_ops_before_the_views_stay_where_they_are() -> None:
    lines = """k = Relu(c)
    e = Reshape(k, to)
    f = Transpose<perm = [0, 2, 1]>(e)
    y = Gelu(f)"""
    assert after(to_rows(lines), *WEIGHTS) == ["Conv", "Conv", "Relu", "Gelu", *VIEWS]


def test_a_convolution_of_lines_too() -> None:
    body = """g (float[N,4,9] x, float[6,4,3] w, float[6] k) => (float[N,7,6] y) {
        c = Conv(x, w)
        t = Transpose<perm = [0, 2, 1]>(c)
        y = Mul(t, k)
    }"""
    assert after(body, "w", "k") == ["Conv", "Mul", "Transpose"]


TO_IMAGE = """g (float[N,20,4] x, float[4,6] v, float[6,1,3,3] w{more}) => ({outputs}) {{
    to = Constant<value_ints = [0, 6, 4, 5]>()
    half = Constant<value_floats = [0.5]>()
    m = MatMul(x, v)
    t = Transpose<perm = [0, 2, 1]>(m)
    r = Reshape(t, to)
    {lines}
}}"""
CONV = "y = Conv<group = 6, pads = [1, 1, 1, 1]>(z, w)"


def to_image(lines: str, more: str = "", outputs: str = "float[N,6,4,5] y") -> str:
    return TO_IMAGE.format(lines=lines, more=more, outputs=outputs)


@pytest.mark.parametrize("shape", ["6,1,1", "1,6,1,1", "1,1,1,1"])
@pytest.mark.parametrize("is_weight", [False, True])
def test_ops_behind_an_image_of_rows_join_their_product(shape: str, is_weight: bool) -> None:
    lines = f"a = Mul(r, k)\n b = Add(a, half)\n z = Relu(b)\n {CONV}"
    made = after(to_image(lines, f", float[{shape}] k"), "v", "w", *(["k"] if is_weight else []))
    assert [k for k in made if k != "Reshape"] == ["MatMul", "Mul", "Add", "Relu", "Transpose", "Conv"]


BESIDE = f"i = Conv<group = 6, pads = [1, 1, 1, 1]>(k, w)\n z = Add(r, i)\n {CONV}"


def test_an_image_that_lies_last_gives_its_rows() -> None:
    made = after(to_image(BESIDE, ", float[N,6,4,5] k"), "v", "w")
    # its rows are views of what the convolution made
    assert [kind for kind in made if kind not in VIEWS] == ["MatMul", "Conv", "Add", "Conv"]
    assert made[made.index("Add") + 1 :] == ["Reshape", "Transpose", "Conv"]


def test_a_stream_of_images_joins_every_product() -> None:
    """Blocks of ConvNeXt: rows of an image through a product, a scale, and the sum with the image."""
    block = """
        c{i} = Conv<group = 6, pads = [1, 1, 1, 1]>(s{i}, w)
        a{i} = Transpose<perm = [0, 2, 3, 1]>(c{i})
        m{i} = MatMul(a{i}, v)
        b{i} = Transpose<perm = [0, 3, 1, 2]>(m{i})
        d{i} = Mul(b{i}, k)
        s{j} = Add(d{i}, s{i})
    """
    blocks = "".join(block.format(i=i, j=i + 1) for i in range(3))
    body = f"""g (float[N,6,4,5] x, float[6,1,3,3] w, float[6,6] v, float[6,1,1] k) => (float[N,4,5,6] y) {{
        s0 = Conv<group = 6, pads = [1, 1, 1, 1]>(x, w)
        {blocks}
        e = Transpose<perm = [0, 2, 3, 1]>(s3)
        y = Relu(e)
    }}"""
    model = with_weights(body, "w", "v", "k")
    feeds = random_feeds(model, {"N": 2})
    before = run(model, feeds)
    canonicalise(model, target=Target("cuda", "sm_90"))
    assert_same(before, run(model, feeds))
    kinds = ops(model)
    assert [kind for kind in kinds if kind != "Transpose"] == [
        "Conv",
        *3 * ["Conv", "MatMul", "Mul", "Add"],
        "Relu",
    ]
    assert kinds[-2:] == ["Add", "Relu"]  # the last sum is read as rows alone


def test_a_sum_with_an_image_from_elsewhere_stays() -> None:
    body = to_image(f"z = Add(r, k)\n {CONV}", ", float[N,6,4,5] k")
    assert "the views take it apart" in why_not(body, "v", "w")


def test_a_sum_that_is_converted_for_others_stays() -> None:
    """A kernel would be left for the conversion, which now makes the sum as well."""
    body = """g (float[N,6,4,5] x, float[6,1,3,3] w, float[6,6] v) => (float[N,6,4,5] y, float16[N,6,4,5] h) {
        i = Conv<group = 6, pads = [1, 1, 1, 1]>(x, w)
        a = Transpose<perm = [0, 2, 3, 1]>(i)
        m = MatMul(a, v)
        b = Transpose<perm = [0, 3, 1, 2]>(m)
        z = Add(b, i)
        h = Cast<to = 10>(z)
        y = Conv<group = 6, pads = [1, 1, 1, 1]>(z, w)
    }"""
    assert "Conv reads" in why_not(body, "w", "v")


@pytest.mark.parametrize(
    ("lines", "more", "reason"),
    [
        ("y = Add(t, k)", ", float[N,20,6] k", "the views take it apart"),
        ("y = Mul(t, k)", ", float[20,1] k", "the views take it apart"),
        ("y = Mul(t, k)", ", float[1,20,6] k", "the views take it apart"),
        ("y = Mul(t, k)", ", float[N,N,20,6] k", ""),
        ("a = Relu(t)\n y = Add(a, k)", ", float[N,20,6] k", "the views take it apart"),
        ("a = Relu(t)\n b = Softmax(t)\n y = Add(a, b)", "", "Softmax reads 't' too"),
        ("q = QuantizeLinear(t, half)\n y = DequantizeLinear(q, half)", "", "scales count along an axis"),
    ],
)
def test_refusals(lines: str, more: str, reason: str) -> None:
    outputs = "float[N,N,20,6] y" if "N,N" in more else "float[N,20,6] y"
    found = why_not(to_rows(lines, more, outputs), *WEIGHTS)
    assert reason in found
    assert reason or not found


def test_rows_that_are_an_output_stay() -> None:
    body = to_rows("y = Relu(t)", outputs="float[N,20,6] y, float[N,20,6] t")
    assert "needed outside" in why_not(body, *WEIGHTS)


def test_an_image_that_others_read_stays() -> None:
    body = to_rows("y = Relu(t)\n z = Neg(c)", outputs="float[N,20,6] y, float[N,6,4,5] z")
    assert why_not(body, *WEIGHTS) == ""


def test_ops_of_an_image_that_no_convolution_reads_stay() -> None:
    assert why_not(to_image("y = Relu(r)"), "v", "w") == ""


def test_other_turns_stay() -> None:
    """Heads of attention, say."""
    body = """g (float[N,20,4] x, float[4,6] v) => (float[N,3,20,2] y) {
        to = Constant<value_ints = [0, 20, 3, 2]>()
        m = MatMul(x, v)
        r = Reshape(m, to)
        t = Transpose<perm = [0, 2, 1, 3]>(r)
        y = Relu(t)
    }"""
    assert why_not(body, "v") == ""


def test_an_output_keeps_its_name_and_its_readers() -> None:
    body = to_rows("y = Gelu(t)\n z = Softmax(y)", outputs="float[N,20,6] y, float[N,20,6] z")
    model, refusals = moved(body, *WEIGHTS)
    assert [out.name for out in model.graph.outputs] == ["y", "z"]
    assert ops(model) == ["Conv", "Conv", "Gelu", *VIEWS, "Softmax"]
    assert refusals == []


def test_numbers_that_are_none_come_out_where_they_did() -> None:
    body = to_rows("a = Mul(t, k)\n b = Relu(a)\n y = Clip(b, , half)", ", float[6] k")
    model = given(body, *WEIGHTS)
    feeds = random_feeds(model, {"N": 2})
    feeds["x"][0, 0, 0, 0], feeds["x"][0, 1, 3, 4], feeds["k"][2] = np.nan, np.inf, -np.inf
    (before,) = run(model, feeds)
    assert ops_before_views(model) == []
    assert np.isnan(before).any()
    np.testing.assert_array_equal(before, run(model, feeds)[0])


def test_only_for_targets_that_read_by_index() -> None:
    for target, kinds in ((Target("cuda", "sm_90"), ["Conv", "Gelu"]), (Target(), ["Transpose", "Gelu"])):
        model = with_weights(to_rows("y = Gelu(t)"), *WEIGHTS)
        canonicalise(model, target=target)
        made = ops(model)
        assert made[made.index("Gelu") - 1 : made.index("Gelu") + 1] == kinds
