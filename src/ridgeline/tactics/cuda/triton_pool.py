"""Pools by our own Triton kernel: images of floats, halves and codes of 8 bits, and what follows the pool."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from torch import Tensor

from ridgeline.base.choices import RefusedError
from ridgeline.base.devices import device_of
from ridgeline.base.spec import ITEM_BITS, Config, Site, TensorSpec
from ridgeline.kernels.elements import to_torch
from ridgeline.kernels.triton.epilogue import Epilogue, make_epilogue
from ridgeline.kernels.triton.source import Kernel
from ridgeline.kernels.triton.text import MOST_ITEMS, pointer_type, power_of_two
from ridgeline.tactics.base import Footprint, Launch, Offer
from ridgeline.tactics.cuda.own_kernels import KernelTactic, launcher_of
from ridgeline.tactics.predict import window_us
from ridgeline.tactics.read.pool import FLOATS, LEAST, PoolSite, as_volume, read_pool
from ridgeline.tactics.staging import staged_launch

MOST_TAPS = 64  # of a window whose places are all written out; a longer one is a loop
SHARED_TAPS = 32  # of a window that several outputs of a thread share
WIDE_BYTES = 16  # of one load
THREADS = 256  # of a processor: with fewer, each makes less


@dataclass(frozen=True)
class Cut:
    """Outputs of one thread, then blocks of those and channels of one program."""

    high: int
    wide: int
    positions: int
    channels: int
    warps: int


@dataclass(frozen=True)
class PoolKernel:
    """A pool with what follows it, as a kernel."""

    pool: PoolSite
    tail: Epilogue
    sms: int
    is_packed: bool  # maxima of halves are taken two at a time
    pdl: bool

    @property
    def is_planes(self) -> bool:
        return are_planes(self.pool)

    @property
    def is_turned(self) -> bool:
        """Whether x and y lie in different orders."""
        return not self.is_planes and is_by_channel(self.pool.x) != is_by_channel(self.pool.y)

    @property
    def wide_items(self) -> int:
        """Items of one wide load."""
        return WIDE_BYTES * 8 // ITEM_BITS[self.pool.x.dtype]

    def leaves_image(self, cut: Cut) -> bool:
        """Whether some place of a block lies outside of the image; its last outputs may be none."""
        _, height, width = self.pool.made
        return self.pool.reads_outside or height % cut.high > 0 or width % cut.wide > 0

    def blocks(self, cut: Cut) -> int:
        """Blocks of outputs, of all images; where channels are planes, of all planes."""
        depth, height, width = self.pool.made
        planes = self.pool.images * (self.pool.channels if self.is_planes else 1)
        return planes * depth * -(-height // cut.high) * -(-width // cut.wide)

    def grid(self, cut: Cut) -> tuple[int]:
        parts = 1 if self.is_planes else -(-self.pool.channels // cut.channels)
        return (-(-self.blocks(cut) // cut.positions) * parts,)

    def describe(self, cut: Cut) -> Kernel:
        pool = self.pool
        constants: dict[str, Any] = {
            **self._x_strides(), **self._geometry(),
            "KIND": pool.kind, "LEAST": LEAST[pool.x.dtype] if pool.kind == "max" else 0.0,
            "IS_PADDED": self.leaves_image(cut), "IS_COUNTED": not pool.counts_all,
            "IS_LONG": pool.taps > MOST_TAPS, "IS_PLANES": self.is_planes,
            "CHANNEL_AXIS": 0 if self.is_turned else 1, "HIGH": cut.high, "WIDE": cut.wide,
            "BP": cut.positions, "BC": cut.channels, "PACKED": self.is_packed,
            "PDL": self.pdl, "EPILOGUE": self.tail.function,
        }  # fmt: skip
        signature = (
            ("x_ptr", pointer_type(pool.x.dtype)), ("pointers", self.tail.types), ("blocks", "i32"),
            *((name, "constexpr") for name in constants),
        )  # fmt: skip
        return Kernel(
            "pool", "ridgeline.kernels.triton.pool", signature, tuple(constants.items()),
            num_warps=cut.warps, num_stages=1, pdl=self.pdl,
        )  # fmt: skip

    def _x_strides(self) -> dict[str, int]:
        image, channel, *rest = self.pool.x.strides
        depth, line, column = as_volume(rest, 0)
        if self.is_planes:
            channels, image, channel = 1, math.prod(self.pool.size), 0
        else:
            channels = self.pool.channels
        return {
            "C": channels, "X_IMAGE": image, "X_CHANNEL": channel, "X_DEPTH": depth, "X_LINE": line,
            "X_COLUMN": column,
        }  # fmt: skip

    def _geometry(self) -> dict[str, int]:
        pool = self.pool
        sizes = {
            "IN": pool.size, "OUT": pool.made, "KERNEL": pool.kernel, "STRIDE": pool.stride,
            "DILATION": pool.dilation, "PAD": pool.before, "BEFORE": pool.counted_before,
            "COUNTED": pool.counted,
        }  # fmt: skip
        return {f"{name}_{axis}": of[i] for name, of in sizes.items() for i, axis in enumerate("DHW")}

    def cuts(self) -> list[Cut]:
        """Best guess first: blocks of outputs that share what they load, if there are enough of them."""
        tiles = self._planes() if self.is_planes else self._turned() if self.is_turned else self._rows()
        blocks = self._blocks()
        best = next((block for block in blocks if self.threads >= THREADS * math.prod(block)), blocks[-1])
        first, *more = [Cut(*best, *tile) for tile in tiles]
        return [first, *(Cut(*block, *tiles[0]) for block in blocks if block != best), *more]

    @property
    def threads(self) -> float:
        """How many there are of each processor, if each makes what one wide store writes."""
        lanes = 1 if self.is_planes else self.wide_items
        outputs = math.prod(self.pool.made) * self.pool.images * self.pool.channels
        return outputs / (lanes * self.sms)

    def _blocks(self) -> list[tuple[int, int]]:
        """Of outputs whose windows overlap, as (lines, columns)."""
        pool = self.pool
        (_, high, wide) = (
            k > s and n > 1 for k, s, n in zip(pool.kernel, pool.stride, pool.made, strict=True)
        )
        if pool.taps > SHARED_TAPS or set(pool.dilation) != {1}:
            high = wide = False
        # threads side by side store positions side by side where those are what lies together
        wide = wide and not self.is_planes and not self.is_turned
        found = [(2, 2)] if high and wide else []
        return [*found, *([(2, 1), (4, 1)] if high else []), *([(1, 2)] if wide else []), (1, 1)]

    def _planes(self) -> list[tuple[int, int, int]]:
        """Positions, channels and warps of a program; a thread has one position."""
        return [(128, 1, 4), (256, 1, 8), (256, 1, 4)]

    def _turned(self) -> list[tuple[int, int, int]]:
        """Enough of both axes for whole sectors of memory on both sides."""
        channels = min(64, power_of_two(self.pool.channels))
        return [(64, min(32, channels), 4), (64, channels, 8), (32, channels, 4)]

    def _rows(self) -> list[tuple[int, int, int]]:
        """Blocks of channels that a warp loads wide, and positions for one or two loads of every thread."""
        channels = _channel_block(self.pool.channels)
        tiles = [(4, 1.0), (4, 2.0), (2, 1.0), (8, 1.0)]
        if self.threads < THREADS:
            tiles = [(2, 0.25), (4, 0.25), (4, 0.5), (4, 1.0)]  # narrower loads of more threads
        loads = 32 * self.wide_items
        return [(max(1, int(warps * loads * count) // channels), channels, warps) for warps, count in tiles]


class TritonPool(KernelTactic):
    """y = epilogue(max, mean or norm over the window of x)."""

    name = "triton.pool"

    def read(self, site: Site) -> PoolKernel:
        """The pool of the region with what follows it, or `RefusedError`."""
        pool = read_pool(site)
        if pool.x.dtype not in FLOATS and len(site.body.ops) > 1:
            raise RefusedError(f"{site.body.ops[-1].op_type} follows a pool of codes")
        most = max(pool.x.numel, pool.y.numel)
        if most > MOST_ITEMS:
            raise RefusedError(f"{most:,} elements, a kernel counts {MOST_ITEMS:,}")
        tail = make_epilogue(site, pool.anchor.outputs[0], -1 if are_planes(pool) else 1)
        target = site.target
        # the instruction that does so is as old as arithmetic in bfloat16
        return PoolKernel(
            pool, tail, device_of(target.arch).sms, is_packed=target.has_bfloat16,
            pdl=target.has_dependent_launch,
        )  # fmt: skip

    def offer(self, site: Site) -> Offer:
        self.require_kernels(site)
        found = self.read(site)
        extras = sum(array.nbytes for array in found.tail.extras)
        return Offer(
            [asdict(cut) for cut in found.cuts()],
            bind=lambda config, weights: self._bind(site, found, cut_of(config)),
            kernels=lambda config: [found.describe(cut_of(config))],
            footprint=lambda config: Footprint(writes_out=True, packed_bytes=extras),
            extents=lambda config: _extents(found),
            predict_us=lambda config, device: window_us(site, found.pool.taps, device),
            compiles=True,
        )

    def _bind(self, site: Site, found: PoolKernel, cut: Cut) -> Launch:
        launcher = launcher_of(found.describe(cut), site, self.store)
        extras = [to_torch(array).to("cuda") for array in found.tail.extras]
        reads = frozenset((found.pool.slot, *found.tail.inputs))

        def freeze(inputs: Sequence[Any], outputs: Sequence[Tensor]) -> Callable[[], object]:
            return launcher.freeze(found.grid(cut), arguments(found, cut, inputs, extras, outputs))

        return staged_launch(
            freeze, site, reads, reads=reads, packed_bytes=sum(extra.nbytes for extra in extras)
        )


def arguments(
    found: PoolKernel, cut: Cut, inputs: Sequence[Any], extras: Sequence[Tensor], outputs: Sequence[Tensor]
) -> list[Any]:
    """What a launch passes, in the order of the kernel's signature."""
    return [inputs[found.pool.slot], *found.tail.pointers(inputs, extras, outputs), found.blocks(cut)]


def cut_of(config: Config) -> Cut:
    return Cut(**{key: int(value) for key, value in config.items()})


def is_by_channel(spec: TensorSpec) -> bool:
    """Whether the channels of a place lie side by side."""
    return spec.shape[1] > 1 and (spec.layout == "channels_last" or math.prod(spec.shape[2:]) == 1)


def are_planes(pool: PoolSite) -> bool:
    """Whether every channel is a plane of its own, in what is read and in what is written."""
    is_single = math.prod(pool.y.shape[2:]) == 1
    return not is_by_channel(pool.x) and (is_single or not is_by_channel(pool.y))


def _extents(found: PoolKernel) -> Mapping[int, int]:
    """Bytes that a launch touches, by argument."""
    pool, touched = found.pool, dict(found.tail.extents)
    sizes = (pool.images, pool.channels, *pool.x.shape[2:])
    items = 1 + sum(stride * (size - 1) for stride, size in zip(pool.x.strides, sizes, strict=True))
    touched[pool.slot] = max(touched.get(pool.slot, 0), items * ITEM_BITS[pool.x.dtype] // 8)
    return touched


def _channel_block(channels: int) -> int:
    """The widest block of which at most an eighth goes to waste, or the one that wastes least."""
    sizes = [size for size in (128, 64, 32, 16) if size < 2 * channels] or [power_of_two(channels)]
    covered = {size: -(-channels // size) * size for size in sizes}
    fitting = [size for size in sizes if 8 * covered[size] <= 9 * channels]
    return fitting[0] if fitting else min(sizes, key=covered.__getitem__)
