"""Every example of README.md and docs/ runs: Python blocks as one script a page, `$ ridge` lines in order."""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PAGES = ["README.md", *(str(p.relative_to(ROOT)) for p in sorted((ROOT / "docs").glob("*.md")))]
FENCE = re.compile(r"^```(\w+)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
RIDGE = [sys.executable, "-c", "import sys; from ridgeline.cli.main import main; sys.exit(main())"]
LIMIT_S = 120
PROGRAMS = {"ridge": RIDGE, "python": [sys.executable]}


def blocks(page: str, language: str) -> list[str]:
    found = FENCE.findall((ROOT / page).read_text(encoding="utf-8"))
    return [text for name, text in found if name == language]


def commands(page: str) -> list[str]:
    joined = "\n".join(blocks(page, "console")).replace("\\\n", " ")
    return [line.removeprefix("$ ") for line in joined.splitlines() if line.startswith("$ ")]


@pytest.fixture
def folder(tmp_path: Path, make_tiny_model: Callable[..., Path], monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder as the examples expect it: model.onnx, with one image batch `x` as its input."""
    make_tiny_model(tmp_path / "model.onnx", x="N,3,H,W")
    monkeypatch.chdir(tmp_path)
    return tmp_path


def run(words: list[str], folder: Path) -> subprocess.CompletedProcess[str]:
    # own process: an example must not lean on what other tests imported
    environment = os.environ | {"NO_COLOR": "1"}
    return subprocess.run(
        words, cwd=folder, env=environment, capture_output=True, text=True, check=False, timeout=LIMIT_S
    )


@pytest.mark.parametrize("page", [page for page in PAGES if blocks(page, "python")])
def test_python_examples_run(page: str, folder: Path) -> None:
    done = run([sys.executable, "-c", "\n".join(blocks(page, "python"))], folder)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("page", [page for page in PAGES if commands(page)])
def test_console_examples_run(page: str, folder: Path) -> None:
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    for command in commands(page):
        program, *words = shlex.split(command, comments=True)
        if program in PROGRAMS:
            done = run([*PROGRAMS[program], *words], folder)
            assert done.returncode == 0, f"$ {command}\n{done.stdout}{done.stderr}"
        elif program == "make":
            targets = [word for word in words if "=" not in word]
            assert all(f"\n{target}:" in makefile for target in targets), f"no such target: {command}"
