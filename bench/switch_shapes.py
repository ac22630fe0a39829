"""What it costs to change shapes: a call at another shape than the last, against a call at the same one.

    python -m bench.switch_shapes [--out FILE] [--calls N]

Both shapes were met before, so nothing is planned. Calls alternate A A B B: the second of each pair is at the
same shape as the call before it, the first is not, and both do the same work. Outputs are compared with ONNX
Runtime's at both shapes first; a row without that gate does not exist.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import sys
from datetime import datetime
from pathlib import Path
from statistics import median
from time import perf_counter
from typing import Any

import numpy as np
import onnx
import onnx.parser
import onnxruntime as ort

import ridgeline
from ridgeline.runtime.pending_shape import PendingShape

RESULTS = Path(__file__).resolve().parent / "results"
TARGET_US = 50.0
GATE_FAILED = 3
HEAD = '<ir_version: 10, opset_import: ["": 20]>'
MLP = """mlp (float[N,64] x) => (float[N,16] y) {
  a = MatMul(x, w1) b = Add(a, b1) c = Gelu(b) d = MatMul(c, w2) y = Softmax(d) }"""
CONV = """conv (float[N,3,H,W] x) => (float[N,8] y) {
  a = Conv <kernel_shape = [3,3], pads = [1,1,1,1], strides = [2,2]> (x, k1) b = Relu(a)
  c = Conv <kernel_shape = [3,3], pads = [1,1,1,1], strides = [2,2]> (b, k2) d = Relu(c)
  e = GlobalAveragePool(d) y = Flatten(e) }"""


def weights(**shapes: tuple[int, ...]) -> dict[str, np.ndarray]:
    rng = np.random.default_rng(0)
    return {name: (rng.standard_normal(shape) * 0.2).astype(np.float32) for name, shape in shapes.items()}


CASES = {
    "mlp": (MLP, weights(w1=(64, 128), b1=(128,), w2=(128, 16)), "x", (1, 64), (8, 64)),
    "conv": (CONV, weights(k1=(8, 3, 3, 3), k2=(8, 8, 3, 3)), "x", (1, 3, 32, 32), (1, 3, 48, 40)),
}


def model_of(text: str, held: dict[str, np.ndarray]) -> onnx.ModelProto:
    model = onnx.parser.parse_model(f"{HEAD} {text}")
    model.graph.initializer.extend(onnx.numpy_helper.from_array(a, n) for n, a in held.items())
    return model


def agrees(model: onnx.ModelProto, engine: ridgeline.Engine, feeds: dict[str, np.ndarray]) -> bool:
    session = ort.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
    want = session.run(None, feeds)[0]
    got = engine.run(feeds)["y"]
    return bool(np.abs(got - want).max() <= 256 * 2.0**-23 * max(1.0, float(np.abs(want).max())))


def timed_us(engine: ridgeline.Engine, feeds: dict[str, np.ndarray]) -> float:
    start = perf_counter()
    engine.run(feeds)
    return (perf_counter() - start) * 1e6


def measure(name: str, calls: int) -> dict[str, Any]:
    """One row: medians of calls at the shape of the call before, and of calls at another one."""
    text, held, port, *shapes = CASES[name]
    model = model_of(text, held)
    ranges = [f"{min(a, b)}..{max(a, b)}" if a != b else str(a) for a, b in zip(*shapes, strict=True)]
    engine = ridgeline.build(
        model, level=1, verify="fast", without=("ort",), profiles={port: "x".join(ranges)}
    )
    rng = np.random.default_rng(1)
    first, second = ({port: rng.standard_normal(shape).astype(np.float32)} for shape in shapes)
    start = perf_counter()
    engine.run(second)
    first_call_us = (perf_counter() - start) * 1e6  # on standby: no plan for this shape is there yet
    engine.wait()
    is_right = all(agrees(model, engine, feeds) for feeds in (first, second))
    same: dict[int, list[float]] = {0: [], 1: []}
    other: dict[int, list[float]] = {0: [], 1: []}
    for _ in range(calls):
        for which, feeds in enumerate((first, second)):
            other[which].append(timed_us(engine, feeds))
            same[which].append(timed_us(engine, feeds))
    bindings = engine._own.local.context._bindings.values()
    same_us = sum(median(same[w]) for w in (0, 1)) / 2
    other_us = sum(median(other[w]) for w in (0, 1)) / 2
    return {
        "case": name,
        "shapes": ["x".join(map(str, shape)) for shape in shapes],
        "same_shape_us": round(same_us, 2),
        "other_shape_us": round(other_us, 2),
        "switch_us": round(other_us - same_us, 2),
        "first_call_us": round(first_call_us, 1),
        "n": calls,
        "planned": not any(isinstance(binding, PendingShape) for binding in bindings),
        "gate": "pass" if is_right else "outputs differ from ONNX Runtime's",
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--calls", type=int, default=2000)
    parser.add_argument("--out", type=Path, default=RESULTS / f"switch-{datetime.now():%Y-%m-%d}.json")
    options = parser.parse_args()
    rows = [measure(name, options.calls) for name in CASES]
    for row in rows:
        sys.stdout.write(
            f"{row['case']:6} same {row['same_shape_us']:8.1f} µs   other {row['other_shape_us']:8.1f} µs"
            f"   switch {row['switch_us']:6.1f} µs   first {row['first_call_us']:.0f} µs   {row['gate']}\n"
        )
    content = {
        "target_us": TARGET_US,
        "machine": {"cpu": platform.processor() or platform.machine(), "cores": os.cpu_count()},
        "load_average": round(os.getloadavg()[0], 2),
        "versions": {"ridgeline": ridgeline.__version__, "onnxruntime": ort.__version__},
        "rows": rows,
    }
    options.out.write_text(json.dumps(content, indent=1) + "\n", encoding="utf-8")
    failed = [r for r in rows if r["gate"] != "pass" or not r["planned"] or r["switch_us"] > TARGET_US]
    sys.exit(GATE_FAILED if failed else 0)


if __name__ == "__main__":
    main()
