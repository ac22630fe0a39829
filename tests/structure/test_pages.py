"""Every example of docs/ runs: Python blocks as one script a page, `$ ridge` lines in order."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from pathlib import Path

import pytest
from page_examples import ROOT, blocks, commands, run_commands, run_python

PAGES = [str(path.relative_to(ROOT)) for path in sorted((ROOT / "docs").rglob("*.md"))]


@pytest.fixture(scope="module")
def folders(
    tmp_path_factory: pytest.TempPathFactory, make_tiny_model: Callable[..., Path]
) -> Callable[[str], Path]:
    """A folder for each page, with the model.onnx that it speaks of."""

    @cache
    def folder(page: str) -> Path:
        made = tmp_path_factory.mktemp("page")
        make_tiny_model(made / "model.onnx", x="N,3,H,W")
        return made

    return folder


@pytest.mark.parametrize("page", [page for page in PAGES if blocks(page, "python")])
def test_python_examples_run(page: str, folders: Callable[[str], Path]) -> None:
    run_python(page, folders(page))


@pytest.mark.parametrize("page", [page for page in PAGES if commands(page)])
def test_console_examples_run(page: str, folders: Callable[[str], Path]) -> None:
    run_commands(page, folders(page))
