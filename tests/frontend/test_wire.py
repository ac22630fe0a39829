"""Large weights stay in the file; whatever is unusual is parsed whole."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import onnx.parser
import pytest

import ridgeline
from ridgeline.errors import ModelError
from ridgeline.frontend.from_onnx import load
from ridgeline.frontend.wire import LEFT_BYTES, read_light

TEXT = """<ir_version: 10, opset_import: ["": 20]>
g (float[N,160] x) => (float[N,160] y) { h = MatMul(x, w) y = Add(h, b) }"""


def large_model() -> onnx.ModelProto:
    rng = np.random.default_rng(0)
    model = onnx.parser.parse_model(TEXT)
    arrays = {"w": rng.standard_normal((160, 160)), "b": rng.standard_normal(160)}
    for name, array in arrays.items():
        model.graph.initializer.append(onnx.numpy_helper.from_array(array.astype(np.float32), name))
    return model


@pytest.fixture
def large_file(tmp_path: Path) -> Path:
    path = tmp_path / "large.onnx"
    path.write_bytes(large_model().SerializeToString())
    return path


def test_only_large_weights_are_left_in_the_file(large_file: Path) -> None:
    light = read_light(large_file)
    assert light is not None
    assert len(light) < LEFT_BYTES < large_file.stat().st_size
    proto = onnx.ModelProto.FromString(light)
    onnx.load_external_data_for_model(proto, str(large_file.parent))
    whole = {t.name: onnx.numpy_helper.to_array(t) for t in onnx.load(large_file).graph.initializer}
    assert [t.name for t in proto.graph.initializer] == list(whole)
    for tensor in proto.graph.initializer:
        np.testing.assert_array_equal(onnx.numpy_helper.to_array(tensor), whole[tensor.name])
    assert proto.graph.node == onnx.load(large_file).graph.node


def test_the_model_is_the_same_either_way(large_file: Path) -> None:
    left, whole = load(large_file), load(large_model())
    for name, value in whole.model.graph.initializers.items():
        array = left.model.graph.initializers[name].const_value.numpy()
        np.testing.assert_array_equal(array, value.const_value.numpy())
        assert array.ctypes.data % 16 == 0
    assert ridgeline.build(large_file, level=0).report.verified


def test_a_link_is_read_whole(large_file: Path, tmp_path: Path) -> None:
    (tmp_path / "links").mkdir()
    link = tmp_path / "links" / "model.onnx"
    link.symlink_to(large_file)
    assert read_light(link) is None
    assert ridgeline.build(link, level=0).report.verified


@pytest.mark.parametrize("harm", ["cut", "short tensor", "noise"])
def test_what_is_damaged_is_said_as_ever(large_file: Path, harm: str) -> None:
    content = large_file.read_bytes()
    if harm == "cut":
        large_file.write_bytes(content[:-100])
    elif harm == "noise":
        large_file.write_bytes(np.random.default_rng(1).bytes(1 << 17))
    else:
        model = large_model()
        model.graph.initializer[0].dims[0] = 161
        large_file.write_bytes(model.SerializeToString())
    with pytest.raises(ModelError):
        load(large_file)
