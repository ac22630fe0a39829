"""What loading makes of a model that is right, and what it leaves alone."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import onnxruntime as ort
import pytest

import ridgeline
from ridgeline.base.spec import Target
from ridgeline.errors import InputError
from ridgeline.frontend.from_onnx import load
from ridgeline.passes.pipeline import canonicalise

# both branches call their constant the same
TWICE = """<ir_version: 9, opset_import: ["" : 21]> g (float[4] x, bool b) => (float[4] y) {{
  y = If(b) <
    then_branch = t () => (float[4] p) <{kind} k = {{{value}}}> {{ v = Cast<to = 1>(k) p = Add(x, v) }},
    else_branch = e () => (float[4] q) <{kind} k = {{{value}}}> {{ v = Cast<to = 1>(k) q = Sub(x, v) }}
  >
}}"""


@pytest.mark.parametrize(("kind", "value"), [("float", "2.5"), ("string", '"2.5"'), ("int4", "3")])
def test_the_original_stays_as_it_came(kind: str, value: str) -> None:
    original = onnx.parser.parse_model(TWICE.format(kind=kind, value=value))
    before = original.SerializeToString(deterministic=True)
    loaded = load(original)
    canonicalise(loaded.model, target=Target("cpu", "x86_64", 1))
    assert loaded.original.SerializeToString(deterministic=True) == before


def test_constants_of_one_name_in_two_bodies_build() -> None:
    engine = ridgeline.build(onnx.parser.parse_model(TWICE.format(kind="float", value="2.5")), level=0)
    assert engine.report.reference.startswith("onnxruntime")


ML = '<ir_version: 9, opset_import: ["" : 20, "ai.onnx.ml" : 3]>'
CLASSES = 'classlabels_strings = ["a", "b"]'
CLASSIFIER = f"""{ML} g (float[N,3] x) => (string[N] label, seq(map(string, float)) p) {{
  s = ai.onnx.ml.Scaler<offset = [0.5, 0.5, 0.5], scale = [2.0, 1.0, 0.5]>(x)
  label, scores = ai.onnx.ml.LinearClassifier<
    coefficients = [1.0, 2.0, -1.0, 0.5, -2.0, 1.0], intercepts = [0.1, -0.1], post_transform = "SOFTMAX",
    {CLASSES}>(s)
  p = ai.onnx.ml.ZipMap<{CLASSES}>(scores)
}}"""
WORDS = f"""{ML} g (map(string, float) m) => (float[1,2] y) {{
  v = ai.onnx.ml.DictVectorizer<string_vocabulary = ["a", "b"]>(m)
  y = Neg(v)
}}"""


def test_a_sequence_of_maps_goes_out(tmp_path: Path) -> None:
    model = onnx.parser.parse_model(CLASSIFIER)
    engine = ridgeline.build(model, level=0)
    assert engine.report.verified
    x = np.random.default_rng(0).standard_normal((4, 3), np.float32)
    label, maps = ort.InferenceSession(model.SerializeToString()).run(None, {"x": x})
    again = ridgeline.load(engine.save(tmp_path / "classifier.ridge"))
    for made in (engine.run({"x": x}), again.run({"x": x})):
        assert list(made["label"]) == list(label)
        for got, want in zip(made["p"], maps, strict=True):
            assert got == pytest.approx(want)


def test_a_map_goes_in() -> None:
    engine = ridgeline.build(onnx.parser.parse_model(WORDS), level=0)
    np.testing.assert_array_equal(engine.run({"m": {"b": 2.0}})["y"], [[0.0, -2.0]])


SCALED = """<ir_version: {ir}, opset_import: ["" : 20]>
g (float[N,4] x, float[4,2] w = {{1,2,3,4,5,6,7,8}}, float[2] b = {{1,-1}}) => (float[N,M] y) {{
  p = MatMul(x, w)
  y = Add(p, b)
}}"""


def test_an_initializer_that_is_an_input_is_a_default(tmp_path: Path) -> None:
    model = onnx.parser.parse_model(SCALED.format(ir=9))
    engine = ridgeline.build(model, level=0)
    assert engine.report.verified
    assert [port.name for port in engine.inputs] == ["x", "w", "b"]
    session = ort.InferenceSession(model.SerializeToString())
    again = ridgeline.load(engine.save(tmp_path / "scaled.ridge"))
    x, other = np.ones((3, 4), np.float32), np.full((2,), 7, np.float32)
    for feeds in ({"x": x}, {"x": x, "b": other}, {"x": x}, {"x": x, "w": -np.ones((4, 2), np.float32)}):
        want = session.run(None, feeds)[0]
        for each in (engine, again):
            np.testing.assert_allclose(each.run(feeds)["y"], want, rtol=1e-6)
    with pytest.raises(InputError, match="'x' is missing"):
        engine.run({"b": other})


def test_a_target_shape_can_be_a_default() -> None:
    model = onnx.parser.parse_model("""<ir_version: 9, opset_import: ["" : 20]>
    g (float[4,3] x, int64[2] s = {2, 6}) => (float[A,B] y) { a = Relu(x) y = Reshape(a, s) }""")
    engine = ridgeline.build(model, level=0)
    x = np.ones((4, 3), np.float32)
    assert engine.run({"x": x})["y"].shape == (2, 6)
    assert engine.run({"x": x, "s": np.array([3, -1])})["y"].shape == (3, 4)


def shifted(declared: str, handed_out: str = "") -> onnx.ModelProto:
    """With a default of four numbers for the input `c`."""
    model = onnx.parser.parse_model(f"""<ir_version: 9, opset_import: ["" : 20]>
    g (float[N,4] x, {declared} c) => (float[N,4] y{handed_out}) {{ y = Add(x, c) }}""")
    default = np.array([1, 2, 3, 4], np.float32)
    model.graph.initializer.append(onnx.numpy_helper.from_array(default, "c"))
    return model


@pytest.mark.parametrize("declared", ["float[4]", "float[K]"])
@pytest.mark.parametrize("handed_out", ["", ", float[4] c", ", float[K] c", ", float[7] c"])
def test_a_default_is_planned_at_its_own_size(declared: str, handed_out: str) -> None:
    engine = ridgeline.build(shifted(declared, handed_out), level=0, threads=1)
    x, other = np.ones((2, 4), np.float32), np.array([5, 6, 7, 8], np.float32)
    for c in (np.array([1, 2, 3, 4], np.float32), other):
        made = engine.run({"x": x} if c is not other else {"x": x, "c": c})
        np.testing.assert_array_equal(made["y"], x + c)
        assert not handed_out or np.array_equal(made["c"], c)


def test_a_profile_may_give_a_default_another_size() -> None:
    profile = {"x": "1..8x4", "c": "1"}
    engine = ridgeline.build(shifted("float[K]"), level=0, threads=1, profiles=profile)
    x, c = np.ones((2, 4), np.float32), np.array([3], np.float32)
    np.testing.assert_array_equal(engine.run({"x": x, "c": c})["y"], x + c)


@pytest.mark.parametrize("opset", [20, 23])
@pytest.mark.parametrize("without", [["y"], ["x", "y"]])
def test_ports_need_no_shape(opset: int, without: list[str], tmp_path: Path) -> None:
    model = onnx.parser.parse_model(f"""<ir_version: 9, opset_import: ["" : {opset}]>
    g (float[N,4] x) => (float[N,4] y) {{ a = Relu(x) y = Neg(a) }}""")
    for port in (*model.graph.input, *model.graph.output):
        if port.name in without:
            port.type.tensor_type.ClearField("shape")
    engine = ridgeline.build(model, level=0, threads=1, profiles={"x": "1..8x4"})
    assert engine.report.verified
    again = ridgeline.load(engine.save(tmp_path / "free.ridge"))
    x = np.array([[-1, 0, 1, 2], [3, 4, 5, -6]], np.float32)
    for each in (engine, again):
        np.testing.assert_array_equal(each.run({"x": x})["y"], -np.maximum(x, 0))


def test_old_files_list_every_weight_as_an_input() -> None:
    """They had to before version 4: these are constants, and no runtime takes others."""
    assert [v.name for v in load(onnx.parser.parse_model(SCALED.format(ir=3))).model.graph.inputs] == ["x"]


def test_a_dim_of_minus_one_is_open() -> None:
    """As a size it would be folded into the target of the Reshape, beside the -1 that stands there."""
    text = """<ir_version: 9, opset_import: ["" : 12]> g (float[N,4,H] x) => (float[A,B] y) <int64[1] b = {0},
    int64[1] e = {1}, int64[1] rest = {-1}> {
      a = Relu(x)  s = Shape(a)  n = Slice(s, b, e)  t = Concat<axis = 0>(n, rest)  y = Reshape(a, t)
    }"""
    model = onnx.parser.parse_model(text)
    info = model.graph.value_info.add()
    info.CopyFrom(model.graph.input[0])
    info.name = "a"
    for port in (model.graph.input[0], info):
        for axis in (0, 2):
            port.type.tensor_type.shape.dim[axis].dim_value = -1
    engine = ridgeline.build(model, level=0)
    assert engine.inputs[0].dims == ("x.0", 4, "x.2")
    assert engine.run({"x": np.ones((3, 4, 5), np.float32)})["y"].shape == (3, 20)
