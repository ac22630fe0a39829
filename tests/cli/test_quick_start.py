"""`ridge show`, `explain`, `kernels` and `shapes` read text: no framework, and mostly no numpy."""

from __future__ import annotations

import hashlib
import json
import subprocess
import sys
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

Ridge = Callable[..., tuple[int, str, str]]

READ = """
import sys
from ridgeline.cli.main import main
try:
    main(sys.argv[1:])
except SystemExit as stop:
    assert not stop.code, stop.code
heavy = {"torch", "onnx", "onnx_ir", "onnxruntime", "triton", "safetensors", LIGHT} & sys.modules.keys()
assert not heavy, f"imported {sorted(heavy)}"
"""


def read(*words: object, light: str = "numpy") -> None:
    """Run a command; `light` must not be imported either."""
    done = subprocess.run(
        [sys.executable, "-c", READ.replace("LIGHT", repr(light)), *map(str, words)],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("words", [["show"], ["show", "--json"], ["explain"], ["explain", "--all"]])
def test_show_and_explain_import_no_framework(words: list[str], tiny_engine: Path) -> None:
    read(*words, tiny_engine)


@pytest.mark.parametrize("words", [["kernels"], ["kernels", "--no-sass"], ["show"]])
def test_kernels_import_no_framework(words: list[str], cross_engine: Path) -> None:
    # code is looked at with numpy
    read(*words, cross_engine, light="" if words == ["kernels"] else "numpy")


def test_shapes_import_no_framework(tmp_path: Path) -> None:
    seen = {"dims": {"x": ["N", 8]}, "seen": [{"shapes": {"x": [3, 8]}, "count": 2}]}
    (tmp_path / "observed.json").write_text(json.dumps(seen))
    read("shapes", tmp_path / "observed.json")


def rewritten(engine: Path, path: Path, change: Callable[[dict[str, bytes]], None]) -> Path:
    """A copy of an engine file with other members, their hashes made again."""
    with zipfile.ZipFile(engine) as archive:
        members = {info.filename: archive.read(info) for info in archive.infolist()}
    manifest = json.loads(members.pop("manifest.json"))
    change(members)
    manifest["sha256"] = {name: hashlib.sha256(content).hexdigest() for name, content in members.items()}
    with zipfile.ZipFile(path, "w") as archive:
        for name, content in {**members, "manifest.json": json.dumps(manifest).encode()}.items():
            archive.writestr(name, content)
    return path


def edited(**fields: Any) -> Callable[[dict[str, bytes]], None]:
    def change(members: dict[str, bytes]) -> None:
        members["plan.json"] = json.dumps({**json.loads(members["plan.json"]), **fields}).encode()

    return change


def oversized(members: dict[str, bytes]) -> None:
    plan = json.loads(members["plan.json"])
    plan["planned_shapes"]["x"]["shape"] = [2**40, 3, 32, 32]
    members["plan.json"] = json.dumps(plan).encode()


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (edited(steps=3), "want a list"),
        (edited(unheard_of=1), "the fields of Plan"),
        (edited(target={"kind": "cpu", "arch": "abacus", "threads": 1, "is_null": False}), "another target"),
        (oversized, "sizes that cannot be"),
        (lambda members: members.update({"plan.json": b"{"}), "does not read as an engine"),
        (lambda members: members.pop("fused.onnx"), "names other members"),
        (lambda members: members.update({"extra.txt": b"x"}), "names other members"),
    ],
)
@pytest.mark.parametrize("command", ["show", "explain"])
def test_a_changed_file_is_refused(
    ridge: Ridge, command: str, tiny_engine: Path, tmp_path: Path, change: Any, words: str
) -> None:
    path = rewritten(tiny_engine, tmp_path / "changed.ridge", change)
    code, _, stderr = ridge(command, path)
    assert code == 1, stderr
    assert words in stderr


@pytest.mark.parametrize("command", ["show", "explain", "kernels"])
def test_bytes_that_were_changed_are_refused(
    ridge: Ridge, command: str, tiny_engine: Path, tmp_path: Path
) -> None:
    content = tiny_engine.read_bytes()
    path = tmp_path / "changed.ridge"
    path.write_bytes(content.replace(b'"precision": "fp32"', b'"precision": "fp16"', 1))
    code, _, stderr = ridge(command, path)
    assert code == 1
    assert "plan.json does not match its hash" in stderr


def test_a_model_named_like_an_engine_is_told_apart(ridge: Ridge, tiny_model: Path, tmp_path: Path) -> None:
    path = tmp_path / "model.ridge"
    path.write_bytes(tiny_model.read_bytes())
    code, _, stderr = ridge("show", path)
    assert code == 1
    assert "is an ONNX model, not an engine" in stderr
