"""Regions that take in what moves or computes their operands, and where they must not."""

from __future__ import annotations

import pytest
from cuda_regions import regions

# x is [B, H, S, D]; its halves along D are swapped and one of them negated
ROTATE = """
    zero = Constant<value_ints = [0]>()
    half = Constant<value_ints = [4]>()
    all = Constant<value_ints = [8]>()
    last = Constant<value_ints = [3]>()
    straight = Mul(t, cos)
    right = Slice(t, half, all, last)
    turned = Neg(right)
    left = Slice(t, zero, half, last)
    swapped = Concat<axis = -1>(turned, left)
    across = Mul(swapped, sin)
"""
HEADS = """
    split = Constant<value_ints = [2, 5, 3, 8]>()
    start = Constant<value_ints = [8]>()
    end = Constant<value_ints = [32]>()
    columns = Constant<value_ints = [2]>()
    q = Slice(x, start, end, columns)
    r = Reshape(q, split)
    t = Transpose<perm = [0, 2, 1, 3]>(r)
"""
INPUTS = "float[5,8] cos, float[5,8] sin"
ONE = "Slice Neg Slice Concat"


def rotated(lines: str, x: str = "float[2,5,40] x", out: str = "float[2,3,5,8] y") -> list[str]:
    return regions(f"g ({x}, {INPUTS}) => ({out}) {{ {lines} }}")


def test_a_rotation_is_one_region_with_its_heads() -> None:
    (ops,) = rotated(HEADS + ROTATE + "y = Add(straight, across)")
    assert ops == f"Slice Reshape Transpose Mul {ONE} Mul Add"


def test_a_rotation_of_a_value_that_others_read_leaves_it() -> None:
    lines = HEADS + ROTATE + "y = Add(straight, across)\nz = MatMul(t, w)"
    body = (
        f"g (float[2,5,40] x, {INPUTS}, float[8,8] w) => (float[2,3,5,8] y, float[2,3,5,8] z) {{ {lines} }}"
    )
    assert f"Mul {ONE} Mul Add" in regions(body, "w")


def test_a_computed_half_that_others_read_stays_outside() -> None:
    lines = ROTATE + "y = Add(straight, across)\nz = Relu(turned)"
    found = rotated(lines, "float[2,3,5,8] t", "float[2,3,5,8] y, float[2,3,5,4] z")
    assert "Slice Neg Relu" in found
    assert "Mul Slice Concat Mul Add" in found


def test_a_turn_of_columns_stays_outside() -> None:
    lines = "t = Transpose<perm = [0, 1, 3, 2]>(x)\n" + ROTATE + "y = Add(straight, across)"
    found = rotated(lines, "float[2,3,8,5] x")
    assert found == ["Transpose", f"Mul {ONE} Mul Add"]


CACHE = "float[2,3,7,8] cache"


@pytest.mark.parametrize("made", ["Neg(t)", "Transpose<perm = [0, 2, 1, 3]>(t)"])
def test_a_cache_is_joined_with_what_is_made_for_it(made: str) -> None:
    shape = "2,3,5,8" if made.startswith("Neg") else "2,5,3,8"
    body = f"""g ({CACHE}, float[{shape}] t) => (float[2,3,12,8] y) {{
        n = {made}
        y = Concat<axis = 2>(cache, n)
    }}"""
    assert regions(body) == [f"{made.split('(')[0].split('<')[0]} Concat"]


def test_a_join_along_the_outermost_axis_is_written_in_place() -> None:
    body = """g (float[1,2,8] cache, float[1,5,8] t) => (float[1,7,8] y) {
        n = Neg(t)
        y = Concat<axis = 1>(cache, n)
    }"""
    assert regions(body) == ["Neg", "Concat"]


def test_a_join_of_values_as_they_are_stays_a_copy() -> None:
    body = f"g ({CACHE}, float[2,3,5,8] t) => (float[2,3,12,8] y) {{ y = Concat<axis = 2>(cache, t) }}"
    assert regions(body) == ["Concat"]


def test_what_is_computed_for_others_too_is_not_computed_twice() -> None:
    body = f"""g ({CACHE}, float[2,3,5,8] t) => (float[2,3,12,8] y, float[2,3,5,8] n) {{
        n = Neg(t)
        y = Concat<axis = 2>(cache, n)
    }}"""
    assert regions(body) == ["Neg", "Concat"]


def test_a_small_value_is_not_computed_again_for_every_row() -> None:
    body = """g (float[2,3,5,8] x, float[5,8] angle, float[2,3,5,8] z) => (float[2,3,5,8] y) {
        c = Cos(angle)
        a = Mul(x, z)
        y = Mul(a, c)
    }"""
    assert sorted(regions(body)) == ["Cos", "Mul Mul"]


NORM = """
    axes = Constant<value_ints = [1]>()
    n = ReduceL2<keepdims = 1>(x, axes)
"""


def normed(lines: str, out: str = "float[2,16,3,3] y") -> list[str]:
    return regions(f"g (float[2,16,3,3] x) => ({out}) {{ {NORM} {lines} }}")


def test_a_reduction_is_spread_over_its_own_row() -> None:
    guard = "eps = Constant<value_float = 1.0>()\ng = Clip(n, eps)\n"
    assert normed("y = Div(x, n)") == ["ReduceL2 Div"]
    assert normed(guard + "y = Div(x, g)") == ["ReduceL2 Clip Div"]


def test_a_reduction_is_not_spread_over_other_values() -> None:
    assert normed("r = Relu(x)\ny = Div(r, n)") == ["ReduceL2", "Relu Div"]


def test_a_reduction_that_others_read_is_not_spread() -> None:
    found = normed("y = Div(x, n)", "float[2,16,3,3] y, float[2,1,3,3] n")
    assert found == ["ReduceL2", "Div"]


def test_the_next_reduction_begins_with_the_spreading() -> None:
    lines = "rows = Constant<value_ints = [2]>()\ns = Sub(x, n)\n"
    lines += "m = ReduceSum<keepdims = 1>(s, rows)\ny = Sub(s, m)"
    assert normed(lines) == ["ReduceL2", "Sub ReduceSum", "Sub"]


# an image is rolled along both axes and cut into windows, as shifted-window attention does
ROLLED = """
    zero = Constant<value_ints = [0]>()
    one = Constant<value_ints = [1]>()
    two = Constant<value_ints = [2]>()
    all = Constant<value_ints = [4]>()
    a = Slice({x}, one, all, one)
    b = Slice({x}, zero, one, one)
    c = Concat<axis = 1>(a, b)
    d = Slice(c, one, all, two)
    e = Slice(c, zero, one, two)
    f = Concat<axis = 2>(d, e)
"""


def test_a_roll_along_both_axes_and_its_windows_are_one_copy() -> None:
    windows = "s = Constant<value_ints = [2, 2, 2, 2, 2, 8]>()\nw = Reshape(f, s)\n"
    lines = ROLLED.format(x="x") + windows + "y = Transpose<perm = [0, 1, 3, 2, 4, 5]>(w)"
    assert regions(f"g (float[2,4,4,8] x) => (float[2,2,2,2,2,8] y) {{ {lines} }}") == [
        "Slice Slice Concat Slice Slice Concat Reshape Transpose"
    ]


def test_windows_are_put_together_rolled_and_added_at_once() -> None:
    lines = (
        """t = Transpose<perm = [0, 1, 3, 2, 4, 5]>(x)
        s = Constant<value_ints = [2, 4, 4, 8]>()
        r = Reshape(t, s)"""
        + ROLLED.format(x="r")
        + "y = Add(f, z)"
    )
    assert regions(f"g (float[2,2,2,2,2,8] x, float[2,4,4,8] z) => (float[2,4,4,8] y) {{ {lines} }}") == [
        "Transpose Reshape Slice Slice Concat Slice Slice Concat Add"
    ]


def test_columns_that_become_rows_are_a_copy_of_their_own() -> None:
    lines = "s = Sigmoid(x)\ny = Transpose<perm = [0, 2, 1]>(s)"
    assert regions(f"g (float[2,4,8] x) => (float[2,8,4] y) {{ {lines} }}") == ["Sigmoid", "Transpose"]


SHUFFLE = """
    apart = Constant<value_ints = [1, 2, 4, 5, 5]>()
    whole = Constant<value_ints = [1, 8, 5, 5]>()
    zero = Constant<value_ints = [0]>()
    half = Constant<value_ints = [{half}]>()
    all = Constant<value_ints = [8]>()
    one = Constant<value_ints = [1]>()
    j = Concat<axis = 1>(a, b)
    r = Reshape(j, apart)
    t = Transpose<perm = [0, 2, 1, 3, 4]>(r)
    s = Reshape(t, whole)
"""
PARTS = "left = Slice(s, zero, half, one)\nright = Slice(s, half, all, one)\n"
SHUFFLED = "Concat Reshape Transpose Reshape"


def shuffled(lines: str, out: str, half: int = 4, image: str = "j") -> list[str]:
    inputs = "float[1,4,5,5] a, float[1,4,5,5] b"
    return regions(f"g ({inputs}) => ({out}) {{ {SHUFFLE.format(half=half)} {lines} }}", image=image)


def test_a_shuffle_of_channels_is_one_copy() -> None:
    lines = "y = MatMul(s, s)\nz = MatMul(y, s)"
    assert shuffled(lines, "float[1,8,5,5] z") == [SHUFFLED, "MatMul", "MatMul"]
    assert shuffled("y = MatMul(s, s)", "float[1,8,5,5] y") == [SHUFFLED, "MatMul"]


def test_the_parts_of_shuffled_channels_are_made_together() -> None:
    lines = PARTS + "y = MatMul(right, right)\nk = Concat<axis = 1>(left, y)\nz = MatMul(k, k)"
    found = shuffled(lines, "float[1,8,5,5] z")
    assert found == [f"{SHUFFLED} Slice Slice", "MatMul", "Concat", "MatMul"]
    lines = "left, right = Split<axis = 1, num_outputs = 2>(s)\ny = MatMul(left, right)"
    assert shuffled(lines, "float[1,4,5,5] y") == [f"{SHUFFLED} Split", "MatMul"]


@pytest.mark.parametrize("half", [2, 3])
def test_parts_of_other_sizes_are_cut_alone(half: int) -> None:
    lines = PARTS + "y = MatMul(left, left)\nz = MatMul(right, right)"
    out = f"float[1,{half},5,5] y, float[1,{8 - half},5,5] z"
    assert shuffled(lines, out, half) == [SHUFFLED, "Slice", "Slice", "MatMul", "MatMul"]
