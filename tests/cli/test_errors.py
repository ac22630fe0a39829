"""A user's mistake: exit 1 (2 for usage), a sentence on stderr, no traceback, nothing half-written."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from pathlib import Path
from subprocess import run as run_process

import numpy as np
import pytest

from ridgeline.cli import main as cli_main
from ridgeline.errors import InternalError, VerifyError

Ridge = Callable[..., tuple[int, str, str]]


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["build", "none.onnx"], "does not exist"),
        (["run", "none.ridge"], "does not exist"),
        (["show", "none.ridge"], "does not exist"),
        (["build", "text.onnx"], "text.onnx"),
        (["build", "."], "is a folder"),
        (["show", "text.onnx"], "is not an ONNX model"),
        (["kernels", "text.onnx"], "is not an engine file"),
        (["build", "text.onnx", "-o", "no/such/folder/x.ridge"], "mkdir -p"),
        (["build", "text.onnx", "-o", "."], "is a folder"),
        (["run", "text.onnx", "--input", "x"], "NAME=VALUE"),
        (["run", "text.onnx", "--input", "x=none.npy"], "none.npy does not exist"),
        (["run", "text.onnx", "--input", "x=text.onnx"], "does not load as an array"),
        (["bench", "text.onnx", "--peers", "trt"], "--peers has no 'trt'"),
        (["build", "text.onnx", "--shapes", "x:3"], "--shapes"),
        (["build", "text.onnx", "--verify", "ful"], "did you mean 'full'"),
        (["build", "text.onnx", "--target", "abacus"], "abacus"),
        (["run", "cut.ridge"], "cut.ridge"),
        (["build", "cut.ridge"], "is built already"),
        (["demo", "--wheel", "text.onnx", "--folder", "demo"], "not the wheel"),
    ],
)
def test_mistakes_are_one_sentence(ridge: Ridge, here: Path, arguments: list[str], words: str) -> None:
    (here / "text.onnx").write_text("this is no model")
    (here / "cut.ridge").write_bytes(b"PK\x03\x04 and no more")
    before = set(here.rglob("*"))
    code, stdout, stderr = ridge(*arguments)
    assert code == 1, stderr
    assert stdout == ""
    assert stderr.startswith("error: ")
    assert words in stderr
    assert "Traceback" not in stderr
    assert {path for path in set(here.rglob("*")) - before if path.is_file()} == set()


@pytest.mark.parametrize(
    "arguments",
    [["biuld"], ["build"], ["build", "x.onnx", "--lvel", "3"], ["build", "x.onnx", "--level", "9"]],
)
def test_usage_is_2(ridge: Ridge, arguments: list[str]) -> None:
    code, stdout, stderr = ridge(*arguments)
    assert code == 2
    assert stdout == ""
    assert "Usage" in stderr


def test_a_near_file_name_is_offered(ridge: Ridge, here: Path) -> None:
    (here / "model.onnx").touch()
    _, _, stderr = ridge("build", "modle.onnx")
    assert "did you mean 'model.onnx'?" in stderr


@pytest.mark.parametrize(
    ("error", "code", "words"),
    [
        (VerifyError("y is wrong"), 3, "error: y is wrong"),
        (OSError(28, "No space left on device", "a.ridge"), 1, "a.ridge: No space left on device"),
        (InternalError("a step without a launch"), 70, "this is a bug in ridgeline"),
        (KeyError("x"), 70, "KeyError: 'x', in _run at main.py:"),
    ],
)
def test_exit_codes(
    ridge: Ridge, monkeypatch: pytest.MonkeyPatch, error: Exception, code: int, words: str
) -> None:
    def fail(arguments: object, **_: object) -> None:
        raise error

    monkeypatch.setattr(cli_main, "app", fail)
    got, _, stderr = ridge("build", "x.onnx")
    assert got == code
    assert words in stderr
    assert "Traceback" not in stderr
    got, stdout, _ = ridge("build", "x.onnx", "--json")
    told = json.loads(stdout)
    assert (got, told["exit"], told["error"]) == (code, code, type(error).__name__)


def test_a_bug_shows_its_traceback_when_asked(
    ridge: Ridge, monkeypatch: pytest.MonkeyPatch, tiny_model: Path
) -> None:
    def fail(*_: object) -> None:
        raise ZeroDivisionError

    monkeypatch.setattr("ridgeline.surgery.lint.lint", fail)
    code, stdout, stderr = ridge("lint", "-v", tiny_model)
    assert (code, stdout) == (70, "")
    assert "Traceback" in stderr
    assert "docs/security.md" in stderr


def test_help_and_version_start_without_the_heavy_libraries() -> None:
    program = (
        "import sys; from ridgeline.cli.main import main\n"
        "try: main(['build', '--help'])\n"
        "except SystemExit as stop: assert not stop.code\n"
        "print({'torch', 'onnx', 'onnxruntime', 'onnx_ir'} & set(sys.modules))"
    )
    done = run_process([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout.rstrip().endswith("set()")


def test_every_command_has_help_with_an_example(ridge: Ridge) -> None:
    for command in ("build", "run", "bench", "show", "explain", "demo"):
        code, stdout, _ = ridge(command, "--help")
        assert code == 0
        assert f"ridge {command} " in stdout
        assert "--json" in stdout
    assert ridge("--version")[1].startswith("ridgeline ")


def test_an_unknown_input_is_named(ridge: Ridge, here: Path, tiny_engine: Path) -> None:
    np.save(here / "x.npy", np.ones((1, 3, 32, 32), np.float32))
    code, _, stderr = ridge("run", tiny_engine, "--input", "xx=x.npy")
    assert code == 1
    assert "did you mean 'x'?" in stderr


def test_build_options_beside_an_engine_are_errors(ridge: Ridge, tiny_engine: Path) -> None:
    code, _, stderr = ridge("run", tiny_engine, "--shapes", "x=1x3x32x32", "--level", "2")
    assert code == 1
    assert "--shapes, --level can only be given to a build" in stderr
    code, _, stderr = ridge("bench", tiny_engine, "--shapes", "x=1x3x32x32", "--level", "2")
    assert code == 1
    assert "--level can only be given to a build" in stderr
    code, _, stderr = ridge("run", tiny_engine, "--threads", "63")
    assert code == 1
    assert "--threads 63" in stderr


def test_a_build_that_is_stopped_leaves_nothing(
    ridge: Ridge, here: Path, tiny_model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def stop(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("ridgeline.runtime.file._write_members", stop)
    before = set(here.iterdir())
    code, _, stderr = ridge("build", str(tiny_model), "--level", "0", "-o", "made.ridge")
    assert (code, "stopped" in stderr) == (130, True)
    assert set(here.iterdir()) == before


def test_a_stop_that_a_library_made_an_error_of_is_a_stop(
    ridge: Ridge, tiny_model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Extensions that are being imported raise an ImportError for Ctrl-C."""

    def stop(*_: object, **__: object) -> None:
        raise ImportError("initialization failed") from KeyboardInterrupt()

    monkeypatch.setattr("ridgeline.runtime.file._write_members", stop)
    code, _, stderr = ridge("build", str(tiny_model), "--level", "0", "-o", "made.ridge")
    assert (code, "stopped" in stderr) == (130, True)


@pytest.mark.parametrize(
    ("words", "status"),
    [
        ("explain {engine} nothing --json >/dev/full", 1),
        ("show {engine} --json >/dev/full", 1),
        ("show {engine} >/dev/full", 1),
        ("plugins --json >/dev/full", 1),
        ("show {engine} >&-", 0),
        ("show {engine} --json 2>&- >&-", 0),
    ],
)
def test_a_result_that_cannot_be_printed_is_an_error(tiny_engine: Path, words: str, status: int) -> None:
    line = f"{sys.executable} -m ridgeline.cli.main {words.format(engine=tiny_engine)}"
    done = run_process(["sh", "-c", line], capture_output=True, text=True, check=False)
    assert (done.returncode, "Traceback" in done.stderr) == (status, False), done.stderr
    assert status == 0 or "error: " in done.stderr
