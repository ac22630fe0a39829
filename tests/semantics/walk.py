"""Every case in every configuration: `python tests/semantics/walk.py`.

Exits with 1 if any result is nobody's, or if one case has two answers. Writes the counts to bench/results and
the table of disagreements beside this file.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import warnings
from collections import Counter
from datetime import date
from pathlib import Path
from time import perf_counter

import numpy as np
import onnx
import onnxruntime
import torch
from semantics_engines import CONFIGURATIONS, GROUP, Result, groups_of, run_group, subject_of
from semantics_table import all_cases, changing, choices, write_table

ROOT = Path(__file__).parents[2]
# default builds choose by time, so that ONNX Runtime's kernels get their share
LEVELS = {"default": 1}
# without times ONNX Runtime gets a whole graph or nothing
SIZES = {"ort first": 1}
FOLLOW_THE_TABLE = ("without ort", "floor only")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--every", type=int, default=1, help="take one case in so many, and write nothing")
    parser.add_argument("--op", default="", help="only this op, and write nothing")
    parser.add_argument("--configuration", default="", help="only this one, and write nothing")
    parser.add_argument("--date", default=str(date.today()), help="of the results file")
    options = parser.parse_args()
    warnings.simplefilter("ignore")
    start = perf_counter()
    cases = [case for case in all_cases() if options.op in ("", case.op)][:: options.every]
    found = [(case, subject_of(case)) for case in cases]
    subjects = [subject for _, subject in found if subject is not None]
    nobody = [case.name for case, subject in found if subject is None]
    results: list[Result] = []
    for configuration in CONFIGURATIONS:
        if options.configuration not in ("", configuration):
            continue
        for group in groups_of(subjects, SIZES.get(configuration, GROUP)):
            made = list(run_group(group, configuration, level=LEVELS.get(configuration, 0)))
            for result in made:
                if not result.verdict:
                    _say(f"{result.name} | {result.configuration} | {result.call} | {result.problem}")
            results += made
    steady = choices(r for r in results if r.configuration in FOLLOW_THE_TABLE)
    for name, who in steady.items():
        if len(who) > 1:
            _say(f"two answers: {name}: {', '.join(sorted(who))}")
    changes = changing(results)
    for text in changes:
        _say(f"changes its answer: {text}")
    wrong = [r for r in results if not r.verdict]
    if options.every == 1 and not options.op and not options.configuration:
        write_table(steady)
        _write(options.date, len(cases), nobody, results, steady, changes, perf_counter() - start)
    _say(f"{len(wrong)} wrong of {len(results)} results, {len(cases)} cases, {perf_counter() - start:.0f} s")
    return int(bool(wrong or changes) or any(len(who) > 1 for who in steady.values()))


def _write(
    day: str,
    cases: int,
    nobody: list[str],
    results: list[Result],
    steady: dict[str, set[str]],
    changes: list[str],
    seconds: float,
) -> None:
    counts: dict[str, dict[str, Counter[str]]] = {}
    for result in results:
        calls = counts.setdefault(result.configuration, {})
        calls.setdefault(result.call, Counter())[result.verdict or "wrong"] += 1
    commit = subprocess.run(
        ["git", "rev-parse", "HEAD"], capture_output=True, text=True, cwd=ROOT, check=False
    )
    versions = {m.__name__: m.__version__ for m in (np, onnx, onnxruntime, torch)}
    written = {
        "what": "one op each; a graph of its own for the others, up to 40 in one graph for us",
        "commit": commit.stdout.strip(),
        "versions": versions,
        "cases": cases,
        "cases_nobody_else_runs": nobody,
        "cases_on_which_the_others_disagree": len(steady),
        "families": Counter(case.family for case in all_cases()),
        "results": {conf: {call: dict(c) for call, c in calls.items()} for conf, calls in counts.items()},
        "wrong": [f"{r.name} | {r.configuration} | {r.call} | {r.problem}" for r in results if not r.verdict],
        "two_answers": [name for name, who in steady.items() if len(who) > 1],
        "changed_after_the_first_call": changes,
        "seconds": round(seconds),
    }
    path = ROOT / "bench" / "results" / f"semantics-{day}.json"
    path.write_text(json.dumps(written, indent=1) + "\n")


def _say(text: str) -> None:
    sys.stdout.write(text + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    sys.exit(main())
