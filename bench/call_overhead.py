"""What a call costs on the host: tiny models, whose steps take next to nothing, called over and over.

    python -m bench.call_overhead [--target cpu|cuda] [--seconds S] [--only CASE ...] [--out FILE]

On a CPU `engine.run` and `context.run` are timed in turn with the steps alone and with a session of ONNX
Runtime, on one thread. On a GPU they are timed with a bound run, which is one graph launch; the device is
idle when a call begins, and the clock stops when the call returns. Outputs are compared with ONNX Runtime's
on the CPU first; a row without that gate does not exist. On a machine with other work the least sample is the
figure that repeats.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from datetime import datetime
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime as ort
import torch

import ridgeline
from bench.models_cpu import GATE_FAILED, RESULTS, surroundings
from bench.switch_shapes import model_of, weights
from ridgeline.base.timing import Timing, interleave

ROWS = 3
MIN_GPU_CALLS = 200
TOLERANCE = {"cpu": 2.0**-16, "cuda": 2.0**-9}  # of the largest output; products of a GPU may round to TF32
Feeds = dict[str, Any]


def _each(count: int) -> str:
    ins = ", ".join(f"float[N,64] x{i}" for i in range(count))
    outs = ", ".join(f"float[N,64] y{i}" for i in range(count))
    return f"g ({ins}) => ({outs}) {{ {' '.join(f'y{i} = Relu(x{i})' for i in range(count))} }}"


LARGE = "g (float[N,32768] x) => (float[N,32768] y) { y = Relu(x) }"
OPEN = "g (float[N,64] x) => (int64[2,K] y) { y = NonZero(x) }"
MLP = """g (float[N,64] x) => (float[N,16] y) {
  a = MatMul(x, w1) b = Add(a, b1) c = Gelu(b) d = MatMul(c, w2) y = Softmax(d) }"""


@dataclass(frozen=True)
class Case:
    """A graph, and the tactics that are left out so that the plan is what the name says."""

    graph: str
    without: tuple[str, ...] = ("ort",)
    targets: tuple[str, ...] = ("cpu", "cuda")

    def model(self) -> onnx.ModelProto:
        held = weights(w1=(64, 128), b1=(128,), w2=(128, 16)) if self.graph == MLP else {}
        return model_of(self.graph, held)


CASES = {
    "one op": Case(_each(1)),
    "mlp": Case(MLP),
    "five inputs and outputs": Case(_each(5)),
    "large": Case(LARGE),
    "mlp, one step of ort": Case(MLP, ("cpp",), ("cpu",)),
    "large, one step of ort": Case(LARGE, ("cpp",), ("cpu",)),
    "open sizes, one step of ort": Case(OPEN, ("cpp",), ("cpu",)),
}


@dataclass(frozen=True)
class Row:
    """One way to call one model."""

    case: str
    call: str
    arrays: str  # what goes in and comes out
    min_us: float
    median_us: float
    gate: str  # "pass", or why the figures do not count


def measure(name: str, target: str, seconds: float) -> list[Row]:
    case = CASES[name]
    model = case.model()
    session = _session(model)
    rng = np.random.default_rng(0)
    feeds: Feeds = {
        port.name: rng.standard_normal((ROWS, port.shape[1])).astype(np.float32)
        for port in session.get_inputs()
    }
    engine = ridgeline.build(
        model, target=target, level=0, verify="off", profiles={n: a.shape for n, a in feeds.items()},
        **({"threads": 1, "without": case.without} if target == "cpu" else {}),
    )  # fmt: skip
    given = {"numpy": feeds, "torch": {n: torch.from_numpy(a).to(target) for n, a in feeds.items()}}
    gate = _compare(engine, given, session, TOLERANCE[target])
    context: Any = engine.context()
    calls: dict[tuple[str, str], Callable[[], object]] = {}
    for arrays, values in given.items():
        calls["engine.run", arrays] = partial(engine.run, values)
        calls["context.run", arrays] = partial(context.run, values)
    if target == "cpu":
        calls["steps alone", ""] = context.instance(feeds).execute
        calls["onnxruntime", "numpy"] = partial(session.run, None, feeds)
        timings = interleave(list(calls.values()), budget_s=seconds)
    else:
        calls["bound run", "torch"] = context.bind(given["torch"]).run
        timings = _host_times(list(calls.values()), seconds)
    return [
        Row(name, call, arrays, round(timing.min_us, 2), round(timing.median_us, 2), gate)
        for (call, arrays), timing in zip(calls, timings, strict=True)
    ]


def _session(model: onnx.ModelProto) -> ort.InferenceSession:
    options = ort.SessionOptions()
    options.intra_op_num_threads = options.inter_op_num_threads = 1
    return ort.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])


def _compare(
    engine: ridgeline.Engine, given: Mapping[str, Feeds], session: ort.InferenceSession, tolerance: float
) -> str:
    names = [output.name for output in session.get_outputs()]
    wanted = dict(zip(names, session.run(names, given["numpy"]), strict=True))
    for feeds in given.values():
        for _ in range(2):
            made = engine.run(feeds)
            for name, want in wanted.items():
                got = made[name].cpu().numpy() if isinstance(made[name], torch.Tensor) else made[name]
                if got.shape != want.shape or np.abs(got - want).max() > tolerance * max(
                    1, np.abs(want).max()
                ):
                    return f"{name} differs from ONNX Runtime's"
    return "pass"


def _host_times(calls: Sequence[Callable[[], object]], seconds: float) -> list[Timing]:
    """Host time of calls in turn, each begun on an idle device."""
    samples: list[list[float]] = [[] for _ in calls]
    end = time.perf_counter() + seconds
    while len(samples[0]) < MIN_GPU_CALLS or time.perf_counter() < end:
        for call, taken in zip(calls, samples, strict=True):
            torch.cuda.synchronize()
            start = time.perf_counter_ns()
            call()
            taken.append((time.perf_counter_ns() - start) / 1e3)
    torch.cuda.synchronize()
    return [Timing(tuple(taken)) for taken in samples]


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="bench.call_overhead", description=__doc__)
    parser.add_argument("--target", choices=("cpu", "cuda"), default="cpu")
    parser.add_argument("--seconds", type=float, default=3.0, help="of the timing of each case")
    parser.add_argument("--only", action="append", metavar="CASE", choices=list(CASES), default=[])
    parser.add_argument(
        "--out", type=Path, help="JSON file (default: bench/results/call-overhead-TARGET-DATE.json)"
    )
    given = parser.parse_args(arguments)
    torch.set_num_threads(1)
    wanted = [
        n for n, c in CASES.items() if given.target in c.targets and (not given.only or n in given.only)
    ]
    rows: list[Row] = []
    out = given.out or RESULTS / f"call-overhead-{given.target}-{datetime.now().date().isoformat()}.json"
    around = surroundings(threads=1, duration_s=given.seconds)
    for name in wanted:
        made = measure(name, given.target, given.seconds)
        for row in made:
            figures = f"least {row.min_us:8.2f} µs   median {row.median_us:8.2f} µs"
            sys.stdout.write(f"{row.case:28} {row.call:12} {row.arrays:6} {figures}   {row.gate}\n")
        rows += made
        out.write_text(json.dumps({**around, "rows": [asdict(row) for row in rows]}, indent=1) + "\n")
    return 0 if all(row.gate == "pass" for row in rows) else GATE_FAILED


if __name__ == "__main__":
    sys.exit(main())
