"""Generated C++ for products of 8-bit levels (`kernels/cpp/levels`), where the processor has VNNI."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace

import torch
from torch import Tensor

from ridgeline.base.choices import RefusedError
from ridgeline.base.spec import Config, Site
from ridgeline.kernels.cpp.compiler import cpu_has, cpu_lanes, find_compiler
from ridgeline.kernels.cpp.dynamic_levels import dynamic_source, find_dynamic
from ridgeline.kernels.cpp.levels import Gathered, LevelsProduct, levels_source, pack_levels
from ridgeline.kernels.cpp.linear import PARALLEL_MACS, Linear, Tile, find_linear, rank_tiles
from ridgeline.kernels.cpp.narrow_weights import NarrowProduct, narrow_source, pack_narrow
from ridgeline.kernels.cpp.pool import find_pool, pool_source
from ridgeline.kernels.floor.sub_byte import opened
from ridgeline.kernels.scalar.program import Program
from ridgeline.tactics.cpu.cpp import CppReading, GeneratedCpp, by_threads, thread_counts
from ridgeline.tactics.read.conv import as_image, read_conv
from ridgeline.tactics.read.epilogue import constant_tensors
from ridgeline.tactics.read.levels import LevelsSite, read_levels, read_narrow_weight
from ridgeline.tactics.read.linear import read_linear

VNNI = ("__AVX512VNNI__", "__AVXVNNI__")
NO_VNNI = "no VNNI: sums of pairs would saturate at 16 bits, or take as long as numbers"
TRIED = 2


class CppLevels(GeneratedCpp):
    """epilogue(Σ x · w) of 8-bit levels with exact sums, for matrix products and convolutions."""

    name = "cpp.levels"
    reads_levels = True

    def read(self, site: Site) -> CppReading:
        levels = read_levels(site, may_shift=True)
        if site.target.exists and not cpu_has(find_compiler() or "c++", VNNI):
            raise RefusedError(NO_VNNI)
        product = _product(site, levels)
        linear = product.linear

        def write(config: Config) -> tuple[Program, str]:
            panel, rows, threads = (int(config[key]) for key in ("panel", "rows", "threads"))
            return levels_source(levels.numbers, product, panel=panel, rows=rows, threads=threads)

        def pack(config: Config, weights: Mapping[str, Tensor]) -> Sequence[Tensor]:
            known = constant_tensors(site, weights)
            weight = _weight_kn(known[levels.weight], product)
            scale = known[levels.weight_scale].expand(linear.n)
            zero = known[levels.weight_zero] if levels.weight_zero else torch.zeros((), dtype=weight.dtype)
            shifted = zero.expand(linear.n) if product.is_shifted else None
            return pack_levels(weight, scale, int(config["panel"]), shifted)

        return CppReading(_configs(site, linear), write, pack)


class CppNarrowWeight(GeneratedCpp):
    """epilogue(x · W) for a few rows of numbers, the weight read as int8 or int4 levels."""

    name = "cpp.narrow_weight"
    reads_levels = True

    def read(self, site: Site) -> CppReading:
        narrow = read_narrow_weight(site)
        linear = find_linear(narrow.numbers)
        bits = 4 if site.specs[narrow.weight].dtype == "int4" else 8
        product = NarrowProduct(linear, bits, narrow.block or linear.k)
        lanes = cpu_lanes(find_compiler() or "c++")

        def write(config: Config) -> tuple[Program, str]:
            panel, threads = int(config["panel"]), int(config["threads"])
            return narrow_source(narrow.numbers, product, panel=panel, threads=threads)

        def pack(config: Config, weights: Mapping[str, Tensor]) -> Sequence[Tensor]:
            known = constant_tensors(site, weights)
            levels, scale = opened(known[narrow.weight]), known[narrow.weight_scale].float()
            if linear.is_transposed:
                levels, scale = levels.t(), scale.t() if narrow.block else scale
            blocks = scale if narrow.block else scale.reshape(1, -1).expand(1, linear.n)
            return pack_narrow(levels, blocks, int(config["panel"]), bits)

        counts = thread_counts(site, linear.m * linear.k * linear.n, PARALLEL_MACS)
        widths = (4, 2) if linear.m <= 2 else (2,)
        return CppReading([{"threads": n, "panel": v * lanes} for n in counts for v in widths], write, pack)


class CppPool(GeneratedCpp):
    """The largest level of each window, vectors along the channels."""

    name = "cpp.pool"

    def read(self, site: Site) -> CppReading:
        pool = find_pool(site)
        return CppReading(
            by_threads(site), lambda config: pool_source(site, pool, threads=int(config["threads"]))
        )


class CppDynamicLevels(GeneratedCpp):
    """Levels of numbers whose scale and zero point follow from their ends."""

    name = "cpp.dynamic_levels"

    def read(self, site: Site) -> CppReading:
        found = find_dynamic(site)
        return CppReading(
            by_threads(site), lambda config: dynamic_source(site, found, threads=int(config["threads"]))
        )


def _configs(site: Site, linear: Linear) -> list[Config]:
    lanes = 16 if cpu_lanes(find_compiler() or "c++") == 16 else 8
    shapes = ((8, 3), (6, 4), (12, 2)) if lanes == 16 else ((4, 3), (6, 2))
    tiles = [Tile(vectors * lanes, min(rows, linear.m)) for rows, vectors in shapes]
    counts = thread_counts(site, linear.m * linear.k * linear.n, PARALLEL_MACS)
    best = rank_tiles(linear, tiles, counts[0])[:TRIED]
    return [{"threads": n, "panel": t.panel, "rows": t.rows} for n in counts for t in best]


def _product(site: Site, levels: LevelsSite) -> LevelsProduct:
    inputs = site.body.inputs
    places = inputs.index(levels.x_scale), inputs.index(levels.x_zero) if levels.x_zero else None
    is_shifted = bool(levels.weight_zero) or site.specs[levels.weight].dtype == "uint8"
    if levels.anchor.op_type != "Conv":
        found = read_linear(levels.numbers)
        if found.is_x_transposed or levels.x.layout != "contiguous":
            raise RefusedError("rows of x are not contiguous")
        linear = Linear(
            found.anchor, levels.x_slot, found.weight, found.is_weight_transposed, found.rows, found.depth,
            found.channels,
        )  # fmt: skip
        return LevelsProduct(linear, *places, levels.is_signed, is_shifted)
    conv = read_conv(levels.numbers)
    if conv.rank > 2 or conv.groups != 1:
        raise RefusedError(f"{conv.rank} spatial axes in {conv.groups} groups, want at most 2 in one")
    batch, channels, *size = conv.x.shape
    made = conv.y.shape[2:]
    is_last = levels.x.layout == "channels_last" or math.prod(size) == 1
    linear = Linear(
        conv.anchor, levels.x_slot, conv.weight, True, batch * math.prod(made),
        channels * math.prod(conv.kernel), conv.channels,
    )  # fmt: skip
    product = LevelsProduct(linear, *places, levels.is_signed, is_shifted)
    if conv.is_pointwise and is_last and channels % 4 == 0:
        return product
    windows = Gathered(
        size=as_image(size), made=as_image(made), kernel=as_image(conv.kernel),
        stride=as_image(conv.stride), dilation=as_image(conv.dilation), pads=as_image(conv.pads_begin, 0),
        channels=channels, is_last=is_last,
    )  # fmt: skip
    return replace(product, windows=windows)


def _weight_kn(stored: Tensor, product: LevelsProduct) -> Tensor:
    """The weight as [K, N] in the order in which a row has its levels."""
    linear, windows = product.linear, product.windows
    if linear.op.op_type != "Conv":
        return stored.t() if linear.is_transposed else stored
    order = stored.movedim(1, -1) if windows is None or windows.is_last else stored
    return order.reshape(stored.shape[0], -1).t()
