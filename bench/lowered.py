"""Trained models in half precision: each inside the budget, with the nodes that stayed float32.

    python -m bench.lowered [--only NAME ...] [--precisions fp16,auto] [--level N] [--out FILE]

Inputs are drawn as the other benches draw them; those that judge are not those that decide. Rows go to
`bench/results/` as JSON and to the terminal as a table. Exit 3 if one is over its budget or not verified.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from datetime import datetime
from pathlib import Path
from time import perf_counter

import ridgeline
from bench.cases import Case
from bench.feeds import draw
from bench.models_cpu import GATE_FAILED, RESULTS, surroundings
from bench.right import pick
from ridgeline.errors import RidgelineError

SAMPLES = 8


@dataclass(frozen=True)
class Row:
    """One model in one precision. `gate` is "pass", or what is wrong."""

    model: str
    precision: str
    gate: str
    error: float | None = None
    budget: float | None = None
    samples: int = 0
    nodes: dict[str, int] = field(default_factory=dict)
    kept: dict[str, str] = field(default_factory=dict)  # by node, why it stayed float32
    warnings: tuple[str, ...] = ()
    build_s: float = 0.0


def lowered(case: Case, precision: str, level: int) -> Row:
    start = perf_counter()
    data = [draw(case.feeds, seed=seed) for seed in range(SAMPLES)]
    profiles = {name: "x".join(map(str, feed.shape)) for name, feed in case.feeds.items() if feed.shape}
    try:
        engine = ridgeline.build(
            case.path(), precision=precision, data=data, profiles=profiles, level=level, threads=2
        )
    except RidgelineError as error:
        return Row(case.name, precision, f"{type(error).__name__}: {str(error).splitlines()[0]}")
    found, took = engine.report.precision, perf_counter() - start
    if found is None:
        why = engine.report.warnings[-1:] or ("the report says nothing of precision",)
        return Row(case.name, precision, "pass", warnings=why, build_s=round(took, 1))
    is_right = engine.report.verified and found.error <= found.budget
    return Row(
        case.name, precision, "pass" if is_right else "over its budget, or not verified", found.error,
        found.budget, found.samples, dict(found.nodes), {kept.node: kept.why for kept in found.kept},
        engine.report.warnings, round(took, 1),
    )  # fmt: skip


def table(rows: Sequence[Row]) -> str:
    lines = [f"{'model':26} {'asked':6} {'error':>9} {'budget':>8} {'nodes':24} {'kept':>5} {'s':>6}  gate"]
    for row in rows:
        nodes = " ".join(f"{kind}:{count}" for kind, count in row.nodes.items())
        error = "" if row.error is None else f"{row.error:.2g}"
        lines.append(
            f"{row.model:26} {row.precision:6} {error:>9} {row.budget or 0:8.2g} {nodes:24} "
            f"{len(row.kept):5} {row.build_s:6.1f}  {row.gate}"
        )
    good = sum(row.gate == "pass" for row in rows)
    return "\n".join([*lines, f"{good} of {len(rows)} inside their budgets and verified"])


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="bench.lowered", description="trained models in half precision")
    parser.add_argument("--only", metavar="NAME", action="append", default=[], help="only these; * matches")
    parser.add_argument("--precisions", default="fp16,auto")
    parser.add_argument("--level", type=int, default=1, help="of the build (default 1)")
    parser.add_argument("--out", type=Path, help="JSON file (default: bench/results/lowered-DATE.json)")
    given = parser.parse_args(arguments)
    try:
        cases = pick(given.only)
    except RidgelineError as error:
        parser.error(str(error))
    out = given.out or RESULTS / f"lowered-{datetime.now().date().isoformat()}.json"
    rows: list[Row] = []
    around = surroundings(threads=2, duration_s=0.0) | {"level": given.level, "samples": SAMPLES}
    for case in cases:
        for precision in given.precisions.split(","):
            try:
                rows.append(lowered(case, precision, given.level))
            except Exception as error:  # one model that breaks must not cost the other rows
                rows.append(
                    Row(case.name, precision, f"{type(error).__name__}: {str(error).splitlines()[0]}")
                )
            print(table(rows[-1:]).splitlines()[1], file=sys.stderr, flush=True)
            out.parent.mkdir(parents=True, exist_ok=True)
            out.write_text(json.dumps({**around, "rows": [asdict(row) for row in rows]}, indent=1) + "\n")
    print(table(rows))
    return GATE_FAILED if any(row.gate != "pass" for row in rows) else 0


if __name__ == "__main__":
    sys.exit(main())
