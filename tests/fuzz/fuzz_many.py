"""Many random graphs: `python tests/fuzz/fuzz_many.py --count 2000`. Exits with 1 if any is wrong."""

from __future__ import annotations

import argparse
import sys
import warnings
from collections import Counter
from time import perf_counter

from fuzz_graphs import make_case
from fuzz_judge import judge


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--first", type=int, default=0, help="first seed")
    parser.add_argument("--count", type=int, default=2000, help="how many seeds")
    parser.add_argument("--level", type=int, default=0, help="level of the build")
    parser.add_argument(
        "--without", default="ort", help="tactics left out; ort,cpp needs no compiler and is quick"
    )
    options = parser.parse_args()
    warnings.simplefilter("ignore")
    verdicts: Counter[str] = Counter()
    start = perf_counter()
    for seed in range(options.first, options.first + options.count):
        case = make_case(seed)
        verdict = judge(case, level=options.level, without=tuple(options.without.split(",")))
        verdicts[verdict.kind] += 1
        if verdict.kind != "right":
            ops = " ".join(case.ops)
            sys.stdout.write(
                f"seed {seed} {verdict.kind} (opset {case.steps.opset}: {ops})\n  {verdict.detail}\n"
            )
            sys.stdout.flush()
    counts = ", ".join(f"{n} {kind}" for kind, n in verdicts.most_common())
    sys.stdout.write(f"{counts} of {options.count} graphs in {perf_counter() - start:.0f} s\n")
    return int(bool(verdicts["wrong"] or verdicts["crashed"]))


if __name__ == "__main__":
    sys.exit(main())
