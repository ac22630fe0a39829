"""Every example of README.md runs over a trained model: Python blocks as one script, then its commands."""

from __future__ import annotations

import inspect
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
from page_examples import ROOT, run_commands, run_python

from ridgeline.cli.commands_demo import demo
from ridgeline.cli.demo_models import DEMO_MODELS

PAGE = "README.md"
MODEL = "ppocr6_cls"  # as `ridge demo` has it, under the name "orientation"


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory, trained: Callable[[str], Path]) -> Path:
    """With the model.onnx that the page speaks of; its commands use the timings of its Python."""
    made = tmp_path_factory.mktemp("readme")
    shutil.copy(trained(MODEL), made / "model.onnx")
    return made


def test_readme_names_the_model_that_the_demo_leaves() -> None:
    folder = inspect.signature(demo).parameters["folder"].default
    model = next(model for model in DEMO_MODELS if model.title == "orientation")
    assert f"$ cp {folder / Path(model.member).name} model.onnx\n" in (ROOT / PAGE).read_text()


def test_python_examples_run(folder: Path) -> None:
    run_python(PAGE, folder)


def test_console_examples_run(folder: Path) -> None:
    run_commands(PAGE, folder)
