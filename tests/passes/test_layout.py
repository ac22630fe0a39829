"""Which values lie channels last: between convolutions, and what is computed for convolutions alone."""

from __future__ import annotations

import onnx_ir as ir
import pytest

from ridgeline.base.spec import TensorSpec
from ridgeline.ir.body import read_program
from ridgeline.ir.infer import infer
from ridgeline.ir.layout import assign_layouts


def last(lines: str, outputs: str = "float[1,16,4,4] y", channels: int = 16) -> set[str]:
    """The values that lie channels last; x lies as the user gives it."""
    inputs = f"float[1,{channels},4,4] x, float[16,{channels},3,3] w"
    head = f'<ir_version: 10, opset_import: ["": 23]>\ng ({inputs}) => ({outputs})'
    program = read_program(ir.from_onnx_text(f"{head} {{ {lines} }}"))
    shapes = {"x": (1, channels, 4, 4), "w": (16, channels, 3, 3)}
    state = infer(program, {n: TensorSpec("float32", s) for n, s in shapes.items()}, {}, {})
    assign_layouts(program, state)
    return {name for name, spec in state.specs.items() if spec.layout == "channels_last"}


CONV = "c = Conv<pads = [1, 1, 1, 1]>(s, w)\ny = Relu(c)\n"


def test_what_is_computed_for_a_convolution_is_written_as_it_wants_it() -> None:
    assert last("s = Sigmoid(x)\n" + CONV) == {"s", "c"}


def test_what_is_added_behind_the_convolution_is_read_as_that_wants_it() -> None:
    block = "c = Conv<pads = [1, 1, 1, 1]>(s, w)\nd = Add(c, s)\ny = Relu(d)\n"
    assert last("s = Sigmoid(x)\n" + block) >= {"c", "d"}


def test_what_others_read_too_lies_as_it_was_made() -> None:
    lines = "s = Sigmoid(x)\n" + CONV + "z = MatMul(s, s)"
    assert last(lines, "float[1,16,4,4] y, float[1,16,4,4] z") == {"c"}


def test_an_output_of_the_model_lies_as_users_expect() -> None:
    assert last("s = Sigmoid(x)\n" + CONV, "float[1,16,4,4] y, float[1,16,4,4] s") == {"c"}


def test_few_channels_lie_as_they_were_made() -> None:
    assert last("s = Sigmoid(x)\n" + CONV, channels=3) == {"c"}


def test_a_move_lies_as_it_was_made() -> None:
    pad = "pads = Constant<value_ints = [0, 0, 1, 1, 0, 0, 1, 1]>()\ns = Pad(x, pads)\n"
    assert last(pad + "c = Conv(s, w)\ny = Relu(c)") == {"c"}


ROWS = """t = Transpose<perm = [0, 2, 3, 1]>(x)
n = Sigmoid(t)
s = Transpose<perm = [0, 3, 1, 2]>(n)
"""


def test_rows_of_channels_become_an_image_without_a_move() -> None:
    assert last(ROWS + CONV) == {"s", "c"}
    # what no convolution has to do with lies as it was made
    assert last(ROWS + "y = Relu(s)") == set()


def test_what_is_added_to_such_an_image_lies_as_it_does() -> None:
    block = """d = Conv<pads = [1, 1, 1, 1]>(s, w)
r = Transpose<perm = [0, 2, 3, 1]>(d)
m = MatMul(r, v)
b = Transpose<perm = [0, 3, 1, 2]>(m)
a = Add(s, b)
c = Conv(a, w)
y = Relu(c)
"""
    v = "v = ConstantOfShape(size)\n"
    size = "size = Constant<value_ints = [16, 16]>()\n"
    assert last(size + v + ROWS + block) == {"s", "d", "b", "a", "c"}


SHUFFLE = """<ir_version: 10, opset_import: ["": 23, "ridgeline": 1]>
g (float[1,16,4,4] x, float[16,16,3,3] w) => (float[1,16,4,4] y, float[1,16,4,4] z, float[1,256] t) {{
    c = Conv<pads = [1, 1, 1, 1]>(x, w)
    apart = Constant<value_ints = [1, 2, 8, 4, 4]>()
    whole = Constant<value_ints = [1, 16, 4, 4]>()
    all = Constant<value_ints = [1, 256]>()
    s = ridgeline.shuffle(c, apart, whole)
    f = ridgeline.flat({flattened}, all)
    d = Conv<pads = [1, 1, 1, 1]>(s, w)
    y = Relu(d)
    z = Neg(d)
    t = Neg(f)
}}
<domain: "ridgeline", opset_import: ["": 23]> shuffle (c, apart, whole) => (s) {{
    r = Reshape(c, apart)
    t = Transpose<perm = [0, 2, 1, 3, 4]>(r)
    s = Reshape(t, whole)
}}
<domain: "ridgeline", opset_import: ["": 23]> flat (c, all) => (t) {{
    r = Reshape(c, all)
    t = Relu(r)
}}
"""


@pytest.mark.parametrize("flattened", ["s", "c"])
def test_moved_channels_lie_last_again_and_flat_rows_as_they_are(flattened: str) -> None:
    program = read_program(ir.from_onnx_text(SHUFFLE.format(flattened=flattened)))
    shapes = {"x": (1, 16, 4, 4), "w": (16, 16, 3, 3)}
    state = infer(program, {n: TensorSpec("float32", s) for n, s in shapes.items()}, {}, {})
    assign_layouts(program, state)
    outer = {name for region in program.regions for name in region.outputs}
    assert {name for name in outer if state.specs[name].layout == "channels_last"} == {"c", "s", "d"}
