"""Engines that several tests of the command line read."""

from __future__ import annotations

from pathlib import Path

import pytest

from cross_models import mlp
from ridgeline.builder import build


@pytest.fixture(scope="session")
def tiny_engine(tiny_model: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The tiny model as an engine file, quickly built. Do not write to it."""
    path = tmp_path_factory.mktemp("engines") / "tiny.ridge"
    build(tiny_model, level=1, profiles={"x": "1..2..4x3x32x32"}).save(path)
    return path


@pytest.fixture(scope="session")
def cross_engine(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A small network for an H200. Do not write to it."""
    path = tmp_path_factory.mktemp("cross") / "mlp.ridge"
    return build(mlp(), target="cuda:sm_90", level=1).save(path)
