"""What decides whether a model of a repository is built again."""

from __future__ import annotations

from pathlib import Path

import pytest

from ridgeline.serve.models.builds import files_of


@pytest.mark.parametrize(
    ("beside", "matters"),
    [
        ("a.onnx.data", True),
        ("a.bin", True),
        ("weights.bin", True),
        ("b.onnx", False),
        ("b.ridge", False),
        ("b.onnx.data", False),
        ("a.b.onnx", False),
        ("a.b.weights", True),
        ("b", True),
    ],
)
def test_files_beside_a_model_that_may_hold_its_weights(tmp_path: Path, beside: str, matters: bool) -> None:
    for name in ("a.onnx", "b.onnx", beside):
        (tmp_path / name).touch()
    (tmp_path / "folder").mkdir()
    files = files_of(tmp_path / "a.onnx")
    assert files[0].name == "a.onnx"
    assert ([each.name for each in files[1:]] == [beside]) == matters
