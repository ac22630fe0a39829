"""Whole models on the CPU: a Ridgeline engine, one built without ONNX Runtime, and ONNX Runtime itself.

    python -m bench.models_cpu [--only NAME ...] [--quick] [--threads N] [--out FILE]

Rows go to `bench/results/` as JSON and to the terminal as a table. A row whose outputs disagree, or whose
build failed, stays in the table and counts in no mean. Exit 3 if there is one.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import platform
import subprocess
import sys
import zipfile
from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from datetime import datetime
from fnmatch import fnmatchcase
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from tempfile import TemporaryDirectory
from time import perf_counter
from typing import Any

import numpy as np
import onnx
import onnxruntime

import ridgeline
from bench.cases import CASES, Case
from ridgeline.analyze.bench import Peer, bench
from ridgeline.analyze.bench_figures import Latency
from ridgeline.analyze.peers import ort_peer
from ridgeline.errors import OptionError, RidgelineError, did_you_mean

RESULTS = Path(__file__).resolve().parent / "results"
PACKAGES = ("ridgeline", "torch", "onnx", "onnx-ir", "onnxruntime", "numpy")
GATE_FAILED = 3


@dataclass(frozen=True)
class Row:
    """One model. Ratios are ONNX Runtime's time over ours in the same run: above 1 we are faster."""

    model: str
    is_trained: bool
    shapes: dict[str, str]
    gate: str  # "pass", or why the figures do not count
    verified: bool = False
    ort_us: float | None = None
    ridge_us: float | None = None
    ratio: float | None = None
    ratio_without_ort: float | None = None
    build_cold_s: float | None = None
    build_warm_s: float | None = None
    build_without_ort_s: float | None = None
    call_overhead_us: float | None = None
    is_lock_exact: bool | None = None  # two builds from one lock gave the same plan.json, byte by byte
    is_fused_legal: bool | None = None  # fused.onnx out of the file: checked, and ONNX Runtime agrees
    steps: int = 0
    tactics: dict[str, int] = field(default_factory=dict)
    tactics_without_ort: dict[str, int] = field(default_factory=dict)
    latencies: tuple[Latency, ...] = ()
    warnings: tuple[str, ...] = ()


def measure(case: Case, *, threads: int, duration_s: float) -> Row:
    """Build three times, compare outputs, time all rivals in one interleaved run."""
    model, feeds = case.path(), case.draw()
    with TemporaryDirectory() as scratch:
        # a cache of its own, so that the cold build is cold whatever ran before
        cache = Path(scratch) / "timings.toml"
        build_cold_s = _build(case, model, cache, threads=threads)[1]
        engine, build_warm_s = _build(case, model, cache, threads=threads)
        own, build_without_ort_s = _build(case, model, cache, threads=threads, without=("ort",))
        is_lock_exact = _is_lock_exact(case, model, cache, Path(scratch) / "model.lock", threads=threads)
        is_fused_legal = _is_fused_legal(engine, Path(scratch))
    peers = [ort_peer(model, threads=threads), Peer("ridgeline without ort", own.run)]
    result = bench(engine, feeds, peers=peers, duration_s=duration_s)
    ridge, ort, _ = result.rows
    to_ort, to_own = result.versus
    wrong = [
        f"{v.output} is {v.max_difference:.2g} from {v.peer}, tolerance {v.tolerance:.2g}"
        for v in result.versus
        if v.tolerance is not None and not v.agrees
    ]
    verified = engine.report.verified and own.report.verified
    return Row(
        model=case.name,
        is_trained=case.is_trained,
        shapes=case.shapes,
        gate="; ".join(wrong) or ("pass" if verified else "not verified"),
        verified=verified,
        ort_us=ort.median_us,
        ridge_us=ridge.median_us,
        ratio=to_ort.ratio,
        ratio_without_ort=to_ort.ratio / to_own.ratio,
        build_cold_s=build_cold_s,
        build_warm_s=build_warm_s,
        build_without_ort_s=build_without_ort_s,
        call_overhead_us=engine.report.call_overhead_us,
        is_lock_exact=is_lock_exact,
        is_fused_legal=is_fused_legal,
        steps=len(engine.plan.steps),
        tactics=_tactics(engine),
        tactics_without_ort=_tactics(own),
        latencies=result.rows,
        warnings=result.warnings,
    )


def _build(
    case: Case, model: Path, cache: Path, *, threads: int, without: tuple[str, ...] = ()
) -> tuple[Any, float]:
    start = perf_counter()
    engine = ridgeline.build(
        model,
        target="cpu",
        profiles=case.profiles,
        level=3,
        timing_cache=cache,
        verify="full",
        threads=threads,
        without=without,
    )
    return engine, perf_counter() - start


def _is_lock_exact(case: Case, model: Path, cache: Path, lock: Path, *, threads: int) -> bool:
    """The first build writes the lock, the second obeys it."""
    texts = [
        ridgeline.build(
            model, profiles=case.profiles, threads=threads, timing_cache=cache, lock=lock, verify="off"
        ).plan.to_json()
        for _ in range(2)
    ]
    return texts[0] == texts[1]


def _is_fused_legal(engine: Any, folder: Path) -> bool:
    """The fused graph, taken out of the engine file, is legal and computes what the engine computes."""
    with zipfile.ZipFile(engine.save(folder / "model.ridge")) as archive:
        archive.extractall(folder)
    onnx.checker.check_model(str(folder / "fused.onnx"))
    options = onnxruntime.SessionOptions()
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    session = onnxruntime.InferenceSession(str(folder / "fused.onnx"), options)
    names = [output.name for output in session.get_outputs()]
    feeds = engine.example_inputs()  # what verification used first, so its tolerances hold here
    ours = engine.run(feeds)
    limits: dict[str, float] = {}
    for check in engine.report.checks:
        limits[check.output] = max(limits.get(check.output, 0.0), check.tolerance)
    theirs = dict(zip(names, session.run(names, feeds), strict=True))
    # both stand within the tolerance of the same reference, so within twice of it of each other
    return all(np.abs(ours[n] - theirs[n]).max(initial=0) <= 2 * limits[n] for n in names)


def _tactics(engine: Any) -> dict[str, int]:
    return dict(Counter(step.tactic for step in engine.plan.steps).most_common())


def measure_all(cases: Sequence[Case], out: Path, *, threads: int, duration_s: float) -> list[Row]:
    """Rows are written after every model, so that an interrupted run loses only the model it was at."""
    rows: list[Row] = []
    around = surroundings(threads=threads, duration_s=duration_s)
    for number, case in enumerate(cases, start=1):
        print(f"[{number}/{len(cases)}] {case.name}", file=sys.stderr, flush=True)
        try:
            row = measure(case, threads=threads, duration_s=duration_s)
        except Exception as error:  # one model that breaks in any library must not cost the other rows
            row = Row(case.name, case.is_trained, case.shapes, gate=f"{type(error).__name__}: {error}")
        rows.append(row)
        out.parent.mkdir(parents=True, exist_ok=True)
        out.write_text(json.dumps({**around, "rows": [asdict(r) for r in rows]}, indent=1) + "\n")
    return rows


def surroundings(*, threads: int, duration_s: float) -> dict[str, Any]:
    """What a reader needs to judge the figures, or to repeat them."""
    return {
        "date": datetime.now().astimezone().isoformat(timespec="seconds"),
        "commit": _commit(),
        "cpu": _cpu_model(),
        "cores": os.cpu_count(),
        "threads": threads,
        "duration_s": duration_s,
        "load_average": list(os.getloadavg()),
        "versions": {"python": platform.python_version(), **{name: _version(name) for name in PACKAGES}},
    }


def _version(package: str) -> str:
    """Where only the sources are on the path, a package has none."""
    try:
        return version(package)
    except PackageNotFoundError:
        return "not installed"


def _commit() -> str:
    command = ["git", "-C", str(RESULTS.parent), "describe", "--always", "--dirty", "--abbrev=12"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    return done.stdout.strip() or "unknown"


def _cpu_model() -> str:
    info = Path("/proc/cpuinfo")
    lines = info.read_text().splitlines() if info.exists() else []
    named = (line.split(":", 1)[1].strip() for line in lines if line.startswith("model name"))
    return next(named, platform.processor() or platform.machine())


def geomean(ratios: Sequence[float]) -> float:
    return math.exp(math.fsum(map(math.log, ratios)) / len(ratios)) if ratios else math.nan


def table(rows: Sequence[Row]) -> str:
    """The rows as text, widest gain first, then the means, then what failed."""
    good = sorted((r for r in rows if r.gate == "pass"), key=lambda r: -(r.ratio or 0))
    lines = [
        f"{'model':26} {'ort µs':>10} {'ridge µs':>10} {'ratio':>6} {'no ort':>6} "
        f"{'cold s':>7} {'warm s':>7} {'steps':>5}  tactics"
    ]
    for r in good:
        tactics = ", ".join(f"{count} {name}" for name, count in list(r.tactics.items())[:3])
        lines.append(
            f"{r.model:26} {r.ort_us:10.1f} {r.ridge_us:10.1f} {r.ratio:6.2f} {r.ratio_without_ort:6.2f} "
            f"{r.build_cold_s:7.1f} {r.build_warm_s:7.1f} {r.steps:5}  {tactics}"
        )
    for label, group in (
        ("geomean", good),
        ("geomean, trained", [r for r in good if r.is_trained]),
        ("geomean, random weights", [r for r in good if not r.is_trained]),
    ):
        ratios = geomean([r.ratio for r in group if r.ratio])
        without = geomean([r.ratio_without_ort for r in group if r.ratio_without_ort])
        lines.append(f"{label:26} {'':10} {'':10} {ratios:6.2f} {without:6.2f}  of {len(group)} models")
    lines += [f"{r.model:26} does not count: {r.gate.splitlines()[0]}" for r in rows if r.gate != "pass"]
    return "\n".join(lines)


def pick(patterns: Sequence[str]) -> list[Case]:
    """The cases that match any pattern (`silero*`), all of them when there is none."""
    for pattern in patterns:
        if not any(fnmatchcase(name, pattern) for name in CASES):
            raise OptionError(f"no model is called {pattern!r}", help=did_you_mean(pattern, list(CASES)))
    return [c for c in CASES.values() if not patterns or any(fnmatchcase(c.name, p) for p in patterns)]


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="bench.models_cpu", description="whole models against ONNX Runtime")
    parser.add_argument("--only", metavar="NAME", action="append", default=[], help="only these; * matches")
    parser.add_argument("--quick", action="store_true", help="half a second a rival: a look, not a result")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--out", type=Path, help="JSON file (default: bench/results/cpu-DATE.json)")
    parser.add_argument("--list", action="store_true", help="list the models and stop")
    given = parser.parse_args(arguments)
    try:
        cases = pick(given.only)
    except RidgelineError as error:
        parser.error(str(error))
    if given.list:
        print("\n".join(f"{c.name:26} {c.shapes}" for c in cases))
        return 0
    # a partial or hasty run never overwrites the day's full one
    suffix = "-part" if given.quick or given.only else ""
    out = given.out or RESULTS / f"cpu-{datetime.now().date().isoformat()}{suffix}.json"
    rows = measure_all(cases, out, threads=given.threads, duration_s=0.5 if given.quick else 3.0)
    print(table(rows))
    print(f"written to {out}", file=sys.stderr)
    return 0 if all(row.gate == "pass" for row in rows) else GATE_FAILED


if __name__ == "__main__":
    sys.exit(main())
