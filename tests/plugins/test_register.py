"""An op from outside: registered, inferred with symbols, verified, saved, and missed where it is not."""

from __future__ import annotations

import json
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
import torch
from onnx import parser, shape_inference
from plugin_models import ACME, HAAR, WAVELET, haar, haar_shapes, register_haar, wavelet

import ridgeline
from ridgeline.cli.main import main
from ridgeline.errors import InputError, ModelError, PluginError, UnsupportedError, VerifyError
from ridgeline.passes.rule import Change, Fusion
from ridgeline.plugins import CATALOG, Plugin, Schema, Spec, register_op, unregister

X = np.random.default_rng(0).standard_normal((2, 64), np.float32)


def expected(scale: float = 0.25) -> np.ndarray:
    low, high = haar(torch.from_numpy(X), scale=scale)
    return (low * high).numpy()


def build(model: Any, **options: Any) -> ridgeline.Engine:
    return ridgeline.build(model, **{"level": 0, "threads": 1, "profiles": {"x": (2, 64)}} | options)


def test_an_op_that_nobody_knows_is_refused_and_says_what_would_help() -> None:
    with pytest.raises(UnsupportedError, match=r"(?s)acme\.dsp::Haar.*plugin"):
        build(wavelet())


def test_a_reference_alone_is_a_whole_plugin() -> None:
    register_haar()
    engine = build(wavelet())
    np.testing.assert_allclose(engine.run({"x": X})["y"], expected(), rtol=1e-6)
    assert engine.report.checks
    assert engine.plan.steps[0].tactic == "aten"


def test_a_reference_in_numpy_sees_arrays() -> None:
    def in_numpy(x: np.ndarray, *, scale: float) -> list[np.ndarray]:
        assert isinstance(x, np.ndarray)
        return [(x[..., 0::2] + x[..., 1::2]) * scale, (x[..., 0::2] - x[..., 1::2]) * scale]

    register_haar(reference=in_numpy, arrays="numpy")
    np.testing.assert_allclose(build(wavelet()).run({"x": X})["y"], expected(), rtol=1e-6)


def test_symbols_go_through_the_shape_function() -> None:
    register_haar()
    model = wavelet(WAVELET.replace("float[N, 64]", "float[N, L]").replace("float[N, 32]", "float[N, M]"))
    found = {v.name: v for v in shape_inference.infer_shapes(model).graph.value_info}
    dims = [dim.dim_param for dim in found["low"].type.tensor_type.shape.dim]
    assert dims == ["N", "floor(L/2)"]


def test_defaults_are_filled_in_and_a_new_shape_runs() -> None:
    register_haar()
    engine = build(wavelet(WAVELET.replace("<scale = 0.25>", "")), profiles={"x": ((1, 2, 4), 64)})
    np.testing.assert_allclose(engine.run({"x": X})["y"], expected(0.5), rtol=1e-6)
    assert engine.run({"x": X[:1]})["y"].shape == (1, 32)


def test_a_shape_function_that_raises_is_told_with_the_node() -> None:
    def strict(x: Spec, *, scale: float) -> tuple[Spec, Spec]:
        if x.shape[-1] % 128:
            raise ValueError("length is no multiple of 128")
        return haar_shapes(x, scale=scale)

    register_haar(shapes=strict)
    with pytest.raises(InputError, match=r"(?s)Haar.*multiple of 128"):
        build(wavelet())


@pytest.mark.parametrize(
    ("attribute", "said"),
    [("scale = 1", "Mismatched attribute type"), ("scale = 0.5, level = 3", "Unrecognized attribute")],
)
def test_attributes_of_a_model_are_checked(attribute: str, said: str) -> None:
    register_haar()
    with pytest.raises(ModelError, match=said):
        build(wavelet(WAVELET.replace("scale = 0.25", attribute)))


def test_a_required_attribute_must_be_there() -> None:
    register_haar(schema=Schema(HAAR.key, HAAR.inputs, HAAR.outputs, {"scale": float}, HAAR.types))
    with pytest.raises(ModelError, match="Required attribute 'scale' is missing"):
        build(wavelet(WAVELET.replace("<scale = 0.25>", "")))


def test_every_kind_of_attribute_and_input_arrives() -> None:
    seen: dict[str, Any] = {}

    def mix(x: torch.Tensor, bias: torch.Tensor | None, *more: torch.Tensor, **attrs: Any) -> torch.Tensor:
        seen.update(attrs)
        assert bias is None
        return x + sum(more)

    def like(x: Spec, bias: Spec | None, *more: Spec, **attrs: Any) -> Spec:
        return x

    ports = {"x": "T", "bias?": "T", "more*": "T"}
    table = np.arange(2, dtype=np.float32)
    attributes = {"n": int, "sizes": [1, 2], "word": "a", "gains": (0.5,), "deep": True, "names": list[str]}
    attributes["table"] = table
    register_op(
        Schema("acme::Mix", ports, {"y": "T"}, attributes, {"T": ["float32"]}),
        shapes=like, reference=mix,
    )  # fmt: skip
    model = parser.parse_model(
        '<ir_version: 10, opset_import: ["": 18, "acme": 1]> g (float[4] x, float[4] z) => (float[4] y) {'
        ' y = acme.Mix <n = 3, deep = 0, sizes = [7], names = ["p", "q"]> (x, , z, z) }'
    )
    x = np.arange(4, dtype=np.float32)
    engine = ridgeline.build(model, level=0, threads=1)
    np.testing.assert_array_equal(engine.run({"x": x, "z": x})["y"], 3 * x)
    assert seen.pop("table") is table
    assert seen == {"n": 3, "sizes": (7,), "word": "a", "gains": (0.5,), "deep": False, "names": ("p", "q")}


def test_an_op_inside_control_flow_runs() -> None:
    register_haar()
    model = wavelet("""
<ir_version: 10, opset_import: ["": 18, "acme.dsp": 1]>
branch (float[N, 64] x, bool flag) => (float[N, 32] y) {
    y = If (flag) <
        then_branch = a () => (float[N, 32] p) { p, q = acme.dsp.Haar (x) },
        else_branch = b () => (float[N, 32] s) { r, s = acme.dsp.Haar (x) }
    >
}
""")
    engine = build(model)
    low, high = haar(torch.from_numpy(X), scale=0.5)
    np.testing.assert_allclose(engine.run({"x": X, "flag": np.array(True)})["y"], low.numpy(), rtol=1e-6)
    np.testing.assert_allclose(engine.run({"x": X, "flag": np.array(False)})["y"], high.numpy(), rtol=1e-6)


def test_an_old_opset_is_converted_around_the_op() -> None:
    register_haar()
    engine = build(wavelet(WAVELET.replace('"": 18', '"": 11')))
    np.testing.assert_allclose(engine.run({"x": X})["y"], expected(), rtol=1e-6)


def test_a_bad_schema_lists_everything_that_is_wrong() -> None:
    wrong = Schema("Haar", {"more*": "T", "x": "float33"}, {}, {"a": {}, "b c": 1}, {"T": ()}, version=0)
    with pytest.raises(PluginError) as caught:
        register_op(wrong, shapes=haar_shapes, reference=None)  # type: ignore[arg-type]
    text = "\n".join(caught.value.rows)
    for part in (
        "domain::OpType",
        "version",
        "no outputs",
        "not the last",
        "float33",
        "'a'",
        "'b c'",
        "shapes",
    ):
        assert part in text, part


@pytest.mark.parametrize(
    "key", ["acme::Relu", "ai.onnx::Haar", "ridgeline::Haar", "com.microsoft::QuickGelu"]
)
def test_names_of_onnx_and_ours_are_taken(key: str) -> None:
    with pytest.raises(PluginError, match="choose other names"):
        register_haar(schema=Schema(key, HAAR.inputs, HAAR.outputs, HAAR.attributes, HAAR.types))


def test_registering_twice_names_who_has_it() -> None:
    register_haar()
    with pytest.raises(PluginError, match=r"(?s)registered twice.*acme-dsp 1\.0 has it"):
        register_haar(plugin=Plugin("other", "2"))
    unregister(ACME.name)
    register_haar(plugin=Plugin("other", "2"))


@pytest.mark.parametrize(
    ("reference", "said"),
    [
        (lambda x, scale: (x, x), r"output 0 is float32\[2,64\].*float32\[2,32\]"),
        (lambda x, scale: [t.double() for t in haar(x, scale=scale)], r"float64\[2,32\].*float32\[2,32\]"),
        (lambda x, scale: haar(x, scale=scale)[0], r"1 outputs.*2"),
        (lambda x, scale: 1 // 0, "ZeroDivisionError"),
        (lambda x, scale: ("low", "high"), "output 0 is str"),
    ],
)  # fmt: skip
def test_a_reference_that_breaks_its_promise_ends_the_build(reference: Any, said: str) -> None:
    register_haar(reference=reference)
    with pytest.raises(PluginError, match=rf"(?s)acme\.dsp::Haar.*{said}.*mend the plugin acme-dsp 1\.0"):
        build(wavelet())


@pytest.mark.parametrize(
    ("shapes", "said"),
    [
        (lambda x, scale: x, "1 outputs"),
        (lambda x, scale: (Spec("int64", x.shape), x), "output 0 is int64.*want  float32"),
        (lambda x, scale: (x.resized(-1), x), "sizes from 0 on"),
        (lambda x, scale: ("low", "high"), "a Spec, or None"),
    ],
)  # fmt: skip
def test_a_shape_function_that_breaks_its_schema_ends_the_build(shapes: Any, said: str) -> None:
    register_haar(shapes=shapes)
    with pytest.raises(PluginError, match=rf"(?s)shapes of acme\.dsp::Haar.*{said}"):
        build(wavelet())


def test_an_engine_names_its_plugin_and_is_missed_without(tmp_path: Path) -> None:
    register_haar()
    path = build(wavelet()).save(tmp_path / "wavelet.ridge")
    with zipfile.ZipFile(path) as archive:
        named = json.loads(archive.read("manifest.json"))["plugins"]
    assert len(named[0].pop("schemas")) == 12
    assert named == [{"plugin": "acme-dsp", "version": "1.0", "get": ACME.get, "uses": ["acme.dsp::Haar"]}]
    np.testing.assert_allclose(ridgeline.load(path).run({"x": X})["y"], expected(), rtol=1e-6)
    unregister(ACME.name)
    with pytest.raises(
        PluginError, match=r"(?s)acme-dsp 1\.0, for acme\.dsp::Haar\n.*pip install acme-dsp==1\.0"
    ):
        ridgeline.load(path)
    register_haar(plugin=Plugin("acme-dsp", "2.0"))
    with pytest.raises(PluginError, match=r"acme-dsp 1\.0, for acme\.dsp::Haar; here is acme-dsp 2\.0"):
        ridgeline.load(path)


def test_onnx_forgets_an_op_that_is_unregistered() -> None:
    register_haar()
    assert onnx.defs.has("Haar", max_inclusive_version=1, domain="acme.dsp")
    unregister(ACME.name)
    assert not onnx.defs.has("Haar", max_inclusive_version=1, domain="acme.dsp")


def test_a_rewrite_of_a_plugin_brings_its_op_into_a_plain_model() -> None:
    class PairSum(Fusion):
        """even + odd -> Haar.low / scale"""

        may_change = (Change.ROUNDING,)

        def pattern(self, op: Any, x: Any, start: Any, even: Any, end: Any, axis: Any, two: Any) -> Any:
            return op.Add(op.Slice(x, start, end, axis, two), op.Slice(x, even, end, axis, two))

        def check(self, m: Any) -> None:
            m.require(m.const("two") == [2] and m.const("axis") == [1], "not pairs of a row")
            m.require(m.const("start") == [0] and m.const("even") == [1], "not neighbours")

        def rewrite(self, op: Any, m: Any) -> Any:
            return op.call(HAAR.key, m.x, scale=1.0)

    class Twice(Fusion):
        """Neg(Neg(Haar.low)) -> Haar.low"""

        may_change = ()

        def pattern(self, op: Any, x: Any) -> Any:
            return op.Neg(op.Neg(op.call(HAAR.key, x)))

        def rewrite(self, op: Any, m: Any) -> Any:
            return op.call(HAAR.key, m.x, scale=m.attr("Haar", "scale"))

    register_haar(fusions=[Twice(), PairSum()])
    model = parser.parse_model("""
<ir_version: 10, opset_import: ["": 18]>
pairs (float[N, 64] x) => (float[N, 32] y)
<int64[1] zero = {0}, int64[1] one = {1}, int64[1] two = {2}, int64[1] end = {64}> {
    even = Slice (x, zero, end, one, two)
    odd = Slice (x, one, end, one, two)
    s = Add (even, odd)
    n = Neg (s)
    y = Neg (n)
}
""")
    engine = build(model)
    assert [node.op_type for node in engine.model.graph] == ["Haar"]
    np.testing.assert_allclose(engine.run({"x": X})["y"], X[:, 0::2] + X[:, 1::2], rtol=1e-6)
    assert engine.report.checks


def test_a_wrong_rewrite_of_a_plugin_fails_the_build() -> None:
    class Wrong(Fusion):
        """Relu -> Haar"""

        may_change = ()

        def pattern(self, op: Any, x: Any) -> Any:
            return op.Mul(op.Relu(x), 2.0)

        def rewrite(self, op: Any, m: Any) -> Any:
            return op.Relu(m.x)

    register_haar(fusions=[Wrong()])
    model = parser.parse_model(
        '<ir_version: 10, opset_import: ["": 18]> g (float[2, 64] x) => (float[2, 64] y)'
        " <float two = {2.0}> { r = Relu(x) y = Mul(r, two) }"
    )
    with pytest.raises(VerifyError, match="plugins"):
        build(model)


def test_what_was_measured_with_other_code_is_void() -> None:
    register_haar()
    first = CATALOG.digest()
    unregister(ACME.name)
    assert CATALOG.digest() == ""
    register_haar(plugin=Plugin("acme-dsp", "1.1"))
    assert CATALOG.digest() not in ("", first)


def test_lint_knows_the_op(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    onnx.save(wavelet(), tmp_path / "wavelet.onnx")
    for is_known in (False, True):
        if is_known:
            register_haar()
        with pytest.raises(SystemExit) as end:
            main(["lint", str(tmp_path / "wavelet.onnx")])
        assert (end.value.code == 0) == is_known, capsys.readouterr().out


def test_a_shape_may_depend_on_a_constant_or_on_data() -> None:
    def repeated(x: Spec, times: Spec) -> Spec | None:
        return None if times.value is None else x.resized(x.shape[0] * int(times.value[0]))

    def repeat(x: torch.Tensor, times: torch.Tensor) -> torch.Tensor:
        return x.repeat(int(times[0]))

    schema = Schema("acme::Repeat", {"x": "float32", "times": "int64"}, {"y": "float32"})
    register_op(schema, shapes=repeated, reference=repeat)
    head = '<ir_version: 10, opset_import: ["": 18, "acme": 1]> g (float[4] x'
    body = "{ r = acme.Repeat (x, times) y = Relu (r) }"
    x = np.arange(-2, 2, dtype=np.float32)
    want = np.maximum(np.tile(x, 3), 0)
    planned = ridgeline.build(
        parser.parse_model(f"{head}) => (float[12] y) <int64[1] times = {{3}}> {body}"), level=0, threads=1
    )
    np.testing.assert_array_equal(planned.run({"x": x})["y"], want)
    island = ridgeline.build(
        parser.parse_model(f"{head}, int64[1] times) => (float[M] y) {body}"), level=0, threads=1
    )
    made = island.run({"x": x, "times": np.array([3])})["y"]
    np.testing.assert_array_equal(made, want)
