"""Trained models built without being told any shape, then run at their real ones, against ONNX Runtime.

    python -m bench.guessed [--only NAME ...] [--threads N] [--seconds S] [--given] [--out FILE]

Each engine is built cold, saved, run three times at the model's real shapes and given the time to be planned
again there (`engine.wait()`). Then calls are timed in turn: the engine, the plan that it had before, and
ONNX Runtime; with `--given` also an engine that was built for those shapes. Rows go to `bench/results/` as
JSON and to the terminal as a table. Exit 3 if outputs disagree.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from datetime import datetime
from pathlib import Path
from tempfile import TemporaryDirectory
from time import perf_counter, process_time

import ridgeline
from bench.cases import Case
from bench.models_cpu import GATE_FAILED, RESULTS, geomean, pick, surroundings
from ridgeline.analyze.bench import Peer, bench
from ridgeline.analyze.peers import ort_peer
from ridgeline.errors import RidgelineError
from ridgeline.runtime.real_shapes import RUNS


@dataclass(frozen=True)
class Row:
    """One model. Ratios are ONNX Runtime's time over ours in the same run: above 1 we are faster."""

    model: str
    shapes: dict[str, str]
    gate: str  # "pass", or why the figures do not count
    planned_for: dict[str, str] | None = None  # the guess
    build_s: float | None = None
    build_cpu_s: float | None = None  # of this process: compilers are processes of their own
    again: str = ""  # what planning again came to; "" where the guess was right, or nothing was to choose
    again_s: float | None = None
    ort_us: float | None = None
    ridge_us: float | None = None
    ratio: float | None = None
    ratio_before: float | None = None
    ratio_given: float | None = None
    build_given_s: float | None = None
    plan: str = ""


def measure(case: Case, *, threads: int, seconds: float, given: bool) -> Row:
    model, feeds = case.path(), case.draw()
    with TemporaryDirectory() as scratch:
        began, began_cpu = perf_counter(), process_time()
        engine = ridgeline.build(model, threads=threads, timing_cache=Path(scratch) / "timings.toml")
        build_s, build_cpu_s = perf_counter() - began, process_time() - began_cpu
        before = ridgeline.load(engine.save(Path(scratch) / "guessed.ridge")).context(wait=True)
    planned_for = {name: str(spec) for name, spec in engine.plan.planned_shapes.items()}
    for _ in range(RUNS):
        engine.run(feeds)
    engine.wait()
    again = engine.report.planned_again
    peers = [ort_peer(model, threads=threads), Peer("ridgeline before", before.run)]
    build_given_s = None
    if given:
        began = perf_counter()
        known = ridgeline.build(model, threads=threads, profiles=case.profiles)
        build_given_s = perf_counter() - began
        peers.append(Peer("ridgeline given", known.run))
    result = bench(engine, feeds, peers=peers, duration_s=seconds)
    to_ort = result.versus[0]
    wrong = [
        f"{v.output} is {v.max_difference:.2g} from {v.peer}, tolerance {v.tolerance:.2g}"
        for v in result.versus
        if v.tolerance is not None and not v.agrees
    ]
    failed = [line for line in engine.report.warnings if "not planned again" in line]
    return Row(
        model=case.name,
        shapes=case.shapes,
        gate="; ".join([*wrong, *failed]) or ("pass" if engine.report.verified else "not verified"),
        planned_for=planned_for,
        build_s=build_s,
        build_cpu_s=build_cpu_s,
        again=str(again or ""),
        again_s=again.took_s if again else None,
        ort_us=result.rows[1].median_us,
        ridge_us=result.rows[0].median_us,
        ratio=to_ort.ratio,
        ratio_before=to_ort.ratio / result.versus[1].ratio,
        ratio_given=to_ort.ratio / result.versus[2].ratio if given else None,
        build_given_s=build_given_s,
        plan=engine.plan.why,
    )


def measure_all(cases: Sequence[Case], out: Path, *, threads: int, seconds: float, given: bool) -> list[Row]:
    rows: list[Row] = []
    around = surroundings(threads=threads, duration_s=seconds)
    for number, case in enumerate(cases, start=1):
        print(f"[{number}/{len(cases)}] {case.name}", file=sys.stderr, flush=True)
        try:
            row = measure(case, threads=threads, seconds=seconds, given=given)
        except Exception as error:  # one model that breaks in any library must not cost the other rows
            row = Row(case.name, case.shapes, gate=f"{type(error).__name__}: {error}")
        rows.append(row)
        print(table([row]).splitlines()[1], file=sys.stderr, flush=True)
        out.parent.mkdir(parents=True, exist_ok=True)
        out.write_text(json.dumps({**around, "rows": [asdict(r) for r in rows]}, indent=1) + "\n")
    return rows


def table(rows: Sequence[Row]) -> str:
    lines = [
        f"{'model':26} {'ort µs':>10} {'ridge µs':>10} {'ratio':>6} {'before':>6} {'given':>6} "
        f"{'cold s':>7} {'again s':>7}  plan"
    ]
    good = [row for row in rows if row.gate == "pass"]
    lines += [
        f"{r.model:26} {r.ort_us:10.1f} {r.ridge_us:10.1f} {r.ratio:6.2f} {r.ratio_before:6.2f} "
        f"{r.ratio_given or float('nan'):6.2f} {r.build_s:7.1f} {r.again_s or float('nan'):7.1f}  {r.plan}"
        for r in sorted(good, key=lambda r: -(r.ratio or 0))
    ]
    lines += [f"{r.model:26} does not count: {r.gate.splitlines()[0]}" for r in rows if r.gate != "pass"]
    ratios, before = ([getattr(r, name) for r in good] for name in ("ratio", "ratio_before"))
    if good:
        means = f"{'geomean':26} {'':10} {'':10} {geomean(ratios):6.2f} {geomean(before):6.2f}"
        least = min(good, key=lambda r: r.ratio or 0)
        lines.append(f"{means}  of {len(good)} models; the least is {least.model}")
    return "\n".join(lines)


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="bench.guessed", description=__doc__)
    parser.add_argument("--only", metavar="NAME", action="append", default=[], help="only these; * matches")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--seconds", type=float, default=3.0, help="of the timing of each model")
    parser.add_argument("--given", action="store_true", help="an engine built for the real shapes as well")
    parser.add_argument("--out", type=Path, help="JSON file (default: bench/results/guessed-DATE.json)")
    given = parser.parse_args(arguments)
    try:
        cases = [case for case in pick(given.only) if case.is_trained]
    except RidgelineError as error:
        parser.error(str(error))
    suffix = "-part" if given.only else ""
    out = given.out or RESULTS / f"guessed-{datetime.now().date().isoformat()}{suffix}.json"
    rows = measure_all(cases, out, threads=given.threads, seconds=given.seconds, given=given.given)
    print(table(rows))
    print(f"written to {out}", file=sys.stderr)
    return 0 if all(row.gate == "pass" for row in rows) else GATE_FAILED


if __name__ == "__main__":
    sys.exit(main())
