"""Small models as text, and what ONNX Runtime says they compute."""

from __future__ import annotations

import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnx.parser
import onnxruntime as ort

import ridgeline

HEAD = '<ir_version: 10, opset_import: ["": 20]>'


def model_of(text: str, **weights: np.ndarray) -> onnx.ModelProto:
    model = onnx.parser.parse_model(f"{HEAD} {text}")
    model.graph.initializer.extend(onnx.numpy_helper.from_array(a, n) for n, a in weights.items())
    return model


def expected(model: onnx.ModelProto | Path, feeds: dict[str, Any]) -> dict[str, np.ndarray]:
    options = ort.SessionOptions()
    options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_DISABLE_ALL
    content = model.read_bytes() if isinstance(model, Path) else model.SerializeToString()
    session = ort.InferenceSession(content, options)
    names = [output.name for output in session.get_outputs()]
    return dict(zip(names, session.run(names, feeds), strict=True))


def quick(model: Any, **options: Any) -> ridgeline.Engine:
    """An engine of our own kernels, without timing or verification: the test compares."""
    return ridgeline.build(
        model, **{"level": 0, "verify": "off", "without": ("ort",), "new_shapes": "wait", **options}
    )


def rand(*shape: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32)


def rewritten(saved: Path, path: Path, change: Callable[[dict[str, bytes]], None]) -> Path:
    """A copy of the file with its members changed, hashes left as they were."""
    with zipfile.ZipFile(saved) as archive:
        members = {name: archive.read(name) for name in archive.namelist()}
    change(members)
    with zipfile.ZipFile(path, "w") as archive:
        for name, content in members.items():
            archive.writestr(name, content)
    return path
