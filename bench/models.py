"""GPU table: Ridgeline against torch on the same models in the same run, GPU time of graph replays.

python -m bench.models --cases resnet50_b1,bert_base_s128_b1 --out bench/results/h200-2026-11-15.json
python -m bench.models --cases second --peers compile        # networks that nobody tuned for
python -m bench.models --cases torchvision:swin_t@16,transformers:SegformerModel@4x512
"""

from __future__ import annotations

import argparse
import gc
import json
import os
import subprocess
import sys
import tempfile
import time
import traceback
from collections.abc import Callable
from dataclasses import asdict
from datetime import date
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

import ridgeline
from bench.gpu_cases import CASES, Case, export, half, randomise
from bench.named_cases import SECOND_TABLE, case_named
from ridgeline.base.gpu_timing import capture, interleave_graphs
from ridgeline.base.timing import paired_ratio
from ridgeline.runtime.device import current_device

ROUNDS = 11
HOST_CALLS, HOST_ROUNDS = 100, 5


def peer_call(case: Case, model: nn.Module, inputs: dict[str, Tensor], peer: str) -> Callable[[], Any]:
    """The model as a peer runs it best."""
    tensors = [t.cuda() for t in half(inputs).values()]
    model = model.cuda().half().eval()
    if case.is_image:
        model = model.to(memory_format=torch.channels_last)
        tensors = [t.contiguous(memory_format=torch.channels_last) if t.ndim == 4 else t for t in tensors]
    run: Callable[..., Any] = model
    if peer.startswith("compile"):
        import torch._inductor.config as inductor

        inductor.freezing = True
        mode = "max-autotune-no-cudagraphs" if peer == "compile_max" else "default"
        run = torch.compile(model, mode=mode)

    def call() -> Any:
        return run(*tensors)

    with torch.inference_mode():
        for _ in range(3):
            call()
    return call


def build(path: Path, cache: Path, **options: Any) -> tuple[ridgeline.Engine, float]:
    start = time.perf_counter()
    engine = ridgeline.build(str(path), target="cuda", timing_cache=cache, **options)
    return engine, time.perf_counter() - start


def ceilings() -> dict[str, float]:
    """What this machine gives today: a large copy and a large product on random data."""
    a = torch.randn(1 << 28, device="cuda", dtype=torch.half)
    b = torch.empty_like(a)
    x, y = (torch.randn(8192, 8192, device="cuda", dtype=torch.half) for _ in range(2))
    copy, product = interleave_graphs([capture(lambda: b.copy_(a)), capture(lambda: x @ y)], rounds=5)
    made = {
        "copy_tb_s": 2 * a.nbytes / copy.median_us / 1e6,
        "fp16_tflop_s": 2 * 8192**3 / product.median_us / 1e6,
    }
    return {name: round(value, 2) for name, value in made.items()}


def bound_us(engine: ridgeline.Engine, top: dict[str, float]) -> float:
    """The roofline of the plan: each step at the copy's bandwidth or the product's rate."""
    return sum(
        max(s.work.bytes / top["copy_tb_s"], s.work.flops / top["fp16_tflop_s"]) / 1e6
        for s in engine.plan.steps
    )


def host_us(call: Callable[[], object]) -> float:
    """What the host spends on one run, the queue never full: the quietest of a few medians."""
    return min(_median_host_us(call) for _ in range(HOST_ROUNDS))


def _median_host_us(call: Callable[[], object]) -> float:
    samples = []
    for _ in range(HOST_CALLS):
        torch.cuda.synchronize()
        start = time.perf_counter()
        call()
        samples.append((time.perf_counter() - start) * 1e6)
    torch.cuda.synchronize()
    return sorted(samples)[len(samples) // 2]


MEMORY = """
import gc, json, sys, torch, ridgeline, ridgeline.builder
from ridgeline.base.gpu_timing import capture
def free():
    torch.cuda.synchronize(); gc.collect(); torch.cuda.empty_cache()
    return torch.cuda.mem_get_info()[0]
x = torch.ones(64, 64, dtype=torch.half, device="cuda")  # libraries, their scratch and a graph come first
image = torch.ones(1, 64, 8, 8, dtype=torch.half, device="cuda")
with torch.inference_mode():
    kept = capture(lambda: (x @ x, torch.conv2d(image, image[:, :, :3, :3])))
before = free()
engine = ridgeline.load(sys.argv[1])
context = engine.context()
context.run({name: torch.from_numpy(a).cuda() for name, a in engine.example_inputs(0).items()})
taken = before - free()
print(json.dumps({"stated": engine.memory(), "driver_bytes": taken}))
"""


def memory_row(engine: ridgeline.Engine, folder: Path) -> dict[str, Any]:
    """What the engine says it holds and what the driver saw it take, in a process of its own."""
    path = engine.save(folder / "memory.ridge")
    done = subprocess.run(
        [sys.executable, "-c", MEMORY, str(path)], capture_output=True, text=True, check=False
    )
    path.unlink()
    if done.returncode:
        raise RuntimeError(done.stderr[-2000:])
    found = json.loads(done.stdout.splitlines()[-1])
    return {"stated_bytes": found["stated"]["total"], **found}


def run_case(case: Case, args: argparse.Namespace, top: dict[str, float], folder: Path) -> dict[str, Any]:
    torch.manual_seed(0)
    model, inputs = randomise(case.make().eval()), case.inputs()
    row: dict[str, Any] = {"case": case.name}
    start = time.perf_counter()
    place = case.name.replace(":", "-")
    path = (args.models or folder) / place / "model.onnx"
    if not path.exists():
        export(model.half(), inputs, path)
    row["export_s"] = round(time.perf_counter() - start, 1)
    options = {"verify": args.verify, "level": args.level}
    cache = folder / place / "timing.toml"
    cache.parent.mkdir(parents=True, exist_ok=True)
    engine, row["build_cold_s"] = build(path, cache, **options)
    row["stages_cold"] = dict(engine.report.stage_seconds)
    if args.warm:
        engine, row["build_warm_s"] = build(path, cache, **options)
        row["stages_warm"] = dict(engine.report.stage_seconds)
    row["verified"] = engine.report.verified
    if args.memory:
        row |= memory_row(engine, folder / place)
    feeds = {n: t.cuda() for n, t in half(inputs).items()}
    bound = engine.context().bind(feeds)
    row["host_us_bound"] = round(host_us(bound.run), 1)
    row["host_us_run"] = round(host_us(lambda: engine.run(feeds)), 1)
    graphs, names = [bound.graph], ["ridgeline"]
    for peer in args.peers.split(",") if args.peers else []:
        start = time.perf_counter()
        with torch.inference_mode():
            call = peer_call(case, model, inputs, peer)
            graphs.append(capture(call))
        row[f"{peer}_setup_s"] = round(time.perf_counter() - start, 1)
        names.append(peer)
    timings = interleave_graphs(graphs, rounds=ROUNDS, min_sample_us=5000)
    for name, timing in zip(names, timings, strict=True):
        row[f"{name}_ms"] = round(timing.median_us / 1e3, 4)
        if name != "ridgeline":
            row[f"ratio_{name}"] = round(paired_ratio(timing, timings[0]), 3)
    row["bound_ms"] = round(bound_us(engine, top) / 1e3, 4)
    row["steps"] = len(engine.plan.steps)
    # nodes of the captured graph that are kernels, copies among them
    row["kernels"] = sum(len(step.kernels) for step in engine.profile(rounds=3).steps)
    tactics: dict[str, int] = {}
    for step in engine.plan.steps:
        tactics[step.tactic] = tactics.get(step.tactic, 0) + 1
    row["tactics"] = tactics
    if args.profile:
        row["profile"] = [(s.name, " ".join(s.op_types[:4]), s.tactic, dict(s.config), s.median_us,
                           [(c.tactic, dict(c.config), c.median_us) for c in s.losers if c.median_us][:3])
                          for s in engine.plan.steps]  # fmt: skip
    row["refused"] = sorted({f"{c.tactic}: {c.refused}"[:200] for s in engine.plan.steps for c in s.losers
                             if c.refused and "want" not in c.refused})[:20]  # fmt: skip
    return row


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--cases", default=",".join(CASES))
    parser.add_argument("--peers", default="eager,compile")
    parser.add_argument("--verify", default="full")
    parser.add_argument("--level", type=int, default=3)
    parser.add_argument("--no-warm", dest="warm", action="store_false")
    parser.add_argument("--memory", action="store_true", help="stated bytes and the driver's")
    parser.add_argument("--profile", action="store_true")
    parser.add_argument("--models", type=Path, help="keep exported models here, and use those that are there")
    parser.add_argument("--budget-s", type=float, default=1e9, help="start no case after this")
    parser.add_argument("--out", type=Path, default=Path(f"bench/results/gpu-{date.today()}.json"))
    args = parser.parse_args()
    torch.backends.cudnn.benchmark = True
    device = current_device()
    top = ceilings()
    begun = time.perf_counter()
    made: dict[str, Any] = {
        "date": str(date.today()), "device": asdict(device), "torch": torch.__version__,
        "ceilings": top, "rows": [],
    }  # fmt: skip
    print(device.key, top, flush=True)
    with tempfile.TemporaryDirectory(dir=os.environ.get("TMPDIR")) as folder:
        for name in SECOND_TABLE if args.cases == "second" else args.cases.split(","):
            if time.perf_counter() - begun > args.budget_s:
                print(f"{name}: no time left", flush=True)
                continue
            try:
                row = run_case(case_named(name), args, top, Path(folder))
            except Exception as error:
                traceback.print_exc()
                row = {"case": name, "failed": f"{type(error).__name__}: {error}"[:2000]}
            made["rows"].append(row)
            shown = {k: v for k, v in row.items() if k not in ("profile", "refused")}
            print(json.dumps(shown), flush=True)
            args.out.parent.mkdir(parents=True, exist_ok=True)
            args.out.write_text(json.dumps(made, indent=1))
            gc.collect()
            torch.cuda.empty_cache()
            torch._dynamo.reset()


if __name__ == "__main__":
    main()
