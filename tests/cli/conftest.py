"""`ridge(...)` runs a command in this process, in an empty folder: (exit status, stdout, stderr)."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from cross_models import mlp
from ridgeline.builder import build
from ridgeline.cli.main import main


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.fixture
def ridge(capsys: pytest.CaptureFixture[str], here: Path) -> Callable[..., tuple[int, str, str]]:
    def run(*arguments: str | Path) -> tuple[int, str, str]:
        capsys.readouterr()
        with pytest.raises(SystemExit) as stopped:
            main([str(argument) for argument in arguments])
        captured = capsys.readouterr()
        return int(stopped.value.code or 0), captured.out, captured.err

    return run


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
