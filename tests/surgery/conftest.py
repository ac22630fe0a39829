"""`ridge(...)` runs a command in this process, in an empty folder: (exit status, stdout, stderr)."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from ridgeline.cli.main import main


@pytest.fixture
def ridge(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Callable[..., tuple[int, str, str]]:
    monkeypatch.chdir(tmp_path)

    def run(*arguments: str | Path) -> tuple[int, str, str]:
        capsys.readouterr()
        with pytest.raises(SystemExit) as stopped:
            main([str(argument) for argument in arguments])
        captured = capsys.readouterr()
        return int(stopped.value.code or 0), captured.out, captured.err

    return run
