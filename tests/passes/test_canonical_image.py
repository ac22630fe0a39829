"""Images on a channels-last target: pooling to rows, patches to a sequence, the token in front of it."""

from __future__ import annotations

import onnx_ir as ir
import pytest
from text_graphs import assert_same, ops, random_feeds, run, with_weights

from ridgeline.base.choices import Refusal
from ridgeline.base.spec import Body, Op, Site, Target, TensorSpec
from ridgeline.ir.views import views_of
from ridgeline.passes.canonical_image import RULES
from ridgeline.passes.clean import remove_unused
from ridgeline.passes.rule import apply_rules

POOL = "float[N,6,4,5] x"


def after(body: str, *weights: str) -> tuple[list[str], list[Refusal]]:
    model = with_weights(body, *weights)
    feeds = random_feeds(model, {"N": 2})
    before = run(model, feeds)
    refusals = apply_rules(model, RULES)
    remove_unused(model)
    assert_same(before, run(model, feeds))
    return ops(model), refusals


@pytest.mark.parametrize("mean", ["GlobalAveragePool(x)", "ReduceMean<keepdims = 1>(x, image)"])
@pytest.mark.parametrize("flat", ["Flatten(m)", "Reshape(m, rows)", "Squeeze(m, image)"])
def test_pooling_and_flattening_are_one_mean(mean: str, flat: str) -> None:
    body = f"""g ({POOL}) => (float[N,6] y) {{
        image = Constant<value_ints = [2, 3]>()
        rows = Constant<value_ints = [0, 6]>()
        m = {mean}
        y = {flat}
    }}"""
    assert after(body) == (["ReduceMean"], [])


def test_a_mean_over_other_axes_stays() -> None:
    body = f"""g ({POOL}) => (float[N,24] y) {{
        rows = Constant<value_ints = [3]>()
        m = ReduceMean<keepdims = 1>(x, rows)
        y = Flatten(m)
    }}"""
    kinds, (refusal,) = after(body)
    assert kinds == ["ReduceMean", "Flatten"]
    assert "want all from 2" in refusal.reason


def test_pooled_values_that_others_read_stay() -> None:
    body = f"""g ({POOL}) => (float[N,6] y, float[N,6,1,1] m) {{
        m = GlobalAveragePool(x)
        y = Flatten(m)
    }}"""
    kinds, (refusal,) = after(body)
    assert kinds == ["GlobalAveragePool", "Flatten"]
    assert refusal.reason == "GlobalAveragePool result is used outside the pattern"


PATCHES = """g (float[N,3,8,8] x, float[6,3,4,4] w{more}) => (float[N,{s},6] y) {{
    to = Constant<value_ints = [0, 6, -1]>()
    c = Conv<strides = [4, 4]>(x, w)
    r = Reshape(c, to)
    {lines}
}}"""
TO_ROWS = "{} = Transpose<perm = [0, 2, 1]>(r)\n"


def test_patches_are_rows_of_a_channels_last_image() -> None:
    assert after(PATCHES.format(lines=TO_ROWS.format("y"), more="", s=4), "w")[0] == [
        "Conv",
        "Transpose",
        "Reshape",
    ]


def test_so_are_patches_that_something_was_added_to() -> None:
    lines = "z = Add(c, c)\n h = Relu(z)\n q = Reshape(h, to)\n y = Transpose<perm = [0, 2, 1]>(q)"
    body = PATCHES.replace("r = Reshape(c, to)", "").format(lines=lines, more="", s=4)
    assert after(body, "w")[0] == ["Conv", "Add", "Relu", "Transpose", "Reshape"]


ROWS = """g (float[N,16,6] x, float[6,1,3,3] w) => ({output}) {{
    image = Constant<value_ints = [0, 6, 4, 4]>()
    to = Constant<value_ints = [0, 6, -1]>()
    t = Transpose<perm = [0, 2, 1]>(x)
    r = Reshape(t, image)
    {lines}
}}"""
DEPTHWISE = "c = Conv<group = 6, pads = [1, 1, 1, 1]>({}, w)\n"


@pytest.mark.parametrize(("before", "kinds"), [("", []), ("s = Sigmoid(r)\n", ["Sigmoid"])])
def test_rows_become_an_image_of_channels_last_and_rows_again(before: str, kinds: list[str]) -> None:
    lines = before + DEPTHWISE.format("s" if before else "r")
    lines += "a = Add(c, r)\n f = Reshape(a, to)\n y = Transpose<perm = [0, 2, 1]>(f)"
    made, _ = after(ROWS.format(output="float[N,16,6] y", lines=lines), "w")
    assert made == ["Reshape", "Transpose", *kinds, "Conv", "Add", "Transpose", "Reshape"]


def test_rows_that_no_convolution_reads_keep_their_order() -> None:
    kinds, (refusal,) = after(ROWS.format(output="float[N,6,4,4] y", lines="y = Relu(r)"), "w")
    assert kinds == ["Transpose", "Reshape", "Relu"]
    assert refusal.reason == "no convolution reads the image"


def test_an_image_from_elsewhere_keeps_its_order() -> None:
    body = """g (float[N,3,8,8] x) => (float[N,64,3] y) {
        to = Constant<value_ints = [0, 3, -1]>()
        r = Reshape(x, to)
        y = Transpose<perm = [0, 2, 1]>(r)
    }"""
    kinds, (refusal,) = after(body)
    assert kinds == ["Reshape", "Transpose"]
    assert refusal.reason == "image does not come from a convolution"


TOKEN = """s = Shape<start = 0, end = 1>(x)
    rest = Constant<value_ints = [1, 6]>()
    size = Concat<axis = 0>(s, rest)
    k = Expand(t, size)
    j = Concat<axis = 1>(k, p)
"""


@pytest.mark.parametrize(("front", "batch"), [("k", "N"), ("t", "1")])
def test_a_token_in_front_becomes_padding(front: str, batch: str) -> None:
    lines = TO_ROWS.format("p") + TOKEN.replace("(k, p)", f"({front}, p)") + "y = Add(j, c0)"
    body = PATCHES.format(lines=lines, more=", float[1,1,6] t, float[1,5,6] c0", s=5)
    model = with_weights(body.replace("[N,", f"[{batch},"), "w", "t", "c0")
    feeds = random_feeds(model, {"N": 2})
    before = run(model, feeds)
    apply_rules(model, RULES)
    remove_unused(model)
    assert ops(model) == ["Conv", "Transpose", "Reshape", "Pad", "Add"]
    # the same sums of the same numbers
    assert_same(before, run(model, feeds), roundings=0)


def test_a_sum_that_repeats_one_row_keeps_the_join() -> None:
    lines = TO_ROWS.format("p") + TOKEN + "y = Add(j, c0)"
    body = PATCHES.format(lines=lines, more=", float[1,1,6] t, float[1,1,6] c0", s=5)
    kinds, refusals = after(body, "w", "t", "c0")
    assert "Concat" in kinds
    assert [r.reason for r in refusals] == ["c repeats"]


def site(layout: str, kind: str = "cuda", perm: tuple[int, ...] = (0, 2, 3, 1)) -> Site:
    op = Op("Transpose", ("x",), ("y",), {"perm": perm})
    shape = tuple((2, 6, 4, 5)[axis] for axis in perm)
    specs = {"x": TensorSpec("float16", (2, 6, 4, 5), layout), "y": TensorSpec("float16", shape)}  # type: ignore[arg-type]
    return Site(Body(("x",), ("y",), (op,)), specs, frozenset(), {}, Target(kind))


def test_spelling_out_channels_last_moves_nothing() -> None:
    assert views_of(site("channels_last")) == (("y", "x", 0),)
    assert views_of(site("contiguous")) == ()
    assert views_of(site("channels_last", perm=(0, 3, 2, 1))) == ()
    assert views_of(site("channels_last", kind="cpu")) == ()


def test_rules_hold_for_half_images() -> None:
    body = """g (float16[N,6,4,5] x) => (float16[N,6] y) {
        m = GlobalAveragePool(x)
        y = Flatten(m)
    }"""
    model: ir.Model = with_weights(body)
    apply_rules(model, RULES)
    assert ops(model) == ["ReduceMean"]
