"""Generated C++ for the convolutions that libraries are slow at: 1x1, depthwise, few input channels.

How a region around a convolution is read is in `conv_site`; the text comes from `kernels/cpp`.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping

from torch import Tensor

from ridgeline.base.spec import Config, Site, TensorSpec
from ridgeline.kernels.cpp.compiler import cpu_lanes, find_compiler
from ridgeline.kernels.cpp.conv import (
    PARALLEL_MACS,
    Conv2d,
    depthwise_source,
    pack_depthwise,
    small_source,
    window_weight,
)
from ridgeline.kernels.cpp.linear import GEMV_ROWS, Linear, Lines, pack
from ridgeline.kernels.scalar.axes import Refusal
from ridgeline.kernels.scalar.program import Program
from ridgeline.tactics.base import Launch
from ridgeline.tactics.cpu.cpp import (
    CppProduct,
    CppTactic,
    constant,
    gemm_configs,
    gemv_configs,
    thread_counts,
)
from ridgeline.tactics.read.conv import ConvSite, read_cpu_conv

SMALL_CHANNELS = 8


class CppConv1x1(CppProduct):
    """epilogue(x · W) over the channels of every position, or of every stride-th one."""

    name = "cpp.conv1x1"

    def find(self, site: Site) -> Linear:
        conv = _read(site)
        if conv.groups != 1 or any(k != 1 for k in conv.kernel) or any(conv.pads_begin + conv.pads_end):
            raise Refusal(f"kernel {list(conv.kernel)} in {conv.groups} groups is no plain product, want 1x1")
        if not _is_last(conv.x):
            raise Refusal("channels of x do not lie together")
        batch, depth, *size = conv.x.shape
        made = conv.y.shape[2:]
        lines = None
        if any(s != 1 for s in conv.stride):
            if conv.rank != 2:
                raise Refusal(f"stride {list(conv.stride)} over {conv.rank} axes, want 2")
            lines = Lines((size[0], size[1]), (made[0], made[1]), (conv.stride[0], conv.stride[1]))
        rows = batch * math.prod(made)
        return Linear(conv.anchor, conv.slot, conv.weight, True, rows, depth, conv.channels, lines)

    def configs(self, site: Site) -> Iterable[Config]:
        try:
            linear = self.find(site)
        except Refusal:
            return ()
        return (gemv_configs if linear.m <= GEMV_ROWS else gemm_configs)(site, linear)


class CppDepthwise(CppTactic):
    """epilogue(Σ x · w over the window) channel by channel, vectors along the channels."""

    name = "cpp.depthwise"

    def _require(self, site: Site) -> None:
        _conv2d(site)
        conv = _read(site)
        groups, channels = conv.groups, conv.x.shape[1]
        if not groups == channels == conv.channels:
            raise Refusal(f"{groups} groups of {channels} channels into {conv.channels}, want all alike")
        if not _is_last(conv.x):
            raise Refusal("channels of x do not lie together")

    def configs(self, site: Site) -> Iterable[Config]:
        try:
            conv = _conv2d(site)
        except Refusal:
            return ()
        counts = thread_counts(site, conv.macs, PARALLEL_MACS)
        # wide blocks were faster wherever the windows of neighbours overlap, and slower at stride 2
        blocks = (8, 4) if conv.stride[1] == 1 else (4, 2)
        return [{"threads": n, "outputs": outputs} for n in counts for outputs in blocks]

    def _source(self, site: Site, config: Config) -> tuple[Program, str]:
        lanes = cpu_lanes(find_compiler() or "c++")
        outputs, threads = int(config["outputs"]), int(config["threads"])
        return depthwise_source(site, _conv2d(site), outputs=outputs, threads=threads, lanes=lanes)

    def bind(self, site: Site, config: Config, weights: Mapping[str, Tensor]) -> Launch:
        program, source = self.source(site, config)
        weight = constant(site, _conv2d(site).weight, weights)
        return self.launch(site, program, source, (pack_depthwise(weight),))


class CppConvSmall(CppTactic):
    """epilogue(Σ x · w over the window) of a contiguous image of few channels, vectors along the outputs'."""

    name = "cpp.conv_small"

    def _require(self, site: Site) -> None:
        _conv2d(site)
        conv = _read(site)
        channels = conv.x.shape[1]
        if conv.groups != 1 or channels > SMALL_CHANNELS:
            raise Refusal(
                f"{channels} channels in {conv.groups} groups, want at most {SMALL_CHANNELS} in one"
            )
        if conv.x.layout != "contiguous":
            raise Refusal("x is not contiguous")

    def configs(self, site: Site) -> Iterable[Config]:
        try:
            conv = _conv2d(site)
        except Refusal:
            return ()
        lanes = cpu_lanes(find_compiler() or "c++")
        vectors = -(-conv.channels // lanes)
        # half the registers: the compiler keeps the taps of a line in the others
        shapes = {1: 8, 2: 7, 4: 4} if lanes == 16 else {1: 6, 2: 4}
        # the fewest panels without padding, then narrower ones
        fitting = [v for v in shapes if vectors % v == 0][::-1]
        threads = thread_counts(site, conv.macs * conv.channels_in, PARALLEL_MACS)[0]
        return [{"threads": threads, "panel": v * lanes, "rows": shapes[v]} for v in fitting]

    def _source(self, site: Site, config: Config) -> tuple[Program, str]:
        panel, rows, threads = (int(config[key]) for key in ("panel", "rows", "threads"))
        return small_source(site, _conv2d(site), panel=panel, rows=rows, threads=threads)

    def bind(self, site: Site, config: Config, weights: Mapping[str, Tensor]) -> Launch:
        program, source = self.source(site, config)
        weight = window_weight(constant(site, _conv2d(site).weight, weights))
        return self.launch(site, program, source, (pack(weight, int(config["panel"])),))


def _read(site: Site) -> ConvSite:
    conv = read_cpu_conv(site, "Conv")
    if isinstance(conv, str):
        raise Refusal(conv)
    return conv


def _conv2d(site: Site) -> Conv2d:
    conv = _read(site)
    if conv.rank != 2:
        raise Refusal(f"{conv.rank} spatial axes, want 2")
    batch, channels_in, *size = conv.x.shape
    return Conv2d(
        op=conv.anchor, x=conv.slot, weight=conv.weight, batch=batch, channels_in=channels_in,
        channels=conv.channels, size=_pair(size), made=_pair(conv.y.shape[2:]), kernel=_pair(conv.kernel),
        stride=_pair(conv.stride), dilation=_pair(conv.dilation), pads=_pair(conv.pads_begin),
    )  # fmt: skip


def _pair(sizes: Iterable[int]) -> tuple[int, int]:
    lines, positions = sizes
    return lines, positions


def _is_last(spec: TensorSpec) -> bool:
    """Whether the channels of one position lie together."""
    return spec.layout == "channels_last" or math.prod(spec.shape[2:]) == 1 or spec.shape[1] == 1
