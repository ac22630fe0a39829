"""Importing ridgeline, or asking `ridge` for help, loads no framework, starts no thread, touches no GPU."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

# numpy's own pool is not ours to count
ENVIRONMENT = os.environ | {"OPENBLAS_NUM_THREADS": "1", "OMP_NUM_THREADS": "1", "NO_COLOR": "1"}

REPORT = """
import os, sys, threading
heavy = sorted({"torch", "onnxruntime", "onnxscript", "triton"} & sys.modules.keys())
assert not heavy, f"imported {heavy}"
assert threading.active_count() == 1, threading.enumerate()
if os.path.isdir("/proc/self/task"):
    assert len(os.listdir("/proc/self/task")) == 1, "a native thread was started"
    assert "libcuda" not in open("/proc/self/maps").read(), "a CUDA library is mapped"
"""

COMMANDS = (
    "build", "run", "verify", "bench", "show", "explain", "kernels", "settle", "shapes", "extract", "lint",
    "reduce", "demo", "doctor", "top",
    "report",
)  # fmt: skip
HELP = """
import sys
from ridgeline.cli.main import main
for words in {commands!r}:
    sys.argv = ["ridge", *words, "--help"]
    try:
        code = main()
    except SystemExit as stop:
        code = stop.code
    assert not code, f"{{words}} exits with {{code}}"
"""


def run_python(code: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-W", "error", "-c", code],
        capture_output=True,
        text=True,
        env=ENVIRONMENT,
        check=False,
    )


@pytest.mark.parametrize(
    "code",
    [
        pytest.param("import ridgeline", id="import"),
        pytest.param("import ridgeline; ridgeline.__version__; ridgeline.errors", id="version and errors"),
        pytest.param(
            HELP.format(
                commands=[[], *([name] for name in COMMANDS)],
            ),
            id="ridge --help",
        ),
    ],
)
def test_stays_cold(code: str) -> None:
    done = run_python(code + REPORT)
    assert done.returncode == 0, done.stderr
