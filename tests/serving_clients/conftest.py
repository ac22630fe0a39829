"""A real `ridge serve` for Triton's own clients; `make test-serving` has an environment for them."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path

import ml_dtypes
import numpy as np
import pytest
from served import Case, Server

HERE = Path(__file__).parent
ROOT = HERE.parents[1]
OURS = ROOT / ".venv" / "bin"  # the environment that has ridgeline
ANALYZER = Path(sys.prefix) / "perf_analyzer"
READY_S, DRAIN_S = 120, 30

if find_spec("tritonclient") is None:  # the main suite: its protobuf is another than these clients need
    collect_ignore_glob = ["test_*.py"]


@pytest.fixture(scope="session")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    folder = tmp_path_factory.mktemp("serving")
    environment = {**os.environ, "XDG_CACHE_HOME": str(folder / "cache"), "NO_COLOR": "1"}
    make = [OURS / "python", HERE / "make_repository.py", folder]
    made = subprocess.run(make, env=environment, capture_output=True, text=True, check=False)
    assert made.returncode == 0, made.stderr
    words = ["serve", folder / "models", "--http", "0", "--grpc", "0", "--metrics", "0"]
    words += ["--model-control", "explicit", "--load", "*"]
    log = folder / "server.log"
    with log.open("w") as out:
        process = subprocess.Popen([OURS / "ridge", *words], env=environment, stdout=out, stderr=out)
    try:
        yield Server(**_ports(process, log), cases=_cases(folder), folder=folder)
        process.send_signal(signal.SIGTERM)
        assert process.wait(DRAIN_S) == 0, log.read_text()
    finally:
        process.kill()
        process.wait()


def _ports(process: subprocess.Popen[bytes], log: Path) -> dict[str, str]:
    end = time.monotonic() + READY_S
    while time.monotonic() < end and process.poll() is None:
        told = log.read_text()
        if re.search(r"^ready$", told, re.MULTILINE):
            return dict(re.findall(r"^(http|grpc|metrics) +(\S+:\d+)$", told, re.MULTILINE))
        time.sleep(0.1)
    pytest.fail(f"the server is not ready: {log.read_text()}")


def _cases(folder: Path) -> tuple[Case, ...]:
    def arrays(files: dict[str, str]) -> dict[str, np.ndarray]:
        return {name: _array(folder / file) for name, file in files.items()}

    told = json.loads((folder / "requests.json").read_text())
    return tuple(Case(t["model"], t["rows"], arrays(t["inputs"]), arrays(t["outputs"])) for t in told)


def _array(path: Path) -> np.ndarray:
    array = np.load(path)
    return array.view(ml_dtypes.bfloat16) if ".bf16" in path.suffixes else array


@pytest.fixture(scope="session")
def analyzer() -> list[str]:
    """The command that runs perf_analyzer. In CI it has to be there."""
    reason = ANALYZER / "missing.txt"
    if reason.exists() or not (ANALYZER / "perf_analyzer").exists():
        why = reason.read_text().strip() if reason.exists() else "make test-serving fetches it"
        stop = pytest.fail if os.environ.get("CI") == "true" else pytest.skip
        stop(f"no perf_analyzer: {why}")
    return ["env", f"LD_LIBRARY_PATH={ANALYZER}", str(ANALYZER / "perf_analyzer")]
