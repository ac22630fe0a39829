"""Generated C++ for the convolutions that libraries are slow at: 1x1, depthwise, few channels, small ones.

How a region around a convolution is read is in `read/conv`; the text comes from `kernels/cpp`.
"""

from __future__ import annotations

import math

from ridgeline.base.choices import RefusedError
from ridgeline.base.spec import Config, Site
from ridgeline.kernels.cpp.compiler import cpu_lanes, find_compiler
from ridgeline.kernels.cpp.conv import (
    PARALLEL_MACS,
    Conv2d,
    depthwise_source,
    pack_depthwise,
    small_source,
    window_weight,
)
from ridgeline.kernels.cpp.conv_rows import ConvRows, conv_rows_source
from ridgeline.kernels.cpp.linear import Linear, Lines
from ridgeline.kernels.scalar.program import Program
from ridgeline.tactics.cpu.cpp import (
    CppReading,
    GeneratedCpp,
    panels_of,
    product_configs,
    read_product,
    thread_counts,
    tile_of,
)
from ridgeline.tactics.read.conv import ConvSite, as_image, read_float_conv
from ridgeline.tactics.read.epilogue import constant_tensors

SMALL_CHANNELS = 8
# by spatial axes: beyond it the call no longer counts, and libraries are better at the sums of images
MOST_MACS = {1: 32 << 20, 2: 8 << 20}
TRIED = 2


class CppConv1x1(GeneratedCpp):
    """epilogue(x · W) over the channels of every position, or of every stride-th one."""

    name = "cpp.conv1x1"

    def read(self, site: Site) -> CppReading:
        conv = read_float_conv(site)
        if conv.groups != 1 or any(k != 1 for k in conv.kernel) or any(conv.pads_begin + conv.pads_end):
            raise RefusedError(
                f"kernel {list(conv.kernel)} in {conv.groups} groups is no plain product, want 1x1"
            )
        _require_channels_together(conv)
        batch, depth, *size = conv.x.shape
        made = conv.y.shape[2:]
        lines = None
        if any(s != 1 for s in conv.stride):
            if conv.rank != 2:
                raise RefusedError(f"stride {list(conv.stride)} over {conv.rank} axes, want 2")
            lines = Lines(as_image(size), as_image(made), as_image(conv.stride))
        rows = batch * math.prod(made)
        linear = Linear(conv.anchor, conv.slot, conv.weight, True, rows, depth, conv.channels, lines)
        return read_product(site, linear)


class CppDepthwise(GeneratedCpp):
    """epilogue(Σ x · w over the window) channel by channel, vectors along the channels."""

    name = "cpp.depthwise"

    def read(self, site: Site) -> CppReading:
        conv = read_float_conv(site)
        window = _conv2d(conv)
        groups, channels = conv.groups, conv.x.shape[1]
        if not groups == channels == conv.channels:
            raise RefusedError(f"{groups} groups of {channels} channels into {conv.channels}, want all alike")
        _require_channels_together(conv)
        lanes = cpu_lanes(find_compiler() or "c++")
        # wide blocks were faster wherever the windows of neighbours overlap, and slower at stride 2
        blocks = (8, 4) if window.stride[1] == 1 else (4, 2)

        def write(config: Config) -> tuple[Program, str]:
            outputs, threads = int(config["outputs"]), int(config["threads"])
            return depthwise_source(site, window, outputs=outputs, threads=threads, lanes=lanes)

        return CppReading(
            [
                {"threads": threads, "outputs": outputs}
                for threads in thread_counts(site, window.macs, PARALLEL_MACS)
                for outputs in blocks
            ],
            write,
            lambda config, weights: (pack_depthwise(constant_tensors(site, weights)[window.weight]),),
        )


class CppConvSmall(GeneratedCpp):
    """epilogue(Σ x · w over the window) of a contiguous image of few channels, vectors along the outputs'."""

    name = "cpp.conv_small"

    def read(self, site: Site) -> CppReading:
        conv = read_float_conv(site)
        window = _conv2d(conv)
        channels = conv.x.shape[1]
        if conv.groups != 1 or channels > SMALL_CHANNELS:
            raise RefusedError(
                f"{channels} channels in {conv.groups} groups, want at most {SMALL_CHANNELS} in one"
            )
        if conv.x.layout != "contiguous":
            raise RefusedError("x is not contiguous")
        lanes = cpu_lanes(find_compiler() or "c++")
        vectors = -(-window.channels // lanes)
        # half the registers: the compiler keeps the taps of a line in the others
        shapes = {1: 8, 2: 7, 4: 4} if lanes == 16 else {1: 6, 2: 4}
        # the fewest panels without padding, then narrower ones
        fitting = [v for v in shapes if vectors % v == 0][::-1]
        threads = thread_counts(site, window.macs * window.channels_in, PARALLEL_MACS)[0]

        def write(config: Config) -> tuple[Program, str]:
            panel, rows, threads = (int(config[key]) for key in ("panel", "rows", "threads"))
            return small_source(site, window, panel=panel, rows=rows, threads=threads)

        configs = [{"threads": threads, "panel": v * lanes, "rows": shapes[v]} for v in fitting]
        return CppReading(configs, write, panels_of(site, window.weight, window_weight))


class CppConvRows(GeneratedCpp):
    """epilogue(Σ x · w over the window) of a small line or image: windows as rows of a product.

    Libraries spend more on such a call than on its sums.
    """

    name = "cpp.conv_rows"

    def read(self, site: Site) -> CppReading:
        rows = _conv_rows(read_float_conv(site))

        def write(config: Config) -> tuple[Program, str]:
            return conv_rows_source(site, rows, tile_of(config), threads=int(config["threads"]))

        # every config is a compile: nets have dozens of such convolutions
        configs = product_configs(site, rows.linear)[:TRIED]
        return CppReading(configs, write, panels_of(site, rows.linear.weight, rows.weight_kn))


def _conv_rows(conv: ConvSite) -> ConvRows:
    if conv.rank > 2 or conv.groups != 1:
        raise RefusedError(f"{conv.rank} spatial axes in {conv.groups} groups, want at most 2 in one")
    batch, channels, *size = conv.x.shape
    made, taps = conv.y.shape[2:], math.prod(conv.kernel)
    rows, depth = batch * math.prod(made), channels * taps
    if rows * depth * conv.channels > MOST_MACS[conv.rank]:
        raise RefusedError(
            f"{rows * depth * conv.channels} multiplications, want at most {MOST_MACS[conv.rank]}"
        )
    linear = Linear(conv.anchor, conv.slot, conv.weight, True, rows, depth, conv.channels)
    return ConvRows(
        linear=linear, channels=channels, size=as_image(size), made=as_image(made),
        kernel=as_image(conv.kernel), stride=as_image(conv.stride), dilation=as_image(conv.dilation),
        pads=as_image(conv.pads_begin, 0), is_last=conv.x.layout == "channels_last",
    )  # fmt: skip


def _conv2d(conv: ConvSite) -> Conv2d:
    if conv.rank != 2:
        raise RefusedError(f"{conv.rank} spatial axes, want 2")
    batch, channels_in, *size = conv.x.shape
    return Conv2d(
        op=conv.anchor, x=conv.slot, weight=conv.weight, batch=batch, channels_in=channels_in,
        channels=conv.channels, size=as_image(size), made=as_image(conv.y.shape[2:]),
        kernel=as_image(conv.kernel), stride=as_image(conv.stride), dilation=as_image(conv.dilation),
        pads=as_image(conv.pads_begin),
    )  # fmt: skip


def _require_channels_together(conv: ConvSite) -> None:
    shape = conv.x.shape
    if not (conv.x.layout == "channels_last" or math.prod(shape[2:]) == 1 or shape[1] == 1):
        raise RefusedError("channels of x do not lie together")
