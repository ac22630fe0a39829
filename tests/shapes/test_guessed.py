"""Shapes that nobody gave: the model's own demands decide, and what its file declares is not believed."""

from __future__ import annotations

import numpy as np
import onnx
import onnx_ir as ir
import pytest
from moving_models import close, expected, model_of, rand

import ridgeline
from ridgeline.errors import BuildError, ModelError
from ridgeline.frontend.ports import guessed_shapes, ports
from ridgeline.select import shape_search
from ridgeline.surgery.lint import lint


def test_a_larger_guess_is_better_than_an_empty_value() -> None:
    text = """<ir_version: 9, opset_import: ["" : 20]> g (float[1,T] x) => (float[1,A] y)
    <int64[1] b = {100}, int64[1] e = {9999}, int64[1] a = {1}> { p = Slice(x, b, e, a) y = Relu(p) }"""
    engine = ridgeline.build(onnx.parser.parse_model(text), level=0)
    assert engine.plan.planned_shapes["x"].shape[1] > 100


def test_one_name_for_two_sizes() -> None:
    """Exporters name the axes of all inputs alike: what an axis must be follows from the weights."""
    text = """<ir_version: 9, opset_import: ["" : 20]>
    g (float[batch,height,width] x, int64[batch,height,width] places) => (float[batch,height,8] y) {
      one = Constant<value_int = 1>()
      rows = Gather<axis = 2>(places, one)
      table = Gather(places_table, rows)
      s = Add(x, table)
      y = MatMul(s, w)
    }"""
    model = onnx.parser.parse_model(text)
    rng = np.random.default_rng(0)
    for name, shape in (("places_table", (20, 48)), ("w", (48, 8))):
        array = rng.standard_normal(shape).astype(np.float32)
        model.graph.initializer.append(onnx.numpy_helper.from_array(array, name))
    engine = ridgeline.build(model, level=0)
    assert engine.plan.planned_shapes["x"].shape[2] == 48


@pytest.mark.parametrize(
    ("declared", "body", "dims"),
    [
        ("float[1,N,7]", "a = Relu(x) y = Reshape(a, s)", None),
        ("float[N,5]", "a = Relu(x) y = Reshape(a, s)", ("N", "y.1")),
        ("float[7,4]", "y = Relu(x)", ("y.0", 4)),
        ("int64[1,1,K]", "a = Relu(x) y = NonZero(a)", None),
        ("float[N,4]", "y = Relu(x)", ("N", 4)),
    ],
)
def test_outputs_that_are_declared_wrongly(declared: str, body: str, dims: tuple[str, ...] | None) -> None:
    text = f"""<ir_version: 9, opset_import: ["" : 20]> g (float[N,4] x) => ({declared} y)
    <int64[2] s = {{-1, 2}}> {{ {body} }}"""
    model = onnx.parser.parse_model(text)
    engine = ridgeline.build(model, level=0)
    assert engine.outputs[0].dims == dims
    assert ("declared" in " ".join(engine.report.warnings)) == (declared != "float[N,4]")
    assert not lint(model).errors, "what is built with a warning is no error to lint"


@pytest.mark.parametrize("verify", ["full", "off"])
def test_a_type_that_is_declared_wrongly_is_refused(verify: str) -> None:
    text = """<ir_version: 9, opset_import: ["" : 20]> g (float[N,4] x) => (int64[N,4] y) { y = Relu(x) }"""
    model = onnx.parser.parse_model(text)
    with pytest.raises(ModelError, match=r"declares other outputs(?s:.*)y: declared int64, made float32"):
        ridgeline.build(model, level=0, verify=verify)
    assert lint(model).errors == 1


def test_one_name_for_two_sizes_that_are_given() -> None:
    text = """<ir_version: 9, opset_import: ["" : 20]>
    g (float[unk,unk,unk] x, float[unk,unk] w) => (float[a,b,c] y) { y = MatMul(x, w) }"""
    engine = ridgeline.build(onnx.parser.parse_model(text), level=0, profiles={"x": "1x5x8", "w": "8x3"})
    made = engine.run({"x": np.ones((1, 5, 8), np.float32), "w": np.ones((8, 3), np.float32)})
    assert made["y"].shape == (1, 5, 3)


def test_a_transposed_convolution_that_says_its_shape() -> None:
    """The guess is larger than what comes out."""
    text = """g (float[N,2,H,W] x) => (float[N,3,P,Q] y) {
      y = ConvTranspose<output_shape = [10, 8], strides = [3, 2]>(x, w) }"""
    model = model_of(text, w=rand(2, 3, 3, 3))
    engine = ridgeline.build(model, level=0, threads=1)
    for sizes in ((3, 3), (4, 5)):
        feeds = {"x": rand(2, 2, *sizes)}
        close(engine.run(feeds), expected(model, feeds))


ONE_SIZE = {
    "a row": "g (float[N,T] x, float[T] w) => (float[N,T] y) { y = Add(x, w) }",
    "a product": "g (float[N,T] x, float[T,M] w) => (float[N,M] y) { y = MatMul(x, w) }",
    "a square": "g (float[N,H] x, float[H,N] w) => (float[N,N] y) { y = MatMul(x, w) }",
    "an image": "g (float[N,3,H,H] x, float[H] w) => (float[N,3,H,H] y) { y = Add(x, w) }",
}


@pytest.mark.parametrize("body", ONE_SIZE)
def test_a_name_has_one_size_in_every_guess(body: str) -> None:
    model = model_of(ONE_SIZE[body])
    inputs = ports(ir.from_proto(model).graph.inputs, what="input")
    for guess in guessed_shapes(inputs, {}):
        sizes: dict[str, set[int]] = {}
        for port in inputs:
            for dim, size in zip(port.dims or (), guess[port.name].shape, strict=True):
                sizes.setdefault(str(dim), set()).add(size)
        assert all(len(found) == 1 for found in sizes.values()), guess
    assert max(ridgeline.build(model, level=0, threads=1).plan.planned_shapes["x"].shape) > 1


def test_names_that_no_guess_fits_are_given_up() -> None:
    """What is planned does not contradict the names of the engine's own inputs."""
    text = """g (float[N,D,D] x, float[N,D,D] z) => (float[A,B,C] y) { p = MatMul(x, w) q = MatMul(z, v)
      y = Concat<axis = 2>(p, q) }"""
    engine = ridgeline.build(model_of(text, w=rand(48, 8), v=rand(20, 4)), level=0, threads=1)
    assert [engine.plan.planned_shapes[name].shape[2] for name in "xz"] == [48, 20]
    assert [port.dims for port in engine.inputs] == [("N", "x.1", "x.2"), ("N", "z.1", "z.2")]
    engine.run(engine.example_inputs())


@pytest.mark.parametrize("mode", ["reflect", "edge", "wrap"])
@pytest.mark.parametrize("rows", [1, 3, 40])
def test_borders_that_need_so_many_rows(mode: str, rows: int) -> None:
    """The first axis is guessed to be 1, of which nothing can be reflected."""
    text = f'''g (float[N,W] x) => (float[A,B] y) {{ y = Pad<mode = "{mode}">(x, pads) }}'''
    model = model_of(text, pads=np.array([rows, 0, rows, 0]))
    engine = ridgeline.build(model, level=0, threads=1, verify="fast")
    feeds = {"x": rand(rows + 2, 3)}
    close(engine.run(feeds), expected(model, feeds))


def test_a_search_that_takes_too_long_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shape_search, "MOST_SECONDS", 0.0)
    text = """g (float[N,D,D] x, float[N,D,D] z) => (float[A,B,C] y) { p = MatMul(x, w) q = MatMul(z, v)
      y = Concat<axis = 2>(p, q) }"""
    with pytest.raises(BuildError, match="search was stopped"):
        ridgeline.build(model_of(text, w=rand(48, 8), v=rand(20, 4)), level=0, threads=1)
