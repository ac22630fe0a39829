"""`--json`: one object of a documented form on stdout, errors too; and how loud a command is beside it."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import onnx.parser
import pytest

Ridge = Callable[..., tuple[int, str, str]]
PAGE = (Path(__file__).parents[2] / "docs" / "json.md").read_text(encoding="utf-8")


def documented(form: str) -> set[str]:
    """The fields of a form's table."""
    section = re.search(rf"^## {form}$(.*?)^## ", PAGE, re.MULTILINE | re.DOTALL)
    assert section is not None, f"docs/json.md has no form {form!r}"
    return set(re.findall(r"^\| `(\w+)` \|", section[1], re.MULTILINE))


@pytest.mark.parametrize(
    ("form", "arguments"),
    [
        ("engine", ["build", "{model}", "--level", "0", "--verify", "off", "-o", "made.ridge"]),
        ("engine", ["show", "{engine}"]),
        ("model", ["show", "{model}"]),
        ("outputs", ["run", "{engine}", "--output", "made"]),
        ("bench", ["bench", "{engine}", "--duration", "0.01", "--warmup", "1"]),
        ("bench_sweep", ["bench", "{engine}", "--sweep", "N=1,2", "--duration", "0", "--warmup", "0"]),
        ("profile", ["profile", "{engine}", "--rounds", "1"]),
        ("explanation", ["explain", "{engine}"]),
        ("checks", ["verify", "{engine}", "--model", "{model}"]),
        ("part", ["extract", "{model}", "--from", "r", "-o", "made.onnx"]),
        ("problems", ["lint", "{model}"]),
        ("reduced", ["reduce", "{model}", "--check", "bash -c '! grep -q Relu {}'", "-o", "made.onnx"]),
    ],
)
def test_every_form_is_as_documented(
    ridge: Ridge, tiny_model: Path, tiny_engine: Path, form: str, arguments: list[str]
) -> None:
    paths = {"{model}": str(tiny_model), "{engine}": str(tiny_engine)}
    code, stdout, stderr = ridge(*(paths.get(word, word) for word in arguments), "--json")
    assert code == 0, stderr
    made: dict[str, Any] = json.loads(stdout)
    assert made.pop("schema") == f"ridgeline/{form}/1"
    if "rows" in made and form == "outputs":
        made |= made.pop("rows")[0]
    assert made.keys() <= documented(form), "run `make docs`"
    if "file" in made:
        assert Path(made["file"]).exists()


def test_numbers_are_numbers_and_dims_are_lists(ridge: Ridge, tiny_engine: Path) -> None:
    shown = json.loads(ridge("show", tiny_engine, "--json")[1])
    (port,) = shown["inputs"]
    assert port["dims"] == ["N", 3, 32, 32]
    assert port["planned"] == [2, 3, 32, 32]
    assert port["ranges"][0] == [1, 2, 4]
    assert shown["file_bytes"] == tiny_engine.stat().st_size
    told = json.loads(ridge("explain", tiny_engine, "--json")[1])
    configs = [step["contest"]["config"] for step in told["steps"]]
    assert all(isinstance(config, dict) for config in configs)
    measured = json.loads(ridge("bench", tiny_engine, "--duration", "0.01", "--warmup", "1", "--json")[1])
    assert measured["shapes"] == {"x": [2, 3, 32, 32]}


def test_every_command_counts_the_same_nodes(ridge: Ridge, here: Path) -> None:
    """Those of the file, without Constant nodes; folded ones too."""
    text = """<ir_version: 10, opset_import: ["": 20]> g (float[2,4] x) => (float[2,4] y) {
      two = Constant <value_float = 2.0> () i = Identity (x) a = Mul (i, two) y = Relu (a) }"""
    (here / "m.onnx").write_bytes(onnx.parser.parse_model(text).SerializeToString())
    built = json.loads(ridge("build", "m.onnx", "--level", "0", "--verify", "off", "--json")[1])
    shown = json.loads(ridge("show", "m.ridge", "--json")[1])
    told = json.loads(ridge("explain", "m.ridge", "--json")[1])
    linted = json.loads(ridge("lint", "m.onnx", "--json")[1])
    cut = json.loads(ridge("extract", "m.onnx", "--to", "a", "--json")[1])
    counts = [built["nodes"], shown["nodes"], told["total_nodes"], linted["nodes"], cut["of_nodes"]]
    assert counts == [3] * 5
    assert cut["nodes"] == 2


def test_errors_are_json_too(ridge: Ridge) -> None:
    code, stdout, stderr = ridge("build", "none.onnx", "--json")
    made = json.loads(stdout)
    assert made["schema"] == "ridgeline/error/1"
    assert (made["error"], made["exit"]) == ("ModelError", code) == ("ModelError", 1)
    assert made["what"] in stderr


def test_usage_errors_are_json_too(ridge: Ridge) -> None:
    code, stdout, stderr = ridge("build", "x.onnx", "--lvel", "3", "--json")
    made = json.loads(stdout)
    assert (made["error"], made["exit"]) == ("UsageError", code) == ("UsageError", 2)
    assert "--lvel" in made["what"]
    assert "Usage" in stderr


def test_quiet_leaves_errors_only(ridge: Ridge, tiny_model: Path, tiny_engine: Path) -> None:
    assert "random values" in ridge("run", tiny_engine)[2]
    code, stdout, stderr = ridge("run", tiny_engine, "-q")
    assert (code, stderr) == (0, "")
    assert "float32" in stdout
    code, _, stderr = ridge("run", "none.ridge", "--quiet")
    assert code == 1
    assert stderr.startswith("error: ")
    assert "random values" in ridge("run", tiny_engine)[2], "the next command is not quiet"


def test_verbose_shows_what_the_library_logs(ridge: Ridge, tiny_model: Path) -> None:
    arguments = ("build", tiny_model, "--level", "0", "--verify", "fast", "-o", "a.ridge")
    assert "DEBUG" not in ridge(*arguments)[2]
    told = ridge(*arguments, "-v")[2]
    assert "DEBUG" in told
    assert told.count("passes") == 1, "a stage is told once, as progress"
    assert "DEBUG" not in ridge(*arguments)[2], "the next command is not verbose"


def test_completion_is_offered(ridge: Ridge) -> None:
    assert "--install-completion" in ridge("--help")[1]
