"""Every rule of the lint finds what it is for, and finds nothing in a sound model."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx.numpy_helper import from_array
from surgery_models import FUNCTIONS, chain, parse, write

from ridgeline.surgery.lint import LintReport, lint


def text(body: str, *, head: str = "float[N,4] x", tail: str = "float[N,4] y", opset: int = 20) -> str:
    return f'<ir_version: 10, opset_import: ["": {opset}]> g ({head}) => ({tail}) {{ {body} }}'


def has(report: LintReport, severity: str, rule: str, what: str) -> bool:
    return any(
        p.severity == severity and p.rule == rule and what in f"{p.where} {p.what}" for p in report.problems
    )


@pytest.mark.parametrize("model", [chain(), parse(FUNCTIONS)], ids=["chain", "functions"])
def test_a_sound_model_has_no_problem(model: onnx.ModelProto, tmp_path: Path) -> None:
    assert lint(write(model, tmp_path / "m.onnx")).problems == ()


@pytest.mark.parametrize(
    ("model", "severity", "rule", "what"),
    [
        (text("y = Reluu (x)"), "error", "op", "nobody runs Reluu"),
        (text("y = own.Thing (x)"), "error", "opset", "domain 'own'"),
        (text("y = Softmax <axes = 1> (x)"), "error", "node", "checker refuses"),
        (text("y = Add (x)"), "error", "node", "checker refuses"),
        (text("a = Relu (x) y = Abs (b)"), "error", "name", "'b', which nobody makes"),
        (text("y = Abs (a) a = Relu (x)"), "error", "order", "'a' before it is made"),
        (text("a = Relu (x) a = Abs (x) y = Neg (a)"), "error", "name", "'a' is made a second time"),
        (text("a = Relu (x)"), "error", "output", "nobody makes the output 'y'"),
        (text("y = MatMul (x, w)", head="float[N,4] x, float[3,5] w"), "error", "types", "do not fit"),
        (text("y = Cast <to = 7> (x)"), "error", "types", "declared as something else"),
        (text("y = Relu (x)", head="float[N,4] x, float[2] idle"), "warning", "unused", "nobody reads"),
        (text("a = Exp (x) y = Relu (x)"), "warning", "unused", "no output depends"),
        (text("y = Relu (x)", head="float[?,4] x"), "warning", "dims", "no size and no name"),
        (text("y = Relu (x)", opset=9), "note", "opset", "the opset is old"),
        (
            text("a = Cast <to = 11> (x) b = Exp (a) y = Cast <to = 1> (b)"),
            "note", "float64", "values are float64",
        ),
        (
            text("y = Dropout (x, r, t)").replace("{ y", "<float r = {0.5}, bool t = {1}> { y"),
            "warning", "training", "training mode",
        ),
    ],
)  # fmt: skip
def test_each_rule(model: str, severity: str, rule: str, what: str) -> None:
    report = lint(onnx.parser.parse_model(model))
    assert has(report, severity, rule, what), report.problems
    assert bool(report.errors) == any(p.severity == "error" for p in report.problems)


def test_all_problems_come_at_once_worst_first() -> None:
    report = lint(onnx.parser.parse_model(text("a = Reluu (x) b = Add (x) c = Exp (nope) d = Abs (x)")))
    assert report.errors >= 4
    order = [p.severity for p in report.problems]
    assert order == sorted(order, key=["error", "warning", "note"].index)


@pytest.mark.parametrize(
    ("array", "severity", "rule"),
    [
        (np.float32([1, np.nan]), "error", "NaN"),
        (np.float32([1, -np.inf]), "warning", "infinity"),
        (np.float32([1, 1e-42]), "warning", "denormals"),
        (np.zeros(1 << 16, np.int64), "note", "int64"),
    ],
)
def test_odd_weights(array: np.ndarray, severity: str, rule: str) -> None:
    model = onnx.parser.parse_model(text("y = Relu (x)"))
    model.graph.initializer.append(from_array(array, "odd"))
    assert has(lint(model), severity, rule, "odd")


def test_missing_and_short_external_data(tmp_path: Path) -> None:
    path = tmp_path / "m.onnx"
    onnx.save(chain(), str(path), save_as_external_data=True, location="m.bin", size_threshold=0)
    assert not lint(path).problems
    (tmp_path / "m.bin").write_bytes(b"short")
    assert has(lint(path), "error", "external data", "holds 5 bytes")
    (tmp_path / "m.bin").unlink()
    assert has(lint(path), "error", "external data", "missing")


def test_a_large_tensor_in_a_node_and_a_weight_among_the_inputs() -> None:
    model = onnx.parser.parse_model(text("y = Add (x, w)", head="float[N,4] x, float[4] w"))
    model.graph.initializer.append(from_array(np.ones(4, np.float32), "w"))
    big = onnx.NodeProto(op_type="Constant", output=["big"], name="holder")
    big.attribute.add(
        name="value", type=onnx.AttributeProto.TENSOR, t=from_array(np.zeros(1 << 19, np.float32))
    )
    model.graph.node.append(big)
    report = lint(model)
    assert has(report, "note", "constant", "holder")
    assert has(report, "note", "default", "w")


def test_subgraphs_and_functions_are_looked_into() -> None:
    report = lint(
        parse("""<ir_version: 10, opset_import: ["": 20]>
    g (float[4] x, bool go) => (float[4] y) {
      y = If (go) <then_branch = a () => (float[4] t) { t = Exp (lost) },
                   else_branch = b () => (float[4] e) { e = Reluu (x) }>
    }""")
    )
    assert has(report, "error", "name", "'lost', which nobody makes")
    assert has(report, "error", "op", "nobody runs Reluu")


def test_a_file_that_is_no_model_is_one_problem(tmp_path: Path) -> None:
    (tmp_path / "m.onnx").write_bytes(b"not a protobuf at all")
    (problem,) = lint(tmp_path / "m.onnx").problems
    assert problem.severity == "error"


def test_sparse_weights_are_an_error() -> None:
    model = onnx.parser.parse_model(text("y = Relu (x)"))
    sparse = model.graph.sparse_initializer.add()
    sparse.values.CopyFrom(from_array(np.ones(1, np.float32), "s"))
    assert has(lint(model), "error", "sparse", "s")


def test_the_command_exits_by_errors(tmp_path: Path, ridge: Callable[..., tuple[int, str, str]]) -> None:
    good, bad = write(chain(), tmp_path / "good.onnx"), tmp_path / "bad.onnx"
    write(onnx.parser.parse_model(text("y = Reluu (x)")), bad)
    assert ridge("lint", good)[0] == 0
    code, stdout, _ = ridge("lint", bad, "--json")
    assert code == 1
    assert '"severity": "error"' in stdout
