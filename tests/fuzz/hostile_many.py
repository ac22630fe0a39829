"""Hostile models and engine files by the thousand, in processes under AddressSanitizer and UBSan.

    python tests/fuzz/hostile_many.py --count 5000 [--first SEED] [--seconds S] [--out FILE] [--plain|--bytes]

A case is right if the engine ran or was refused with an error of ours. Memory errors, signals, foreign
exceptions and cases that take longer than `--hang` seconds are findings, printed with their seed; exit 1 if
there is one.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
SANITIZER_OPTIONS = "detect_leaks=0:max_allocation_size_mb=8192:allocator_may_return_null=1:abort_on_error=1"
STARTING_S = 120.0  # a worker imports its libraries before the first case


def sanitizer_libraries() -> str | None:
    """What a process must load first; None where the compiler has no sanitizers."""
    compiler = shutil.which("g++")
    if compiler is None:
        return None
    names = ("libasan.so", "libubsan.so")
    asked = [
        subprocess.run([compiler, f"-print-file-name={n}"], capture_output=True, text=True) for n in names
    ]
    paths = [done.stdout.strip() for done in asked]
    return ":".join(paths) if all(Path(p).is_absolute() and Path(p).exists() for p in paths) else None


def run_worker(
    folder: Path,
    first: int,
    count: int,
    deadline: float,
    *,
    worker_file: str,
    sanitize: bool,
    hang_s: float,
) -> tuple[list[dict[str, Any]], int]:
    """Rows of the seeds that one process got through, and the next seed; it ends with what killed it."""
    environment = os.environ | {"OMP_NUM_THREADS": "1", "PYTHONFAULTHANDLER": "1"}
    if sanitize:
        environment |= {"LD_PRELOAD": sanitizer_libraries() or "", "ASAN_OPTIONS": SANITIZER_OPTIONS}
    command = [sys.executable, str(HERE / worker_file), str(folder), str(first), str(count)]
    rows: list[dict[str, Any]] = []
    seed, begun = first - 1, time.monotonic() + STARTING_S
    with (folder / "stderr.txt").open("w") as errors:
        worker = subprocess.Popen(
            command + ["--sanitize"] * sanitize,
            stdout=subprocess.PIPE,
            stderr=errors,
            env=environment,
            text=True,
        )

        def watch() -> None:
            while worker.poll() is None:
                time.sleep(0.2)
                if time.monotonic() > min(begun + hang_s, deadline + hang_s):
                    worker.kill()

        watcher = threading.Thread(target=watch, daemon=True)
        watcher.start()
        assert worker.stdout is not None
        with worker.stdout:
            for line in worker.stdout:
                row = json.loads(line)
                begun = time.monotonic()
                if "begin" in row:
                    seed = row["begin"]
                    if time.monotonic() > deadline:
                        worker.kill()
                        worker.wait()
                        return rows, seed
                    continue
                rows.append(row)
        code = worker.wait()
    if code and seed >= first and (not rows or rows[-1]["seed"] != seed):
        took = time.monotonic() - begun
        report = (folder / "stderr.txt").read_text(errors="replace")
        verdict = "hang" if took >= hang_s else "killed"
        rows.append({"seed": seed, "verdict": verdict, "code": code, "detail": _heart(report)})
    elif code and seed < first:
        raise SystemExit(f"the worker did not start: {(folder / 'stderr.txt').read_text()[-2000:]}")
    return rows, seed + 1


def _heart(report: str) -> str:
    """The lines of a sanitizer's or Python's report that say what happened, and where."""
    lines = [line.strip() for line in report.splitlines()]
    telling = [
        i for i, line in enumerate(lines) if "ERROR" in line or "runtime error" in line or "Fatal" in line
    ]
    start = telling[0] if telling else max(0, len(lines) - 12)
    return "\n".join(lines[start : start + 14])[:1500]


def fuzz(
    first: int,
    count: int,
    *,
    seconds: float = 1e9,
    sanitize: bool = True,
    hang_s: float = 20.0,
    worker_file: str = "hostile_worker.py",
) -> list[dict[str, Any]]:
    """Rows of as many seeds as fit into the time."""
    deadline = time.monotonic() + seconds
    rows: list[dict[str, Any]] = []
    seed = first
    with tempfile.TemporaryDirectory() as folder:
        while seed < first + count and time.monotonic() < deadline:
            more, seed = run_worker(
                Path(folder), seed, first + count - seed, deadline,
                worker_file=worker_file, sanitize=sanitize, hang_s=hang_s,
            )  # fmt: skip
            rows += more
    return rows


def findings(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return [row for row in rows if row["verdict"] not in ("ran", "refused")]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--first", type=int, default=0, help="first seed")
    parser.add_argument("--count", type=int, default=5000, help="how many seeds")
    parser.add_argument("--seconds", type=float, default=1e9, help="stop after this long")
    parser.add_argument("--hang", type=float, default=20.0, help="a case that takes longer is a finding")
    parser.add_argument("--out", type=Path, help="a JSON file for the figures")
    parser.add_argument("--plain", action="store_true", help="without sanitizers: quicker, and blind")
    parser.add_argument("--bytes", action="store_true", help="files changed byte by byte; no sanitizers")
    options = parser.parse_args()
    sanitized = not (options.plain or options.bytes)
    start = time.monotonic()
    rows = fuzz(
        options.first, options.count, seconds=options.seconds, sanitize=sanitized, hang_s=options.hang,
        worker_file="bytes_worker.py" if options.bytes else "hostile_worker.py",
    )  # fmt: skip
    found = findings(rows)
    for row in found:
        sys.stdout.write(json.dumps(row) + "\n")
    verdicts = Counter(row["verdict"] for row in rows)
    errors = Counter(row["error"] for row in rows if row["verdict"] == "refused")
    figures = {
        "first_seed": options.first, "cases": len(rows), "sanitized": sanitized,
        "verdicts": dict(verdicts), "refused_with": dict(errors), "findings": found,
        "kinds": dict(Counter(row.get("kind", "") for row in rows)),
        "slowest_s": max((row.get("seconds", 0.0) for row in rows), default=0.0),
        "seconds": round(time.monotonic() - start),
    }  # fmt: skip
    if options.out is not None:
        options.out.write_text(json.dumps(figures, indent=1) + "\n")
    sys.stdout.write(json.dumps({k: v for k, v in figures.items() if k != "findings"}) + "\n")
    return int(bool(found))


if __name__ == "__main__":
    sys.exit(main())
