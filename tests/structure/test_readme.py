"""Every example of README.md and docs/ runs: Python blocks as one script a page, `$ ridge` lines in order."""

from __future__ import annotations

import inspect
import shutil
from collections.abc import Callable
from functools import cache
from pathlib import Path

import pytest
from page_examples import ROOT, blocks, commands, run_commands, run_python

from ridgeline.cli.commands_demo import demo
from ridgeline.cli.demo_models import DEMO_MODELS

PAGES = ["README.md", *(str(p.relative_to(ROOT)) for p in sorted((ROOT / "docs").rglob("*.md")))]
README_MODEL = "ppocr6_cls"  # as `ridge demo` has it, under the name "orientation"


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


@pytest.mark.parametrize("page", [page for page in PAGES if blocks(page, "python")])
def test_python_examples_run(page: str, folders: Callable[[str], Path]) -> None:
    run_python(page, folders(page))


@pytest.mark.parametrize("page", [page for page in PAGES if commands(page)])
def test_console_examples_run(page: str, folders: Callable[[str], Path]) -> None:
    run_commands(page, folders(page))
