"""Small networks as ONNX, of one float type throughout: a chain of products, a text encoder, an image net."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import onnx
import onnx.numpy_helper
import onnx.parser

HEAD = '<ir_version: 10, opset_import: ["": 20]>'
SHORT = {"float32": "float"}

# N batch, S sequence, E width, H heads


class Net:
    """An ONNX graph in the making: each call adds a node and returns the name of its result."""

    def __init__(self, dtype: str = "float32") -> None:
        self.dtype, self.kind = np.dtype(dtype), SHORT.get(dtype, dtype)
        self.lines: list[str] = []
        self.weights: list[onnx.TensorProto] = []
        self.random = np.random.default_rng(1)

    def weight(self, *shape: int, scale: float | None = None) -> str:
        scale = shape[-2] ** -0.5 if scale is None and len(shape) > 1 else scale or 0.1
        return self.constant((self.random.standard_normal(shape) * scale).astype(self.dtype))

    def constant(self, array: np.ndarray) -> str:
        name = f"w{len(self.weights)}"
        self.weights.append(onnx.numpy_helper.from_array(np.asarray(array), name))
        return name

    def ints(self, *values: int) -> str:
        return self.constant(np.array(values, np.int64))

    def __call__(self, op: str, *inputs: str, **attrs: Any) -> str:
        name = f"v{len(self.lines)}"
        texts = [f"{key} = {json.dumps(value)}" for key, value in attrs.items()]
        given = f" <{', '.join(texts)}>" if texts else ""
        self.lines.append(f"{name} = {op}{given} ({', '.join(inputs)})")
        return name

    def model(self, inputs: str, output: str) -> onnx.ModelProto:
        """Inputs as text; the last value made is the output, of the type and shape given."""
        nodes = "\n".join(self.lines)
        text = f"{HEAD} net ({inputs}) => ({output} v{len(self.lines) - 1}) {{ {nodes} }}"
        made = onnx.parser.parse_model(text)
        made.graph.initializer.extend(self.weights)
        return made


def mlp(dtype: str = "float32", *, width: int = 64, layers: int = 3) -> onnx.ModelProto:
    """x[N, E] through products, biases and activations, the last one a softmax."""
    net = Net(dtype)
    h = "x"
    for _ in range(layers):
        h = net("Relu", net("Add", net("MatMul", h, net.weight(width, width)), net.weight(width)))
    net("Softmax", net("MatMul", h, net.weight(width, 10)), axis=-1)
    return net.model(f"{net.kind}[N,{width}] x", f"{net.kind}[N,10]")


def encoder(
    dtype: str = "float16", *, layers: int = 2, width: int = 64, heads: int = 4, length: int = 16
) -> onnx.ModelProto:
    """ids[N, S] through embeddings and post-norm transformer layers."""
    net = Net(dtype)
    h = net(
        "Add",
        net("Gather", net.weight(100, width, scale=0.5), "ids"),
        net.weight(1, length, width, scale=0.5),
    )
    h = _norm(net, h, width)
    for _ in range(layers):
        h = _norm(net, net("Add", h, _attention(net, h, width, heads, length)), width)
        wide = net("Gelu", _linear(net, h, width, 4 * width))
        h = _norm(net, net("Add", h, _linear(net, wide, 4 * width, width)), width)
    return net.model(f"int64[N,{length}] ids", f"{net.kind}[N,{length},{width}]")


def _linear(net: Net, x: str, depth: int, columns: int) -> str:
    return net("Add", net("MatMul", x, net.weight(depth, columns)), net.weight(columns))


def _norm(net: Net, x: str, width: int) -> str:
    one = net.constant(np.ones(width, net.dtype))
    return net("LayerNormalization", x, one, net.weight(width), axis=-1, epsilon=0.0001)


def _attention(net: Net, x: str, width: int, heads: int, length: int) -> str:
    apart, joined = net.ints(0, length, heads, width // heads), net.ints(0, length, width)
    q, k, v = (net("Reshape", _linear(net, x, width, width), apart) for _ in range(3))
    q, v = (net("Transpose", t, perm=[0, 2, 1, 3]) for t in (q, v))
    scores = net("MatMul", q, net("Transpose", k, perm=[0, 2, 3, 1]))
    scores = net("Div", scores, net.constant(np.asarray((width // heads) ** 0.5, net.dtype)))
    mixed = net("Transpose", net("MatMul", net("Softmax", scores, axis=-1), v), perm=[0, 2, 1, 3])
    return _linear(net, net("Reshape", mixed, joined), width, width)


def image_net(dtype: str = "float16") -> onnx.ModelProto:
    """x[N, 3, 32, 32]: a stem, a residual block, a depthwise convolution, a mean, a classifier."""
    net = Net(dtype)
    h = net("Relu", _conv(net, "x", 3, 16, kernel=3, stride=2))
    inner = net("Relu", _conv(net, h, 16, 16, kernel=3))
    h = net("Relu", net("Add", _conv(net, inner, 16, 16, kernel=1), h))
    h = net("HardSwish", _conv(net, h, 16, 16, kernel=3, group=16))
    pooled = net("Flatten", net("GlobalAveragePool", h), axis=1)
    net("Gemm", pooled, net.weight(16, 10), net.weight(10))
    return net.model(f"{net.kind}[N,3,32,32] x", f"{net.kind}[N,10]")


def _conv(
    net: Net, x: str, channels: int, columns: int, *, kernel: int, stride: int = 1, group: int = 1
) -> str:
    each = channels // group
    weight = net.weight(columns, each, kernel, kernel, scale=(each * kernel * kernel) ** -0.5)
    pads = [kernel // 2] * 4
    return str(net("Conv", x, weight, net.weight(columns), pads=pads, strides=[stride, stride], group=group))


def branches(dtype: str = "float16") -> onnx.ModelProto:
    """x[N, 16, 16, 16] through two blocks of four branches each, joined along the channels."""
    net = Net(dtype)
    h, channels = "x", 16
    for _ in range(2):
        one = net("Relu", _conv(net, h, channels, 16, kernel=1))
        three = net("Relu", _conv(net, net("Relu", _conv(net, h, channels, 8, kernel=1)), 8, 16, kernel=3))
        five = net("Relu", _conv(net, net("Relu", _conv(net, h, channels, 8, kernel=1)), 8, 16, kernel=5))
        pool = net("MaxPool", h, kernel_shape=[3, 3], pads=[1, 1, 1, 1], strides=[1, 1])
        pool = net("Relu", _conv(net, pool, channels, 16, kernel=1))
        h, channels = net("Concat", one, three, five, pool, axis=1), 64
    net("Relu", _conv(net, h, channels, 16, kernel=1))
    return net.model(f"{net.kind}[N,16,16,16] x", f"{net.kind}[N,16,16,16]")


def two_towers(dtype: str = "float16", *, width: int = 128, depth: int = 6) -> onnx.ModelProto:
    """x[N, E] through two chains of products, norms and activations that know nothing of each other."""
    net = Net(dtype)
    ends = []
    for _ in range(2):
        h = "x"
        for _ in range(depth):
            h = _norm(net, net("Relu", _linear(net, h, width, width)), width)
        ends.append(h)
    net("Softmax", net("Mul", *ends), axis=-1)
    return net.model(f"{net.kind}[N,{width}] x", f"{net.kind}[N,{width}]")


def heavy(*, pairs: int = 10) -> onnx.ModelProto:
    """x[64, 2048] through weights of 16 MiB each, so that the driver's own rounding is small beside them."""
    net = Net("float16")
    h = "x"
    for i in range(pairs):
        for shape in ((2048, 4096), (4096, 2048)):
            weight = np.full(shape, 2.0 ** -(9 + i % 2), net.dtype)
            weight[0, 0] = i  # no two are equal, or an engine would keep one of them
            h = net("Relu", net("MatMul", h, net.constant(weight)))
    return net.model("float16[64,2048] x", "float16[64,2048]")


def waits_for_data() -> onnx.ModelProto:
    """An output whose size depends on the values: the device must be asked while the net runs."""
    net = Net()
    net("NonZero", net("Relu", "x"))
    return net.model("float[8,16] x", "int64[2,K]")


def waits_in_the_middle() -> onnx.ModelProto:
    """Products before and behind an op that asks the device for a size; the last reads what was counted."""
    net = Net()
    hidden = net("Relu", net("MatMul", "x", net.weight(64, 64)))
    best = net("Softmax", net("MatMul", hidden, net.weight(64, 64)), axis=-1)
    count = net("ReduceSum", net("Cast", net("NonZero", hidden), to=1), net.ints(0, 1), keepdims=1)
    near = net("Relu", net("MatMul", best, net.weight(64, 64)))
    wide = net("Softmax", net("MatMul", near, net.weight(64, 64)), axis=-1)
    net("Tanh", net("Add", net("MatMul", wide, net.weight(64, 64)), count))
    return net.model("float[8,64] x", "float[8,64]")


def runs_on_the_host() -> onnx.ModelProto:
    """An op that only ONNX Runtime has, between two that a GPU has."""
    net = Net()
    count = net(
        "TfIdfVectorizer", "ids", mode="TF", min_gram_length=1, max_gram_length=1, max_skip_count=0,
        ngram_counts=[0], ngram_indexes=[0, 1, 2], pool_int64s=[2, 3, 5],
    )  # fmt: skip
    net("Relu", net("Sub", count, net.constant(np.ones(3, np.float32))))
    return net.model("int64[12] ids", "float[3]")


def looks_up() -> onnx.ModelProto:
    """A table read at places that the caller names."""
    net = Net()
    net("Relu", net("Gather", net.weight(10, 64), "ids"))
    return net.model("int64[4] ids", "float[4,64]")
