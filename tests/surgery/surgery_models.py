"""Small models for surgery, as ONNX text, written to files."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import onnx.parser
from onnx.numpy_helper import from_array

CHAIN = """<ir_version: 10, opset_import: ["": 20]>
chain (float[N,4,8] a, float[N,4,8] b) => (float[N,4,8] y, float[N,4,8] z) <float[8,8] w> {
  c = Add (a, b)
  d = Relu (c)
  e = MatMul (d, w)
  f = Softmax <axis = -1> (e)
  h = Exp (f)
  y = Mul (h, b)
  z = Neg (h)
}"""

BRANCHES = """<ir_version: 10, opset_import: ["": 20]>
branches (float[4] x, bool go) => (float[4] y) {
  a = Abs (x)
  b = Neg (x)
  c = If (go) <
    then_branch = yes () => (float[4] t) { t = Exp (a) },
    else_branch = no () => (float[4] e) { e = Sqrt (b) }
  >
  y = Relu (c)
}"""

FUNCTIONS = """<ir_version: 10, opset_import: ["": 20, "own": 1]>
calls (float[4] x) => (float[4] y) {
  a = Abs (x)
  b = own.twice (a)
  c = own.unused (b)
  y = Relu (c)
}
<domain: "own", opset_import: ["": 20]> sum (p, r) => (q) { q = Add (p, r) }
<domain: "own", opset_import: ["": 20, "own": 1]> twice (p) => (q) { q = own.sum (p, p) }
<domain: "own", opset_import: ["": 20]> unused (p) => (q) { q = Neg (p) }
"""


def parse(text: str, *, named: bool = True) -> onnx.ModelProto:
    model = onnx.parser.parse_model(text)
    for i, node in enumerate(model.graph.node if named else ()):
        node.name = f"{node.op_type.lower()}_{i}"
    return model


def chain() -> onnx.ModelProto:
    """Eight ops, one weight, two outputs; nodes are named after their ops and places."""
    model = parse(CHAIN)
    weight = np.random.default_rng(3).standard_normal((8, 8)).astype(np.float32)
    model.graph.initializer.append(from_array(weight, "w"))
    return model


def write(model: onnx.ModelProto, path: Path) -> Path:
    path.write_bytes(model.SerializeToString())
    return path


def chain_feeds(batch: int = 2, seed: int = 0) -> dict[str, np.ndarray]:
    rng = np.random.default_rng(seed)
    return {name: rng.standard_normal((batch, 4, 8)).astype(np.float32) for name in "ab"}
