"""Small networks in half precision, as text: what the builds for another machine are tried on."""

from __future__ import annotations

import ml_dtypes
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


def squeezed(batch: int | str = 16, *, blocks: int = 2, size: int = 28) -> bytes:
    """Blocks of a depthwise convolution, a scale for every image and channel, and a 1x1 convolution."""
    rng = np.random.default_rng(5)
    weights, lines = {}, []
    for i in range(blocks):
        shapes = {"d": (64, 1, 3, 3), "f": (16, 64, 1, 1), "g": (64, 16, 1, 1), "w": (64, 64, 1, 1)}
        weights |= {f"{name}{i}": _array(rng, *shape) for name, shape in shapes.items()}
        lines += [
            f"a{i} = Conv <group = 64, pads = [1, 1, 1, 1]> (x{i}, d{i})", f"r{i} = Relu (a{i})",
            f"m{i} = GlobalAveragePool (r{i})", f"q{i} = Conv (m{i}, f{i})", f"h{i} = Relu (q{i})",
            f"e{i} = Conv (h{i}, g{i})", f"s{i} = Sigmoid (e{i})", f"z{i} = Mul (r{i}, s{i})",
            f"p{i} = Conv (z{i}, w{i})", f"x{i + 1} = Add (p{i}, x{i})",
        ]  # fmt: skip
    shape = f"{batch},64,{size},{size}"
    text = " ".join(lines)
    return _model(f"net (float16[{shape}] x0) => (float16[{shape}] x{blocks}) {{ {text} }}", weights)


def two_towers(depth: int = 3) -> bytes:
    """Chains of products of the same input, side by side, and their sum."""
    rng = np.random.default_rng(4)
    weights, lines = {}, []
    for tower in "ab":
        made = "x"
        for i in range(depth):
            weights[f"{tower}w{i}"] = _array(rng, 64, 64)
            lines += [f"{tower}m{i} = MatMul ({made}, {tower}w{i})", f"{tower}{i} = Relu ({tower}m{i})"]
            made = f"{tower}{i}"
    lines.append(f"y = Add (a{depth - 1}, b{depth - 1})")
    return _model(f"towers (float16[8,64] x) => (float16[8,64] y) {{ {' '.join(lines)} }}", weights)


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


# of sizes at which kernels take large tiles: compiled for many architectures, and run by none


def images() -> bytes:
    """A dense, a depthwise and a grouped convolution, a pool, a residual and a classifier."""
    rng = np.random.default_rng(4)
    text = """net (float16[8,64,56,56] x) => (float16[8,10] y) {
      a = Conv <pads = [1, 1, 1, 1]> (x, w1)
      b = Relu (a)
      c = Conv <pads = [1, 1, 1, 1], group = 64> (b, w2)
      d = Relu (c)
      e = MaxPool <kernel_shape = [3, 3], strides = [2, 2], pads = [1, 1, 1, 1]> (d)
      f = Conv (e, w3)
      g = Add (f, e)
      h = Relu (g)
      i = Conv <pads = [1, 1, 1, 1], group = 4> (h, w4)
      j = Relu (i)
      k = GlobalAveragePool (j)
      l = Flatten (k)
      y = Gemm <transB = 1> (l, w5, b5)
    }"""
    sizes = {"w1": (64, 64, 3, 3), "w2": (64, 1, 3, 3), "w3": (64, 64, 1, 1), "w4": (64, 16, 3, 3)}
    return _model(text, {n: _array(rng, *s) for n, s in (sizes | {"w5": (10, 64), "b5": (10,)}).items()})


def block() -> bytes:
    """A transformer block of 1024 tokens in heads of 64."""
    rng = np.random.default_rng(5)
    text = """net (float16[2,1024,512] x) => (float16[2,1024,512] y) {
      qkv = MatMul (x, w1)
      q, k, v = Split <axis = -1, num_outputs = 3> (qkv)
      a = Attention <q_num_heads = 8, kv_num_heads = 8> (q, k, v)
      o = MatMul (a, w2)
      s = Add (o, x)
      n = LayerNormalization <axis = -1> (s, scale, shift)
      f = MatMul (n, w3)
      g = Gelu (f)
      d = MatMul (g, w4)
      y = Add (d, n)
    }"""
    sizes: dict[str, tuple[int, ...]] = {"w1": (512, 1536), "w2": (512, 512), "w3": (512, 2048)}
    sizes |= {"w4": (2048, 512), "scale": (512,), "shift": (512,)}
    return _model(text, {name: _array(rng, *shape) for name, shape in sizes.items()})


def codes(dtype: str) -> bytes:
    """A product of quantised numbers, int8 or float8_e4m3fn, whose result is quantised again."""
    kind = np.dtype(dtype) if dtype == "int8" else np.dtype(getattr(ml_dtypes, dtype))
    name = dtype.replace("_", "")
    text = f"""net ({name}[1024,512] x) => ({name}[1024,512] y) {{
      a = DequantizeLinear (x, scale)
      b = DequantizeLinear (w, scale)
      c = MatMul (a, b)
      d = Relu (c)
      y = QuantizeLinear (d, scale, zero)
    }}"""
    numbers = np.random.default_rng(6).integers(-8, 8, (512, 512))
    weights = {"w": numbers.astype(kind), "scale": np.array(0.125, np.float16), "zero": np.zeros((), kind)}
    return _model(text, weights)
