"""Engines built where no GPU is seen, against engines tuned on the GPU: load, settling, and speed.

python bench/cross_gpu.py --cases resnet50_b1,bert_base_s128_b1 --out bench/results/cross-h200-2026-11-15.json
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from dataclasses import asdict
from datetime import date
from pathlib import Path
from typing import Any

import torch

import ridgeline
import ridgeline.builder  # libraries are imported before any clock starts
from bench.gpu_cases import CASES, export, half, randomise
from ridgeline.base.gpu_timing import interleave_graphs
from ridgeline.base.timing import paired_ratio
from ridgeline.runtime.device import current_device

ROUNDS = 11
DEFAULT = ("resnet50_b1", "bert_base_s128_b1", "vit_b16_b1", "mobilenet_v2_b1", "gpt2_s512_b1")
ELSEWHERE = """
import sys, time, ridgeline
start = time.perf_counter()
engine = ridgeline.build(sys.argv[1], target=sys.argv[2], timing_cache=sys.argv[3])
assert engine.plan.is_predicted, "the GPU was seen"
engine.save(sys.argv[4])
print(time.perf_counter() - start)
"""


def build_elsewhere(model: Path, folder: Path, target: str) -> tuple[Path, float]:
    """In a process that sees no GPU, with caches of its own."""
    environment = {**os.environ, "CUDA_VISIBLE_DEVICES": "", "XDG_CACHE_HOME": str(folder / "cache")}
    path = folder / "cross.ridge"
    command = [sys.executable, "-c", ELSEWHERE, str(model), target, str(folder / "timing.toml"), str(path)]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    if done.returncode:
        raise RuntimeError(done.stderr[-2000:])
    return path, float(done.stdout.split()[-1])


def run_case(name: str, folder: Path) -> dict[str, Any]:
    case = CASES[name]
    torch.manual_seed(0)
    model, inputs = randomise(case.make().eval()), case.inputs()
    folder = folder / name
    onnx_path = export(model.half(), inputs, folder / "model.onnx")
    device = current_device()
    feeds = {n: t.cuda() for n, t in half(inputs).items()}
    native = ridgeline.build(
        str(onnx_path), target="cuda", timing_cache=folder / "native.toml", verify="fast"
    )
    row: dict[str, Any] = {"case": name}
    path, row["build_s"] = build_elsewhere(onnx_path, folder / "elsewhere", f"cuda:{device.arch}")
    row["file_mb"] = path.stat().st_size / 1e6
    sys.modules["triton"] = None  # type: ignore[assignment]
    try:
        start = time.perf_counter()
        engine = ridgeline.load(path, trust=True)
        row["load_s"] = time.perf_counter() - start
        start = time.perf_counter()
        context = engine.context()
        row["settle_s"] = time.perf_counter() - start
        row["verified"] = engine.report.verified
        ours, theirs = context.bind(feeds), native.context().bind(feeds)
    finally:
        del sys.modules["triton"]
    cross, tuned = interleave_graphs([ours.graph, theirs.graph], rounds=ROUNDS, min_sample_us=5000)
    row |= {"cross_ms": cross.median_us / 1e3, "native_ms": tuned.median_us / 1e3}
    row["cross_over_native"] = paired_ratio(cross, tuned)
    return {key: round(value, 4) if isinstance(value, float) else value for key, value in row.items()}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--cases", default=",".join(DEFAULT))
    parser.add_argument("--out", type=Path, default=Path(f"bench/results/cross-gpu-{date.today()}.json"))
    args = parser.parse_args()
    made: dict[str, Any] = {
        "date": str(date.today()), "device": asdict(current_device()), "torch": torch.__version__,
        "rows": [],
    }  # fmt: skip
    with tempfile.TemporaryDirectory() as folder:
        for name in args.cases.split(","):
            row = run_case(name, Path(folder))
            print(json.dumps(row), flush=True)
            made["rows"].append(row)
            args.out.parent.mkdir(parents=True, exist_ok=True)
            args.out.write_text(json.dumps(made, indent=1))


if __name__ == "__main__":
    main()
