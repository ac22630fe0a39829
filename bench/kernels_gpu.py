"""Our products, convolutions and pools, every offered cut, against libraries; GPU time of CUDA graphs.

    PYTHONPATH=src python bench/kernels_gpu.py --family gemm [--case bert] [--hot] [--rows 3]

A graph holds one call after the other, each with a weight of its own, together more than L2 holds: as in a
network, a weight comes from memory. `--hot` gives all calls one weight. No row without a passed check against
float64. `peer` is the library's best way to the same result, its epilogue included. A pool is also compared
with a copy that moves as many bytes; its image stands in the weight's place, so that it comes from memory.
"""

from __future__ import annotations

import argparse
import math
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from ridgeline.base.gpu_timing import capture, interleave_graphs
from ridgeline.base.spec import Body, Config, Op, Site, Target, TensorSpec
from ridgeline.errors import first_line
from ridgeline.kernels.triton.compiler import Compiled, compile_kernels
from ridgeline.tactics.base import Refused, Tactic
from ridgeline.tactics.cuda.triton_conv import TritonConv, TritonConv1x1, TritonDepthwise
from ridgeline.tactics.cuda.triton_linear import TritonGemm, TritonGemv
from ridgeline.tactics.cuda.triton_pool import TritonPool
from ridgeline.tactics.offer import read_offer, require_offer

TACTICS: tuple[Tactic, ...] = (
    TritonGemv(), TritonGemm(), TritonConv1x1(), TritonConv(), TritonDepthwise(), TritonPool(),
)  # fmt: skip
COLD_BYTES = 128 << 20  # more than twice the L2 of an H200
MIN_CALLS, MAX_CALLS = 10, 64
HALF = torch.float16
COPY = "~ copy"  # the label of a copy's row


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
    moved: int = 0  # bytes that a copy beside it moves

    def site(self, target: Target) -> Site:
        specs = {
            name: TensorSpec("float16", shape, "channels_last" if name in self.last else "contiguous")
            for name, shape in self.shapes.items()
        }
        body = Body(tuple(n for n in "xwb" if n in specs), ("y",), self.ops)
        weights = frozenset(n for n in "wb" if n in specs) if "b" in specs else frozenset()
        return Site(body, specs, weights, {}, target, name=self.name)


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
    batch: int, channels: int, columns: int, kernel: int, stride: int, size: int, *, is_nchw: bool = False
) -> Case:
    """Conv, bias, relu."""
    pad, made = kernel // 2, (size - 1) // stride + 1
    y = (batch, columns, made, made)
    shapes = {
        "x": (batch, channels, size, size),
        "w": (columns, channels, kernel, kernel),
        "b": (columns,),
        "c": y,
        "y": y,
    }
    attrs = {"strides": (stride, stride), "pads": (pad,) * 4}
    ops = (Op("Conv", ("x", "w", "b"), ("c",), attrs), Op("Relu", ("c",), ("y",)))
    ones = (1, 1)

    def cudnn(x: Tensor, w: Tensor, b: Tensor) -> Tensor:
        return torch.cudnn_convolution_relu(x, w, b, (stride, stride), (pad, pad), ones, 1)

    def gemm(x: Tensor, w: Tensor, b: Tensor) -> Tensor:
        rows = x.permute(0, 2, 3, 1).reshape(-1, channels)
        made_rows = torch._addmm_activation(b, rows, w.view(columns, channels).t())
        return made_rows.view(batch, size, size, columns).permute(0, 3, 1, 2)

    peers: dict[str, Callable[..., Tensor]] = {"cudnn relu": cudnn}
    if kernel == stride == 1:
        peers["cublaslt relu"] = gemm
    return Case(
        f"b{batch} {channels}>{columns} {kernel}x{kernel}s{stride} {size}²{' NCHW' if is_nchw else ''}",
        ops, shapes, peers,
        lambda x, w, b: torch.conv2d(x, w, b, stride, pad), 2 * math.prod(y) * channels * kernel**2,
        channels * kernel**2, torch.relu, ("w", "c", "y") if is_nchw else ("x", "w", "c", "y"),
    )  # fmt: skip


def depthwise(batch: int, channels: int, stride: int, size: int) -> Case:
    """3x3, bias, relu6."""
    made = (size - 1) // stride + 1
    y = (batch, channels, made, made)
    shapes = {"x": (batch, channels, size, size), "w": (channels, 1, 3, 3), "b": (channels,), "c": y, "y": y}
    attrs = {"strides": (stride, stride), "pads": (1,) * 4, "group": channels}
    ops = (Op("Conv", ("x", "w", "b"), ("c",), attrs), Op("Relu", ("c",), ("y",)))

    def plain(x: Tensor, w: Tensor, b: Tensor) -> Tensor:
        return torch.relu_(torch.conv2d(x, w, b, stride, 1, 1, channels))

    return Case(
        f"b{batch} dw {channels} 3x3s{stride} {size}²", ops, shapes, {"conv2d, relu_": plain},
        lambda x, w, b: torch.conv2d(x, w, b, stride, 1, 1, channels), 18 * math.prod(y), 9, torch.relu,
        ("x", "c", "y"),
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
        math.prod(shapes["y"]) * kernel**2, kernel**2, last=tuple(last),
        moved=2 * sum(map(math.prod, shapes.values())),
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


FAMILIES = {"gemm": gemm_cases, "conv": conv_cases, "depthwise": depthwise_cases, "pool": pool_cases}


@dataclass
class Row:
    label: str
    us: float = math.inf
    said: str = ""


@dataclass
class Operands:
    """x and b, and as many weights as calls."""

    x: Tensor
    b: Tensor
    weights: list[Tensor]

    @staticmethod
    def of(case: Case, site: Site, *, is_hot: bool) -> Operands:
        w = _random(site.specs["w"])
        x = _random(site.specs["x"]) if "x" in site.specs else w
        b = _random(site.specs["b"]) if "b" in site.specs else x
        calls = min(MAX_CALLS, max(MIN_CALLS, math.ceil(COLD_BYTES / w.nbytes)))
        return Operands(x, b, [w] * calls if is_hot else [w, *(w.clone() for _ in range(calls - 1))])

    def inputs(self, site: Site, weight: Tensor) -> list[Tensor]:
        return [{"x": self.x, "w": weight, "b": self.b}[name] for name in site.body.inputs]


def _random(spec: TensorSpec) -> Tensor:
    made = torch.empty_strided(spec.shape, spec.strides, dtype=HALF, device="cuda")
    return made.normal_(std=0.5)


class Judge:
    """Within the rounding of a float32 sum, then of two roundings to float16."""

    def __init__(self, case: Case, operands: Operands) -> None:
        x, w, b = (t.double() for t in (operands.x, operands.weights[0], operands.b))
        self.want = case.follows(case.exact(x, w, b))
        magnitude = case.exact(x.abs(), w.abs(), b.abs())
        # the peers round before what follows the bias, where a slope of 1.2 is the steepest
        self.bound = 1.2 * ((case.terms + 8) * 2.0**-24 * magnitude) + 2.0**-10 * (1 + self.want.abs())

    def __call__(self, y: Tensor) -> bool:
        return bool(((y.double() - self.want).abs() <= self.bound).all())


def measure(case: Case, target: Target, *, is_hot: bool) -> list[Row]:
    site = case.site(target)
    operands = Operands.of(case, site, is_hot=is_hot)
    is_right = Judge(case, operands)
    rows: list[Row] = []
    graphs: list[torch.cuda.CUDAGraph] = []
    held: list[object] = []
    for label, tactic, config in candidates(site):
        row = Row(label)
        rows.append(row)
        try:
            calls, y = bind(tactic, site, config, operands)
            calls[0]()
            torch.cuda.synchronize()
            if not is_right(y):
                row.said = "WRONG"
                continue
            graphs.append(capture(lambda calls=calls: [call() for call in calls]))
            row.us = 0.0
            held.append((calls, y))
        except Exception as error:  # a refusal is a row too
            row.said = first_line(error, 120)
    for name, peer in case.peers.items():
        row = Row(f"= {name}")
        rows.append(row)
        if not is_right(peer(operands.x, operands.weights[0], operands.b)):
            row.said = "WRONG"
            continue
        graphs.append(capture(lambda peer=peer: [peer(operands.x, w, operands.b) for w in operands.weights]))
        row.us = 0.0
    if case.moved:
        sources = [torch.empty(case.moved // 2, dtype=torch.uint8, device="cuda") for _ in operands.weights]
        target_bytes = torch.empty_like(sources[0])
        graphs.append(capture(lambda: [target_bytes.copy_(source) for source in sources]))
        rows.append(Row(COPY, us=0.0))
    timings = interleave_graphs(graphs, calls=len(operands.weights))
    for row, timing in zip((row for row in rows if row.us == 0.0), timings, strict=True):
        row.us = timing.median_us
    return sorted(rows, key=lambda row: row.us)


def candidates(site: Site) -> list[tuple[str, Tactic, Config]]:
    willing = [tactic for tactic in TACTICS if not isinstance(read_offer(tactic, site), Refused)]
    return [
        (label(tactic, config), tactic, config)
        for tactic in willing
        for config in require_offer(tactic, site).configs
    ]


def label(tactic: Tactic, config: Config) -> str:
    values: dict[str, Any] = dict(config)
    form = "{bm}x{bn}x{bk} k{split} w{warps} s{stages}"
    if "bm" not in values:
        form = "{high}x{wide} p{positions} c{channels} w{warps}"
    return f"{tactic.name[7:]} {form.format(**values)}{' pf' if values.get('prefetch') else ''}"


def bind(
    tactic: Tactic, site: Site, config: Config, operands: Operands
) -> tuple[list[Callable[[], object]], Tensor]:
    """A frozen call per weight, all into one output."""
    spec = site.outputs[0]
    y = torch.empty_strided(spec.shape, spec.strides, dtype=HALF, device="cuda").fill_(math.nan)
    calls: dict[int, Callable[[], object]] = {}
    for weight in operands.weights:
        if id(weight) not in calls:
            launch = require_offer(tactic, site).bind(config, {"w": weight, "b": operands.b})
            calls[id(weight)] = launch.frozen(operands.inputs(site, weight), [y])
    return [calls[id(weight)] for weight in operands.weights], y


def compile_all(cases: Sequence[Case], target: Target) -> None:
    """Every kernel of the run at once, on every core."""
    start = time.perf_counter()
    kernels = [
        require_offer(tactic, site).kernels(config)[0]
        for site in (case.site(target) for case in cases)
        for _, tactic, config in candidates(site)
    ]
    made = compile_kernels(kernels, target.arch)
    spilled = sum(isinstance(c, Compiled) and c.spills > 0 for c in made)
    failed = sum(not isinstance(c, Compiled) for c in made)
    seconds = time.perf_counter() - start
    print(f"{len(kernels)} kernels in {seconds:.0f} s, {spilled} spill, {failed} do not compile", flush=True)


def show(case: Case, rows: Sequence[Row], count: int) -> float:
    """One line for the best of both sides, then our best few and what went wrong."""
    ours = [row for row in rows if row.label[0] not in "=~" and row.us < math.inf]
    copies = [row.us for row in rows if row.label == COPY]
    theirs = [row for row in rows if row.label.startswith("=") and row.us < math.inf]
    best, peer = (min(side, key=lambda row: row.us, default=Row("-")) for side in (ours, theirs))
    print(
        f"{case.name:34} ours {best.us:7.2f} us  {case.flops / best.us / 1e6:5.0f} TF  "
        f"peer {peer.us:7.2f} us ({peer.label[2:]})  {peer.us / best.us:5.2f}x"
        + "".join(f"  {us / best.us:4.0%} of a copy ({us:.2f} us)" for us in copies)
    )
    for row in ours[:count]:
        print(f"    {row.us:7.2f}  {row.label}")
    for row in rows:
        if row.said:
            print(f"          -  {row.label}: {row.said}")
    return peer.us / best.us


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--family", choices=FAMILIES, required=True)
    parser.add_argument("--case", default="", help="only cases whose name holds this")
    parser.add_argument("--rows", type=int, default=3, help="cuts shown per case, the fastest first")
    parser.add_argument("--hot", action="store_true", help="one weight for all calls: it stays in L2")
    parser.add_argument("--compile-only", metavar="ARCH", default="", help="compile for ARCH; needs no GPU")
    options = parser.parse_args()
    cases = [case for case in FAMILIES[options.family]() if options.case in case.name]
    if options.compile_only:
        compile_all(cases, Target("cuda", options.compile_only))
        return
    torch.manual_seed(0)
    torch.set_grad_enabled(False)
    torch.backends.cudnn.benchmark = True
    target = Target("cuda", "sm_{}{}".format(*torch.cuda.get_device_capability()))
    warmth = "hot" if options.hot else "cold"
    print(f"{torch.cuda.get_device_name()}, torch {torch.__version__}, {warmth} weights")
    compile_all(cases, target)
    ratios = [show(case, measure(case, target, is_hot=options.hot), options.rows) for case in cases]
    print(f"geometric mean of peer over ours: {math.exp(sum(map(math.log, ratios)) / len(ratios)):.2f}x")


if __name__ == "__main__":
    main()
