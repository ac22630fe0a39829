"""Layers that `kernels_gpu` measures: their regions, and the libraries' ways to compute them."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial

import torch
import torch.nn.functional as F
from torch import Tensor

from ridgeline.base.spec import Body, Op, Site, Target, TensorSpec
from ridgeline.kernels.triton.source import Kernel


@dataclass(frozen=True)
class Case:
    """One layer: its region, and the library's ways to compute it from (x, weight, bias)."""

    name: str
    ops: tuple[Op, ...]
    shapes: Mapping[str, tuple[int, ...]]
    peers: Mapping[str, Callable[[Tensor, Tensor, Tensor], Tensor]]
    exact: Callable[[Tensor, Tensor, Tensor], Tensor]  # before what follows the bias
    flops: int
    terms: int  # products in one sum
    follows: Callable[[Tensor], Tensor] = field(default=lambda y: y)
    last: tuple[str, ...] = ()  # values that lie channels last
    is_plain: bool = False  # multiplied without tensor cores
    operand_error: float = 0.0  # by which operands may be rounded first

    def site(self, target: Target) -> Site:
        specs = {
            name: TensorSpec("float16", shape, "channels_last" if name in self.last else "contiguous")
            for name, shape in self.shapes.items()
        }
        body = Body(tuple(n for n in "xwb" if n in specs), ("y",), self.ops)
        weights = frozenset(n for n in "wb" if n in specs) if "b" in specs else frozenset()
        return Site(body, specs, weights, {}, target, name=self.name)

    def peer_kernels(self, target: Target) -> list[Kernel]:
        """Of our own, among the peers."""
        return []


def linear(name: str, rows: int, columns: int, depth: int, *, gelu: bool = False) -> Case:
    ops = [Op("MatMul", ("x", "w"), ("p",)), Op("Add", ("p", "b"), ("s" if gelu else "y",))]
    shapes = {
        "x": (rows, depth),
        "w": (depth, columns),
        "b": (columns,),
        "p": (rows, columns),
        "y": (rows, columns),
    }
    peers: dict[str, Callable[..., Tensor]] = {"cublas": lambda x, w, b: torch.addmm(b, x, w)}
    if gelu:
        ops.append(Op("Gelu", ("s",), ("y",), {"approximate": "tanh"}))
        shapes["s"] = (rows, columns)
        peers = {"cublaslt gelu": lambda x, w, b: torch._addmm_activation(b, x, w, use_gelu=True)}
    return Case(
        f"{name} {rows}x{columns}x{depth}{' gelu' if gelu else ''}", tuple(ops), shapes, peers,
        lambda x, w, b: x @ w + b, 2 * rows * columns * depth, depth,
        (lambda y: F.gelu(y, approximate="tanh")) if gelu else (lambda y: y),
    )  # fmt: skip


def batched(name: str, batch: int, rows: int, columns: int, depth: int) -> Case:
    shapes = {"x": (batch, rows, depth), "w": (batch, depth, columns), "y": (batch, rows, columns)}
    return Case(
        f"{name} {batch}x{rows}x{columns}x{depth}", (Op("MatMul", ("x", "w"), ("y",)),), shapes,
        {"cublas": lambda x, w, b: torch.bmm(x, w)}, lambda x, w, b: x @ w,
        2 * batch * rows * columns * depth, depth,
    )  # fmt: skip


def conv(
    batch: int, channels: int, columns: int, kernel: int, stride: int, size: int, *, is_nchw: bool = False,
    groups: int = 1, name: str = "",
) -> Case:  # fmt: skip
    """Conv, bias, relu."""
    pad, made = kernel // 2, (size - 1) // stride + 1
    y = (batch, columns, made, made)
    shapes = {
        "x": (batch, channels, size, size),
        "w": (columns, channels // groups, kernel, kernel),
        "b": (columns,),
        "c": y,
        "y": y,
    }
    attrs = {"strides": (stride, stride), "pads": (pad,) * 4, "group": groups}
    ops = (Op("Conv", ("x", "w", "b"), ("c",), attrs), Op("Relu", ("c",), ("y",)))
    ones = (1, 1)

    def cudnn(x: Tensor, w: Tensor, b: Tensor) -> Tensor:
        return torch.cudnn_convolution_relu(x, w, b, (stride, stride), (pad, pad), ones, groups)

    def gemm(x: Tensor, w: Tensor, b: Tensor) -> Tensor:
        rows = x.permute(0, 2, 3, 1).reshape(-1, channels)
        made_rows = torch._addmm_activation(b, rows, w.view(columns, channels).t())
        return made_rows.view(batch, size, size, columns).permute(0, 3, 1, 2)

    peers: dict[str, Callable[..., Tensor]] = {"cudnn relu": cudnn}
    if kernel == stride == groups == 1:
        peers["cublaslt relu"] = gemm
    groups_of, image = f" g{groups}" if groups > 1 else "", " NCHW" if is_nchw else ""
    return Case(
        f"{name or f'b{batch}'} {channels}>{columns} {kernel}x{kernel}s{stride} {size}²{groups_of}{image}",
        ops, shapes, peers,
        lambda x, w, b: torch.conv2d(x, w, b, stride, pad, 1, groups),
        2 * math.prod(y) * channels // groups * kernel**2, channels // groups * kernel**2, torch.relu,
        ("w", "c", "y") if is_nchw else ("x", "w", "c", "y"),
    )  # fmt: skip


def depthwise(batch: int, channels: int, stride: int, size: int, kernel: int = 3, name: str = "") -> Case:
    """Convolution, bias, relu."""
    made, pad = (size - 1) // stride + 1, kernel // 2
    y = (batch, channels, made, made)
    w = (channels, 1, kernel, kernel)
    shapes = {"x": (batch, channels, size, size), "w": w, "b": (channels,), "c": y, "y": y}
    attrs = {"strides": (stride, stride), "pads": (pad,) * 4, "group": channels}
    ops = (Op("Conv", ("x", "w", "b"), ("c",), attrs), Op("Relu", ("c",), ("y",)))

    def plain(x: Tensor, w: Tensor, b: Tensor) -> Tensor:
        return torch.relu_(torch.conv2d(x, w, b, stride, pad, 1, channels))

    def cudnn(x: Tensor, w: Tensor, b: Tensor) -> Tensor:
        return torch.cudnn_convolution_relu(x, w, b, (stride, stride), (pad, pad), (1, 1), channels)

    return Case(
        f"{name or f'b{batch}'} dw {channels} {kernel}x{kernel}s{stride} {size}²", ops, shapes,
        {"conv2d, relu_": plain, "cudnn relu": cudnn},
        lambda x, w, b: torch.conv2d(x, w, b, stride, pad, 1, channels), 2 * kernel**2 * math.prod(y),
        kernel**2, torch.relu, ("x", "c", "y"), is_plain=True,
    )  # fmt: skip


def pool(
    op_type: str, batch: int, channels: int, size: int, kernel: int, stride: int, pad: int, last: str = "wy"
) -> Case:
    """Alone; of the values in `last` the channels lie together."""
    made = (size + 2 * pad - kernel) // stride + 1
    shapes = {"w": (batch, channels, size, size), "y": (batch, channels, made, made)}
    attrs = {"kernel_shape": (kernel,) * 2, "strides": (stride,) * 2, "pads": (pad,) * 4}
    layout = {"wy": "", "w": " to NCHW", "": " NCHW"}[last]
    run = F.max_pool2d if op_type == "MaxPool" else partial(F.avg_pool2d, count_include_pad=False)
    plain = lambda x, w, b: run(w, kernel, stride, pad)  # noqa: E731
    return Case(
        f"b{batch} {op_type} {channels} {kernel}x{kernel}s{stride} {size}²{layout}",
        (Op(op_type, ("w",), ("y",), attrs),), shapes, {"torch": plain}, plain,
        math.prod(shapes["y"]) * kernel**2, kernel**2, last=tuple(last), is_plain=True,
    )  # fmt: skip


def gemm_cases() -> list[Case]:
    layer = ((2304, 768, False), (768, 768, False), (3072, 768, True), (768, 3072, False))
    nets = (("bert b1", 128), ("bert b32", 4096), ("vit b1", 197), ("vit b32", 6304), ("gpt2 b1", 512))
    return [
        *(linear(net, rows, n, k, gelu=gelu) for net, rows in nets for n, k, gelu in layer),
        linear("resnet fc", 1, 1000, 2048), linear("resnet fc", 32, 1000, 2048),
        linear("gemv", 1, 4096, 4096), linear("gemv", 8, 4096, 4096), linear("gemv", 1, 14336, 4096),
        batched("scores", 12, 128, 128, 64), batched("scores", 384, 128, 128, 64),
    ]  # fmt: skip


def conv_cases() -> list[Case]:
    shapes = (
        (64, 64, 1, 1, 56), (64, 64, 3, 1, 56), (64, 256, 1, 1, 56), (256, 128, 1, 1, 56),
        (256, 512, 1, 2, 56), (128, 128, 3, 2, 56), (512, 128, 1, 1, 28), (256, 256, 3, 1, 14),
        (1024, 256, 1, 1, 14), (512, 512, 3, 1, 7), (512, 2048, 1, 1, 7), (2048, 512, 1, 1, 7),
        (144, 24, 1, 1, 56), (960, 160, 1, 1, 7),
    )  # fmt: skip
    stems = [conv(batch, 3, 64, 7, 2, 224, is_nchw=True) for batch in (1, 32)]
    return [*stems, *(conv(batch, *shape) for batch in (1, 32) for shape in shapes)]


def depthwise_cases() -> list[Case]:
    shapes = (
        (32, 1, 112),
        (96, 2, 112),
        (144, 1, 56),
        (144, 2, 56),
        (192, 1, 28),
        (384, 1, 14),
        (576, 2, 14),
        (960, 1, 7),
    )
    return [depthwise(batch, *shape) for batch in (1, 32) for shape in shapes]


def grouped_cases() -> list[Case]:
    """The convolutions in groups of whole networks, at batch 16."""
    layers = (
        ("resnext50", ((128, 1, 56, 32), (256, 2, 56, 32), (256, 1, 28, 32), (512, 1, 14, 32))),
        ("resnext50", ((1024, 1, 7, 32),)),
        ("regnet_y_1_6gf", ((48, 2, 112, 2), (120, 1, 28, 5), (336, 1, 14, 14), (888, 1, 7, 37))),
        ("regnet_y_8gf", ((224, 2, 112, 4), (448, 1, 28, 8), (896, 1, 14, 16), (2016, 1, 7, 36))),
        ("regnet_x_400mf", ((32, 1, 56, 2), (160, 1, 14, 10), (400, 1, 7, 25))),
        ("regnet_x_32gf", ((336, 1, 56, 2), (1344, 1, 14, 8))),
    )  # fmt: skip
    threes = [
        conv(16, channels, channels, 3, stride, size, groups=groups, name=net)
        for net, of_net in layers
        for channels, stride, size, groups in of_net
    ]
    return [*threes, conv(16, 240, 60, 1, 1, 28, groups=3, name="shufflenet g3")]


def windows_cases() -> list[Case]:
    """Depthwise convolutions of large windows, at batch 16."""
    convnext = ((96, 56), (192, 28), (384, 14), (768, 7))
    efficientnet = ((144, 2, 56), (240, 1, 28), (480, 1, 14), (672, 1, 14), (672, 2, 14), (1152, 1, 7))
    return [
        *(depthwise(16, channels, 1, size, 7, "convnext_t") for channels, size in convnext),
        *(depthwise(16, *shape, 5, "efficientnet_b0") for shape in efficientnet),
        depthwise(1, 96, 1, 56, 7), depthwise(1, 768, 1, 7, 7), depthwise(16, 96, 1, 56, 9),
    ]  # fmt: skip


def pool_cases() -> list[Case]:
    """Of Inception, DenseNet, ResNet and YOLO."""
    shapes = (
        ("AveragePool", 192, 35, 3, 1, 1), ("AveragePool", 768, 17, 3, 1, 1), ("MaxPool", 64, 147, 3, 2, 0),
        ("MaxPool", 288, 35, 3, 2, 0), ("AveragePool", 2048, 8, 8, 1, 0), ("AveragePool", 256, 56, 2, 2, 0),
        ("MaxPool", 64, 112, 3, 2, 1), ("MaxPool", 256, 20, 5, 1, 2), ("MaxPool", 256, 20, 13, 1, 6),
    )  # fmt: skip
    pools = [pool(kind, batch, *rest) for batch in (1, 8, 64) for kind, *rest in shapes]
    other = [pool(kind, 8, *rest, last) for last in ("w", "") for kind, *rest in (shapes[0], shapes[6])]
    return [*pools, *other]


FAMILIES = {
    "gemm": gemm_cases, "conv": conv_cases, "depthwise": depthwise_cases, "pool": pool_cases,
    "grouped": grouped_cases, "windows": windows_cases,
}  # fmt: skip
