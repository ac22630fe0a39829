"""Steps, gaps and overlap of profiles on a GPU against the captured run, over the cases of the GPU table.

    PYTHONPATH=src python -m bench.profile_gpu --cases resnet50_b1,bert_base_s128_b1 [--level 1] [--rounds 20]

Steps and gaps come from the device's time-stamps while the captured graph is replayed; the captured total
from replays without a profiler, before and after. `coverage` is (steps + gaps - overlap) / total. Rows go to
a JSON file in $OUT, or in bench/results, and the traces beside it in $OUT.
"""

from __future__ import annotations

import argparse
import gc
import json
import os
import tempfile
import time
import traceback
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import torch

import ridgeline
from bench.gpu_cases import CASES, Case, export, randomise
from ridgeline.plan.trace import CUPTI, Trace
from ridgeline.runtime.device import current_device

RESULTS = Path(__file__).parent / "results"
LARGEST_ERROR = 0.10


def row_of(trace: Trace) -> dict[str, Any]:
    """One case in figures."""
    return {
        "how": trace.how,
        "total_us": round(trace.total_us, 2),
        "steps_us": round(trace.steps_us, 2),
        "gaps_us": None if trace.gaps_us is None else round(trace.gaps_us, 2),
        "overlap_us": None if trace.overlap_us is None else round(trace.overlap_us, 2),
        "coverage": round(trace.coverage, 4),
        "passed": trace.how == CUPTI and abs(trace.coverage - 1) <= LARGEST_ERROR,
        "eager_us": round(sum(step.eager_us or 0.0 for step in trace.steps), 2),
        "steps": len(trace.steps),
        "kernels": sum(len(step.kernels) for step in trace.steps),
        "enqueue_us": trace.host.enqueue_us,
        "run_us": trace.host.run_us,
        "hottest": [
            {"step": step.index, "ops": " ".join(step.op_types)[:60], "tactic": step.tactic,
             "us": round(step.median_us, 2), "gap_us": step.gap_us, "overlap_us": step.overlap_us}
            for step in trace.hottest(5)
        ],
        "notes": list(trace.notes),
    }  # fmt: skip


def run_case(case: Case, args: argparse.Namespace, folder: Path) -> dict[str, Any]:
    torch.manual_seed(0)
    model, inputs = randomise(case.make().eval()), case.inputs()
    path = (args.models or folder) / case.name / "model.onnx"
    if not path.exists():
        with torch.no_grad():
            export(model.half(), inputs, path)
    start = time.perf_counter()
    engine = ridgeline.build(
        str(path), target="cuda", timing_cache=args.cache, level=args.level, verify="fast"
    )
    build_s = time.perf_counter() - start
    trace = engine.profile(rounds=args.rounds)
    if os.environ.get("OUT"):
        (Path(os.environ["OUT"]) / f"{case.name}.trace.json").write_text(trace.to_json())
    return {"case": case.name, "build_s": round(build_s, 1), **row_of(trace)}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--cases", default="resnet50_b1,bert_base_s128_b1,mobilenet_v2_b1,llama_block_decode")
    parser.add_argument("--level", type=int, default=1)
    parser.add_argument("--rounds", type=int, default=20)
    parser.add_argument("--models", type=Path)
    parser.add_argument("--cache", type=Path, help="timing cache, kept between runs")
    args = parser.parse_args()
    device, rows = current_device(), []
    out = Path(os.environ.get("OUT") or RESULTS) / f"profile-gpu-{datetime.now(UTC):%Y-%m-%d}.json"
    head = {"device": device.key, "torch": torch.__version__, "rounds": args.rounds, "level": args.level}
    with tempfile.TemporaryDirectory() as folder:
        args.cache = args.cache or Path(folder) / "times.toml"
        for name in args.cases.split(","):
            try:
                row = run_case(CASES[name], args, Path(folder))
            except Exception:  # the other cases still have a row
                row = {"case": name, "passed": False, "error": traceback.format_exc()[-3000:]}
            rows.append(row)
            shown = {key: row.get(key) for key in ("how", "total_us", "steps_us", "gaps_us", "overlap_us")}
            print(name, shown, row.get("coverage"), row.get("notes"), row.get("error", ""), flush=True)
            out.write_text(json.dumps({**head, "rows": rows}, indent=1) + "\n")
            gc.collect()


if __name__ == "__main__":
    main()
