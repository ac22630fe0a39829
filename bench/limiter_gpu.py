"""What `ridge profile` says limits a step, beside the speed-of-light section of Nsight Compute.

    PYTHONPATH=src python -m bench.limiter_gpu [--ncu ncu] [--only NAME ...]

Each case is a small model whose time is in one kernel. Ours is the limiter of that step out of a profile; ncu
measures the same kernel (clocks as they are, caches warm) and counts as: compute from 60 % of compute
throughput on, memory or L2 from 60 % of memory throughput on, by the share of the DRAM, else latency. Rows
go to a JSON file in $OUT, or in bench/results.
"""

from __future__ import annotations

import argparse
import csv
import io
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np
import onnx.parser
import torch

import ridgeline
from bench.models_cpu import RESULTS
from ridgeline.analyze.profile import ceilings_or_reason
from ridgeline.analyze.profile_report import report_profile
from ridgeline.runtime.device import current_device

AT_ROOF = 60.0
_CHAIN = " ".join(f"t{i + 1} = {op} (t{i})" for i, op in enumerate(("Erf", "Tanh", "Sin", "Softplus") * 4))
# the ports and the nodes of each model; w is a weight
CASES: dict[str, tuple[str, str]] = {
    "add, 402 MB": ("float16[67108864] x, float16[67108864] z => float16[67108864] y", "y = Add (x, z)"),
    "add, 25 MB": ("float16[4194304] x, float16[4194304] z => float16[4194304] y", "y = Add (x, z)"),
    "relu, 4 KB": ("float16[1024] x => float16[1024] y", "y = Relu (x)"),
    "softmax of long rows": (
        "float16[32768,1024] x => float16[32768,1024] y", "y = Softmax <axis = -1> (x)",
    ),
    "layer norm, 128 rows": (
        "float16[128,768] x, float16[768] s, float16[768] b => float16[128,768] y",
        "y = LayerNormalization <axis = -1> (x, s, b)",
    ),
    "sixteen functions": (
        "float[16777216] t0 => float[16777216] y", f"{_CHAIN} y = Abs (t16)",
    ),
    "product 4096": (
        "float16[4096,4096] x, float16[4096,4096] z => float16[4096,4096] y", "y = MatMul (x, z)",
    ),
    "product 256": ("float16[256,256] x, float16[256,256] z => float16[256,256] y", "y = MatMul (x, z)"),
    "one row times 134 MB": (
        "float16[1,8192] x, float16[8192,8192] z => float16[1,8192] y", "y = MatMul (x, z)",
    ),
    "convolution 3x3": (
        "float16[32,256,56,56] x, float16[256,256,3,3] w => float16[32,256,1,1] y",
        "t = Relu (x) u = Conv <kernel_shape = [3, 3], pads = [1, 1, 1, 1]> (t, w) y = GlobalAveragePool (u)",
    ),
    "attention 2048": (
        "float16[8,16,2048,64] q, float16[8,16,2048,64] k, float16[8,16,2048,64] v"
        " => float16[8,16,2048,64] y",
        "y = Attention (q, k, v)",
    ),
    "product with a short last wave": (
        "float16[1536,4096] x, float16[4096,1536] z => float16[1536,1536] y", "y = MatMul (x, z)",
    ),
}  # fmt: skip
CHILD = """
import sys, torch, ridgeline
engines = [ridgeline.load(path) for path in sys.argv[1:]]
instances = [engine.context(wait=True).instance(engine.example_inputs()) for engine in engines]
with torch.inference_mode():
    for instance in instances:
        for _ in range(3):
            instance.execute()
        torch.cuda.synchronize()
    torch.cuda.cudart().cudaProfilerStart()
    for instance in instances:
        torch.cuda._sleep(1)
        for call in instance.calls:
            call()
    torch.cuda._sleep(1)
    torch.cuda.synchronize()
    torch.cuda.cudart().cudaProfilerStop()
"""


def model(name: str) -> onnx.ModelProto:
    ports, nodes = CASES[name]
    inputs, outputs = ports.split(" => ")
    made = onnx.parser.parse_model(
        f'<ir_version: 11, opset_import: ["": 23]> g ({inputs}) => ({outputs}) {{ {nodes} }}'
    )
    for port in [port for port in made.graph.input if port.name == "w"]:
        shape = [dim.dim_value for dim in port.type.tensor_type.shape.dim]
        values = np.random.default_rng(0).standard_normal(shape, dtype=np.float32) * 0.02
        made.graph.initializer.append(onnx.numpy_helper.from_array(values.astype(np.float16), "w"))
        made.graph.input.remove(port)
    return made


def ours(engine: ridgeline.Engine) -> dict[str, Any]:
    trace = engine.profile(rounds=20)
    ceilings, reason = ceilings_or_reason(engine.plan.target)
    report = report_profile(trace, ceilings, why_no_ceilings=reason)
    row = max(report.rows, key=lambda row: row.median_us)
    kernel = max(trace.steps[report.rows.index(row)].kernels, key=lambda kernel: kernel.us, default=None)
    return {
        "us": round(row.median_us, 2), "tactic": row.tactic, "limiter": row.limiter, "evidence": row.evidence,
        "roofline": row.roofline, "kernel": kernel.name if kernel else "", "how": trace.how,
        "ceilings": report.ceilings, "notes": list(trace.notes),
    }  # fmt: skip


def speed_of_light(ncu: str, files: Sequence[Path]) -> list[list[dict[str, Any]]]:
    """For each engine its kernels with the metrics of the section."""
    command = [
        ncu, "--csv", "--section", "SpeedOfLight", "--clock-control", "none", "--cache-control", "none",
        "--profile-from-start", "off", "--print-units", "base", sys.executable, "-c", CHILD, *map(str, files),
    ]  # fmt: skip
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    start = done.stdout.find('"ID"')
    if start < 0:
        raise RuntimeError(f"ncu gave no table: {done.stdout[-1500:]} {done.stderr[-1500:]}")
    found: list[list[dict[str, Any]]] = []
    for kernel in _kernels(csv.DictReader(io.StringIO(done.stdout[start:]))):
        if "spin_kernel" in kernel["kernel"]:
            found.append([])
        elif found:
            found[-1].append(kernel)
    return found[: len(files)]


def _kernels(rows: Iterator[dict[str, str]] | csv.DictReader[str]) -> Iterator[dict[str, Any]]:
    """One kernel for the rows of each ID."""
    current: dict[str, Any] = {}
    for row in rows:
        if current and row["ID"] != current["id"]:
            yield current
            current = {}
        current |= {"id": row["ID"], "kernel": row["Kernel Name"]}
        try:
            current[row["Metric Name"]] = float(row["Metric Value"].replace(",", ""))
        except ValueError:
            continue
    if current:
        yield current


def verdict(kernel: Mapping[str, Any]) -> str:
    """What the section says: compute, memory, L2 or latency."""
    compute, memory = kernel.get("Compute (SM) Throughput", 0.0), kernel.get("Memory Throughput", 0.0)
    if max(compute, memory) < AT_ROOF:
        return "latency"
    if compute >= memory:
        return "compute"
    return "memory" if kernel.get("DRAM Throughput", 0.0) >= AT_ROOF else "L2"


FAMILY = {"tensor cores": "compute", "ALU/SFU": "compute", "memory": "memory", "L2": "L2"}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--ncu", default="ncu")
    parser.add_argument("--only", nargs="*", default=list(CASES))
    args = parser.parse_args()
    out = Path(os.environ.get("OUT") or RESULTS) / f"limiter-gpu-{datetime.now(UTC):%Y-%m-%d}.json"
    head = {"device": current_device().key, "torch": torch.__version__}
    rows: list[dict[str, Any]] = []
    files: list[Path] = []

    def keep() -> None:
        out.write_text(json.dumps({**head, "rows": rows}, indent=1) + "\n")

    with tempfile.TemporaryDirectory() as folder:
        for i, name in enumerate(args.only):
            engine = ridgeline.build(model(name), target="cuda", level=1, verify="off")
            rows.append({"case": name, "ours": ours(engine)})
            files.append(engine.save(Path(folder) / f"{i}.ridge"))
            print(name, rows[-1]["ours"]["limiter"], rows[-1]["ours"]["evidence"], flush=True)
            keep()
        try:
            measured = speed_of_light(args.ncu, files)
        except (OSError, RuntimeError) as error:
            print(f"no speed-of-light section: {error}")
            measured = []
    for row, kernels in zip(rows, measured, strict=False):
        if kernels:
            longest = max(kernels, key=lambda kernel: kernel.get("Duration", 0.0))
            said = verdict(longest)
            family = FAMILY.get(row["ours"]["limiter"], "latency")
            row |= {"ncu": longest, "ncu_verdict": said, "agrees": family == said}
            print(row["case"], "| ours:", row["ours"]["limiter"], "| ncu:", said, "|", longest)
    keep()
    print(sum(row.get("agrees", False) for row in rows), "of", len(rows), "agree")


if __name__ == "__main__":
    main()
