"""Regions for a GPU: attention with its views, kernels that read by index, norms with several results."""

from __future__ import annotations

import pytest
from cuda_regions import regions
from text_graphs import SPLIT_HEADS

from ridgeline.base.spec import Target

MERGED = "q, k, v = Split<axis = -1, num_outputs = 3>(x)\n"
ATTEND = "{} = Attention<q_num_heads = 2, kv_num_heads = 2>(q, k, v)\n"


def packed(lines: str, out: str = "float[2,3,8]", more: str = "") -> str:
    return f"g (float[2,3,24] x) => ({out} y{more}) {{ {lines} }}"


def test_attention_takes_its_split() -> None:
    assert regions(packed(MERGED + ATTEND.format("y"))) == ["Split Attention"]


def test_the_host_keeps_the_split_outside() -> None:
    body = packed(MERGED + ATTEND.format("y"))
    assert regions(body, target=Target()) == ["Split", "Attention"]


def test_a_part_that_others_read_keeps_the_split_outside() -> None:
    body = packed(MERGED + ATTEND.format("y") + "z = Relu(v)", more=", float[2,3,8] z")
    assert regions(body) == ["Split", "Attention", "Relu"]


HEADS = f"""split = Constant<value_ints = [2, 3, 2, 4]>()
    join = Constant<value_ints = [2, 3, 8]>()
    q3, k3, v3 = Split<axis = -1, num_outputs = 3>(x)
    {SPLIT_HEADS} o = Attention(q, k, v)
"""


def test_heads_are_split_and_joined_inside() -> None:
    body = packed(HEADS + "t = Transpose<perm = [0, 2, 1, 3]>(o)\n y = Reshape(t, join)")
    (region,) = regions(body)
    assert sorted(region.split()) == sorted(
        ["Split", *["Reshape", "Transpose"] * 3, "Attention", "Transpose", "Reshape"]
    )


def test_views_without_a_split_are_taken_for_their_transpose() -> None:
    body = """g (float[2,3,2,4] a, float[2,2,3,4] k, float[2,2,3,4] v) => (float[2,2,3,4] y) {
        q = Transpose<perm = [0, 2, 1, 3]>(a)
        y = Attention(q, k, v)
    }"""
    assert regions(body) == ["Transpose Attention"]


def test_slices_of_one_projection_are_taken() -> None:
    part = "{n}s = Constant<value_ints = [{a}]>()\n {n}e = Constant<value_ints = [{b}]>()\n"
    part += "{n} = Slice({x}, {n}s, {n}e, last)\n"
    lines = "last = Constant<value_ints = [2]>()\n"
    lines += "".join(part.format(n=n, x="x", a=8 * i, b=8 * i + 8) for i, n in enumerate("qkv"))
    assert regions(packed(lines + ATTEND.format("y"))) == ["Slice Slice Slice Attention"]


def test_the_epilogue_of_attention_still_joins() -> None:
    body = packed(MERGED + ATTEND.format("a") + "y = Mul(a, a)")
    assert regions(body) == ["Split Attention Mul"]


def test_gate_and_up_are_read_from_one_buffer() -> None:
    lines = "a, b = Split<axis = -1, num_outputs = 2>(x)\n s = Sigmoid(a)\n t = Mul(a, s)\n y = Mul(t, b)"
    assert regions(packed(lines, "float[2,3,12]")) == ["Split Sigmoid Mul Mul"]


def test_a_norm_reads_its_table_by_index_and_hands_out_the_sum() -> None:
    body = """g (int64[2,3] ids, float[5,8] table, float[1,3,8] p, float[8] w) =>
        (float[2,3,8] y, float[2,3,8] z) {
        e = Gather(table, ids)
        a = Add(e, p)
        y = LayerNormalization(a, w)
        z = Neg(a)
    }"""
    assert regions(body, "table", "p", "w") == ["Gather Add LayerNormalization", "Neg"]


def test_a_residual_sum_stays_in_the_product_and_the_norm_reads_one_value() -> None:
    body = """g (float[2,3,8] x, float[2,3,8] r, float[8,8] m, float[8] b, float[8] w) =>
        (float[2,3,8] y) {
        p = MatMul(x, m)
        c = Add(p, b)
        a = Add(c, r)
        n = LayerNormalization(a, w)
        q = MatMul(n, m)
        y = Add(q, a)
    }"""
    assert regions(body, "m", "b", "w") == ["MatMul Add Add", "LayerNormalization", "MatMul Add"]


@pytest.mark.parametrize("act", ["Relu(s)", "Clip(s, zero, six)"])
def test_a_convolution_takes_sum_and_activation(act: str) -> None:
    body = f"""g (float[1,4,5,5] x, float[1,4,5,5] r, float[4,4,3,3] w, float[4] b) => (float[1,4,5,5] y) {{
        zero = Constant<value_float = 0.0>()
        six = Constant<value_float = 6.0>()
        c = Conv<pads = [1, 1, 1, 1]>(x, w, b)
        s = Add(c, r)
        y = {act}
    }}"""
    assert regions(body, "w", "b") == [f"Conv Add {act.split('(')[0]}"]


@pytest.mark.parametrize("image", ["", "j"])
def test_joined_images_are_computed_where_they_are_read(image: str) -> None:
    body = """g (float[1,4,5,5] a, float[1,4,5,5] b) => (float[1,8,5,5] y) {
        j = Concat<axis = 1>(a, b)
        y = Relu(j)
    }"""
    assert regions(body, image=image) == ["Concat Relu"]


def test_a_pool_and_a_norm_of_channels_last_read_images_that_are_joined_before() -> None:
    body = """g (float[1,4,5,5] a, float[1,4,5,5] b, float[8] w) => (float[1,8,5,5] y, float[1,8,5,5] z) {
        j = Concat<axis = 1>(a, b)
        p = MaxPool<kernel_shape = [3, 3], pads = [1, 1, 1, 1]>(j)
        y = Relu(p)
        k = Concat<axis = 1>(b, a)
        n = GroupNormalization<num_groups = 2>(k, w, w)
        z = Relu(n)
    }"""
    assert regions(body, "w", image="j") == ["Concat", "MaxPool Relu", "Concat GroupNormalization Relu"]
    assert regions(body, "w", image="k") == [
        "Concat", "MaxPool Relu", "Concat", "GroupNormalization Relu"
    ]  # fmt: skip


def test_a_gather_that_others_read_stays_outside() -> None:
    body = """g (int64[2,3] ids, float[5,8] table) => (float[2,3,8] y, float[2,3,8] e) {
        e = Gather(table, ids)
        y = Relu(e)
    }"""
    assert regions(body, "table") == ["Gather", "Relu"]


MIXER = """g (float[1,4,5,5] x, float[1,4,5,5] r, float[4,1,1] s) => (float[1,4,5,5] y) {{
    p{more} = {pool}<kernel_shape = [3, 3], pads = [1, 1, 1, 1]>(x)
    d = Sub(p, x)
    q = Mul(d, s)
    y = Add(q, r)
}}"""


@pytest.mark.parametrize("pool", ["MaxPool", "AveragePool"])
def test_a_pool_takes_what_follows(pool: str) -> None:
    body = MIXER.format(pool=pool, more="")
    assert regions(body, "s") == [f"{pool} Sub Mul Add"]
    assert regions(body, "s", target=Target()) == [pool, "Sub Mul Add"]


def test_a_pool_with_indices_stays_alone() -> None:
    assert regions(MIXER.format(pool="MaxPool", more=", i"), "s") == ["MaxPool", "Sub Mul Add"]


def test_a_pool_whose_numbers_others_read_stays_alone() -> None:
    body = """g (float[1,4,6,6] x, float[1,2,3,3] o) => (float[1,4,3,3] y, float[1,6,3,3] z) {
        p = AveragePool<kernel_shape = [2, 2], strides = [2, 2]>(x)
        y = Relu(p)
        z = Concat<axis = 1>(p, o)
    }"""
    assert regions(body) == ["AveragePool", "Relu", "Concat"]


def resize(given: str, attrs: str = 'mode = "linear"') -> str:
    return f"""g (float[1,4,3,5] x, float[1,4,6,10] r) => (float[1,4,6,10] y) {{
        c = Constant<value_floats = [1.0, 1.0, 2.0, 2.0]>()
        t = Constant<value_ints = [1, 4, 6, 10]>()
        u = Resize<{attrs}>(x, , {given})
        a = Add(r, u)
        y = Relu(a)
    }}"""


@pytest.mark.parametrize("given", ["c", ", t"])
@pytest.mark.parametrize("mode", ["nearest", "linear", "cubic"])
def test_a_resize_takes_what_follows(mode: str, given: str) -> None:
    body = resize(given, f'mode = "{mode}"')
    assert regions(body) == ["Resize Add Relu"]
    assert regions(body, target=Target()) == ["Resize", "Add Relu"]


def test_a_resize_takes_a_cast() -> None:
    body = """g (float16[1,4,3,5] x) => (float[1,4,6,10] y) {
        c = Constant<value_floats = [1.0, 1.0, 2.0, 2.0]>()
        u = Resize<mode = "linear">(x, , c)
        y = Cast<to = 1>(u)
    }"""
    assert regions(body) == ["Resize Cast"]


@pytest.mark.parametrize(
    "attrs",
    [
        'mode = "linear", antialias = 1',
        'mode = "cubic", exclude_outside = 1',
        'mode = "linear", axes = [2, 3], keep_aspect_ratio_policy = "not_larger"',
        'mode = "linear", coordinate_transformation_mode = "tf_crop_and_resize"',
    ],
)
def test_a_resize_that_the_kernel_may_refuse_stays_alone(attrs: str) -> None:
    region = "i = Constant<value_floats = [0.0, 0.0, 0.0, 0.0, 1.0, 1.0, 1.0, 1.0]>()"
    body = resize(", t", attrs).replace("(x, ,", "(x, i,").replace("c =", f"{region}\n        c =")
    if "axes" in attrs:
        body = body.replace("[1, 4, 6, 10]", "[6, 10]")
    assert regions(body) == ["Resize", "Add Relu"]


def test_a_resize_of_other_axes_stays_alone() -> None:
    body = (
        resize("c", 'mode = "nearest"')
        .replace("[1,4,3,5] x", "[1,2,6,5] x")
        .replace("1.0, 2.0, 2.0", "2.0, 1.0, 2.0")
    )
    assert regions(body) == ["Resize", "Add Relu"]
    # as many channels as before, by another scale
    body = resize("c", 'mode = "nearest"').replace("1.0, 1.0, 2.0", "1.0, 1.2, 2.0")
    assert regions(body) == ["Resize", "Add Relu"]


def test_a_resize_of_whole_numbers_stays_alone() -> None:
    body = """g (int32[1,4,3,5] x) => (int32[1,4,6,10] y) {
        c = Constant<value_floats = [1.0, 1.0, 2.0, 2.0]>()
        u = Resize<mode = "nearest">(x, , c)
        y = Neg(u)
    }"""
    assert regions(body) == ["Resize", "Neg"]


def test_a_resize_whose_numbers_others_read_stays_alone() -> None:
    body = """g (float[1,4,3,5] x, float[1,2,6,10] o) => (float[1,4,6,10] y, float[1,6,6,10] z) {
        c = Constant<value_floats = [1.0, 1.0, 2.0, 2.0]>()
        u = Resize(x, , c)
        y = Relu(u)
        z = Concat<axis = 1>(u, o)
    }"""
    assert regions(body) == ["Resize", "Relu", "Concat"]


WINDOWS = {
    "MaxPool": "MaxPool<kernel_shape = [1, 1], strides = [1, 2]>(j)",
    "Resize": 'Resize<mode = "nearest">(j, , c)',
}


@pytest.mark.parametrize("name", WINDOWS)
def test_a_kernel_of_windows_reads_its_image_where_it_lies(name: str) -> None:
    """What moves an operand of the ops behind joins; what makes the image does not."""
    body = f"""g (float[1,4,4,4] a, float[1,4,4,4] b, float[1,8,2,2] d) => (float[1,8,4,2] y) {{
        c = Constant<value_floats = [1.0, 1.0, 1.0, 0.5]>()
        j = Concat<axis = 1>(a, b)
        u = {WINDOWS[name]}
        e = Concat<axis = 2>(d, d)
        y = Add(u, e)
    }}"""
    assert regions(body) == ["Concat", f"{name} Concat Add"]
