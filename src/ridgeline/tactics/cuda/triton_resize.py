"""Resize by our own Triton kernel: images of any layout, every mode, coordinates and rounding of ONNX."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import torch
from torch import Tensor

from ridgeline.base.choices import RefusedError
from ridgeline.base.devices import device_of
from ridgeline.base.spec import ITEM_BITS, Config, Site
from ridgeline.kernels.resize import ResizeSite, channels_inside
from ridgeline.kernels.triton.resize_tables import Tables, longest_run
from ridgeline.kernels.triton.source import Kernel
from ridgeline.kernels.triton.stage import MAX_PROGRAMS
from ridgeline.kernels.triton.text import TYPES, power_of_two
from ridgeline.tactics.base import Footprint, Launch, Offer
from ridgeline.tactics.cuda.own_kernels import KernelTactic, launcher_of
from ridgeline.tactics.predict import pointwise_us
from ridgeline.tactics.read.resize import read_resize
from ridgeline.tactics.staging import staged_launch

WIDE_BYTES = 16  # of one access
MOST_COLUMNS = 64  # of a tile of planes: from 128 on tables pass through shared memory
MOST_COVERED = 1.25  # columns under tiles, for each that there is
FEW_TAPS = 4  # of lines times columns; with more, registers hold one access of a thread
DEEPEST = 8  # most lines of one program
LEAST_THREADS = 512  # to a processor, below which a program makes fewer lines


@dataclass(frozen=True)
class Cut:
    """A program: `depth` lines at most, of `high` groups of channels or planes, `wide` elements each."""

    depth: int
    high: int
    wide: int
    warps: int


@dataclass(frozen=True, eq=False)
class Resizing:
    """A Resize as the kernel takes it."""

    found: ResizeSite

    @property
    def inner(self) -> int:
        """Channels that lie side by side in the result."""
        return self.found.inner

    @property
    def split(self) -> int:
        """Channels of x that lie side by side, and not in the result; 1 where layouts agree."""
        return channels_inside(self.found.x) if self.inner == 1 else 1

    @property
    def item_bytes(self) -> int:
        return ITEM_BITS[self.found.x.dtype] // 8

    def tables(self, cut: Cut) -> Tables:
        lines, columns = self.found.lines, self.found.columns
        covered = self.blocks(cut) * (cut.wide if self.inner == 1 else cut.high * cut.wide)
        return Tables.of(
            lines.places, lines.shares, columns.places, columns.shares, depth=cut.depth,
            width=-(-covered // self.inner),
        )  # fmt: skip

    def strides(self) -> dict[str, int]:
        """Of x, in elements."""
        (high, wide), step = self.found.in_size, channels_inside(self.found.x)
        plane = 1 if step > 1 else high * wide
        return {
            # where nothing is split, a plane is an image of `inner` channels
            "CHANNELS": self.split, "X_IMAGE": high * wide * self.inner * self.split,
            "X_CHANNEL": plane, "X_INNER": plane, "X_LINE": wide * step, "X_COLUMN": step,
        }  # fmt: skip

    def describe(self, cut: Cut, *, pdl: bool) -> Kernel:
        found, tables = self.found, self.tables(cut)
        constants: dict[str, Any] = {
            "CELLS": tables.cells, "OUT_H": found.out_size[0], "OUT_W": found.out_size[1],
            "TABLE_W": tables.columns.shape[1], "INNER": self.inner, **self.strides(),
            "LINE_TAPS": found.lines.count, "COLUMN_TAPS": found.columns.count, "DEPTH": cut.depth,
            "HIGH": cut.high, "WIDE": cut.wide, "PDL": pdl,
        }  # fmt: skip
        # what is only copied goes by its bits
        kind = f"*i{8 * self.item_bytes}" if found.is_copy else f"*{TYPES[found.x.dtype][0]}"
        signature = (
            ("x_ptr", kind), ("y_ptr", kind), ("starts_ptr", "*i32"), ("lines_ptr", "*i32"),
            ("line_shares_ptr", "*fp32"), ("columns_ptr", "*i32"), ("column_shares_ptr", "*fp32"),
            ("images", "i32"),
        )  # fmt: skip
        return Kernel(
            "resize", "ridgeline.kernels.triton.resize",
            (*signature, *((name, "constexpr") for name in constants)), tuple(constants.items()),
            num_warps=cut.warps, num_stages=1, pdl=pdl,
        )  # fmt: skip

    @property
    def images(self) -> int:
        return self.planes // self.split

    @property
    def planes(self) -> int:
        return self.found.planes // self.inner

    def blocks(self, cut: Cut) -> int:
        """Tiles along a line."""
        width = self.found.out_size[1]
        return -(-width // cut.wide) if self.inner == 1 else -(-width * self.inner // (cut.high * cut.wide))

    def programs(self, cut: Cut) -> int:
        bundles = -(-self.planes // cut.high) if self.inner == 1 else self.planes
        return self.blocks(cut) * bundles * self.tables(cut).cells

    def cuts(self, *, sms: int) -> list[Cut]:
        """As many lines as share their input lines, where programs are enough; an access for every thread."""
        deepest = min(DEEPEST, longest_run(self.found.lines.places))
        depths = sorted({max(1, deepest >> shift) for shift in range(4)}, reverse=True)
        enough = [d for d in depths if 128 * self.programs(self._cut(d, 4, 1)) >= LEAST_THREADS * sms]
        best = depths.index((enough or depths[-1:])[0])
        found = [self._cut(depths[best], 4, 1)]
        if self.found.lines.count * self.found.columns.count <= FEW_TAPS:
            found.append(self._cut(depths[best], 4, 2))
        found += [self._cut(depths[i], 4, 1) for i in (best + 1, best - 1) if 0 <= i < len(depths)]
        return list(dict.fromkeys([*found, self._cut(depths[best], 8, 1)]))

    def _cut(self, depth: int, warps: int, accesses: int) -> Cut:
        lane_items = max(1, WIDE_BYTES // self.item_bytes)
        items = 32 * warps * lane_items * accesses
        wide = math.gcd(self.inner, lane_items)
        if self.inner == 1:
            wide = min(items, self._columns(lane_items))
        return Cut(depth, items // wide, wide, warps)

    def _columns(self, lane_items: int) -> int:
        """Of a tile of planes: as many as leave few of them outside."""
        width = self.found.out_size[1]
        wide = min(MOST_COLUMNS, power_of_two(width))
        while wide > 2 * lane_items and -(-width // wide) * wide > MOST_COVERED * width:
            wide //= 2
        return wide


class TritonResize(KernelTactic):
    """y[h, w] = Σ share · x[line, column]: nearest, linear and cubic, from tables made on the host."""

    name = "triton.resize"

    def offer(self, site: Site) -> Offer:
        self.require_kernels(site)
        resizing, pdl = Resizing(read_resize(site)), site.target.has_dependent_launch
        cuts = resizing.cuts(sms=device_of(site.target.arch).sms)
        most = max(resizing.programs(cut) for cut in cuts)
        if most > MAX_PROGRAMS or resizing.planes >= 2**31:
            raise RefusedError(f"{most} programs, a grid has {MAX_PROGRAMS}")
        x, y, place = resizing.found.x, resizing.found.y, resizing.found.place
        return Offer(
            [asdict(cut) for cut in cuts],
            bind=lambda config, weights: self._bind(site, resizing, cut_of(config)),
            kernels=lambda config: [resizing.describe(cut_of(config), pdl=pdl)],
            footprint=lambda config: Footprint(
                writes_out=True, packed_bytes=_table_bytes(resizing, cut_of(config))
            ),
            extents=lambda config: {place: x.nbytes, len(site.body.inputs): y.nbytes},
            predict_us=lambda config, device: pointwise_us(site, device),
            compiles=True,
        )

    def _bind(self, site: Site, resizing: Resizing, cut: Cut) -> Launch:
        kernel = resizing.describe(cut, pdl=site.target.has_dependent_launch)
        launcher = launcher_of(kernel, site, self.store)
        place = resizing.found.place
        tables = [torch.from_numpy(array).to("cuda") for array in resizing.tables(cut).arrays]

        def freeze(inputs: Sequence[Any], outputs: Sequence[Tensor]) -> Callable[[], object]:
            arguments = [inputs[place], outputs[0], *tables, resizing.images]
            return launcher.freeze((resizing.programs(cut),), arguments)

        return staged_launch(
            freeze, site, {place}, reads=frozenset({place}), packed_bytes=_table_bytes(resizing, cut)
        )


def cut_of(config: Config) -> Cut:
    return Cut(**{key: int(value) for key, value in config.items()})


def _table_bytes(resizing: Resizing, cut: Cut) -> int:
    return sum(array.nbytes for array in resizing.tables(cut).arrays)
