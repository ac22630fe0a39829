"""Recurrent layers on the CPU: an engine, one built without ONNX Runtime, and ONNX Runtime itself.

    python -m bench.recurrent [--only NAME ...] [--threads N] [--duration S] [--out FILE]

Layers of random weights at batch 1 and 8 over 1, 50 and 200 steps, and one small LSTM. All three run
interleaved in one process, so a busy machine slows all alike; ratios are medians of pairs, above 1 we are
faster. Exit 3 if outputs disagree, or if the engine falls below `TARGET` of ONNX Runtime.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections import Counter
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from datetime import datetime
from fnmatch import fnmatchcase
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import onnx
import onnx.parser

import ridgeline
from bench.models_cpu import GATE_FAILED, RESULTS, geomean, surroundings
from ridgeline.analyze.bench import Peer, bench
from ridgeline.analyze.peers import ort_peer

GATES = {"LSTM": 4, "GRU": 3, "RNN": 1}
TARGET = 1 / 1.2
HEAD = '<ir_version: 10, opset_import: ["": 20]>'


@dataclass(frozen=True)
class Layer:
    """One recurrent op: its sizes are steps, batch, inputs and hidden units."""

    name: str
    kind: str
    steps: int
    batch: int
    size: int = 128
    hidden: int = 128
    direction: str = "forward"
    attrs: str = ""

    @property
    def feeds(self) -> dict[str, np.ndarray]:
        rng = np.random.default_rng(0)
        return {"x": rng.standard_normal((self.steps, self.batch, self.size)).astype(np.float32)}

    def model(self) -> onnx.ModelProto:
        n = 2 if self.direction == "bidirectional" else 1
        rows = GATES[self.kind] * self.hidden
        shape = f"{self.steps},{n},{self.batch},{self.hidden}"
        more = f", {self.attrs}" if self.attrs else ""
        attrs = f'hidden_size = {self.hidden}, direction = "{self.direction}"{more}'
        text = f"""layer (float[{self.steps},{self.batch},{self.size}] x) => (float[{shape}] y) {{
          y = {self.kind} <{attrs}> (x, w, r, b) }}"""
        model = onnx.parser.parse_model(f"{HEAD} {text}")
        rng = np.random.default_rng(1)
        for name, size in (("w", (n, rows, self.size)), ("r", (n, rows, self.hidden)), ("b", (n, 2 * rows))):
            # as layers are initialised: states neither die out nor saturate
            array = rng.uniform(-1, 1, size) * self.hidden**-0.5
            model.graph.initializer.append(onnx.numpy_helper.from_array(array.astype(np.float32), name))
        return model


@dataclass(frozen=True)
class Row:
    """Ratios are ONNX Runtime's time over ours."""

    layer: dict[str, Any]
    gate: str
    ort_us: float
    ridge_us: float
    ratio: float
    ratio_without_ort: float
    tactics: dict[str, int]
    tactics_without_ort: dict[str, int]


def layers() -> Iterator[Layer]:
    for batch in (1, 8):
        for steps in (1, 50, 200):
            size = f"b{batch}_s{steps}"
            yield Layer(f"lstm_{size}", "LSTM", steps, batch)
            yield Layer(f"gru_{size}", "GRU", steps, batch, attrs="linear_before_reset = 1")
            yield Layer(f"lstm_both_{size}", "LSTM", steps, batch, direction="bidirectional")
    yield Layer("gru_reset_first_b1_s50", "GRU", 50, 1)
    yield Layer("gru_both_b8_s50", "GRU", 50, 8, direction="bidirectional", attrs="linear_before_reset = 1")
    yield Layer("rnn_b1_s50", "RNN", 50, 1)
    yield Layer("lstm_small_b1_s16", "LSTM", 16, 1, size=24, hidden=20)
    yield Layer("lstm_large_b1_s50", "LSTM", 50, 1, size=512, hidden=512)


def measure(layer: Layer, *, threads: int, duration_s: float) -> Row:
    with TemporaryDirectory() as scratch:
        path = Path(scratch) / "layer.onnx"
        onnx.save(layer.model(), path)
        cache = Path(scratch) / "timings.toml"
        engine, own = (
            ridgeline.build(path, timing_cache=cache, verify="fast", threads=threads, without=without)
            for without in ((), ("ort",))
        )
        peers = [ort_peer(path, threads=threads), Peer("ridgeline without ort", own.run)]
        result = bench(engine, layer.feeds, peers=peers, duration_s=duration_s)
    to_ort, to_own = result.versus
    return Row(
        layer=asdict(layer),
        gate="pass" if result.passed else "outputs differ",
        ort_us=result.rows[1].median_us,
        ridge_us=result.rows[0].median_us,
        ratio=to_ort.ratio,
        ratio_without_ort=to_ort.ratio / to_own.ratio,
        tactics=dict(Counter(step.tactic for step in engine.plan.steps)),
        tactics_without_ort=dict(Counter(step.tactic for step in own.plan.steps)),
    )


def main() -> int:
    parser = argparse.ArgumentParser(prog="bench.recurrent", description="recurrent layers on the CPU")
    parser.add_argument("--only", metavar="NAME", action="append", default=[], help="only these; * matches")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--duration", type=float, default=1.0, help="seconds for each rival")
    parser.add_argument("--out", type=Path, default=RESULTS / f"recurrent-{datetime.now():%Y-%m-%d}.json")
    given = parser.parse_args()
    chosen = [
        layer
        for layer in layers()
        if not given.only or any(fnmatchcase(layer.name, pattern) for pattern in given.only)
    ]
    around = surroundings(threads=given.threads, duration_s=given.duration)
    rows = []
    for layer in chosen:
        row = measure(layer, threads=given.threads, duration_s=given.duration)
        rows.append(row)
        # after every row, so that an interrupted run loses one only
        given.out.write_text(json.dumps({**around, "rows": [asdict(r) for r in rows]}, indent=1) + "\n")
        tactic = ", ".join(row.tactics)
        print(
            f"{layer.name:24} ort {row.ort_us:10.1f} µs   ridge {row.ridge_us:10.1f} µs   "
            f"{row.ratio:5.2f}   without ort {row.ratio_without_ort:5.2f}   {tactic}   {row.gate}",
            flush=True,
        )
    print(
        f"geomean {geomean([r.ratio for r in rows]):.2f} {geomean([r.ratio_without_ort for r in rows]):.2f}"
    )
    is_good = all(row.gate == "pass" and row.ratio >= TARGET for row in rows)
    return 0 if is_good else GATE_FAILED


if __name__ == "__main__":
    sys.exit(main())
