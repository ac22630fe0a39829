"""Things handed to the wrong call: our own error says what was given, and which call is wanted."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import onnx
import pytest

import ridgeline
from ridgeline.errors import ModelError, OptionError, PlanError, RidgelineError

MODEL = """<ir_version: 9, opset_import: ["": 20]> g (float[N,4] x) => (float[N,4] y) { y = Relu(x) }"""


@pytest.fixture(scope="module")
def engine() -> ridgeline.Engine:
    return ridgeline.build(onnx.parser.parse_model(MODEL), level=0, verify="off")


@pytest.mark.parametrize("given", [123, None, b"bytes", onnx.ModelProto(), object()])
def test_load_wants_a_path(given: Any) -> None:
    with pytest.raises(PlanError, match=rf"got   {type(given).__name__}(?s:.*)ridgeline.build"):
        ridgeline.load(given)


def test_build_of_an_engine_file_says_load(engine: ridgeline.Engine, tmp_path: Path) -> None:
    path = engine.save(tmp_path / "m.ridge")
    with pytest.raises(ModelError, match=rf"zip archive(?s:.*)ridgeline.load\('{path}'\)"):
        ridgeline.build(path)


@pytest.mark.parametrize(
    ("call", "error"),
    [
        (lambda engine: ridgeline.build(engine), ModelError),
        (lambda engine: ridgeline.verify_engine("m.ridge", "m.onnx"), PlanError),  # type: ignore[arg-type]
        (lambda engine: engine.save(None), OptionError),
    ],
)
def test_other_doors(
    engine: ridgeline.Engine, call: Callable[[Any], object], error: type[RidgelineError]
) -> None:
    with pytest.raises(error, match=r"this is not an? (model|engine|path)"):
        call(engine)


def test_another_precision_is_explained() -> None:
    with pytest.raises(OptionError, match=r"did you mean 'fp16'"):
        ridgeline.build(onnx.parser.parse_model(MODEL), precision="fp61")
