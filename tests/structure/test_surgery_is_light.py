"""Reading a model needs no PyTorch: `ridge lint` starts without it, from a list that must stay true."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from ridgeline.kernels.floor import FLOOR
from ridgeline.surgery.fast_ops import CONTROL_OPS, FLOOR_OPS
from ridgeline.tactics.fallback import CONTROL

LINT = """
import sys
from ridgeline.cli.main import main
try:
    main(["lint", sys.argv[1]])
except SystemExit as stop:
    assert not stop.code, stop.code
assert "torch" not in sys.modules
"""


def test_the_list_of_ops_is_the_floors() -> None:
    assert set(FLOOR) == FLOOR_OPS
    assert set(CONTROL) == CONTROL_OPS


def test_lint_starts_without_torch(tiny_model: Path) -> None:
    done = subprocess.run([sys.executable, "-c", LINT, str(tiny_model)], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
