"""The networks that a calibration builds and measures: layers of the common kinds over a grid of sizes.

They are no model anybody uses. A prediction for a real model is made from these, never from its own times.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

import numpy as np
import onnx
import onnx.parser

OPSET = 23
HALF, SINGLE = "float16", "float"
NUMPY = {HALF: np.float16, SINGLE: np.float32}


@dataclass
class Network:
    """A graph in the making: lines of ONNX text, and weights with their values."""

    name: str
    dtype: str
    lines: list[str] = field(default_factory=list)
    weights: dict[str, np.ndarray] = field(default_factory=dict)
    inputs: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        self._rng = np.random.default_rng(0)

    def input(self, *shape: int) -> str:
        name = f"x{len(self.inputs)}"
        self.inputs.append(f"{self.dtype}[{','.join(map(str, shape))}] {name}")
        return name

    def weight(self, *shape: int, scale: float | None = None) -> str:
        """Random values that keep activations at about one."""
        name = f"w{len(self.weights)}"
        spread = (
            scale if scale is not None else float(np.prod(shape[1:]) if len(shape) > 2 else shape[0]) ** -0.5
        )
        values = self._rng.standard_normal(shape, dtype=np.float32) * spread
        self.weights[name] = values.astype(NUMPY[self.dtype])
        return name

    def op(self, op_type: str, *inputs: str, **attributes: object) -> str:
        made = f"v{len(self.lines)}"
        given = ", ".join(f"{name} = {_attribute(value)}" for name, value in attributes.items())
        marked = f" <{given}>" if given else ""
        self.lines.append(f"{made} = {op_type}{marked} ({', '.join(inputs)})")
        return made

    def model(self, output: str, rank: int) -> onnx.ModelProto:
        dims = ",".join(f"d{axis}" for axis in range(rank))
        text = (
            f'<ir_version: 10, opset_import: ["": {OPSET}]> {self.name} '
            f"({', '.join(self.inputs)}) => ({self.dtype}[{dims}] {output}) {{ {' '.join(self.lines)} }}"
        )
        model = onnx.parser.parse_model(text)
        for name, values in self.weights.items():
            model.graph.initializer.append(onnx.numpy_helper.from_array(values, name))
        return model


def _attribute(value: object) -> str:
    return f"[{', '.join(map(str, value))}]" if isinstance(value, (tuple, list)) else str(value)


@dataclass(frozen=True)
class Transformer:
    """Layers of attention and a feed-forward part: E width, F hidden width, H heads, B batch, S tokens."""

    E: int
    F: int
    H: int
    B: int
    S: int
    layers: int = 4
    is_causal: bool = False
    is_gated: bool = False

    @property
    def name(self) -> str:
        return f"transformer_{self.E}_{self.F}_{self.B}x{self.S}"

    def model(self, dtype: str) -> onnx.ModelProto:
        net = Network(self.name, dtype)
        x = net.input(self.B, self.S, self.E)
        for _ in range(self.layers):
            x = self._layer(net, x)
        return net.model(self._norm(net, x), 3)

    def _norm(self, net: Network, x: str) -> str:
        scale = net.weight(self.E, scale=1.0)
        if self.is_gated:
            return net.op("RMSNormalization", x, scale, axis=-1)
        return net.op("LayerNormalization", x, scale, net.weight(self.E, scale=0.1), axis=-1)

    def _linear(self, net: Network, x: str, given: int, made: int) -> str:
        product = net.op("MatMul", x, net.weight(given, made))
        return product if self.is_gated else net.op("Add", product, net.weight(made, scale=0.1))

    def _layer(self, net: Network, x: str) -> str:
        h = self._norm(net, x)
        q, k, v = (self._linear(net, h, self.E, self.E) for _ in range(3))
        heads = {"q_num_heads": self.H, "kv_num_heads": self.H, "is_causal": int(self.is_causal)}
        attended = net.op("Attention", q, k, v, **heads)
        x = net.op("Add", x, self._linear(net, attended, self.E, self.E))
        h = self._norm(net, x)
        if self.is_gated:
            gate = _swish(net, self._linear(net, h, self.E, self.F))
            hidden = net.op("Mul", gate, self._linear(net, h, self.E, self.F))
        else:
            hidden = net.op("Gelu", self._linear(net, h, self.E, self.F))
        return net.op("Add", x, self._linear(net, hidden, self.F, self.E))


@dataclass(frozen=True)
class Convolutions:
    """A stem with pooling, then stages of bottlenecks, each at half the size: B batch, C channels."""

    B: int
    C: tuple[int, ...]
    size: int = 224
    blocks: int = 2

    @property
    def name(self) -> str:
        return f"convolutions_{self.C[0]}_b{self.B}"

    def model(self, dtype: str) -> onnx.ModelProto:
        net = Network(self.name, dtype)
        x = net.input(self.B, 3, self.size, self.size)
        x = net.op("Relu", _conv(net, x, 3, self.C[0], kernel=7, stride=2))
        x = net.op("MaxPool", x, kernel_shape=(3, 3), strides=(2, 2), pads=(1, 1, 1, 1))
        last = self.C[0]
        for stage, width in enumerate(self.C):
            for block in range(self.blocks):
                stride = 2 if stage and not block else 1
                x, last = self._bottleneck(net, x, last, width, stride), 4 * width
        x = net.op("Flatten", net.op("GlobalAveragePool", x))
        x = net.op("Add", net.op("MatMul", x, net.weight(last, 1024)), net.weight(1024, scale=0.1))
        return net.model(x, 2)

    def _bottleneck(self, net: Network, x: str, given: int, width: int, stride: int) -> str:
        h = net.op("Relu", _conv(net, x, given, width))
        h = net.op("Relu", _conv(net, h, width, width, kernel=3, stride=stride))
        h = _conv(net, h, width, 4 * width)
        if given != 4 * width or stride > 1:
            x = _conv(net, x, given, 4 * width, stride=stride)
        return net.op("Relu", net.op("Add", h, x))


@dataclass(frozen=True)
class Separable:
    """Stages of inverted residuals: a wide depthwise convolution between two pointwise ones."""

    B: int
    C: tuple[int, ...]
    kernel: int = 3
    size: int = 224

    @property
    def name(self) -> str:
        return f"separable_{self.C[0]}_k{self.kernel}_b{self.B}"

    def model(self, dtype: str) -> onnx.ModelProto:
        net = Network(self.name, dtype)
        x = net.input(self.B, 3, self.size, self.size)
        x = _clipped(net, _conv(net, x, 3, self.C[0], kernel=3, stride=2))
        last = self.C[0]
        for width in self.C:
            x = self._block(net, x, last, width, 2)
            x = net.op("Add", x, self._block(net, x, width, width, 1))
            last = width
        x = net.op("Flatten", net.op("GlobalAveragePool", _clipped(net, _conv(net, x, last, 4 * last))))
        return net.model(net.op("MatMul", x, net.weight(4 * last, 640)), 2)

    def _block(self, net: Network, x: str, given: int, made: int, stride: int) -> str:
        wide = 6 * given
        h = _clipped(net, _conv(net, x, given, wide))
        h = _clipped(net, _conv(net, h, wide, wide, kernel=self.kernel, stride=stride, groups=wide))
        return _conv(net, h, wide, made)


@dataclass(frozen=True)
class Maps:
    """Wide 3x3 convolutions over large maps, plain or behind a group norm, with pooling between."""

    B: int
    C: tuple[int, ...]
    height: int
    width: int
    has_norm: bool = False

    @property
    def name(self) -> str:
        return f"maps_{self.C[0]}_{self.height}x{self.width}_b{self.B}"

    def model(self, dtype: str) -> onnx.ModelProto:
        net = Network(self.name, dtype)
        x = net.input(self.B, self.C[0], self.height, self.width)
        last = self.C[0]
        for width in self.C:
            for _ in range(2):
                x, last = self._step(net, x, last, width), width
            x = net.op("MaxPool", x, kernel_shape=(2, 2), strides=(2, 2))
        return net.model(x, 4)

    def _step(self, net: Network, x: str, given: int, made: int) -> str:
        if not self.has_norm:
            return net.op("Relu", _conv(net, x, given, made, kernel=3))
        scale, bias = net.weight(given, scale=1.0), net.weight(given, scale=0.1)
        h = _swish(net, net.op("GroupNormalization", x, scale, bias, num_groups=16))
        return _conv(net, h, given, made, kernel=3)


def _conv(
    net: Network, x: str, given: int, made: int, *, kernel: int = 1, stride: int = 1, groups: int = 1
) -> str:
    """Parameters: those of a convolution, which has no fewer."""
    weight = net.weight(made, given // groups, kernel, kernel)
    bias = net.weight(made, scale=0.1)
    pads = (kernel // 2,) * 4
    return net.op(
        "Conv",
        x,
        weight,
        bias,
        kernel_shape=(kernel, kernel),
        strides=(stride, stride),
        pads=pads,
        group=groups,
    )


def _swish(net: Network, x: str) -> str:
    return net.op("Mul", x, net.op("Sigmoid", x))


def _clipped(net: Network, x: str) -> str:
    zero, six = (f"c{i}_{len(net.lines)}" for i in range(2))
    net.weights[zero], net.weights[six] = (np.array(v, NUMPY[net.dtype]) for v in (0.0, 6.0))
    return net.op("Clip", x, zero, six)


Kind = Transformer | Convolutions | Separable | Maps
GPU_NETWORKS: tuple[Kind, ...] = (
    Transformer(512, 2048, 8, 1, 64),
    Transformer(1024, 4096, 16, 1, 128),
    Transformer(640, 2560, 10, 1, 256, is_causal=True),
    Transformer(1024, 2816, 16, 1, 640, is_gated=True, is_causal=True),
    Transformer(512, 1536, 8, 16, 96),
    Transformer(1024, 4096, 16, 8, 256),
    Transformer(640, 2560, 10, 24, 200),
    Transformer(1280, 5120, 20, 4, 1024, layers=2, is_causal=True),
    Transformer(1536, 4096, 12, 1, 1, is_gated=True),
    Transformer(256, 512, 4, 1, 900),
    Convolutions(1, (48, 96, 192, 384)),
    Convolutions(8, (48, 96, 192, 384)),
    Convolutions(32, (48, 96, 192, 384)),
    Convolutions(1, (80, 160, 320, 640), size=192),
    Convolutions(32, (80, 160, 320, 640), size=192),
    Separable(1, (24, 40, 80, 128)),
    Separable(32, (24, 40, 80, 128)),
    Separable(1, (16, 48, 96, 192), kernel=5),
    Separable(16, (16, 48, 96, 192), kernel=5),
    Maps(1, (48, 96, 160), 384, 512),
    Maps(2, (256, 384), 48, 48, has_norm=True),
)
CPU_NETWORKS: tuple[Kind, ...] = (
    Transformer(256, 1024, 4, 1, 32, layers=2),
    Transformer(512, 2048, 8, 1, 96, layers=2),
    Convolutions(1, (48, 96, 192), size=160, blocks=1),
    Separable(1, (16, 24, 48), size=160),
    Separable(1, (16, 40), kernel=5, size=96),
    Maps(1, (24, 48), 96, 128),
)


def networks(kind: str) -> Iterator[tuple[str, onnx.ModelProto]]:
    """What a calibration of a machine of this kind measures, one after the other."""
    for each in GPU_NETWORKS if kind == "cuda" else CPU_NETWORKS:
        yield each.name, each.model(HALF if kind == "cuda" else SINGLE)
