"""Small convolutions as generated C++, where libraries spend more on the call than on the sums."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence

from torch import Tensor

from ridgeline.base.spec import Config, Site
from ridgeline.kernels.cpp.conv_rows import ConvRows, conv_rows_source
from ridgeline.kernels.cpp.linear import GEMV_ROWS, Linear, Tile, pack
from ridgeline.kernels.scalar.axes import Refusal
from ridgeline.kernels.scalar.program import Program
from ridgeline.tactics.base import Launch
from ridgeline.tactics.cpu.cpp import CppTactic, constant, gemm_configs, gemv_configs
from ridgeline.tactics.read.conv import read_cpu_conv

# by spatial axes: beyond it the call no longer counts, and libraries are better at the sums of images
MOST_MACS = {1: 32 << 20, 2: 8 << 20}
TRIED = 2


class CppConvRows(CppTactic):
    """epilogue(Σ x · w over the window) of a small line or image: windows as rows of a product."""

    name = "cpp.conv_rows"

    def _require(self, site: Site) -> None:
        _read(site)

    def configs(self, site: Site) -> Iterable[Config]:
        try:
            linear = _read(site).linear
        except Refusal:
            return ()
        # every config is a compile: nets have dozens of such convolutions
        return list((gemv_configs if linear.m <= GEMV_ROWS else gemm_configs)(site, linear))[:TRIED]

    def _source(self, site: Site, config: Config) -> tuple[Program, str]:
        tile = Tile(int(config["panel"]), int(config["rows"]), int(config["sums"]))
        return conv_rows_source(site, _read(site), tile, threads=int(config["threads"]))

    def bind(self, site: Site, config: Config, weights: Mapping[str, Tensor]) -> Launch:
        conv = _read(site)
        program, source = self.source(site, config)
        weight_kn = conv.weight_kn(constant(site, conv.linear.weight, weights))
        return self.launch(site, program, source, (pack(weight_kn, int(config["panel"])),))


def _read(site: Site) -> ConvRows:
    conv = read_cpu_conv(site, "Conv")
    if isinstance(conv, str):
        raise Refusal(conv)
    if conv.rank > 2 or conv.groups != 1:
        raise Refusal(f"{conv.rank} spatial axes in {conv.groups} groups, want at most 2 in one")
    batch, channels, *size = conv.x.shape
    made, taps = conv.y.shape[2:], math.prod(conv.kernel)
    rows, depth = batch * math.prod(made), channels * taps
    if rows * depth * conv.channels > MOST_MACS[conv.rank]:
        raise Refusal(f"{rows * depth * conv.channels} multiplications, want at most {MOST_MACS[conv.rank]}")
    linear = Linear(conv.anchor, conv.slot, conv.weight, True, rows, depth, conv.channels)
    return ConvRows(
        linear, channels, _pair(size, 1), _pair(made, 1), _pair(conv.kernel, 1), _pair(conv.stride, 1),
        _pair(conv.dilation, 1), _pair(conv.pads_begin, 0), conv.x.layout == "channels_last",
    )  # fmt: skip


def _pair(sizes: Sequence[int], missing: int) -> tuple[int, int]:
    """As (lines, positions): one axis is an image a single line high."""
    return (sizes[0], sizes[1]) if len(sizes) == 2 else (missing, sizes[0])
