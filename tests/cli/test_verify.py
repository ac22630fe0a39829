"""`ridge verify`: an engine file against its model, by somebody who did not build it."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import numpy as np
import onnx
import onnx.parser
import pytest
import torch

import ridgeline
from ridgeline.errors import ModelError, VerifyError

Ridge = Callable[..., tuple[int, str, str]]


@pytest.fixture
def other_model(tiny_model: Path, tmp_path: Path) -> Path:
    """The tiny model with one weight changed a little."""
    model = onnx.load(tiny_model)
    array = onnx.numpy_helper.to_array(model.graph.initializer[0]).copy()
    array.reshape(-1)[0] += 0.01
    name = model.graph.initializer[0].name
    model.graph.initializer[0].CopyFrom(onnx.numpy_helper.from_array(array, name))
    onnx.save(model, tmp_path / "other.onnx")
    return tmp_path / "other.onnx"


def test_a_right_engine_passes_every_check(ridge: Ridge, tiny_engine: Path, tiny_model: Path) -> None:
    status, out, _ = ridge("verify", tiny_engine, "--model", tiny_model, "--json")
    assert status == 0
    report = json.loads(out)
    assert report["verified"]
    assert report["nodes"] == len(onnx.load(tiny_model).graph.node)
    assert report["versions"]["onnx"] == onnx.__version__
    names = {check["name"] for check in report["checks"]}
    assert names >= {"planned shapes", "min shapes", "max shapes", "same input again"}
    assert "max shapes, rows in another order" in names


def test_data_is_verified_with(ridge: Ridge, tiny_engine: Path, tiny_model: Path, here: Path) -> None:
    np.savez(here / "photo.npz", x=np.ones((2, 3, 32, 32), np.float32))
    status, out, _ = ridge("verify", tiny_engine, "--model", tiny_model, "--data", here)
    assert status == 0
    assert "photo.npz" in out


def test_an_engine_of_another_model_fails_with_status_3(
    ridge: Ridge, tiny_engine: Path, other_model: Path
) -> None:
    status, out, err = ridge("verify", tiny_engine, "--model", other_model)
    assert (status, out) == (3, "")
    assert "does not compute what the model computes" in err
    assert "is this the model that the engine was made from?" in err
    assert "--without" not in err
    _, out, _ = ridge("verify", tiny_engine, "--model", other_model, "--json")
    failed = [check for check in json.loads(out)["checks"] if not check["passed"]]
    assert failed[0]["max_error"] > failed[0]["tolerance"]


def test_python_has_the_same_door(tiny_engine: Path, tiny_model: Path, other_model: Path) -> None:
    engine = ridgeline.load(tiny_engine)
    assert ridgeline.verify_engine(engine, tiny_model).verified
    with pytest.raises(VerifyError):
        ridgeline.verify_engine(engine, other_model)


def test_other_inputs_are_another_model(tiny_engine: Path) -> None:
    text = '<ir_version: 10, opset_import: ["": 20]> g (float[2] a) => (float[2] b) { b = Relu(a) }'
    with pytest.raises(ModelError, match="was not made from"):
        ridgeline.verify_engine(ridgeline.load(tiny_engine), onnx.parser.parse_model(text))


def test_a_model_of_other_ranks_is_another_model(ridge: Ridge, tiny_engine: Path, here: Path) -> None:
    text = '<ir_version: 10, opset_import: ["": 20]> g (float[N,8] x) => (float[N,8] y) { y = Relu (x) }'
    onnx.save(onnx.parser.parse_model(text), here / "flat.onnx")
    status, _, err = ridge("verify", tiny_engine, "--model", here / "flat.onnx")
    assert (status, "was not made from" in err, "--shapes" in err) == (1, True, False)


def test_a_module_is_no_onnx_model(tiny_engine: Path) -> None:
    with pytest.raises(ModelError, match="not against a module") as refused:
        ridgeline.verify_engine(ridgeline.load(tiny_engine), torch.nn.Linear(3, 3))  # type: ignore[arg-type]
    assert "Module" not in refused.value.want


def test_bench_with_another_model_says_so(ridge: Ridge, tiny_engine: Path, here: Path) -> None:
    text = '<ir_version: 10, opset_import: ["": 20]> g (int64[N] ids) => (int64[N] y) { y = Abs (ids) }'
    onnx.save(onnx.parser.parse_model(text), here / "other.onnx")
    status, _, err = ridge("bench", tiny_engine, "--model", here / "other.onnx", "--peers", "ort")
    assert (status, "does not take the engine's inputs" in err) == (1, True)
    assert ridge("run", tiny_engine, "--seed", "-1")[0] == 2
