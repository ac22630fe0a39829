"""Mistakes of authors and of models: each is caught, and named at the one who made it."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from onnx import parser
from plugin_doubles import ONE, X, build, good, model, python, register
from torch import Tensor

import ridgeline
from ridgeline.errors import InputError, PluginError, RidgelineError, UnsupportedError, VerifyError
from ridgeline.plugins import (
    CATALOG,
    PythonTactic,
    Schema,
    Spec,
    unregister,
)

# what is registered


def ports(inputs: Any, **more: Any) -> Schema:
    return Schema("acme::Op", inputs, {"y": "float32"}, **more)


@pytest.mark.parametrize(
    ("schema", "parts", "said"),
    [
        (ports({"x": "float32"}, attributes={"a": 2**70}), {}, "attribute 'a' is 1180591620717411303424"),
        (ports({"x": "float32", "x?": "float32"}), {"shapes": lambda x, z: x}, "two inputs have one name"),
        (ports({"x?*": "float32"}), {}, r"'x\?\*' is not a name"),
        (ports({"x": "T"}, types={"T": "float32"}), {}, "is 'float32', want a list of types"),
        (ports({"x": "string"}), {}, "has type string: want a name"),
        (ports({"x": "int4"}), {}, "has type int4: want a name"),
        (ports(["x"]), {}, "a part is not what register_op takes"),
        (ports({"x": "float32"}, version="1.0"), {}, "version is '1.0'"),
        ({"key": "acme::Op"}, {}, "a part is not what register_op takes"),
        (ONE, {"arrays": "jax"}, "arrays is 'jax'"),
        (ONE, {"tactics": ["fast"]}, "str None is not a Tactic"),
        (ONE, {"tactics": [PythonTactic("a b", op="acme::Op", run=good)]}, "'a b' is not a Tactic"),
        (ONE, {"tactics": [PythonTactic("aten.x", op="acme::Op", run=good)]}, "named like our own"),
        (ONE, {"tactics": [python(good, layouts=("nhwc",))]}, "layouts of acme.t"),
        (ONE, {"tactics": [python(good, alignment=-16)]}, "alignment of acme.t is -16"),
        (ONE, {"fusions": [3]}, "3 is not a Fusion"),
        (ONE, {"plugin": "acme"}, "want a Plugin"),
    ],
)  # fmt: skip
def test_what_cannot_be_registered_is_named_and_leaves_nothing(schema: Any, parts: Any, said: str) -> None:
    with pytest.raises(PluginError, match=said):
        register(schema, **parts)
    assert "acme::Op" not in CATALOG.ops
    assert not CATALOG.tactics
    register()


# shapes and references


@pytest.mark.parametrize("size", ["N", None, 2.0, True, 2**70])
def test_a_size_that_is_none_is_the_plugins_fault(size: Any) -> None:
    register(shapes=lambda x: x.resized(size, 8))
    with pytest.raises(PluginError, match=r"(?s)shapes of acme::Op.*whole sizes from 0 on"):
        build()


def test_sizes_may_be_those_of_numpy() -> None:
    register(shapes=lambda x: x.resized(np.int64(2), 8))
    np.testing.assert_array_equal(build().run({"x": X})["y"], 2 * X)


def test_a_shape_function_that_raises_for_a_fixed_model_names_the_node() -> None:
    register(shapes=lambda x: 1 // 0)
    with pytest.raises(
        InputError, match=r"(?s)at y \(Op\).*shape function of acme 1\.0 failed: ZeroDivision"
    ):
        build()


def test_types_of_a_model_are_the_models_fault() -> None:
    register()
    with pytest.raises(InputError, match="input 0 is int64, want float32 or float64"):
        build(model(inputs="int64[2, 8] x", outputs="int64[2, 8] y"))


def test_types_of_one_name_stay_together() -> None:
    register(shapes=lambda x: Spec("float64", x.shape), reference=lambda x: x.double())
    with pytest.raises(PluginError, match=r"(?s)shapes of acme::Op.*is float64.*want  float32"):
        build(model(outputs="double[2, 8] y"))


@pytest.mark.parametrize("made", [lambda x: x, lambda x: ()])
def test_a_variable_number_of_outputs_is_as_many_as_the_node_has(made: Any) -> None:
    register(Schema("acme::Op", {"x": "float32"}, {"y*": "float32"}), shapes=made, reference=made)
    with pytest.raises(PluginError, match="outputs"):
        build(model("y, z = acme.Op (x)", outputs="float[2, 8] y, float[2, 8] z"))


def spoils(x: Any) -> Any:
    x *= 2
    return x


@pytest.mark.parametrize(
    ("parts", "said"),
    [
        ({"reference": spoils}, "it changes an input"),
        ({"reference": spoils, "arrays": "numpy"}, "read-only"),
        ({"reference": lambda x: x * torch.rand(())}, "other results for the same inputs"),
        ({"reference": lambda x: x.to_sparse()}, "want  a dense tensor"),
        ({"reference": lambda x: x.to("meta")}, "want  a dense tensor"),
        ({"reference": lambda x: sys.exit(3)}, "SystemExit"),
        ({"reference": lambda x: x.double(), "shapes": lambda x: None}, r"float64\[2,8\]"),
    ],
)
def test_a_reference_is_a_pure_function_of_dense_tensors(parts: Any, said: str) -> None:
    register(**parts)
    with pytest.raises(PluginError, match=rf"(?s)reference of acme::Op.*{said}.*mend the plugin acme 1\.0"):
        build(model("a = Softmax (x) b = acme.Op (a) y = Add (a, b)"))


def test_a_reference_over_parameters_needs_no_gradient() -> None:
    factor = torch.nn.Parameter(torch.full((8,), 2.0))
    register(reference=lambda x: x * factor)
    np.testing.assert_array_equal(build().run({"x": X})["y"], 2 * X)


def test_without_verification_the_first_reason_is_the_broken_reference() -> None:
    register(reference=lambda x: 1 // 0)
    with pytest.raises(RidgelineError) as caught:
        build(verify="off")
    assert "the reference of acme::Op failed: ZeroDivisionError" in caught.value.rows[0]


def test_a_failed_check_mentions_the_plugins() -> None:
    calls: list[int] = []

    def later(x: Tensor) -> Tensor:
        calls.append(1)
        return x * (2 if len(calls) < 4 else float("nan"))

    register(reference=later)
    with pytest.raises(VerifyError, match=r"may be one of a plugin: acme 1\.0"):
        build()


# models and files


def test_a_function_of_the_model_goes_before_an_op_of_the_same_name() -> None:
    register()
    source = parser.parse_model("""
<ir_version: 10, opset_import: ["": 18, "acme": 1]>
g (float[2, 8] x) => (float[2, 8] y) { y = acme.Op (x) }
<domain: "acme", opset_import: ["": 18]> Op (a) => (b) { b = Neg (a) }
""")
    np.testing.assert_array_equal(build(source).run({"x": X})["y"], -X)


def test_an_op_of_a_later_version_is_told_from_one_that_is_missing() -> None:
    register(Schema("acme::Op", {"x": "float32"}, {"y": "float32"}, version=2))
    with pytest.raises(UnsupportedError, match=r"acme::Op x1 .* it is here from version 2 of 'acme' on"):
        build()


def test_an_engine_needs_the_schema_and_the_tactics_that_it_was_built_with(tmp_path: Path) -> None:
    register(tactics=[python(good)])
    path = build().save(tmp_path / "op.ridge")
    unregister("acme")
    register()
    with pytest.raises(PluginError, match=r"it is here without acme\.t"):
        ridgeline.load(path)
    unregister("acme")
    register(Schema("acme::Op", {"x": "float32"}, {"y": "float32"}, {"k": 1}), tactics=[python(good)])
    with pytest.raises(PluginError, match="another schema, under the same version"):
        ridgeline.load(path)


def test_packages_may_print_and_fail_without_harm(tmp_path: Path) -> None:
    (tmp_path / "acme_pkg.py").write_text(
        "import ridgeline\nfrom ridgeline.plugins import Plugin, Schema\nprint('hello')\n"
        "ridgeline.register_op(Schema('acme::Op', {'x': 'float32'}, {'y': 'float32'}), shapes=lambda x: x,\n"
        "    reference=lambda x: x, plugin=Plugin('other', '1'))\nraise ValueError('late')\n"
    )
    info = tmp_path / "acme_pkg-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: acme-pkg\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text("[ridgeline.plugins]\nacme = acme_pkg\n")
    code = "from ridgeline.cli.main import main; main(['plugins', '--json'])"
    paths = [str(tmp_path), str(Path(ridgeline.__file__).parents[1])]
    done = subprocess.run(
        [sys.executable, "-c", f"import sys; sys.path[:0] = {paths!r}; {code}"],
        capture_output=True, text=True, check=True, timeout=60,
    )  # fmt: skip
    assert "hello" in done.stderr
    assert done.stdout.startswith("{")
    assert "ValueError: late" in done.stdout
    assert "acme::Op" not in done.stdout
