"""Counts of ONNX's backend suite: `python bench/conformance.py [--json FILE] [--only TEXT]`.

The same cases as `tests/conformance`, on two processes; what fails is said with what went wrong."""

from __future__ import annotations

import argparse
import json
import resource
import sys
import time
from collections import Counter
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path

import onnx

sys.path.insert(0, str(Path(__file__).parents[1] / "tests" / "conformance"))

from onnx_suite import KINDS, PROCESSES, read_failing, run_share


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--json", type=Path, help="write the counts there")
    parser.add_argument("--only", default="", help="only cases with this in their name")
    given = parser.parse_args()
    start = time.perf_counter()
    found: dict[str, str | None] = {}
    with ProcessPoolExecutor(PROCESSES, mp_context=get_context("spawn")) as pool:
        for share in pool.map(run_share, range(PROCESSES), [given.only] * PROCESSES):
            found |= share
    seconds = time.perf_counter() - start
    spent = resource.getrusage(resource.RUSAGE_CHILDREN)
    cpu_seconds = spent.ru_utime + spent.ru_stime
    total = Counter(label.split("/")[0] for label in found)
    passed = Counter(label.split("/")[0] for label, problem in found.items() if problem is None)
    listed = read_failing()
    for label, problem in sorted(found.items()):
        if problem is not None:
            print(f"{'listed' if label in listed else 'FAILS '} {label}: {problem}")
        elif label in listed:
            print(f"PASSES {label}: take it out of the list")
    for kind in KINDS.values():
        print(f"{kind:10} {passed[kind]:5} of {total[kind]}")
    spent_text = f"in {seconds:.0f} s, {cpu_seconds:.0f} s of CPU time"
    print(f"{'all':10} {passed.total():5} of {total.total()}   {spent_text}")
    if given.json is not None:
        counts = {kind: {"passed": passed[kind], "total": total[kind]} for kind in KINDS.values()}
        counts["all"] = {"passed": passed.total(), "total": total.total()}
        failing = {label: problem for label, problem in sorted(found.items()) if problem is not None}
        rows = {
            "onnx": onnx.__version__,
            "seconds": round(seconds),
            "cpu_seconds": round(cpu_seconds),
            "processes": PROCESSES,
            "counts": counts,
        }
        given.json.write_text(json.dumps({**rows, "failing": failing}, indent=1) + "\n")


if __name__ == "__main__":
    main()
