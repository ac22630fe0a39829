"""Reading a model needs no PyTorch: `ridge lint` starts without it."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

LINT = """
import sys
from ridgeline.cli.main import main
try:
    main(["lint", sys.argv[1]])
except SystemExit as stop:
    assert not stop.code, stop.code
assert "torch" not in sys.modules
"""


def test_lint_starts_without_torch(tiny_model: Path) -> None:
    done = subprocess.run([sys.executable, "-c", LINT, str(tiny_model)], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
