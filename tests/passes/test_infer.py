"""Settling: concrete shapes everywhere, shape arithmetic evaluated, data-dependent shapes left loose."""

from __future__ import annotations

import numpy as np
import onnx_ir as ir
import pytest

from ridgeline.base.spec import TensorSpec
from ridgeline.errors import InputError
from ridgeline.ir.body import Program, read_program
from ridgeline.ir.infer import Inferred, infer


def program_of(text: str) -> Program:
    return read_program(ir.from_onnx_text(text))


def inferred(text: str, **shapes: tuple[int, ...]) -> tuple[Program, Inferred]:
    program = program_of(text)
    model = ir.from_onnx_text(text)
    weights = {str(n): v.const_value.numpy() for n, v in model.graph.initializers.items()}
    specs = {n: TensorSpec(str(a.dtype), a.shape) for n, a in weights.items()}
    inputs = {n: TensorSpec("float32", s) for n, s in shapes.items()}
    return program, infer(program, inputs, specs, weights)


FLATTEN = """<ir_version: 10, opset_import: ["": 23]>
g (float[N,C,H,W] x) => (float[N,M] y) <int64[1] zero = {0}, int64[1] minus = {-1}> {
  s = Shape(x)
  n = Gather(s, zero)
  t = Concat <axis = 0> (n, minus)
  y = Reshape(x, t)
}"""


def test_shape_arithmetic_is_evaluated() -> None:
    program, state = inferred(FLATTEN, x=(2, 3, 4, 5))
    assert state.specs["y"] == TensorSpec("float32", (2, 60))
    np.testing.assert_array_equal(state.values["t"], [2, -1])
    host = [region.function for region in program.regions if state.is_host(region)]
    assert host == ["Shape", "Gather", "Concat"]


def test_other_shapes_settle_anew() -> None:
    _, state = inferred(FLATTEN, x=(7, 1, 1, 2))
    assert state.specs["y"].shape == (7, 2)


def test_data_dependent_shapes_stay_loose() -> None:
    text = """<ir_version: 10, opset_import: ["": 23]> g (float[4] x) => (int64[1,K] y, float[4] z) {
      y = NonZero(x)
      z = Relu(x)
    }"""
    program, state = inferred(text, x=(4,))
    assert [state.is_non_tensor(region) for region in program.regions] == [True, False]
    assert "y" not in state.specs


IF = """<ir_version: 10, opset_import: ["": 23]> g (bool c, float[2,3] x) => (float[A,B] y) {
  y = If (c) <
    then_branch = t () => (float[A,B] a) { a = Relu(x) },
    else_branch = e () => (float[A,B] b) { b = %s }
  >
}"""


def test_branches_that_agree_settle() -> None:
    program = program_of(IF % "Neg(x)")
    inputs = {"c": TensorSpec("bool", ()), "x": TensorSpec("float32", (2, 3))}
    assert infer(program, inputs, {}, {}).specs["y"].shape == (2, 3)


def test_branches_that_differ_stay_loose() -> None:
    program = program_of(IF % "Transpose(x)")
    inputs = {"c": TensorSpec("bool", ()), "x": TensorSpec("float32", (2, 3))}
    assert "y" not in infer(program, inputs, {}, {}).specs


def test_captured_values_are_inputs_of_the_region() -> None:
    assert program_of(IF % "Neg(x)").regions[0].inputs == ("c", "x")


def test_shapes_the_model_cannot_take() -> None:
    text = """<ir_version: 10, opset_import: ["": 23]> g (float[N,K] x, float[K2,M] w) => (float[N,M] y) {
      y = MatMul(x, w)
    }"""
    with pytest.raises(InputError, match="the shapes do not fit at"):
        inferred(text, x=(2, 3), w=(4, 5))


@pytest.mark.parametrize(("a", "b", "want"), [(7, 2, 3), (-7, 2, -3), (7, -2, -3)])
def test_integers_divide_toward_zero(a: int, b: int, want: int) -> None:
    text = f"""<ir_version: 10, opset_import: ["": 23]> g (float[1] x) => (int64[1] y)
      <int64[1] a = {{{a}}}, int64[1] b = {{{b}}}> {{ y = Div(a, b) }}"""
    assert inferred(text, x=(1,))[1].values["y"] == want


def test_float_attributes_read_as_they_will_be_written() -> None:
    model = ir.from_onnx_text(
        '<ir_version: 10, opset_import: ["": 23]> g (float[4] x) => (float[4] y) { y = LeakyRelu(x) }'
    )
    model.graph.node(0).attributes["alpha"] = ir.AttrFloat32("alpha", 0.12499999572143228)
    again = ir.from_proto(ir.to_proto(model))
    assert read_program(model).regions[0].body.digest == read_program(again).regions[0].body.digest


def test_a_group_norm_is_made_like_its_input() -> None:
    text = """<ir_version: 10, opset_import: ["": 23]>
    g (float[N,8,H,W] x, float[8] w, float[8] b) => (float[N,8,H,W] y) {
      n = GroupNormalization <num_groups = 2> (x, w, b)
      y = Relu(n)
    }"""
    _, state = inferred(text, x=(2, 8, 3, 5), w=(8,), b=(8,))
    assert state.specs["n"] == state.specs["y"] == TensorSpec("float32", (2, 8, 3, 5))


@pytest.mark.parametrize(
    ("call", "bins"),
    [("STFT(x, hop, window)", 9), ("STFT<onesided = 0>(x, hop, window)", 16), ("STFT(x, hop, , n)", 7)],
)
def test_a_spectrum_has_half_its_bins_unless_both_sides_are_asked_for(call: str, bins: int) -> None:
    text = f"""<ir_version: 10, opset_import: ["": 23]>
    g (float[1,N,1] x, float[16] window) => (float[B,T,F,2] y) <int64 hop = {{4}}, int64 n = {{12}}> {{
      y = {call}
    }}"""
    _, state = inferred(text, x=(1, 64, 1), window=(16,))
    frames = 1 + (64 - (12 if bins == 7 else 16)) // 4
    assert state.specs["y"] == TensorSpec("float32", (1, frames, bins, 2))


def test_a_spectrum_of_a_signal_too_short_is_not_settled() -> None:
    text = """<ir_version: 10, opset_import: ["": 23]>
    g (float[1,N,1] x, float[16] window) => (float[B,T,F,2] y) <int64 hop = {4}> {
      y = STFT(x, hop, window)
    }"""
    _, state = inferred(text, x=(1, 8, 1), window=(16,))
    assert "y" not in state.specs


def test_a_window_larger_than_its_image_is_a_misfit() -> None:
    text = """<ir_version: 10, opset_import: ["": 23]>
    g (float[1,1,N,N] x, float[1,1,9,9] w) => (float[A,B,C,D] y) { y = Conv(x, w) }"""
    with pytest.raises(InputError, match="do not fit at y"):
        inferred(text, x=(1, 1, 4, 4), w=(1, 1, 9, 9))


@pytest.mark.parametrize("shape", [(0, 2, 6), (4, 0, 6)])
def test_a_recurrent_cell_has_rows_to_compute(shape: tuple[int, ...]) -> None:
    text = """<ir_version: 10, opset_import: ["": 23]>
    g (float[T,B,6] x, float[1,9,6] w, float[1,9,3] r) => (float[T,1,B,3] y) {
      y = GRU<hidden_size = 3>(x, w, r)
    }"""
    with pytest.raises(InputError, match="do not fit at y"):
        inferred(text, x=shape, w=(1, 9, 6), r=(1, 9, 3))


@pytest.mark.parametrize("size", [4, 5, 9, 64])
def test_a_transposed_convolution_has_the_shape_it_asks_for(size: int) -> None:
    """ONNX's inference leaves the sizes out where that is less than the input has."""
    text = """<ir_version: 10, opset_import: ["": 21]> g (float[N,1,H] x) => (float[N,2,K] y)
      <float[1,2,3] w = {1, 2, 3, 4, 5, 6}> { y = ConvTranspose<output_shape = [8], strides = [2]>(x, w) }"""
    _, state = inferred(text, x=(3, 1, size))
    assert state.specs["y"].shape == (3, 2, 8)
    with pytest.raises(InputError, match="ConvTranspose"):
        inferred(text, x=(3, 2, size))
