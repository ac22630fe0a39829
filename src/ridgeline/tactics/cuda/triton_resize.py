"""Resize by our own Triton kernel, in any layout and every mode of ONNX, and what follows the Resize."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

import torch
from torch import Tensor

from ridgeline.base.choices import RefusedError
from ridgeline.base.devices import device_of
from ridgeline.base.spec import ITEM_BITS, Config, Site
from ridgeline.kernels.elements import to_torch
from ridgeline.kernels.resize import ResizeSite, channels_inside
from ridgeline.kernels.triton.epilogue import Epilogue, make_epilogue
from ridgeline.kernels.triton.resize_tables import Tables, longest_run
from ridgeline.kernels.triton.source import Kernel
from ridgeline.kernels.triton.stage import MAX_PROGRAMS
from ridgeline.kernels.triton.text import MOST_ITEMS, pointer_type, power_of_two
from ridgeline.tactics.base import Footprint, Launch, Offer
from ridgeline.tactics.cuda.own_kernels import KernelTactic, launcher_of
from ridgeline.tactics.predict import pointwise_us
from ridgeline.tactics.read.resize import SUMMED, read_resize
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
    """A Resize with what follows it, as the kernel takes it."""

    found: ResizeSite
    tail: Epilogue
    x_dtype: str  # as which elements are read

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
            "HIGH": cut.high, "WIDE": cut.wide, "PDL": pdl, "EPILOGUE": self.tail.function,
        }  # fmt: skip
        signature = (
            ("x_ptr", pointer_type(self.x_dtype)), ("pointers", self.tail.types), ("starts_ptr", "*i32"),
            ("lines_ptr", "*i32"), ("line_shares_ptr", "*fp32"), ("columns_ptr", "*i32"),
            ("column_shares_ptr", "*fp32"), ("images", "i32"),
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

    @property
    def rows(self) -> int:
        """As the epilogue counts them: positions of all images, or lines of all planes."""
        (lines, columns) = self.found.out_size
        return self.planes * lines * (columns if self.inner > 1 else 1)

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

    def read(self, site: Site) -> Resizing:
        """The Resize of the region with what follows it, or `RefusedError`."""
        found = read_resize(site)
        is_alone = len(site.body.ops) == 1
        if not is_alone and found.x.dtype not in SUMMED:
            raise RefusedError(f"{site.body.ops[-1].op_type} follows a Resize of {found.x.dtype}")
        if is_alone and found.is_copy:
            site = _by_bits(site, found)
        tail = make_epilogue(site, found.anchor.outputs[0], 1 if found.inner > 1 else -1)
        resizing = Resizing(found, tail, site.specs[found.anchor.inputs[0]].dtype)
        if resizing.rows > MOST_ITEMS:
            raise RefusedError(f"{resizing.rows:,} rows, a kernel counts {MOST_ITEMS:,}")
        return resizing

    def offer(self, site: Site) -> Offer:
        self.require_kernels(site)
        resizing, pdl = self.read(site), site.target.has_dependent_launch
        cuts = resizing.cuts(sms=device_of(site.target.arch).sms)
        most = max(resizing.programs(cut) for cut in cuts)
        if most > MAX_PROGRAMS:
            raise RefusedError(f"{most} programs, a grid has {MAX_PROGRAMS}")
        return Offer(
            [asdict(cut) for cut in cuts],
            bind=lambda config, weights: self._bind(site, resizing, cut_of(config)),
            kernels=lambda config: [resizing.describe(cut_of(config), pdl=pdl)],
            footprint=lambda config: Footprint(
                writes_out=True, packed_bytes=_kept_bytes(resizing, cut_of(config))
            ),
            extents=lambda config: _extents(resizing),
            predict_us=lambda config, device: pointwise_us(site, device),
            compiles=True,
        )

    def _bind(self, site: Site, resizing: Resizing, cut: Cut) -> Launch:
        launcher = launcher_of(resizing.describe(cut, pdl=site.target.has_dependent_launch), site, self.store)
        tables = [torch.from_numpy(array).to("cuda") for array in resizing.tables(cut).arrays]
        extras = [to_torch(array).to("cuda") for array in resizing.tail.extras]
        reads = frozenset((resizing.found.place, *resizing.tail.inputs))

        def freeze(inputs: Sequence[Any], outputs: Sequence[Tensor]) -> Callable[[], object]:
            given = arguments(resizing, inputs, extras, outputs, tables)
            return launcher.freeze((resizing.programs(cut),), given)

        return staged_launch(freeze, site, reads, reads=reads, packed_bytes=_kept_bytes(resizing, cut))


def arguments(
    resizing: Resizing, inputs: Sequence[Any], extras: Sequence[Tensor], outputs: Sequence[Tensor],
    tables: Sequence[Tensor],
) -> list[Any]:  # fmt: skip
    """What a launch passes, in the order of the kernel's signature."""
    pointers = resizing.tail.pointers(inputs, extras, outputs)
    return [inputs[resizing.found.place], *pointers, *tables, resizing.images]


def cut_of(config: Config) -> Cut:
    return Cut(**{key: int(value) for key, value in config.items()})


def _by_bits(site: Site, found: ResizeSite) -> Site:
    """The same region over whole numbers of as many bits: what is only copied may be of any type."""
    dtype = f"int{ITEM_BITS[found.x.dtype]}"
    names = (found.anchor.inputs[0], *found.anchor.outputs)
    return replace(site, specs={**site.specs, **{n: replace(site.specs[n], dtype=dtype) for n in names}})


def _extents(resizing: Resizing) -> Mapping[int, int]:
    """Bytes that a launch touches, by argument."""
    place, touched = resizing.found.place, dict(resizing.tail.extents)
    return touched | {place: max(touched.get(place, 0), resizing.found.x.nbytes)}


def _kept_bytes(resizing: Resizing, cut: Cut) -> int:
    """Of what a launch keeps on the device."""
    return sum(array.nbytes for array in (*resizing.tables(cut).arrays, *resizing.tail.extras))
