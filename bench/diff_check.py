"""`ridge diff` on real builds: silent between profiles of equal builds, loud about a planted slower layer.

    PYTHONPATH=src:. python -m bench.diff_check [--case minilm_18] [--repeats 20] [--out FILE]

A build writes a lock. The same lock with another candidate for one site, one that took 20 to 60 % longer and
whose layers are at least 2 % of the run, makes a build with a slower layer. Both are profiled repeatedly.
"""

from __future__ import annotations

import argparse
import json
import re
import tempfile
from datetime import date
from pathlib import Path
from statistics import median
from typing import Any

import ridgeline
from bench.cases import CASES
from ridgeline.analyze.diff import diff
from ridgeline.analyze.diff_sides import trace_side
from ridgeline.plan.plan import Plan, Step
from ridgeline.runtime.engine import Engine
from ridgeline.tactics.cache import TimingCache, cpu_name

SLOWER = (1.2, 1.6)
LEAST_SHARE = 0.02
ROUNDS = 40


def plant(lock: Path, plan: Plan) -> tuple[list[str], float]:
    """Choose a slower candidate for one site in the lock: the layers that become slower, and by how much."""
    cache = TimingCache.read(lock)
    total = sum(step.median_us or 0.0 for step in plan.steps)
    for key, entry in cache.entries.items():
        steps = [step for step in plan.steps if _is_of(step, entry.title, plan)]
        own = sum(step.median_us or 0.0 for step in steps)
        best = entry.candidates[entry.chosen].median_us
        if not steps or not best or own < LEAST_SHARE * total:
            continue
        for index, candidate in enumerate(entry.candidates):
            if candidate.median_us and SLOWER[0] <= candidate.median_us / best <= SLOWER[1]:
                text = lock.read_text()
                begin = text.index(f"[site.{key}]")
                changed = re.sub(r"chosen = \d+", f"chosen = {index}", text[begin:], count=1)
                lock.write_text(text[:begin] + changed)
                return [step.name for step in steps], candidate.median_us / best
    raise SystemExit("no site of this case has a candidate that is a little slower")


def _is_of(step: Step, title: str, plan: Plan) -> bool:
    """Whether a step runs the site of this title: equal sites share one entry, named after the first."""
    sites = {note.name: note.site for note in plan.regions}
    return len(step.regions) == 1 and sites.get(step.regions[0]) == sites.get(title)


def profiled(engine: Engine) -> Any:
    return trace_side(engine.profile(engine.example_inputs(), rounds=ROUNDS))


def main() -> None:
    parser = argparse.ArgumentParser(description="ridge diff on real builds")
    parser.add_argument("--case", default="minilm_18")
    parser.add_argument("--repeats", type=int, default=20)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--out", type=Path, default=Path(f"bench/results/diff-{date.today()}.json"))
    args = parser.parse_args()
    case = CASES[args.case]
    options: dict[str, Any] = {
        "profiles": case.profiles, "threads": args.threads, "verify": "off", "without": ("ort",), "level": 2,
    }  # fmt: skip
    with tempfile.TemporaryDirectory() as folder:
        lock = Path(folder) / "ridge.lock"
        first = ridgeline.build(case.path(), lock=lock, **options)
        same = ridgeline.build(case.path(), lock=lock, **options)
        layers, factor = plant(lock, first.plan)
        slow = ridgeline.build(case.path(), lock=lock, **options)
    silent, named, rows = 0, 0, []
    for repeat in range(args.repeats):
        a, b, c = profiled(first), profiled(same), profiled(slow)
        equal, planted = diff(a, b), diff(a, c)
        silent += not equal.failed
        found = {row.name for row in planted.slower}
        named += planted.failed and bool(found) and found <= set(layers)
        ratios = [row.ratio for row in planted.rows if row.name in layers and row.ratio]
        rows.append({
            "equal": [r.name for r in equal.slower], "planted": sorted(found), "noise": round(equal.noise, 4),
            "planted_noise": round(planted.noise, 4), "planted_ratio": round(median(ratios), 4),
        })  # fmt: skip
        print(repeat, rows[-1], flush=True)
    made = {
        "date": str(date.today()), "device": cpu_name(), "threads": args.threads, "case": args.case,
        "planted": layers, "planted_factor": round(factor, 3), "repeats": args.repeats,
        "silent_on_equal_builds": silent, "named_the_planted_layer": named, "rows": rows,
    }  # fmt: skip
    args.out.write_text(json.dumps(made, indent=1))
    print(f"silent {silent} of {args.repeats}, named {named} of {args.repeats}: {layers} at {factor:.2f}x")


if __name__ == "__main__":
    main()
