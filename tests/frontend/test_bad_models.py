"""Every way a model file can be wrong is met with a ModelError or an UnsupportedError that says so."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnx.parser
import pytest

from ridgeline.errors import LimitError, ModelError, UnsupportedError
from ridgeline.frontend.from_onnx import load
from ridgeline.options import Limits

RELU = '<ir_version: 10, opset_import: ["": 20]> g (float[N,4] x) => (float[N,4] y) { y = Relu(x) }'


def external(folder: Path, location: str, *, length: int = 16) -> Path:
    """A model whose weight lies outside, at `location`."""
    text = '<ir_version: 10, opset_import: ["": 20]> g (float[N,4] x) => (float[N,4] y) { y = Add(x, w) }'
    model = onnx.parser.parse_model(text)
    tensor = model.graph.initializer.add(name="w", data_type=onnx.TensorProto.FLOAT, dims=[4])
    tensor.data_location = onnx.TensorProto.EXTERNAL
    for key, value in (("location", location), ("offset", "0"), ("length", str(length))):
        tensor.external_data.add(key=key, value=value)
    path = folder / "model.onnx"
    path.write_bytes(model.SerializeToString())
    return path


def test_not_an_onnx_file(tmp_path: Path) -> None:
    path = tmp_path / "notes.onnx"
    path.write_text("version https://git-lfs.github.com/spec/v1")
    with pytest.raises(ModelError, match="not an ONNX model"):
        load(path)


def test_an_empty_file(tmp_path: Path) -> None:
    path = tmp_path / "empty.onnx"
    path.write_bytes(b"")
    with pytest.raises(ModelError, match="names no opset or holds no graph"):
        load(path)


def test_a_truncated_file(tiny_model: Path, tmp_path: Path) -> None:
    path = tmp_path / "half.onnx"
    path.write_bytes(tiny_model.read_bytes()[:-100])
    with pytest.raises(ModelError, match=r"half\.onnx"):
        load(path)


def test_a_missing_file(tmp_path: Path) -> None:
    with pytest.raises(ModelError, match="there is no file"):
        load(tmp_path / "nowhere.onnx")


def test_a_folder(tmp_path: Path) -> None:
    with pytest.raises(ModelError, match="is a folder"):
        load(tmp_path)


def test_something_else_than_a_model() -> None:
    with pytest.raises(ModelError, match="this is not a model"):
        load(42)  # type: ignore[arg-type]


def test_external_data_beside_the_model_is_read(tmp_path: Path) -> None:
    (tmp_path / "w.bin").write_bytes(np.arange(4, dtype=np.float32).tobytes())
    loaded = load(external(tmp_path, "w.bin"))
    np.testing.assert_array_equal(loaded.model.graph.initializers["w"].const_value.numpy(), [0, 1, 2, 3])


def test_external_data_that_is_missing(tmp_path: Path) -> None:
    with pytest.raises(ModelError, match=r"w: file 'w.bin' is missing"):
        load(external(tmp_path, "w.bin"))


@pytest.mark.parametrize("location", ["../w.bin", "/etc/hostname", "a/../../w.bin"])
def test_external_data_that_leaves_the_folder(tmp_path: Path, location: str) -> None:
    inner = tmp_path / "inner"
    inner.mkdir()
    (tmp_path / "w.bin").write_bytes(b"\0" * 16)
    with pytest.raises(ModelError, match="leaves the model's folder"):
        load(external(inner, location))


def test_external_data_through_a_link_out_of_the_folder(tmp_path: Path) -> None:
    inner = tmp_path / "inner"
    inner.mkdir()
    (tmp_path / "secret.bin").write_bytes(b"\0" * 16)
    (inner / "w.bin").symlink_to(tmp_path / "secret.bin")
    with pytest.raises(ModelError, match="link that leaves"):
        load(external(inner, "w.bin"))


def test_external_data_shorter_than_declared(tmp_path: Path) -> None:
    (tmp_path / "w.bin").write_bytes(b"\0" * 8)
    with pytest.raises(ModelError, match="holds 8 bytes, wanted up to byte 16"):
        load(external(tmp_path, "w.bin"))


def test_external_data_without_a_folder(tmp_path: Path) -> None:
    content = external(tmp_path, "w.bin").read_bytes()
    with pytest.raises(ModelError, match="came without a folder"):
        load(content)


def test_a_cyclic_graph() -> None:
    model = onnx.parser.parse_model(
        '<ir_version: 10, opset_import: ["": 20]> g (float[4] x) => (float[4] y) '
        "{ a = Add(x, b) b = Relu(a) y = Relu(b) }"
    )
    with pytest.raises(ModelError, match="not a legal ONNX model"):
        load(model)


def test_an_input_nobody_makes() -> None:
    model = onnx.parser.parse_model(
        '<ir_version: 10, opset_import: ["": 20]> g (float[4] x) => (float[4] y) { y = Add(x, ghost) }'
    )
    with pytest.raises(ModelError, match="ghost"):
        load(model)


def test_every_unknown_op_is_listed_at_once() -> None:
    model = onnx.parser.parse_model(
        '<ir_version: 10, opset_import: ["": 20, "acme": 1]> g (float[4] x) => (float[4] y) '
        "{ a = acme.Warp(x) b = acme.Warp(a) y = acme.Bend(b) }"
    )
    with pytest.raises(UnsupportedError) as caught:
        load(model)
    assert "3 nodes cannot run" in str(caught.value)
    assert "acme::Warp x2" in str(caught.value)
    assert "acme::Bend x1" in str(caught.value)


def test_nan_weights() -> None:
    model = onnx.parser.parse_model(
        '<ir_version: 10, opset_import: ["": 20]> g (float[N,2] x) => (float[N,2] y) '
        "<float[2] w = {1, 2}> { y = Mul(x, w) }"
    )
    model.graph.initializer[0].CopyFrom(onnx.numpy_helper.from_array(np.array([1, np.nan], np.float32), "w"))
    with pytest.raises(ModelError, match="w: 1 of 2 elements are NaN"):
        load(model)


def test_old_opsets_arrive_at_the_canonical_one() -> None:
    model = onnx.parser.parse_model(
        '<ir_version: 4, opset_import: ["": 11]> g (float[2,3] x) => (float[2,1] y) '
        "{ y = ReduceMean <axes = [1]> (x) }"
    )
    loaded = load(model)
    assert loaded.model.opset_imports[""] == 23
    assert [node.op_type for node in loaded.model.graph][-1] == "ReduceMean"


def test_local_functions_are_inlined() -> None:
    model = onnx.parser.parse_model(
        '<ir_version: 10, opset_import: ["": 20, "mine": 1]> g (float[4] x) => (float[4] y) '
        "{ y = mine.twice(x) }"
        '<domain: "mine", opset_import: ["": 20]> twice (a) => (b) { b = Add(a, a) }'
    )
    loaded = load(model)
    assert [node.op_type for node in loaded.model.graph] == ["Add"]


def test_initializers_that_are_inputs_too_are_defaults() -> None:
    model = onnx.parser.parse_model(
        '<ir_version: 10, opset_import: ["": 20]> g (float[4] x, float[4] w) => (float[4] y) '
        "{ y = Add(x, w) }"
    )
    model.graph.initializer.append(onnx.numpy_helper.from_array(np.ones(4, np.float32), "w"))
    loaded = load(model)
    assert [v.name for v in loaded.model.graph.inputs] == ["x", "w"]
    assert list(loaded.defaults) == ["w"]


def test_external_data_inside_a_function_is_confined_too(tmp_path: Path) -> None:
    model = onnx.parser.parse_model(
        '<ir_version: 10, opset_import: ["": 20, "mine": 1]> g (float[4] x) => (float[4] y) { y = mine.f(x) }'
        '<domain: "mine", opset_import: ["": 20]> f (a) => (b) '
        "{ c = Constant <value = float[4] {0, 0, 0, 0}> () b = Add(a, c) }"
    )
    tensor = model.functions[0].node[0].attribute[0].t
    tensor.ClearField("float_data")
    tensor.data_location = onnx.TensorProto.EXTERNAL
    tensor.external_data.add(key="location", value="../secret.bin")
    path = tmp_path / "model.onnx"
    path.write_bytes(model.SerializeToString())
    with pytest.raises(ModelError, match="leaves the model's folder"):
        load(path)


def test_an_attribute_that_refers_to_no_function() -> None:
    model = onnx.parser.parse_model(RELU.replace("Relu(x)", "Softmax <axis = 1> (x)"))
    attribute = model.graph.node[0].attribute[0]
    attribute.ClearField("i")
    attribute.ref_attr_name = "axis"
    with pytest.raises(ModelError, match="refers to an attribute of a function"):
        load(model)


def test_external_data_that_is_a_pipe(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "w.bin")
    with pytest.raises(ModelError, match="no regular file"):
        load(external(tmp_path, "w.bin"))


def test_a_model_that_is_a_pipe_or_a_device(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "model.onnx")
    for path in (tmp_path / "model.onnx", Path("/dev/zero")):
        with pytest.raises(ModelError, match="a pipe or a device"):
            load(path)


@pytest.mark.parametrize("location", ["w" * 5000, "w\0.bin", "w/" * 3000])
def test_external_data_under_a_name_no_file_can_have(tmp_path: Path, location: str) -> None:
    with pytest.raises(ModelError, match=r"w: file .* cannot be read"):
        load(external(tmp_path, location))


@pytest.mark.parametrize(("key", "value"), [
    ("offset", "-4"), ("offset", "1" + "0" * 30), ("length", "-16"), ("length", "4"), ("offset", "four"),
])  # fmt: skip
def test_external_data_outside_its_file(tmp_path: Path, key: str, value: str) -> None:
    (tmp_path / "w.bin").write_bytes(b"\0" * 16)
    path = external(tmp_path, "w.bin")
    model = onnx.load(path, load_external_data=False)
    next(e for e in model.graph.initializer[0].external_data if e.key == key).value = value
    path.write_bytes(model.SerializeToString())
    with pytest.raises(ModelError, match="external data of 1 tensors"):
        load(path)


@pytest.mark.parametrize(("change", "said"), [
    ({"dims": [-4]}, "negative size"),
    ({"dims": [2**62, 2**62]}, "need"),
    ({"dims": [5]}, "need 20 bytes, the file holds 16"),
    ({"data_type": 99}, "type 99 is not known"),
    ({"data_type": onnx.TensorProto.STRING}, "strings as raw data"),
    ({"raw_data": b"", "int64_data": [1, 2, 3, 4]}, "need 16 bytes, the file holds 0"),
])  # fmt: skip
@pytest.mark.parametrize("place", ["initializer", "attribute"])
def test_a_tensor_whose_data_contradicts_its_entry(change: dict[str, Any], said: str, place: str) -> None:
    model = onnx.parser.parse_model(
        '<ir_version: 10, opset_import: ["": 20]> g (float[N,4] x) => (float[N,4] y) '
        "{ w = Constant <value = float[4] {0, 0, 0, 0}> () y = Add(x, w) }"
    )
    tensor = model.graph.node[0].attribute[0].t
    tensor.CopyFrom(onnx.numpy_helper.from_array(np.zeros(4, np.float32), "w"))
    if place == "initializer":
        model.graph.initializer.append(tensor)
        del model.graph.node[0]
        tensor = model.graph.initializer[0]
    for name, value in change.items():
        if isinstance(value, list):
            getattr(tensor, name)[:] = value
        else:
            setattr(tensor, name, value)
    with pytest.raises(ModelError, match=said):
        load(model.SerializeToString())


@pytest.mark.parametrize("version", [0, -1, 2**31, 2**63 - 1])
def test_an_opset_that_cannot_be(version: int) -> None:
    model = onnx.parser.parse_model(RELU)
    model.opset_import[0].version = version
    with pytest.raises(ModelError, match="names opsets that cannot be"):
        load(model)


def calls(count: int, last: str) -> onnx.ModelProto:
    """A chain of functions, each of which calls the next one twice."""
    text = '<ir_version: 10, opset_import: ["": 20, "m": 1]> g (float[4] x) => (float[4] y) { y = m.f0(x) }'
    for i in range(count):
        op = f"m.f{i + 1}" if i < count - 1 else last
        text += f'<domain: "m", opset_import: ["": 20, "m": 1]> f{i} (a) => (c) {{ b = {op}(a) c = {op}(b) }}'
    return onnx.parser.parse_model(text)


def test_functions_that_double_have_a_limit() -> None:
    assert len(load(calls(5, "Relu")).model.graph) == 2**5
    with pytest.raises(LimitError, match=r"at y \(f0\)") as caught:
        load(calls(29, "Relu"))
    assert "--limit inlined_nodes=" in str(caught.value)
    with pytest.raises(LimitError, match="at most 60"):
        load(calls(5, "Relu"), Limits(inlined_nodes=60))


def test_functions_that_call_each_other() -> None:
    with pytest.raises(ModelError, match=r"m::f0 calls m::f1 calls m::f2 calls m::f0"):
        load(calls(3, "m.f0"))


@pytest.mark.parametrize("depth", [33, 2000])
@pytest.mark.parametrize("as_bytes", [True, False])
def test_subgraphs_deeper_than_protobuf_goes(depth: int, as_bytes: bool) -> None:
    model = onnx.parser.parse_model(RELU)
    graph = model.graph
    for i in range(depth):
        node = graph.node.add(op_type="If", input=["x"], output=[f"y{i}"])
        graph = node.attribute.add(name="then_branch", type=onnx.AttributeProto.GRAPH).g
    graph.node.add(op_type="Relu", input=["x"], output=["z"])
    with pytest.raises(ModelError):
        load(model.SerializeToString() if as_bytes else model)


@pytest.mark.parametrize(("body", "said"), [
    ("y = If(c) <then_branch = t () => () { u = Neg(x) }, else_branch = e () => (float[4] v) { v = Neg(x) }>",
     "then_branch gives 0 values, the node 1"),
    ("y = Loop(n, c, x) <body = b (int64 i, bool d) => (bool e, float[4] f) { e = Not(d) f = Neg(x) }>",
     "takes 2 values, and is given 3"),
    ("y = Loop(n, c, x) <body = b (int64 i, bool d, float[4] a) => (bool e) { e = Not(d) }>",
     "gives 1 values"),
    ("k = Constant() y = Add(x, k)", "0 values, want one"),
    ("y, z = Split <axis = 0, num_outputs = 1> (x)", "num_outputs is 1, and it has 2"),
])  # fmt: skip
def test_a_node_that_contradicts_its_subgraph(body: str, said: str) -> None:
    ports = "(float[4] x, bool c, int64 n) => (float[4] y)"
    with pytest.raises(ModelError, match=said):
        load(onnx.parser.parse_model(f'<ir_version: 10, opset_import: ["": 20]> g {ports} {{ {body} }}'))
