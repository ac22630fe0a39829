"""Plans of small graphs for the null target, kept as text: `python tests/plans/golden_plans.py` writes them.

Nothing is timed and no machine is asked, so every machine makes the same plan. A change of the code that
changes none of them moved code and nothing else.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

import ridgeline
from ridgeline.frontend.from_onnx import Source

TESTS = Path(__file__).parents[1]
GOLDEN = Path(__file__).with_name("golden")
sys.path[:0] = [str(TESTS), str(TESTS / "shapes"), str(TESTS.parent)]

from bench.zoo import ZOO, fetch  # noqa: E402
from moving_models import decoder, detector, model_of, rand  # noqa: E402

from cross_models import MODELS  # noqa: E402

CPU, GPU = "null", "null:sm_90"


@dataclass(frozen=True)
class Graph:
    """A model and the options it is built with."""

    make: Callable[[], Source]
    target: str = CPU
    options: Mapping[str, Any] = field(default_factory=dict)


def quantised() -> Source:
    """Q and DQ around two products, one weight with a scale for each column."""
    return model_of("""g (float[N,32] x) => (float[N,16] y) {
        xq = QuantizeLinear (x, xs, xz) xd = DequantizeLinear (xq, xs, xz)
        wd = DequantizeLinear <axis = 1> (w, ws, wz) a = MatMul (xd, wd) b = Add (a, bias) c = Relu (b)
        cq = QuantizeLinear (c, cs, xz) cd = DequantizeLinear (cq, cs, xz)
        vd = DequantizeLinear (v, xs) y = MatMul (cd, vd) }""",
        xs=np.float32(0.02), xz=np.int8(3), cs=np.float32(0.05), bias=rand(24),
        w=np.arange(32 * 24).reshape(32, 24).astype(np.int8), ws=np.full(24, 0.01, np.float32),
        wz=np.zeros(24, np.int8), v=np.arange(24 * 16).reshape(24, 16).astype(np.int8),
    )  # fmt: skip


def branches() -> Source:
    """An If on data, both ways of one form, and what follows it."""
    return model_of("""g (float[N,8] x) => (float[N,8] y) {
        total = ReduceSum <keepdims = 0> (x) zero = Constant <value_float = 0.0> ()
        is_up = Greater (total, zero)
        z = If (is_up) <then_branch = up () => (float[N,8] a) { b = Mul (x, w) a = Relu (b) },
            else_branch = down () => (float[N,8] c) { d = MatMul (x, v) c = Add (d, w) }>
        y = Softmax <axis = -1> (z) }""", w=rand(8), v=rand(8, 8))  # fmt: skip


def recurrent() -> Source:
    return model_of("""g (float[T,B,12] x) => (float[T,B,20] y, float[T,B,20] z) {
        h = LSTM <hidden_size = 20> (x, w, r, b) s = Squeeze (h, one) z = Tanh (s) g = GRU <hidden_size = 20>
            (z, gw, gr) y = Squeeze (g, one) }""",
        w=rand(1, 80, 12), r=rand(1, 80, 20), b=rand(1, 160), gw=rand(1, 60, 20), gr=rand(1, 60, 20),
        one=np.array([1]),
    )  # fmt: skip


def vision() -> Source:
    """A depthwise convolution, a norm to fold, a resize, a padding and a pooling."""
    return model_of("""g (float[N,16,H,W] x) => (float[N,4,H2,W2] y) {
        c = Conv <group = 16, kernel_shape = [3,3], pads = [1,1,1,1]> (x, dw)
        n = BatchNormalization (c, scale, shift, mean, var) s = Sigmoid (n) a = Mul (n, s)
        p = Conv <kernel_shape = [1,1]> (a, pw) r = Resize <mode = "nearest"> (p, , scales)
        e = Pad <mode = "edge"> (r, pads) m = MaxPool <kernel_shape = [2,2], strides = [2,2]> (e)
        l = Clip (m, low, high) y = HardSwish (l) }""",
        dw=rand(16, 1, 3, 3), scale=rand(16), shift=rand(16, seed=1), mean=rand(16, seed=2),
        var=np.abs(rand(16, seed=3)) + 1, pw=rand(4, 16, 1, 1), scales=np.array([1, 1, 2, 2], np.float32),
        pads=np.array([0, 0, 1, 1, 0, 0, 1, 1]), low=np.float32(-3), high=np.float32(6),
    )  # fmt: skip


def spelled_transformer() -> Source:
    """Attention, RMS norm and a gated product as exporters spell them."""
    return model_of("""g (float[B,S,32] x, float[B,1,1,S] mask) => (float[B,S,32] y) {
        sq = Mul (x, x) mean = ReduceMean <keepdims = 1> (sq, last) low = Add (mean, eps) root = Sqrt (low)
        n = Div (x, root) h = Mul (n, g1)
        q0 = MatMul (h, wq) k0 = MatMul (h, wk) v0 = MatMul (h, wv)
        q1 = Reshape (q0, heads) k1 = Reshape (k0, heads) v1 = Reshape (v0, heads)
        q = Transpose <perm = [0,2,1,3]> (q1) k = Transpose <perm = [0,2,3,1]> (k1)
        v = Transpose <perm = [0,2,1,3]> (v1) s = MatMul (q, k) ss = Mul (s, factor) sm = Add (ss, mask)
        p = Softmax <axis = -1> (sm) o = MatMul (p, v) o1 = Transpose <perm = [0,2,1,3]> (o)
        o2 = Reshape (o1, whole) o3 = MatMul (o2, wo) r = Add (x, o3)
        u = MatMul (r, w1) t = MatMul (r, w3) st = Sigmoid (t) gate = Mul (t, st) ug = Mul (u, gate)
        d = MatMul (ug, w2) y = Add (r, d) }""",
        last=np.array([-1]), eps=np.float32(1e-6), g1=rand(32), factor=np.float32(8**-0.5),
        heads=np.array([0, 0, 4, 8]), whole=np.array([0, 0, 32]),
        **{name: rand(32, 32, seed=i) for i, name in enumerate(("wq", "wk", "wv", "wo"))},
        w1=rand(32, 64), w3=rand(32, 64, seed=1), w2=rand(64, 32),
    )  # fmt: skip


def trained(name: str) -> Callable[[], Source]:
    return lambda: fetch(next(entry for entry in ZOO if entry.name == name))


PROFILES = [{"N": "1..2..4", "H": "8..16..32", "W": "8..16..32"}, {"N": "8", "H": "16", "W": "16"}]
TOKENS = {"B": "1..2..4", "S": "4..16..64"}
GRAPHS: dict[str, Graph] = {
    **{f"cpu-{name}": Graph(make) for name, make in MODELS.items()},
    **{f"sm90-{name}": Graph(make, GPU) for name, make in MODELS.items()},
    "cpu-quantised": Graph(quantised, options={"profiles": {"N": "1..4..8"}}),
    "sm90-quantised": Graph(quantised, GPU, {"profiles": {"N": "1..4..8"}}),
    "cpu-branches": Graph(branches, options={"profiles": {"N": "5"}}),
    "cpu-recurrent": Graph(recurrent, options={"profiles": {"T": "7", "B": "1..2..3"}}),
    "cpu-vision-profiles": Graph(vision, options={"profiles": PROFILES}),
    "sm90-vision": Graph(vision, GPU, {"profiles": PROFILES[0]}),
    "cpu-spelled-transformer": Graph(spelled_transformer, options={"profiles": TOKENS}),
    "sm90-spelled-transformer": Graph(spelled_transformer, GPU, {"profiles": TOKENS}),
    "cpu-detector": Graph(detector, options={"profiles": {"image": "1x3x32..64..96x32..64..96"}}),
    "cpu-decoder": Graph(lambda: decoder(growing=False), options={"profiles": {"S": "6"}}),
    "cpu-growing-decoder": Graph(lambda: decoder(growing=True), options={"profiles": {"S": "6"}}),
    "cpu-ppocr6-cls": Graph(trained("ppocr6_cls"), options={"profiles": {"x": "1x3x48x192"}}),
    "sm90-ppocr6-cls": Graph(trained("ppocr6_cls"), GPU, {"profiles": {"x": "1x3x48x192"}}),
    "cpu-silero-vad": Graph(trained("silero_vad")),
}


def plan_text(name: str) -> str:
    """The plan of a graph without what differs from commit to commit."""
    graph = GRAPHS[name]
    engine = ridgeline.build(graph.make(), target=graph.target, level=0, verify="off", **graph.options)
    return _text(json.loads(engine.plan.to_json()))


def _text(plan: Mapping[str, Any]) -> str:
    """JSON with an entry of a list on each line, so that a difference is a line."""
    members = []
    for key, value in sorted(stripped(plan).items()):
        shown = json.dumps(value, sort_keys=True)
        if isinstance(value, list):
            shown = "[\n  " + ",\n  ".join(json.dumps(item, sort_keys=True) for item in value) + "\n ]"
        members.append(f'"{key}": {shown}')
    return "{\n " + ",\n ".join(members) + "\n}\n"


def stripped(value: Any) -> Any:
    """Without digests of kernels, which hash the names of modules and the versions of compilers."""
    if isinstance(value, dict):
        return {
            key: len(inner) if key == "kernels" else stripped(inner)
            for key, inner in value.items()
            if inner not in (None, [], {}, "", ())
        }
    return [stripped(inner) for inner in value] if isinstance(value, list) else value


if __name__ == "__main__":
    for each in sys.argv[1:] or GRAPHS:
        (GOLDEN / f"{each}.json").write_text(plan_text(each))
