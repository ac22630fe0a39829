"""`ridge quantize`: what it writes, says and refuses."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import numpy as np
import onnx
import onnx.parser
import pytest

Ridge = Callable[..., tuple[int, str, str]]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A model and a folder of samples."""
    rng = np.random.default_rng(0)
    text = """<ir_version: 10, opset_import: ["": 17]>
        g (float[N,32] x) => (float[N,8] y) { [up] h = MatMul(x, w) r = Relu(h) [down] y = MatMul(r, v) }"""
    proto = onnx.parser.parse_model(text)
    for name, shape in (("w", (32, 64)), ("v", (64, 8))):
        array = rng.standard_normal(shape).astype(np.float32)
        proto.graph.initializer.append(onnx.numpy_helper.from_array(array, name))
    onnx.save(proto, tmp_path / "m.onnx")
    (tmp_path / "data").mkdir()
    for i in range(8):
        np.savez(tmp_path / "data" / f"{i}.npz", x=rng.standard_normal((2, 32)).astype(np.float32))
    return tmp_path


def test_it_writes_a_model_and_says_what_stayed_in_float(ridge: Ridge, folder: Path) -> None:
    out = folder / "q.onnx"
    code, stdout, stderr = ridge("quantize", folder / "m.onnx", "-o", out, "--data", folder / "data")
    assert code == 0, stderr
    assert "1 of 2 quantised" in stdout
    assert "N = 8" in stdout
    proto = onnx.load(out)
    onnx.checker.check_model(proto, full_check=True)
    assert proto.opset_import[0].version == 17
    assert [node.op_type for node in proto.graph.node].count("QuantizeLinear") == 1


def test_samples_that_could_not_be_held_back_are_said(ridge: Ridge, folder: Path) -> None:
    for i in range(1, 8):
        (folder / "data" / f"{i}.npz").unlink()
    arguments = ("quantize", folder / "m.onnx", "-o", folder / "q.onnx", "--data", folder / "data")
    code, stdout, stderr = ridge(*arguments)
    assert code == 0, stderr
    assert "2 rows that calibration saw too" in stdout
    assert "2 different samples, too few to hold any back" in stdout


def test_json_holds_every_decision(ridge: Ridge, folder: Path) -> None:
    arguments = ("quantize", folder / "m.onnx", "-o", folder / "q.onnx", "--data", folder / "data", "--json")
    code, stdout, stderr = ridge(*arguments, "--calibration", folder / "c.json")
    assert code == 0, stderr
    made = json.loads(stdout)
    assert made["schema"] == "ridgeline/quantized/1"
    assert {(row["node"], row["role"]) for row in made["decisions"]} == {
        ("up", "weight"), ("up", "activation"), ("down", "product"),
    }  # fmt: skip
    assert made["outputs"][0]["relative_l2"] < 0.06
    assert made["ranges"][0]["tensors"] == ["x"]
    assert json.loads((folder / "c.json").read_text())["version"] == 1


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--format", "int9"], "did you mean 'int8'"),
        (["--method", "maxx"], "did you mean 'max'"),
        (["--exclude", "upp"], "near: up"),
        (["--format", "w4", "--block", "7"], "32, 64"),
        ([], "ranges come from data"),
    ],
)
def test_what_does_not_fit_is_said_and_nothing_is_written(
    ridge: Ridge, folder: Path, words: list[str], said: str
) -> None:
    code, _, stderr = ridge("quantize", folder / "m.onnx", "-o", folder / "q.onnx", *words)
    assert code == 1
    assert said in stderr
    assert not (folder / "q.onnx").exists()
