"""The text graphs of the passes' tests and the models of the benchmarks serve here too."""

from __future__ import annotations

import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent.parent
sys.path += [str(ROOT / "tests" / "passes"), str(ROOT)]
