"""Old opsets mean what they meant: the same text read at each opset, against ONNX Runtime."""

from __future__ import annotations

import re
from pathlib import Path
from unittest.mock import patch

import numpy as np
import onnx
import onnx_ir as ir
import onnxruntime as ort
import pytest
from opset_cases import CASES

import ridgeline
from ridgeline.errors import UnsupportedError
from ridgeline.frontend import opsets
from ridgeline.frontend.from_onnx import load
from ridgeline.frontend.opsets import CANONICAL_OPSET, REWRITTEN, REWRITTEN_FROM

ITEMS = [(name, opset) for name, (opsets, _) in CASES.items() for opset in opsets]


def read(name: str, opset: int) -> onnx.ModelProto:
    header = f'<ir_version: {8 if opset < 15 else 10}, opset_import: ["" : {opset}]>'
    return onnx.parser.parse_model(f"{header} old {CASES[name][1]}")


def drawn(model: onnx.ModelProto) -> dict[str, np.ndarray]:
    rng = np.random.default_rng(0)
    return {
        port.name: rng.standard_normal([d.dim_value or 2 for d in port.type.tensor_type.shape.dim]).astype(
            np.float32
        )
        for port in model.graph.input
    }


@pytest.mark.parametrize(("name", "opset"), ITEMS, ids=[f"{name}-{opset}" for name, opset in ITEMS])
def test_an_old_opset_keeps_its_meaning(name: str, opset: int) -> None:
    model = read(name, opset)
    feeds = drawn(model)
    options = ort.SessionOptions()
    options.log_severity_level = 4
    session = ort.InferenceSession(model.SerializeToString(), options, ["CPUExecutionProvider"])
    engine = ridgeline.build(model, level=0, verify="off", without=("ort",))
    made = engine.run(feeds)
    for port, wanted in zip(session.get_outputs(), session.run(None, feeds), strict=True):
        assert made[port.name].dtype == wanted.dtype
        np.testing.assert_allclose(made[port.name], wanted, rtol=2e-5, atol=2e-6, err_msg=port.name)


@pytest.mark.parametrize("scales", [(0.6, 0.7), (0.6, 1.7), (2.0, 1.5), (1.0, 0.5)])
@pytest.mark.parametrize("made", ["Identity(s)", "Constant<value = float[4] {1.0, 1.0, 0.6, 1.5}>()"])
def test_scales_that_no_weight_holds_shrink_as_those_of_weights(
    scales: tuple[float, float], made: str
) -> None:
    model = onnx.parser.parse_model(f"""
        <ir_version: 8, opset_import: ["" : 10]>
        old (float[1,1,5,7] x, float[4] s) => (float[a,b,c,d] y) {{ t = {made} y = Resize(x, t) }}""")
    feeds = {"x": drawn(model)["x"], "s": np.array([1, 1, *scales], np.float32)}
    engine = ridgeline.build(model, level=0, verify="off", without=("ort",))
    session = ort.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
    np.testing.assert_array_equal(engine.run(feeds)["y"], session.run(None, feeds)[0])


def test_lengths_of_sequences_in_an_old_scan_are_refused() -> None:
    text = (
        CASES["scan8"][1].replace("(float[3,2] i", "(int64[3] n, float[3,2] i").replace("Scan(,", "Scan(n,")
    )
    model = onnx.parser.parse_model(f'<ir_version: 8, opset_import: ["" : 8]> old {text}')
    with pytest.raises(UnsupportedError, match="lengths of its sequences"):
        ridgeline.build(model, level=0, verify="off")


def test_slopes_of_opset_6_belong_to_channels() -> None:
    model = onnx.parser.parse_model("""
        <ir_version: 3, opset_import: ["" : 6]>
        old (float[2,3,4] x, float[3] s) => (float[2,3,4] y) { y = PRelu(x, s) }""")
    feeds = drawn(model)
    made = ridgeline.build(model, level=0, verify="off", without=("ort",)).run(feeds)["y"]
    x, slope = feeds["x"], feeds["s"][:, None]
    np.testing.assert_array_equal(made, np.where(x < 0, x * slope, x))


def test_a_model_of_other_domains_alone_needs_no_standard_opset() -> None:
    model = onnx.parser.parse_model("""
        <ir_version: 9, opset_import: ["ai.onnx.ml" : 1]>
        ml (float[2,3] x) => (float[2,3] y) { y = ai.onnx.ml.Binarizer<threshold = 0.5>(x) }""")
    engine = ridgeline.build(model, level=0, verify="off", without=("ort",))
    made = engine.run({"x": np.array([[0.1, 0.6, 0.5], [1, 0, 2]], np.float32)})["y"]
    np.testing.assert_array_equal(made, [[0, 1, 0], [1, 0, 1]])
    assert any("Binarizer" in note and "run by" in note for note in engine.plan.slow_ops)


def test_ops_that_the_converter_rewrites_are_listed() -> None:
    """Read from the converter's source, which comes with ONNX: all rules but those that change nothing."""
    rules = (Path(onnx.__file__).parent / "version_converter" / "convert.h").read_text()
    plain = r'CompatibleAdapter>\(\s*"(\w+)",\s*OpSetID\((\d+)\),\s*OpSetID\((\d+)\)\)'
    same = {(op, int(to)) for op, at, to in re.findall(plain, rules) if int(at) < int(to)}
    # a rule of its own replaces the one that changes nothing
    same -= {(op, int(to)) for op, at, to in re.findall(r"<([A-Za-z]+)_(\d+)_(\d+)>\(", rules)}
    versions = {(s.name, s.since_version) for s in onnx.defs.get_all_schemas_with_history() if not s.domain}
    first = {op: min(v for name, v in versions if name == op) for op, _ in versions}
    changed = {
        (op, v) for op, v in versions - same if first[op] < v and REWRITTEN_FROM < v <= CANONICAL_OPSET
    }
    assert changed == {(op, since) for since, ops in REWRITTEN.items() for op in ops}


@pytest.mark.parametrize(
    ("opset", "domains", "body"),
    [
        (13, "", "z = Relu(x) y = Add(z, w)"),
        (20, "", "s = Shape(x) r = Reshape(x, s) y = Mul(r, w)"),
        (22, ', "com.microsoft": 1', "g = com.microsoft.FastGelu(x) y = Sub(g, w)"),
        (
            20,
            "",
            "k = Constant<value = bool {1}>() y = If(k) <then_branch = a () => (u) { v = Cast<to = 1>(x)"
            " u = Add(v, w) }, else_branch = b () => (t) { t = Identity(x) }>",
        ),
    ],
)
def test_a_model_that_needs_no_rewriting_is_as_the_converter_would_leave_it(
    opset: int, domains: str, body: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = onnx.parser.parse_model(f"""
        <ir_version: 8, opset_import: ["" : {opset}{domains}]>
        old (float[N,3] x, float[3] w) => (float[N,3] y) {{ {body} }}""")
    with patch.object(onnx.version_converter, "convert_version", side_effect=AssertionError):
        short = load(model).model
    monkeypatch.setattr(opsets, "REWRITTEN_FROM", CANONICAL_OPSET)
    assert onnx.printer.to_text(ir.to_proto(short)) == onnx.printer.to_text(ir.to_proto(load(model).model))


@pytest.mark.parametrize(
    "body",
    [
        "y = ReduceMax<axes = [1]>(x)",
        "k = Constant<value = bool {1}>() y = If(k) <then_branch = a () => (u)"
        " { u = ReduceMax<axes = [1]>(x) }, else_branch = b () => (t) { t = ReduceMax<axes = [1]>(x) }>",
    ],
)
def test_one_op_that_changed_is_rewritten_wherever_it_is(body: str) -> None:
    model = onnx.parser.parse_model(f"""
        <ir_version: 8, opset_import: ["" : 17]> old (float[2,3] x) => (float[2,1] y) {{ {body} }}""")
    nodes = [node for node in load(model).model.graph.all_nodes() if node.op_type == "ReduceMax"]
    assert nodes
    assert all(len(node.inputs) == 2 and "axes" not in node.attributes for node in nodes)
