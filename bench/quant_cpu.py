"""Int8 on the CPU: our engine of a quantised model, our engine of its float32 form, and ONNX Runtime on both.

    python -m bench.quant_cpu [--only NAME ...] [--threads N] [--out FILE]

Models are quantised by ONNX Runtime (static Q/DQ, uint8 levels, int8 weights with scales per channel, random
data). All are timed in one run, one call of each in turn; rows go to `bench/results/` as JSON with the flags
of the processor that decide about integer products. A row counts if the engine passed its verification.
"""

from __future__ import annotations

import argparse
import json
import logging
import statistics
import sys
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from datetime import datetime
from pathlib import Path
from tempfile import TemporaryDirectory
from time import perf_counter
from typing import Any

import numpy as np
import onnxruntime
from onnxruntime.quantization import CalibrationDataReader, QuantFormat, QuantType, quantize_static
from onnxruntime.quantization.shape_inference import quant_pre_process

import ridgeline
from bench.feeds import draw
from bench.networks import NETWORKS, export

RESULTS = Path(__file__).resolve().parent / "results"
FLAGS = ("avx2", "avx512f", "avx512_vnni", "avx_vnni", "avx512_bf16", "avx512_fp16", "amx_int8", "amx_bf16")
MODELS = {"resnet50": {}, "bert_base_s128": {"op_types_to_quantize": ["MatMul", "Gemm"],
                                             "extra_options": {"MatMulConstBOnly": True}}}  # fmt: skip
REPEATS, WARM_UP, SAMPLES = 15, 3, 2


@dataclass(frozen=True)
class Row:
    """One model; medians in milliseconds, least times beside them since machines are seldom quiet."""

    model: str
    threads: int
    median_ms: dict[str, float]
    least_ms: dict[str, float]
    int8_over_fp32: float  # our float32 time over our int8 time, least times
    against_ort_int8: float  # ONNX Runtime's int8 time over ours, least times
    tactics: dict[str, int]  # of the int8 engine, by how many steps they run


class Samples(CalibrationDataReader):
    """A few random inputs, as ONNX Runtime's calibration reads them."""

    def __init__(self, feeds: Sequence[dict[str, np.ndarray]]) -> None:
        self._next: Iterator[dict[str, np.ndarray]] = iter(feeds)

    def get_next(self) -> dict[str, np.ndarray] | None:  # type: ignore[override]
        return next(self._next, None)


def quantise(
    source: Path, folder: Path, feeds: Sequence[dict[str, np.ndarray]], more: dict[str, Any]
) -> Path:
    prepared, made = folder / "prepared.onnx", folder / "int8.onnx"
    quant_pre_process(str(source), str(prepared))
    quantize_static(
        str(prepared), str(made), Samples(feeds), quant_format=QuantFormat.QDQ, per_channel=True,
        activation_type=QuantType.QUInt8, weight_type=QuantType.QInt8, **more,
    )  # fmt: skip
    return made


def session(path: Path, threads: int) -> onnxruntime.InferenceSession:
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = threads
    return onnxruntime.InferenceSession(str(path), options, ["CPUExecutionProvider"])


def measure(name: str, threads: int) -> Row:
    network = NETWORKS[name]
    with TemporaryDirectory() as folder:
        source = export(name, Path(folder))
        feeds = [dict(draw(network.feeds, seed=seed)) for seed in range(SAMPLES)]
        levels = quantise(source, Path(folder), feeds, MODELS[name])
        engines = {
            key: ridgeline.build(path, threads=threads, progress=False)
            for key, path in (("fp32", source), ("int8", levels))
        }
        runs: dict[str, Callable[[], object]] = {
            "our fp32": lambda: engines["fp32"].run(feeds[0]),
            "our int8": lambda: engines["int8"].run(feeds[0]),
        }
        for key, path in (("ONNX Runtime fp32", source), ("ONNX Runtime int8", levels)):
            opened = session(path, threads)
            runs[key] = lambda opened=opened: opened.run(None, feeds[0])
        times: dict[str, list[float]] = {key: [] for key in runs}
        for _ in range(REPEATS + WARM_UP):
            for key, run in runs.items():
                start = perf_counter()
                run()
                times[key].append(1e3 * (perf_counter() - start))
    kept = {key: values[WARM_UP:] for key, values in times.items()}
    least = {key: round(min(values), 3) for key, values in kept.items()}
    return Row(
        name, threads, {key: round(statistics.median(values), 3) for key, values in kept.items()}, least,
        int8_over_fp32=round(least["our fp32"] / least["our int8"], 2),
        against_ort_int8=round(least["ONNX Runtime int8"] / least["our int8"], 2),
        tactics=dict(Counter(step.tactic for step in engines["int8"].plan.steps)),
    )  # fmt: skip


def processor() -> dict[str, object]:
    """Its name and which of the flags it has."""
    text = Path("/proc/cpuinfo").read_text() if Path("/proc/cpuinfo").exists() else ""
    lines = dict(line.split(":", 1) for line in text.splitlines() if ":" in line)
    lines = {key.strip(): value.strip() for key, value in lines.items()}
    has = lines.get("flags", "").split()
    return {"name": lines.get("model name", "unknown"), "flags": [flag for flag in FLAGS if flag in has]}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--only", nargs="*", default=list(MODELS), choices=list(MODELS))
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--out", type=Path, default=RESULTS / f"quant-cpu-{datetime.now():%Y-%m-%d}.json")
    args = parser.parse_args()
    logging.disable(logging.WARNING)
    rows = []
    for name in args.only:
        row = measure(name, args.threads)
        rows.append(asdict(row))
        sys.stdout.write(f"{name}: {row.least_ms}  int8 {row.int8_over_fp32}x our fp32\n")
        args.out.write_text(json.dumps({"processor": processor(), "rows": rows}, indent=1) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
