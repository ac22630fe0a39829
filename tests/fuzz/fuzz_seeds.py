"""What a process of a fuzzer tells whoever watches it: a line when a seed begins, and one when it ends."""

from __future__ import annotations

import json
import sys
import time
import traceback
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any


def walk_seeds(run_seed: Callable[[int], dict[str, Any]]) -> None:
    """Seeds FIRST to FIRST + COUNT of the command line; a seed that kills the process has no second line."""
    first, count = int(sys.argv[2]), int(sys.argv[3])
    warnings.simplefilter("ignore")
    for seed in range(first, first + count):
        _tell({"begin": seed})
        start = time.perf_counter()
        row = run_seed(seed)
        _tell(row | {"seconds": round(time.perf_counter() - start, 2)})


def _tell(row: dict[str, Any]) -> None:
    sys.stdout.write(json.dumps(row) + "\n")
    sys.stdout.flush()


def foreign(error: Exception) -> dict[str, Any]:
    """An exception that is not ours, with the last places in our code that it came through."""
    places = traceback.extract_tb(error.__traceback__)
    return {
        "verdict": "foreign", "error": type(error).__name__, "detail": str(error)[:300],
        "at": f"{Path(places[-1].filename).name}:{places[-1].lineno}",
        "ours": [f"{Path(f.filename).name}:{f.lineno}" for f in places if "ridgeline" in f.filename][-4:],
    }  # fmt: skip
