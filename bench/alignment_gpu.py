"""What sizes that do not fill 16 bytes cost on a GPU: products and convolutions beside their padded ones.

    PYTHONPATH=src python -m bench.alignment_gpu

Every row is a region of an engine that was verified: all candidates were timed in turns as CUDA graphs, and
the row has the best of each tactic, beside what the cost model says of it. Rows go to a JSON file in $OUT, or
in bench/results. They judge the figures in `tactics/predict.py` (libraries) and `kernels/triton/ranking.py`
(our kernels).
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np
import onnx
import onnx.parser
import torch

import ridgeline
from ridgeline.plan.plan import Step
from ridgeline.tactics.cost_model import CostModel
from ridgeline.targets.ceilings import find_ceilings

HEAD = '<ir_version: 11, opset_import: ["": 23]>'
RESULTS = Path(__file__).parent / "results"
PRODUCTS = [
    (rows, depth, columns)
    for rows in (128, 4096)
    for depth, columns in (
        (1024, 1024), (1021, 1024), (1022, 1024), (1020, 1024), (1024, 1021), (1024, 1022), (1024, 1020),
    )
]  # fmt: skip
CONVOLUTIONS = [(images, channels) for images in (1, 32) for channels in (64, 63, 62, 60, 61)]


@dataclass(frozen=True)
class Row:
    """One tactic at one size."""

    case: str
    tactic: str
    us: float
    modelled_us: float | None  # of the region's best tactic
    is_best: bool


def product(rows: int, depth: int, columns: int) -> onnx.ModelProto:
    text = (
        f"g (float16[{rows},{depth}] x) => (float16[{rows},{columns}] y) {{ a = MatMul (x, w) y = Relu (a) }}"
    )
    return _model(text, w=(depth, columns))


def convolution(images: int, channels: int) -> onnx.ModelProto:
    """Behind a first one, so that its image lies channels last as inside a network."""
    sizes = f"{images},{channels},56,56"
    text = f"""g (float16[{images},8,56,56] x) => (float16[{sizes}] y) {{
        a = Conv (x, v) r = Relu (a) c = Conv <pads = [1, 1, 1, 1]> (r, w) y = Relu (c) }}"""
    return _model(text, v=(channels, 8, 1, 1), w=(channels, channels, 3, 3))


def _model(text: str, **shapes: tuple[int, ...]) -> onnx.ModelProto:
    model = onnx.parser.parse_model(f"{HEAD} {text}")
    rng = np.random.default_rng(0)
    for name, shape in shapes.items():
        array = (rng.standard_normal(shape) * 0.03).astype(np.float16)
        model.graph.initializer.append(onnx.numpy_helper.from_array(array, name))
    return model


def measured(case: str, model: onnx.ModelProto) -> Iterator[Row]:
    """The best of every tactic at the engine's last step."""
    engine = ridgeline.build(model, target="cuda", level=3)
    step, site = engine.planned_sites()[-1]
    cost = CostModel(find_ceilings(engine.plan.target))
    modelled = cost.site_us(site, tuple(engine.fused.tactics.values()))
    for tactic, us in sorted(_times(step).items(), key=lambda pair: pair[1]):
        yield Row(case, tactic, round(us, 3), modelled, tactic == step.tactic)


def _times(step: Step) -> dict[str, float]:
    times = {step.tactic: step.median_us or 0.0}
    for loser in step.losers:
        if loser.median_us is not None:
            times[loser.tactic] = min(loser.median_us, times.get(loser.tactic, loser.median_us))
    return times


def main() -> None:
    cases = {f"product {m}x{n}x{k}": product(m, k, n) for m, k, n in PRODUCTS}
    cases |= {f"conv3x3 {b}x{c}x56x56": convolution(b, c) for b, c in CONVOLUTIONS}
    rows = []
    for case, model in cases.items():
        for row in measured(case, model):
            rows.append(row)
            print(
                f"{row.case:28} {row.tactic:18} {row.us:8.2f} µs{'  best' if row.is_best else ''}", flush=True
            )
    told = {
        "date": time.strftime("%Y-%m-%d"), "device": torch.cuda.get_device_name(), "torch": torch.__version__,
        "rows": [asdict(row) for row in rows],
    }  # fmt: skip
    folder = Path(os.environ.get("OUT", RESULTS))
    (folder / f"alignment-h200-{told['date']}.json").write_text(json.dumps(told, indent=1) + "\n")


if __name__ == "__main__":
    main()
