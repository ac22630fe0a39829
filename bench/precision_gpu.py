"""Lowered float32 models against the same models in half, on a GPU, in one run.

python bench/precision_gpu.py --cases bert_base_s128_b32 --precisions auto --out bench/results/…json

The base is the model exported in half, or with `--base fp16` what our own build makes of the float32 model.
"""

from __future__ import annotations

import argparse
import gc
import json
import sys
import tempfile
import time
import traceback
from collections import Counter
from datetime import date
from pathlib import Path
from typing import Any

import torch

import ridgeline
from bench.gpu_cases import CASES, Case, export, half, randomise
from ridgeline.base.gpu_timing import interleave_graphs
from ridgeline.base.timing import paired_ratio
from ridgeline.errors import RidgelineError
from ridgeline.runtime.device import current_device

ROUNDS = 11
HALF = "half export"
TEN = (
    "resnet50_b32", "bert_base_s128_b1", "bert_base_s128_b32", "vit_b16_b32", "mobilenet_v2_b32",
    "gpt2_s512_b1", "llama_block_s512", "superpoint_like", "superglue_like", "unet_block",
)  # fmt: skip


def export_wide(model: torch.nn.Module, inputs: dict[str, torch.Tensor], path: Path) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    torch.onnx.export(
        model.cpu(), tuple(inputs.values()), str(path), input_names=list(inputs),
        opset_version=20, dynamo=True, external_data=True, verbose=False,
    )  # fmt: skip


class Clock:
    """Says when a build goes on to another stage: what a build that takes too long was doing."""

    def __init__(self) -> None:
        self.begin, self.stage = time.perf_counter(), ""

    def __call__(self, stage: str, done: int, total: int, detail: str) -> None:
        if stage != self.stage:
            self.stage = stage
            print(f"{time.perf_counter() - self.begin:7.1f} s {stage}", file=sys.stderr, flush=True)


def run_case(case: Case, args: argparse.Namespace) -> dict[str, Any]:
    torch.manual_seed(0)
    model, inputs = randomise(case.make().eval()), case.inputs()
    wide, narrow = (args.folder / case.name / name / "model.onnx" for name in ("fp32", "fp16"))
    if not wide.exists():
        export_wide(model, inputs, wide)
    if args.base == HALF and not narrow.exists():
        export(model.half(), inputs, narrow)
    row: dict[str, Any] = {"case": case.name, "base": args.base}
    if args.export_only:
        return row
    cache = args.folder / case.name / "timing.toml"
    common: dict[str, Any] = {
        "target": "cuda", "timing_cache": cache, "verify": args.verify, "progress": Clock(),
    }  # fmt: skip
    start = time.perf_counter()
    if args.base == HALF:
        engines = {HALF: ridgeline.build(str(narrow), **common)}
    else:
        engines = {args.base: ridgeline.build(str(wide), precision=args.base, **common, **io_of(args.base))}
    row["base_build_s"] = round(time.perf_counter() - start, 1)
    for precision in args.precisions.split(","):
        start = time.perf_counter()
        try:
            engine = ridgeline.build(str(wide), precision=precision, **common, **io_of(precision))
        except RidgelineError as error:
            row[precision] = {"error": str(error)}
            continue
        engines[precision] = engine
        found = engine.report.precision
        row[precision] = {
            "build_s": round(time.perf_counter() - start, 1), "verified": engine.report.verified,
            "error": found.error if found else None, "budget": found.budget if found else None,
            "nodes": found.nodes if found else None,
            "kept": [f"{kept.node}: {kept.why}" for kept in found.kept][:20] if found else [],
            "steps": len(engine.plan.steps), "base_steps": len(engines[args.base].plan.steps),
            "tactics": dict(Counter(step.tactic for step in engine.plan.steps)),
            "warnings": [line[:200] for line in engine.report.warnings],
        }  # fmt: skip
    bound = []
    for engine in engines.values():
        kinds = {port.name: port.dtype for port in engine.plan.inputs}
        feeds = {n: t.cuda().to(getattr(torch, kinds[n])) for n, t in half(inputs).items()}
        bound.append(engine.context().bind(feeds))  # a graph lives as long as what it was captured of
    timings = interleave_graphs([each.graph for each in bound], rounds=ROUNDS, min_sample_us=5000)
    row["base_ms"] = round(timings[0].median_us / 1e3, 4)
    for name, timing in zip(list(engines)[1:], timings[1:], strict=True):
        row[name]["ms"] = round(timing.median_us / 1e3, 4)
        row[name]["speed_against_base"] = round(paired_ratio(timings[0], timing), 3)
    return row


def io_of(precision: str) -> dict[str, Any]:
    """Half ports, as the half export has them."""
    return {"io": "bf16" if precision == "bf16" else "fp16"} if precision not in ("fp32", "tf32") else {}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--cases", default=",".join(TEN))
    parser.add_argument("--precisions", default="auto")
    parser.add_argument("--base", default=HALF, help=f"{HALF!r}, or a precision of our own build")
    parser.add_argument("--folder", type=Path, help="where exported models are kept for the next run")
    parser.add_argument("--export-only", action="store_true")
    parser.add_argument("--verify", default="fast")
    parser.add_argument("--budget-s", type=float, default=1e9, help="start no case after this")
    parser.add_argument("--out", type=Path, default=Path(f"bench/results/precision-gpu-{date.today()}.json"))
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        args.folder = args.folder or Path(folder)
        run_all(args)


def run_all(args: argparse.Namespace) -> None:
    rows: list[dict[str, Any]] = []
    begin = time.perf_counter()
    about = {"date": str(date.today()), "gpu": current_device().key, "torch": torch.__version__}
    for name in args.cases.split(","):
        if time.perf_counter() - begin > args.budget_s:
            print(f"{name}: not started, the time is up", flush=True)
            continue
        try:
            rows.append(run_case(CASES[name], args))
        except Exception:
            rows.append({"case": name, "failed": traceback.format_exc()[-1500:]})
        print(json.dumps(rows[-1]), flush=True)
        gc.collect()
        torch.cuda.empty_cache()
        args.out.write_text(json.dumps({**about, "rows": rows}, indent=1) + "\n")


if __name__ == "__main__":
    main()
