"""Padding op by op: the axis that each rule carries along, checked with numbers, and what it forbids."""

from __future__ import annotations

import numpy as np
import onnx_ir as ir
import pytest
from text_graphs import parse, run

from ridgeline.base.spec import TensorSpec
from ridgeline.ir.body import read_program
from ridgeline.ir.infer import infer
from ridgeline.passes.padding import padded_axes
from ridgeline.passes.padding_rules import Forbidden

REAL, PADDED = 3, 5
NUMBERS = {
    "zero": [0], "one": [1], "two": [2], "end": [2**31], "back": [-1], "begin": [-(2**31)],
    "some": [0, 2], "rows": [0, -1], "heads": [0, 2, 4], "sizes": [3, 5], "pads": [0, 1, 0, 2],
    "twice": [1, 2], "three": [4, 1, 1], "down": [-1, 0, 1, 0], "eights": [-1, 8],
}  # fmt: skip


def model_of(lines: str, outputs: str = "float[A,B] y") -> ir.Model:
    """x is [N, 8], w [8, 8], b [8], image [N, 4, 5, 5]; what is not used is dropped."""
    inputs = {
        "x": "float[N,8]",
        "w": "float[8,8]",
        "b": "float[8]",
        "image": "float[N,4,5,5]",
        "k": "float[6,4,3,3]",
    }
    known = " ".join(
        f"{name} = Constant<value = int64[{len(ns)}] {{{', '.join(map(str, ns))}}}>()"
        for name, ns in NUMBERS.items() if any(f"{p}{name}{q}" in lines for p in " (" for q in ",)")
    )  # fmt: skip
    ports = ", ".join(
        f"{kind} {name}"
        for name, kind in inputs.items()
        if any(f"{p}{name}{q}" in lines for p in " (" for q in ",)")
    )
    return parse(f"g ({ports}) => ({outputs}) {{ {known} {lines} }}")


def feeds_of(model: ir.Model, rows: int) -> dict[str, np.ndarray]:
    """Inputs of so many rows; those past the real ones repeat the last."""
    rng, feeds = np.random.default_rng(3), {}
    for value in model.graph.inputs:
        shape = [REAL if not isinstance(dim, int) else dim for dim in value.shape]
        array = rng.standard_normal(shape).astype(np.float32)
        is_padded = not isinstance(value.shape[0], int)
        more = np.repeat(array[-1:], rows - REAL, axis=0) if is_padded else array[:0]
        feeds[str(value.name)] = np.concatenate([array, more])
    return feeds


def axes_of(model: ir.Model) -> dict[str, int | None]:
    program = read_program(model)
    states = [
        infer(
            program, {n: TensorSpec(str(a.dtype), a.shape) for n, a in feeds_of(model, rows).items()}, {}, {}
        )
        for rows in (REAL, PADDED)
    ]
    return padded_axes(program, *states)


CARRIED = {
    "pointwise": ("a = Add(x, b) y = Relu(a)", 0),
    "product": ("y = MatMul(x, w)", 0),
    "gemm": ("y = Gemm(x, w, b)", 0),
    "normalised": ("y = LayerNormalization<axis = -1>(x, b)", 0),
    "softmax": ("y = Softmax<axis = 1>(x)", 0),
    "turned": ("y = Transpose(x)", 1),
    "turned back": ("t = Transpose(x) s = Neg(t) y = Transpose<perm = [1, 0]>(s)", 0),
    "reshaped": ("r = Reshape(x, heads) y = Reshape(r, rows)", 0),
    "columns": ("y = Slice(x, one, end, one)", 0),
    "columns in reverse": ("y = Slice(x, back, begin, one, back)", 0),
    "all rows": ("y = Slice(x, zero, end, zero)", 0),
    "joined columns": ("n = Neg(x) y = Concat<axis = 1>(x, n)", 0),
    "parts": ("a, y = Split<axis = 1>(x, sizes)", 0),
    "more columns": ("y = Pad(x, pads)", 0),
    "columns twice": ("y = Tile(x, twice)", 0),
    "chosen columns": ("y = Gather<axis = 1>(x, some)", 0),
    "a new first axis": (
        "u = Unsqueeze(x, zero) e = Expand(u, three) y = ReduceMax<keepdims = 0>(e, zero)",
        0,
    ),
    "rows that are real": ("y = Gather<axis = 0>(x, some)", None),
    "convolved": ("c = Conv(image, k) y = Reshape(c, rows)", 0),
    "reduced over columns": (
        "t = Transpose(x) m = ReduceMean<keepdims = 0>(t, zero) y = Unsqueeze(m, one)",
        0,
    ),
}


@pytest.mark.parametrize("name", CARRIED)
def test_real_rows_do_not_see_the_padding(name: str) -> None:
    lines, axis = CARRIED[name]
    model = model_of(lines)
    assert axes_of(model) == {"y": axis}
    real, padded = (run(model, feeds_of(model, rows))[0] for rows in (REAL, PADDED))
    cut = padded if axis is None else np.take(padded, range(real.shape[axis]), axis)
    np.testing.assert_array_equal(cut, real)


FORBIDDEN = {
    "it sums over the padded axis": "t = Transpose(x) y = MatMul(t, x)",
    "operands are padded along different axes": "t = Transpose(x) u = Unsqueeze(t, zero) "
    "v = Unsqueeze(x, two) a = Add(u, v) y = Reshape(a, rows)",
    "it normalises over the padded axis": "y = LayerNormalization<axis = 0>(x, b)",
    "it looks along the padded axis": "y = Softmax<axis = 0>(x)",
    "it reduces over the padded axis": "m = ReduceSum(x, zero) y = Neg(m)",
    "padding would come to lie between its parts": "y = Concat<axis = 0>(x, x)",
    "padding would come to lie between rows": "t = Transpose(x) y = Reshape(t, eights)",
    "it takes a part of the padded axis": "y = Slice(x, zero, two, zero)",
    "it goes backwards": "y = Slice(x, back, begin, zero, back)",
    "it moves rows along the padded axis": "y = Pad(x, down)",
    "it may pick padded rows": "y = Gather<axis = 0>(x, back)",
    "it reads neighbours along axis": "t = Transpose<perm = [1, 0, 2, 3]>(image) "
    "c = MaxPool<kernel_shape = [2, 2]>(t) y = Reshape(c, rows)",
    "there is no rule that keeps its rows apart": "y = Trilu(x)",
    "operand 1 would be padded": "t = Transpose(x) y = LayerNormalization<axis = -1>(t, t)",
}


@pytest.mark.parametrize("reason", FORBIDDEN)
def test_what_would_mix_rows_is_named(reason: str) -> None:
    with pytest.raises(Forbidden, match=reason):
        axes_of(model_of(FORBIDDEN[reason]))


def test_an_inner_value_may_be_an_output_too() -> None:
    model = model_of("t = Transpose(x) y = Relu(t)", "float[A,B] y, float[C,D] t")
    assert axes_of(model) == {"y": 1, "t": 1}
