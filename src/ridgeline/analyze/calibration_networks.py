"""Networks for a calibration: layers of the common kinds, of any size (`calibration_sets.py` has the sizes).

They are no model anybody uses. A prediction for a real model is made from these, never from its own times.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import numpy as np

from ridgeline.analyze.calibration_graph import NUMPY, Graph


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
    is_masked: bool = False

    def add_to(self, net: Graph) -> None:
        x = net.input(self.B, self.S, self.E)
        mask = (net.input(self.B, 1, 1, self.S),) if self.is_masked else ()
        for _ in range(self.layers):
            x = self._layer(net, x, mask)
        net.output(self._norm(net, x), 3)

    def _norm(self, net: Graph, x: str) -> str:
        scale = net.weight(self.E, scale=1.0)
        if self.is_gated:
            return net.op("RMSNormalization", x, scale, axis=-1)
        return net.op("LayerNormalization", x, scale, net.weight(self.E, scale=0.1), axis=-1)

    def _linear(self, net: Graph, x: str, given: int, made: int) -> str:
        product = net.op("MatMul", x, net.weight(given, made))
        return product if self.is_gated else net.op("Add", product, net.weight(made, scale=0.1))

    def _layer(self, net: Graph, x: str, mask: tuple[str, ...]) -> str:
        h = self._norm(net, x)
        q, k, v = (self._linear(net, h, self.E, self.E) for _ in range(3))
        heads = {"q_num_heads": self.H, "kv_num_heads": self.H, "is_causal": int(self.is_causal)}
        attended = net.op("Attention", q, k, v, *mask, **heads)
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
    """Stages of inverted residuals: a wide depthwise convolution between two pointwise ones.

    Gated, they have smooth activations, or cheap ones, and each channel is weighted by what is in the image.
    """

    B: int
    C: tuple[int, ...]
    kernel: int = 3
    size: int = 224
    is_gated: bool = False
    is_cheap: bool = False

    def add_to(self, net: Graph) -> None:
        x = net.input(self.B, 3, self.size, self.size)
        x = self._activation(net, _conv(net, x, 3, self.C[0], kernel=3, stride=2))
        last = self.C[0]
        for width in self.C:
            x = self._block(net, x, last, width, 2)
            x = net.op("Add", x, self._block(net, x, width, width, 1))
            last = width
        x = self._activation(net, _conv(net, x, last, 4 * last))
        x = net.op("Flatten", net.op("GlobalAveragePool", x))
        net.output(net.op("MatMul", x, net.weight(4 * last, 640)), 2)

    def _activation(self, net: Graph, x: str) -> str:
        if self.is_cheap:
            return net.op("HardSwish", x)
        return _swish(net, x) if self.is_gated else _clipped(net, x)

    def _block(self, net: Graph, x: str, given: int, made: int, stride: int) -> str:
        wide = 6 * given
        h = self._activation(net, _conv(net, x, given, wide))
        h = _conv(net, h, wide, wide, kernel=self.kernel, stride=stride, groups=wide)
        h = self._activation(net, h)
        if self.is_gated:
            h = _weighted(net, h, wide, given // 4)
        return _conv(net, h, wide, made)


@dataclass(frozen=True)
class Blocks:
    """Patches, then depthwise convolutions of a large window, a norm over the channels, and two products."""

    B: int
    C: tuple[int, ...]
    size: int
    kernel: int = 7

    def add_to(self, net: Graph) -> None:
        x = net.input(self.B, 3, 4 * self.size, 4 * self.size)
        x = self._norm(net, _conv(net, x, 3, self.C[0], kernel=4, stride=4), self.C[0])
        for place, width in enumerate(self.C):
            if place:
                x = _conv(net, x, self.C[place - 1], width, kernel=2, stride=2)
            for _ in range(2):
                x = self._block(net, x, width)
            x = self._norm(net, x, width)
        net.output(x, 4)

    def _norm(self, net: Graph, x: str, width: int) -> str:
        return net.op("Transpose", self._norm_of_pixels(net, x, width), perm=(0, 3, 1, 2))

    def _norm_of_pixels(self, net: Graph, x: str, width: int) -> str:
        scale, bias = net.weight(width, scale=1.0), net.weight(width, scale=0.1)
        x = net.op("Transpose", x, perm=(0, 2, 3, 1))
        return net.op("LayerNormalization", x, scale, bias, axis=-1)

    def _block(self, net: Graph, x: str, width: int) -> str:
        h = _conv(net, x, width, width, kernel=self.kernel, groups=width)
        h = self._norm_of_pixels(net, h, width)
        h = net.op("Add", net.op("MatMul", h, net.weight(width, 4 * width)), net.weight(4 * width))
        h = net.op("MatMul", net.op("Gelu", h), net.weight(4 * width, width))
        return net.op("Add", net.op("Transpose", h, perm=(0, 3, 1, 2)), x)


@dataclass(frozen=True)
class Grouped:
    """3x3 convolutions in groups of a few channels between pointwise ones, each stage at half the size."""

    B: int
    C: tuple[int, ...]
    group_width: int
    size: int

    def add_to(self, net: Graph) -> None:
        x = net.op("Relu", _conv(net, net.input(self.B, 3, self.size, self.size), 3, 32, kernel=3, stride=2))
        last = 32
        for width in self.C:
            for stride in (2, 1):
                x, last = self._block(net, x, last, width, stride), width
        net.output(x, 4)

    def _block(self, net: Graph, x: str, given: int, width: int, stride: int) -> str:
        groups = width // self.group_width
        h = net.op("Relu", _conv(net, x, given, width))
        h = net.op("Relu", _conv(net, h, width, width, kernel=3, stride=stride, groups=groups))
        h = _conv(net, _weighted(net, h, width, given // 4), width, width)
        if stride > 1:
            x = _conv(net, x, given, width, stride=stride)
        return net.op("Relu", net.op("Add", x, h))


@dataclass(frozen=True)
class Attentions:
    """Attention alone, three times over: batch, heads, queries, keys, width of a head, and what masks it."""

    cases: tuple[tuple[int, int, int, int, int, str], ...]

    def add_to(self, net: Graph) -> None:
        for batch, heads, queries, keys, width, masked in self.cases:
            x = net.input(batch, queries, heads * width)
            k, v = (net.input(batch, keys, heads * width) for _ in range(2))
            mask = [net.input(batch, 1, queries, keys)] if masked == "added" else []
            attributes = {"q_num_heads": heads, "kv_num_heads": heads, "is_causal": int(masked == "causal")}
            for _ in range(3):
                x = net.op("Attention", x, k, v, *mask, **attributes)
            net.output(x, 3)


@dataclass(frozen=True)
class Rows:
    """Norms and softmax over the last axis, and results of one element for each other element."""

    cases: tuple[tuple[int, int], ...]
    depth: int = 64

    def add_to(self, net: Graph) -> None:
        for rows, columns in self.cases:
            # as in a network, what they read was just made
            x, y = net.input(rows, self.depth), net.input(rows, columns)
            x = net.op("MatMul", x, net.weight(self.depth, columns))
            scale, bias = net.weight(columns, scale=1.0), net.weight(columns, scale=0.1)
            h = net.op("LayerNormalization", net.op("Add", x, y), scale, bias, axis=-1)
            net.output(h, 2)
            net.output(net.op("Softmax", x, axis=-1), 2)
            net.output(net.op("Mul", net.op("Sigmoid", x), y), 2)
            net.output(net.op("Transpose", x, perm=(1, 0)), 2)


@dataclass(frozen=True)
class Joined:
    """Pieces of a few channels that are joined: two of them, six, and all."""

    B: int
    width: int
    size: int
    pieces: int = 20

    def add_to(self, net: Graph) -> None:
        made = [net.input(self.B, self.width, self.size, self.size)]
        for _ in range(self.pieces):
            made.append(net.op("Relu", _conv(net, made[-1], self.width, self.width)))
        for count in (2, 6, self.pieces):
            joined = net.op("Concat", *made[1 : count + 1], axis=1)
            net.output(_conv(net, joined, count * self.width, 32), 4)


@dataclass(frozen=True)
class Pyramid:
    """Maps at half the size, enlarged again in two ways and joined with what they were made from."""

    B: int
    C: tuple[int, ...]
    size: int

    def add_to(self, net: Graph) -> None:
        x, last = net.input(self.B, 3, self.size, self.size), 3
        scales = net.constant(np.array([1, 1, 2, 2], np.float32))
        for width in self.C:
            x = _swish(net, _conv(net, x, last, width, kernel=3, stride=2))
            small = _swish(net, _conv(net, x, width, 2 * width, kernel=3, stride=2))
            copied = net.op("Resize", small, "", scales, mode='"nearest"')
            made = _swish(net, _conv(net, net.op("Concat", x, copied, axis=1), 3 * width, width))
            made = _swish(net, _conv(net, made, width, width, kernel=3))
            smooth = net.op("Resize", made, "", scales, mode='"linear"')
            net.output(_conv(net, smooth, width, 16), 4)
            weight = net.weight(2 * width, width, 2, 2)
            net.output(net.op("ConvTranspose", small, weight, kernel_shape=(2, 2), strides=(2, 2)), 4)
            last = width


@dataclass(frozen=True)
class Pools:
    """Pooling and means over maps of several sizes, each before a convolution."""

    B: int
    C: tuple[int, ...]
    size: int

    def add_to(self, net: Graph) -> None:
        size = self.size
        for width in self.C:
            x = net.op("Relu", _conv(net, net.input(self.B, width, size, size), width, width))
            pooled = (
                net.op("MaxPool", x, kernel_shape=(3, 3), strides=(2, 2), pads=(1, 1, 1, 1)),
                net.op("AveragePool", x, kernel_shape=(2, 2), strides=(2, 2)),
                net.op("AveragePool", x, kernel_shape=(3, 3), pads=(1, 1, 1, 1)),
            )
            for made in pooled:
                net.output(_conv(net, made, width, 32), 4)
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
        net.output(_conv(net, x, last, 32), 4)

    def _step(self, net: Graph, x: str, given: int, made: int) -> str:
        if not self.has_norm:
            return net.op("Relu", _conv(net, x, given, made, kernel=3))
        scale, bias = net.weight(given, scale=1.0), net.weight(given, scale=0.1)
        h = _swish(net, net.op("GroupNormalization", x, scale, bias, num_groups=16))
        return _conv(net, h, given, made, kernel=3)


def _conv(
    net: Graph, x: str, given: int, made: int, *, kernel: int = 1, stride: int = 1, groups: int = 1
) -> str:
    """Parameters: those of a convolution, which has no fewer. One that steps by its window is not padded."""
    weight = net.weight(made, given // groups, kernel, kernel)
    bias = net.weight(made, scale=0.1)
    pads = (0 if stride == kernel else kernel // 2,) * 4
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


def _weighted(net: Graph, x: str, width: int, narrow: int) -> str:
    """Channels weighted by a small network of their means."""
    h = _swish(net, _conv(net, net.op("GlobalAveragePool", x), width, narrow))
    return net.op("Mul", x, net.op("Sigmoid", _conv(net, h, narrow, width)))


def _clipped(net: Graph, x: str) -> str:
    zero, six = (net.constant(np.array(value, NUMPY[net.dtype])) for value in (0.0, 6.0))
    return net.op("Clip", x, zero, six)
