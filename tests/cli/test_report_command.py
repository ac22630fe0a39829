"""`ridge report`: the files it writes, and what it says to bad input."""

from __future__ import annotations

import json
import zipfile
from collections.abc import Callable
from pathlib import Path

import pytest

Ridge = Callable[..., tuple[int, str, str]]


@pytest.mark.parametrize(
    ("arguments", "name", "begins"),
    [
        (["-o", "r.html"], "r.html", "<!doctype html>"),
        ([], "tiny.html", "<!doctype html>"),
        (["--format", "md"], "tiny.md", "# "),
        (["-o", "steps.csv"], "steps.csv", "index,name,"),
        (["-o", "r.txt", "--format", "json"], "r.txt", '{\n "schema": "ridgeline/report/1"'),
    ],
)
def test_every_format_is_written(
    ridge: Ridge, tiny_engine: Path, here: Path, arguments: list[str], name: str, begins: str
) -> None:
    code, stdout, stderr = ridge("report", tiny_engine, *arguments)
    assert code == 0, stderr
    assert (here / name).read_text(encoding="utf-8").startswith(begins)
    assert stdout.startswith(name)
    assert "verified" in stdout


def test_json_holds_the_whole_report(ridge: Ridge, tiny_engine: Path, here: Path) -> None:
    code, stdout, stderr = ridge("report", tiny_engine, "--json")
    assert code == 0, stderr
    told = json.loads(stdout)
    assert told["schema"] == "ridgeline/report/1"
    assert (here / told["file"]).stat().st_size == told["file_bytes"]
    assert len(told["steps"]) == len(told["summary"]["steps"])
    assert all(step["contest"]["tactic"] == step["tactic"] for step in told["steps"])


def test_profile_measures_and_a_saved_trace_is_read(ridge: Ridge, tiny_engine: Path, here: Path) -> None:
    code, stdout, stderr = ridge("report", tiny_engine, "--profile", "--json")
    assert code == 0, stderr
    told = json.loads(stdout)
    assert told["times"] == "profiled"
    assert told["measured"]["rounds"] >= 1
    assert told["latency_us"] == told["measured"]["total_us"] > 0
    (here / "cut.json").write_text('{"format": "ridgeline/trace/1", "steps": [')
    code, _, stderr = ridge("report", tiny_engine, "--trace", "cut.json")
    assert code == 1
    assert "ridge profile ENGINE --save" in stderr
    assert not list(here.glob("*.html")) or told["file"] == "tiny.html"


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--format", "pdf"], "has no format 'pdf'"),
        (["--format", "htlm"], "did you mean 'html'"),
        (["-o", "none/r.html"], "mkdir -p"),
        (["-o", "r.txt"], "does not say which format"),
        (["--trace", "none.json"], "none.json"),
        (["--trace", "t.json", "-o", "./t.json"], "--trace and -o name one file"),
        (["--trace", "none.json", "--profile"], "leave one of them out"),
    ],
)
def test_bad_options_say_what_to_do(ridge: Ridge, tiny_engine: Path, arguments: list[str], said: str) -> None:
    code, _, stderr = ridge("report", tiny_engine, *arguments)
    assert code == 1
    assert said in stderr


def test_engines_that_cannot_be_read(ridge: Ridge, tiny_engine: Path, tiny_model: Path, here: Path) -> None:
    content = tiny_engine.read_bytes()
    (here / "cut.ridge").write_bytes(content[: len(content) // 2])
    code, _, stderr = ridge("report", "cut.ridge")
    assert code == 1
    assert "build it again" in stderr
    with zipfile.ZipFile(tiny_engine) as old, zipfile.ZipFile(here / "newer.ridge", "w") as new:
        for name in old.namelist():
            text = old.read(name)
            new.writestr(
                name, text.replace(b'"format": 1', b'"format": 9') if name == "manifest.json" else text
            )
    code, _, stderr = ridge("report", "newer.ridge")
    assert code == 1
    assert "another format version" in stderr
    assert "build it again with this version" in stderr
    code, _, stderr = ridge("report", tiny_model)
    assert code == 1
    assert "ridge build" in stderr
    assert not list(here.glob("*.html")), "nothing is written"


def test_a_changed_graph_is_refused(ridge: Ridge, tiny_engine: Path, here: Path) -> None:
    with zipfile.ZipFile(tiny_engine) as old, zipfile.ZipFile(here / "changed.ridge", "w") as new:
        for name in old.namelist():
            new.writestr(name, old.read(name) + (b"\0" if name == "fused.onnx" else b""))
    code, _, stderr = ridge("report", "changed.ridge")
    assert code == 1
    assert "was changed after it was made" in stderr
