"""Names of files and models reach the terminal as text: none of them moves the cursor or hides a line."""

from __future__ import annotations

import onnx.parser
import pytest

from ridgeline.builder import build
from ridgeline.cli import render
from ridgeline.cli.grid import put, table
from ridgeline.errors import OptionError, failure, visible

HOSTILE = "x\x1b[2J\u202ey\x9b\r"


def test_characters_that_are_not_text_are_written_out() -> None:
    assert visible(HOSTILE) == r"x\x1b[2J\u202ey\x9b\r"
    assert visible("Größe 3 µs → 1×\n\tnext") == "Größe 3 µs → 1×\n\tnext"


def test_an_error_has_no_line_that_is_not_ours() -> None:
    lines = str(OptionError("no input 'x\nerror: y'", got=HOSTILE)).splitlines()
    assert lines == ["no input 'x", "      error: y'", r"  got   x\x1b[2J\u202ey\x9b\r"]


def test_tables_and_lines_write_them_out(capsys: pytest.CaptureFixture[str]) -> None:
    console = render._console(stderr=False)
    grid = table("name")
    grid.add_row(HOSTILE)
    put(grid, console)
    console.print(HOSTILE)
    shown = capsys.readouterr().out
    assert "\x1b" not in shown
    assert r"x\x1b[2J" in shown


def test_an_engine_shows_its_names_written_out() -> None:
    model = onnx.parser.parse_model(
        '<ir_version: 8, opset_import: ["": 17]> g (float[2] x) => (float[2] y) { y = Relu(x) }'
    )
    model.graph.output[0].name = model.graph.node[0].output[0] = "y\x1b[2J"
    assert "\x1b" not in repr(build(model.SerializeToString(), level=0, verify="off"))


def test_a_failure_says_what_the_error_lists() -> None:
    assert failure(OptionError("a", rows=["b", "c"])) == "failed: OptionError: a: b"
    assert failure(ValueError("a")) == "failed: ValueError: a"
