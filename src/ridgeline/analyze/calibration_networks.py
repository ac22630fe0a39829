"""The networks that a calibration builds and measures: layers of the common kinds over a grid of sizes.

They are no model anybody uses. A prediction for a real model is made from these, never from its own times.
Several lie in one graph, side by side: then their kernels are compiled together.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np
import onnx

from ridgeline.analyze.calibration_graph import HALF, NUMPY, SINGLE, Graph


class Network(Protocol):
    """A part of a graph with inputs and outputs of its own."""

    def add_to(self, net: Graph) -> None: ...


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

    def add_to(self, net: Graph) -> None:
        x = net.input(self.B, self.S, self.E)
        for _ in range(self.layers):
            x = self._layer(net, x)
        net.output(self._norm(net, x), 3)

    def _norm(self, net: Graph, x: str) -> str:
        scale = net.weight(self.E, scale=1.0)
        if self.is_gated:
            return net.op("RMSNormalization", x, scale, axis=-1)
        return net.op("LayerNormalization", x, scale, net.weight(self.E, scale=0.1), axis=-1)

    def _linear(self, net: Graph, x: str, given: int, made: int) -> str:
        product = net.op("MatMul", x, net.weight(given, made))
        return product if self.is_gated else net.op("Add", product, net.weight(made, scale=0.1))

    def _layer(self, net: Graph, x: str) -> str:
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

    def add_to(self, net: Graph) -> None:
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
        net.output(x, 2)

    def _bottleneck(self, net: Graph, x: str, given: int, width: int, stride: int) -> str:
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

    def add_to(self, net: Graph) -> None:
        x = net.input(self.B, 3, self.size, self.size)
        x = _clipped(net, _conv(net, x, 3, self.C[0], kernel=3, stride=2))
        last = self.C[0]
        for width in self.C:
            x = self._block(net, x, last, width, 2)
            x = net.op("Add", x, self._block(net, x, width, width, 1))
            last = width
        x = net.op("Flatten", net.op("GlobalAveragePool", _clipped(net, _conv(net, x, last, 4 * last))))
        net.output(net.op("MatMul", x, net.weight(4 * last, 640)), 2)

    def _block(self, net: Graph, x: str, given: int, made: int, stride: int) -> str:
        wide = 6 * given
        h = _clipped(net, _conv(net, x, given, wide))
        h = _clipped(net, _conv(net, h, wide, wide, kernel=self.kernel, stride=stride, groups=wide))
        return _conv(net, h, wide, made)


@dataclass(frozen=True)
class Blocks:
    """Depthwise convolutions of a large window, a norm over the channels, and two products, on tokens."""

    B: int
    C: tuple[int, ...]
    size: int
    kernel: int = 7

    def add_to(self, net: Graph) -> None:
        size = self.size
        for width in self.C:
            x = _conv(net, net.input(self.B, width, size, size), width, width)
            h = _conv(net, x, width, width, kernel=self.kernel, groups=width)
            h = net.op("Transpose", h, perm=(0, 2, 3, 1))
            scale, bias = net.weight(width, scale=1.0), net.weight(width, scale=0.1)
            h = net.op("LayerNormalization", h, scale, bias, axis=-1)
            h = net.op("Add", net.op("MatMul", h, net.weight(width, 4 * width)), net.weight(4 * width))
            h = net.op("MatMul", net.op("Gelu", h), net.weight(4 * width, width))
            net.output(net.op("Add", net.op("Transpose", h, perm=(0, 3, 1, 2)), x), 4)
            size //= 2


@dataclass(frozen=True)
class Grouped:
    """3x3 convolutions in groups of a few channels, between two pointwise ones."""

    B: int
    C: tuple[int, ...]
    group_width: int
    size: int

    def add_to(self, net: Graph) -> None:
        size = self.size
        for width in self.C:
            x = net.op("Relu", _conv(net, net.input(self.B, width, size, size), width, width))
            groups = width // self.group_width
            x = net.op("Relu", _conv(net, x, width, width, kernel=3, groups=groups))
            net.output(_conv(net, x, width, width), 4)
            size //= 2


@dataclass(frozen=True)
class Attentions:
    """Attention alone: batch, heads, queries, keys, width of a head, and what masks it."""

    cases: tuple[tuple[int, int, int, int, int, str], ...]

    def add_to(self, net: Graph) -> None:
        for batch, heads, queries, keys, width, masked in self.cases:
            q = net.input(batch, queries, heads * width)
            k, v = (net.input(batch, keys, heads * width) for _ in range(2))
            mask = [net.input(batch, 1, queries, keys)] if masked == "added" else []
            attributes = {"q_num_heads": heads, "kv_num_heads": heads, "is_causal": int(masked == "causal")}
            net.output(net.op("Attention", q, k, v, *mask, **attributes), 3)


@dataclass(frozen=True)
class Rows:
    """Norms and softmax over the last axis, and results of one element for each other element."""

    cases: tuple[tuple[int, int], ...]

    def add_to(self, net: Graph) -> None:
        for rows, columns in self.cases:
            x, y = net.input(rows, columns), net.input(rows, columns)
            scale, bias = net.weight(columns, scale=1.0), net.weight(columns, scale=0.1)
            h = net.op("LayerNormalization", net.op("Add", x, y), scale, bias, axis=-1)
            net.output(h, 2)
            net.output(net.op("Softmax", x, axis=-1), 2)
            net.output(net.op("Mul", net.op("Sigmoid", x), y), 2)
            net.output(net.op("Transpose", x, perm=(1, 0)), 2)


@dataclass(frozen=True)
class Pools:
    """Pooling and means over maps of several sizes."""

    B: int
    C: tuple[int, ...]
    size: int

    def add_to(self, net: Graph) -> None:
        size = self.size
        for width in self.C:
            x = net.op("Relu", _conv(net, net.input(self.B, width, size, size), width, width))
            made = net.op("MaxPool", x, kernel_shape=(3, 3), strides=(2, 2), pads=(1, 1, 1, 1))
            net.output(made, 4)
            net.output(net.op("AveragePool", x, kernel_shape=(3, 3), pads=(1, 1, 1, 1)), 4)
            net.output(net.op("Flatten", net.op("GlobalAveragePool", x)), 2)
            size //= 2


@dataclass(frozen=True)
class Maps:
    """Wide 3x3 convolutions over large maps, plain or behind a group norm, with pooling between."""

    B: int
    C: tuple[int, ...]
    height: int
    width: int
    has_norm: bool = False

    def add_to(self, net: Graph) -> None:
        x = net.input(self.B, self.C[0], self.height, self.width)
        last = self.C[0]
        for width in self.C:
            for _ in range(2):
                x, last = self._step(net, x, last, width), width
            x = net.op("MaxPool", x, kernel_shape=(2, 2), strides=(2, 2))
        net.output(x, 4)

    def _step(self, net: Graph, x: str, given: int, made: int) -> str:
        if not self.has_norm:
            return net.op("Relu", _conv(net, x, given, made, kernel=3))
        scale, bias = net.weight(given, scale=1.0), net.weight(given, scale=0.1)
        h = _swish(net, net.op("GroupNormalization", x, scale, bias, num_groups=16))
        return _conv(net, h, given, made, kernel=3)


def _conv(
    net: Graph, x: str, given: int, made: int, *, kernel: int = 1, stride: int = 1, groups: int = 1
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


def _swish(net: Graph, x: str) -> str:
    return net.op("Mul", x, net.op("Sigmoid", x))


def _clipped(net: Graph, x: str) -> str:
    zero, six = (net.constant(np.array(value, NUMPY[net.dtype])) for value in (0.0, 6.0))
    return net.op("Clip", x, zero, six)


# layers as a language model has them: those of a wide one are larger than L2 and come from memory
TRANSFORMERS: tuple[Network, ...] = (
    Transformer(512, 2048, 8, 1, 64),
    Transformer(1024, 4096, 16, 1, 128),
    Transformer(640, 2560, 10, 1, 256, is_causal=True),
    Transformer(1024, 2816, 16, 1, 640, is_gated=True, is_causal=True),
    Transformer(1024, 4096, 16, 8, 256),
    Transformer(640, 2560, 10, 24, 200),
    Transformer(512, 2048, 8, 6, 480, is_causal=True),
    Transformer(1280, 5120, 20, 4, 1024, is_causal=True),
    Transformer(1536, 4096, 12, 1, 1, is_gated=True),
    Transformer(256, 512, 4, 1, 900),
)
# weights of these together are small enough to stay in L2
SMALL_CONVOLUTIONS: tuple[Network, ...] = (
    Convolutions(1, (48, 96, 192), size=192, blocks=1),
    Convolutions(1, (64, 128, 256), size=160),
    Separable(1, (24, 40, 80, 128)),
    Separable(1, (16, 48, 96), kernel=5, size=192),
    Grouped(1, (64, 144, 320), 16, 48),
    Blocks(1, (80, 160, 320), 48),
    Pools(1, (64, 160), 96),
    Rows(((96, 640), (160, 2560), (640, 512), (3136, 80))),
)
LARGE_CONVOLUTIONS: tuple[Network, ...] = (
    Convolutions(24, (48, 96, 192), size=192, blocks=1),
    Convolutions(24, (64, 128, 256, 512), size=192),
    Separable(24, (24, 40, 80, 128)),
    Separable(12, (16, 48, 96), kernel=5, size=192),
    Grouped(12, (64, 144, 320), 16, 48),
    Blocks(12, (80, 160, 320), 48),
    Maps(1, (48, 96, 160), 384, 512),
    Maps(6, (64, 128, 256), 128, 128),
    Maps(6, (64,), 208, 208),
    Maps(6, (256, 512), 24, 24),
    Maps(2, (256, 384), 48, 48, has_norm=True),
    Pools(24, (64, 160), 96),
)
ROWS: tuple[Network, ...] = (
    Rows(((2048, 640), (4096, 1024), (16384, 192), (60000, 80), (2048, 5120), (12288, 640))),
    Attentions((
        (1, 10, 160, 160, 64, ""), (24, 12, 160, 160, 64, ""), (12, 16, 320, 320, 64, ""),
        (16, 8, 80, 80, 32, ""), (1, 12, 1, 640, 64, ""),
        (1, 16, 384, 384, 64, "causal"), (6, 12, 640, 640, 64, "causal"), (2, 16, 1280, 1280, 128, "causal"),
        (1, 16, 96, 96, 64, "added"), (24, 16, 160, 160, 64, "added"), (1, 10, 640, 640, 64, "added"),
        (6, 10, 640, 640, 64, "added"),
    )),
)  # fmt: skip
GPU_GRAPHS: dict[str, Sequence[Network]] = {
    **{f"transformer {place + 1}": (network,) for place, network in enumerate(TRANSFORMERS)},
    "small convolutions": SMALL_CONVOLUTIONS,
    "large convolutions": LARGE_CONVOLUTIONS,
    "rows and attention": ROWS,
}
CPU_GRAPHS: dict[str, Sequence[Network]] = {
    "transformers": (Transformer(256, 1024, 4, 1, 32, layers=1), Transformer(512, 2048, 8, 1, 96, layers=1)),
    "convolutions": (
        Convolutions(1, (48, 96, 192), size=160, blocks=1),
        Separable(1, (16, 24, 48), size=160),
        Separable(1, (16, 40), kernel=5, size=96),
        Maps(1, (24, 48), 96, 128),
        Pools(1, (32,), 64),
    ),
    "rows": (Rows(((32, 256), (96, 1024), (1024, 64))),),
}


def graphs(*, is_gpu: bool) -> Iterator[tuple[str, onnx.ModelProto]]:
    """What a calibration measures, one graph after the other."""
    for name, networks in (GPU_GRAPHS if is_gpu else CPU_GRAPHS).items():
        graph = Graph(name.replace(" ", "_"), HALF if is_gpu else SINGLE)
        for network in networks:
            network.add_to(graph)
        yield name, graph.model()
