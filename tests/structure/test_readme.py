"""Every example of README.md and docs/ runs: Python blocks as one script a page, `$ ridge` lines in order."""

from __future__ import annotations

import inspect
import os
import re
import shlex
import shutil
import subprocess
import sys
from collections.abc import Callable
from functools import cache
from pathlib import Path

import pytest

from ridgeline.cli.commands_demo import demo
from ridgeline.cli.demo_models import DEMO_MODELS

ROOT = Path(__file__).parents[2]
PAGES = ["README.md", *(str(p.relative_to(ROOT)) for p in sorted((ROOT / "docs").glob("*.md")))]
FENCE = re.compile(r"^```(\w+)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
RIDGE = [sys.executable, "-c", "import sys; from ridgeline.cli.main import main; sys.exit(main())"]
LIMIT_S = 600  # a hang; README builds a real model at the default level
README_MODEL = "ppocr6_cls"  # as `ridge demo` has it, under the name "orientation"
NODES = re.compile(r"\b\d+ nodes|\bnodes +\d+ of \d+")
PROGRAMS = {"ridge": RIDGE, "python": [sys.executable]}


def blocks(page: str, language: str) -> list[str]:
    found = FENCE.findall((ROOT / page).read_text(encoding="utf-8"))
    return [text for name, text in found if name == language]


def examples(page: str) -> list[tuple[str, str]]:
    """Every command of a page, with the output that is shown below it."""
    joined = "\n".join(blocks(page, "console")).replace("\\\n", " ")
    parts = re.split(r"^\$ (.*)$", joined, flags=re.MULTILINE)[1:]
    return list(zip(parts[::2], parts[1::2], strict=True))


@pytest.fixture(scope="module")
def folders(
    tmp_path_factory: pytest.TempPathFactory,
    make_tiny_model: Callable[..., Path],
    trained: Callable[[str], Path],
) -> Callable[[str], Path]:
    """A folder for each page, with the model.onnx that it speaks of: README's is a trained one."""

    @cache
    def folder(page: str) -> Path:
        made = tmp_path_factory.mktemp("page")
        if page == "README.md":
            shutil.copy(trained(README_MODEL), made / "model.onnx")
        else:
            make_tiny_model(made / "model.onnx", x="N,3,H,W")
        return made

    return folder


def test_readme_names_the_model_that_the_demo_leaves() -> None:
    folder = inspect.signature(demo).parameters["folder"].default
    model = next(model for model in DEMO_MODELS if model.title == "orientation")
    assert f"$ cp {folder / Path(model.member).name} model.onnx\n" in (ROOT / "README.md").read_text()


def run(words: list[str], folder: Path) -> subprocess.CompletedProcess[str]:
    # own process: an example must not lean on what other tests imported
    environment = os.environ | {"NO_COLOR": "1"}
    return subprocess.run(
        words, cwd=folder, env=environment, capture_output=True, text=True, check=False, timeout=LIMIT_S
    )


@pytest.mark.parametrize("page", [page for page in PAGES if blocks(page, "python")])
def test_python_examples_run(page: str, folders: Callable[[str], Path]) -> None:
    done = run([sys.executable, "-c", "\n".join(blocks(page, "python"))], folders(page))
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("page", [page for page in PAGES if examples(page)])
def test_console_examples_run(page: str, folders: Callable[[str], Path]) -> None:
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    for command, shown in examples(page):
        program, *words = shlex.split(command, comments=True)
        if program in PROGRAMS:
            done = run([*PROGRAMS[program], *words], folders(page))
            assert done.returncode == 0, f"$ {command}\n{done.stdout}{done.stderr}"
            for count in NODES.findall(shown):  # what is shown is of the model that is named
                assert count in done.stdout, f"$ {command}\n{done.stdout}"
        elif program == "make":
            targets = [word for word in words if "=" not in word]
            assert all(f"\n{target}:" in makefile for target in targets), f"no such target: {command}"
