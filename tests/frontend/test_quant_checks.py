"""Scales and zero points that contradict a model are refused when it is read, with the node's name."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import onnx.parser
import pytest
from onnx import numpy_helper

from ridgeline.errors import ModelError
from ridgeline.frontend.from_onnx import load

SCALE = np.array(0.5, np.float32)


def model(*, kind: str = "DequantizeLinear", x: str = "int8", **given: Any) -> onnx.ModelProto:
    """One node named `layer0` over x[2, 6]; scale and zero are arrays, the rest attributes."""
    held = {"s": np.asarray(given.pop("scale", SCALE))}
    if "zero" in given:
        held["z"] = np.asarray(given.pop("zero"))
    attrs = f"<{', '.join(f'{name} = {value}' for name, value in given.items())}>" if given else ""
    made = "float" if kind == "DequantizeLinear" else "int8"
    proto = onnx.parser.parse_model(f"""<ir_version: 10, opset_import: ["": 21]>
        g ({x}[2,6] x) => ({made}[2,6] y) {{ [layer0] y = {kind}{attrs}({", ".join(["x", *held])}) }}""")
    proto.graph.initializer.extend(numpy_helper.from_array(array, name) for name, array in held.items())
    return proto


@pytest.mark.parametrize(
    ("given", "reason"),
    [
        ({"scale": np.float32(0)}, "a scale is 0"),
        ({"scale": np.float32(-0.5)}, "a scale is -0.5"),
        ({"scale": np.float32(np.inf)}, "a scale is inf"),
        ({"scale": np.array([1, 1, 0, 1, 1, 1], np.float32)}, "at 2; 1 of 6"),
        ({"scale": np.ones(5, np.float32)}, r"has shape \[5\], want \[6\]"),
        ({"scale": np.ones(6, np.float32), "axis": 0}, r"want \[2\] along axis 0"),
        ({"scale": np.ones(6, np.float32), "axis": 2}, "axis is 2"),
        ({"scale": np.ones((2, 2), np.float32)}, r"has shape \[2, 2\]"),
        ({"scale": np.ones((2, 2), np.float32), "axis": 1, "block_size": 2}, "blocks of 2"),
        ({"block_size": -1}, "block_size is -1"),
        ({"zero": np.uint8(0)}, "zero point is uint8, the levels are int8"),
        ({"zero": np.zeros(6, np.int8)}, r"the zero point \[6\]"),
    ],
)  # fmt: skip
def test_refused(given: dict[str, Any], reason: str) -> None:
    with pytest.raises(ModelError, match="layer0") as error:
        load(model(**given))
    assert error.match(reason)


def test_a_result_of_another_type_than_its_zero_point() -> None:
    with pytest.raises(ModelError, match=r"layer0|output_dtype"):
        load(model(kind="QuantizeLinear", x="float", zero=np.uint8(3), output_dtype=3))


@pytest.mark.parametrize(
    "given",
    [
        {"zero": np.int8(3)},
        {"scale": np.ones(6, np.float32), "zero": np.zeros(6, np.int8)},
        {"scale": np.ones(2, np.float32), "axis": -2},
        {"scale": np.ones((2, 2), np.float32), "axis": 1, "block_size": 3},
        {"scale": np.ones((2, 2), np.float32), "axis": 1, "block_size": 4},
    ],
)
def test_taken(given: dict[str, Any]) -> None:
    load(model(**given))


def test_every_node_is_listed() -> None:
    proto = model(scale=np.float32(0))
    other = onnx.NodeProto()
    other.CopyFrom(proto.graph.node[0])
    other.name, other.output[0] = "layer1", "v"
    proto.graph.node.append(other)
    proto.graph.output.add().CopyFrom(proto.graph.output[0])
    proto.graph.output[1].name = "v"
    with pytest.raises(ModelError, match=r"(?s)layer0.*layer1"):
        load(proto)
