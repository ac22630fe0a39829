"""Small networks in half precision, as text: what the builds for another machine are tried on."""

from __future__ import annotations

import numpy as np
import onnx
import onnx.parser

HEAD = '<ir_version: 11, opset_import: ["": 23]>'
WIDTH, HEADS, TOKENS = 64, 2, 16

LAYER = """
  qkv{i} = MatMul (x{i}, qkv_w{i})
  q{i}, k{i}, v{i} = Split <axis = -1, num_outputs = 3> (qkv{i})
  a{i} = Attention <q_num_heads = 2, kv_num_heads = 2> (q{i}, k{i}, v{i})
  o{i} = MatMul (a{i}, out_w{i})
  s{i} = Add (o{i}, x{i})
  n{i} = LayerNormalization <axis = -1> (s{i}, scale{i}, shift{i})
  f{i} = MatMul (n{i}, up_w{i})
  g{i} = Gelu (f{i})
  d{i} = MatMul (g{i}, down_w{i})
  x{next} = Add (d{i}, n{i})
"""


def _array(rng: np.random.Generator, *shape: int) -> np.ndarray:
    return (rng.standard_normal(shape) * 0.1).astype(np.float16)


def _model(text: str, weights: dict[str, np.ndarray]) -> bytes:
    model = onnx.parser.parse_model(f"{HEAD} {text}")
    model.graph.initializer.extend(onnx.numpy_helper.from_array(a, n) for n, a in weights.items())
    return model.SerializeToString()


def mlp() -> bytes:
    rng = np.random.default_rng(1)
    text = """mlp (float16[32,64] x) => (float16[32,48] y) {
      a = MatMul (x, w1)
      b = Add (a, b1)
      c = Relu (b)
      d = MatMul (c, w2)
      y = Add (d, b2)
    }"""
    sizes = {"w1": (64, 128), "b1": (128,), "w2": (128, 48), "b2": (48,)}
    return _model(text, {name: _array(rng, *shape) for name, shape in sizes.items()})


def transformer(layers: int = 2) -> bytes:
    rng = np.random.default_rng(2)
    lines = "".join(LAYER.format(i=i, next=i + 1) for i in range(layers))
    shape = f"1,{TOKENS},{WIDTH}"
    text = f"net (float16[{shape}] x0) => (float16[{shape}] x{layers}) {{ {lines} }}"
    weights = {}
    for i in range(layers):
        sizes = {"qkv_w": (WIDTH, 3 * WIDTH), "out_w": (WIDTH, WIDTH), "up_w": (WIDTH, 4 * WIDTH)}
        sizes |= {"down_w": (4 * WIDTH, WIDTH), "scale": (WIDTH,), "shift": (WIDTH,)}  # type: ignore[dict-item]
        weights |= {f"{name}{i}": _array(rng, *shape) for name, shape in sizes.items()}
    return _model(text, weights)


def convnet() -> bytes:
    rng = np.random.default_rng(3)
    text = """net (float16[1,16,12,12] x) => (float16[1,10] y) {
      a = Conv <pads = [1, 1, 1, 1]> (x, w1, b1)
      b = Relu (a)
      c = Conv (b, w2, b2)
      d = Add (c, x)
      e = Relu (d)
      f = GlobalAveragePool (e)
      g = Flatten (f)
      y = Gemm <transB = 1> (g, w3, b3)
    }"""
    sizes = {
        "w1": (32, 16, 3, 3),
        "b1": (32,),
        "w2": (16, 32, 1, 1),
        "b2": (16,),
        "w3": (10, 16),
        "b3": (10,),
    }
    return _model(text, {name: _array(rng, *shape) for name, shape in sizes.items()})


MODELS = {"mlp": mlp, "transformer": transformer, "convnet": convnet}
