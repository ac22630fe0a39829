"""Transformers exports, right or not: each built at two levels and compared with torch and ONNX Runtime.

    python -m bench.exports [--only NAME ...] [--out FILE]

Two shapes each: the planned one and another. Rows go to `bench/results/` as JSON, with the ops every engine
found in its graph, and to the terminal as a table. Exit 3 if a row is wrong. Needs `transformers`.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from datetime import datetime
from fnmatch import fnmatchcase
from pathlib import Path
from time import perf_counter
from typing import Any

import torch

import ridgeline
from bench.compare import distance, open_session, tolerances
from bench.families import EXPORTS, SHAPES, Export, all_exports, feeds, module, profile, write
from bench.models_cpu import GATE_FAILED, RESULTS, surroundings
from ridgeline.errors import RidgelineError

LEVELS = (0, 1)
SHOWN = ("Attention", "RotaryEmbedding", "RMSNormalization", "LayerNormalization", "Gelu", "Softmax")


@dataclass(frozen=True)
class Row:
    """One export. `gate` is "pass", or what is wrong."""

    export: str
    gate: str
    found: dict[str, int] = field(default_factory=dict)
    far_from_torch: float | None = None  # of the largest allowed distance, over shapes, levels and outputs
    far_from_ort: float | None = None
    ort_refuses: str = ""
    steps: tuple[int, ...] = ()
    seconds: float = 0.0


def check(export: Export, folder: Path = EXPORTS, levels: Sequence[int] = LEVELS) -> Row:
    """Export, build, compare."""
    start = perf_counter()
    path, made = write(export, folder), module(export)
    session, refusal = open_session(path), ""
    far = {"torch": 0.0, "ort": 0.0}
    found: dict[str, int] = {}
    steps = []
    for level in levels:
        engine = ridgeline.build(path, profiles=profile(export), level=level, threads=1)
        if not engine.report.verified:
            return Row(export.name, "not verified")
        found, limits = ops_found(engine), tolerances(engine)
        steps.append(len(engine.plan.steps))
        for shape in SHAPES:
            given = feeds(export, shape)
            arrays = {name: tensor.numpy() for name, tensor in given.items()}
            got = engine.run(arrays)
            with torch.inference_mode():
                want = dict(zip(made.outputs, made(*given.values()), strict=True))
            far["torch"] = max(far["torch"], distance(got, {n: t.numpy() for n, t in want.items()}, limits))
            try:
                theirs = dict(zip(made.outputs, session.run(made.outputs, arrays), strict=True))
            except Exception as error:  # legal operands that ONNX Runtime does not take
                refusal = str(error).split("Status Message:")[-1].strip()[:120]
                continue
            far["ort"] = max(far["ort"], distance(got, theirs, limits))
    wrong = [f"{who} is {off:.2g} tolerances away" for who, off in far.items() if off > 1]
    return Row(
        export.name, "; ".join(wrong) or "pass", found, far["torch"], far["ort"], refusal, tuple(steps),
        round(perf_counter() - start, 1),
    )  # fmt: skip


def ops_found(engine: Any) -> dict[str, int]:
    counts = Counter(op for step in engine.plan.steps for op in step.op_types)
    return {op: counts[op] for op in SHOWN if counts[op]}


def check_all(exports: Sequence[Export], out: Path) -> list[Row]:
    """Written after every row, so that an interrupted run keeps what it had."""
    rows: list[Row] = []
    around = surroundings(threads=1, duration_s=0.0)
    for number, export in enumerate(exports, start=1):
        print(f"[{number}/{len(exports)}] {export.name}", file=sys.stderr, flush=True)
        try:
            rows.append(check(export))
        except Exception as error:  # one that breaks in any library must not cost the other rows
            rows.append(Row(export.name, f"{type(error).__name__}: {str(error).splitlines()[0]}"))
        out.parent.mkdir(parents=True, exist_ok=True)
        out.write_text(json.dumps({**around, "rows": [asdict(row) for row in rows]}, indent=1) + "\n")
    return rows


def table(rows: Sequence[Row]) -> str:
    lines = [f"{'export':26} {'gate':6} {'torch':>6} {'ort':>8}  found"]
    for row in rows:
        found = ", ".join(f"{count} {op}" for op, count in row.found.items())
        peer = "refuses" if row.ort_refuses else f"{row.far_from_ort or 0:.2f}"
        gate = "pass" if row.gate == "pass" else "WRONG"
        lines.append(f"{row.export:26} {gate:6} {row.far_from_torch or 0:6.2f} {peer:>8}  {found}")
    lines += [f"{row.export}: {row.gate}" for row in rows if row.gate != "pass"]
    good = sum(row.gate == "pass" for row in rows)
    return "\n".join([*lines, f"{good} of {len(rows)} right; distances in units of the tolerance"])


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="bench.exports", description="transformers exports, right or not")
    parser.add_argument("--only", metavar="NAME", action="append", default=[], help="only these; * matches")
    parser.add_argument("--out", type=Path, help="JSON file (default: bench/results/exports-DATE.json)")
    given = parser.parse_args(arguments)
    chosen = [e for e in all_exports() if not given.only or any(fnmatchcase(e.name, p) for p in given.only)]
    if not chosen:
        raise RidgelineError(
            f"no export is called {given.only}", help="names are family_attention_opset_exporter"
        )
    suffix = "-part" if given.only else ""
    out = given.out or RESULTS / f"exports-{datetime.now().date().isoformat()}{suffix}.json"
    rows = check_all(chosen, out)
    print(table(rows))
    print(f"written to {out}", file=sys.stderr)
    return 0 if all(row.gate == "pass" for row in rows) else GATE_FAILED


if __name__ == "__main__":
    sys.exit(main())
