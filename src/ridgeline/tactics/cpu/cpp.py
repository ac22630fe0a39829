"""Generated C++ as tactics on the CPU: pointwise regions, row reductions, products with a constant weight.

The text comes from `kernels/cpp`; here it is offered, compiled and bound to pointers.
"""

from __future__ import annotations

import ctypes
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from operator import setitem
from pathlib import Path
from typing import Any, TypeAlias

from torch import Tensor

from ridgeline.base.choices import RefusedError
from ridgeline.base.spec import Config, Site
from ridgeline.kernels.cpp.compiler import CACHE_DIR, compile_cpp, cpu_lanes, find_compiler
from ridgeline.kernels.cpp.dialect import lower
from ridgeline.kernels.cpp.linear import (
    GEMV_ROWS,
    PARALLEL_MACS,
    Linear,
    Tile,
    find_linear,
    linear_source,
    pack,
    rank_tiles,
)
from ridgeline.kernels.cpp.loops import PARALLEL_ITEMS
from ridgeline.kernels.cpp.moves import find_moves, moves_source
from ridgeline.kernels.cpp.pointwise import pointwise_source
from ridgeline.kernels.cpp.reduce import reduce_source
from ridgeline.kernels.scalar.extents import by_argument, extents_of
from ridgeline.kernels.scalar.program import Program
from ridgeline.kernels.scalar.reductions import REDUCTIONS
from ridgeline.tactics.base import Launch, Move, Offer, Refused, Tactic
from ridgeline.tactics.read.epilogue import constant_tensors
from ridgeline.tactics.shared_copies import shared_copy
from ridgeline.tactics.staging import staged_launch

KEPT_SOURCES = 1024
# tiles of one or two vectors wait for their broadcast loads (measured on AVX-512)
_DRAG = {1: 1.8, 2: 1.1}


Pack: TypeAlias = Callable[[Config, Mapping[str, Tensor]], Sequence[Tensor]]


@dataclass(frozen=True)
class CppReading:
    """A region as one generated function: its variants, their text, and the weights that it reads packed."""

    configs: Sequence[Config]
    write: Callable[[Config], tuple[Program, str]]  # or `RefusedError`
    pack: Pack = lambda config, weights: ()


class GeneratedCpp(Tactic):
    """What the tactics share: the text written once for equal sites, and the launch around it."""

    runs_on = "cpu"

    def __init__(self, *, cache_dir: Path = CACHE_DIR) -> None:
        self.cache_dir = cache_dir
        self._sources: dict[tuple[Any, ...], tuple[Program, str]] = {}

    def read(self, site: Site) -> CppReading:
        """The region as this tactic generates it, or `RefusedError`."""
        raise NotImplementedError

    def offer(self, site: Site) -> Offer | Refused:
        if find_compiler() is None:
            return Refused("no C++ compiler found")
        reading = self.read(site)
        self._source(site, reading, reading.configs[0])  # refuses what cannot be generated

        def extents(config: Config) -> Mapping[int, int]:
            program, _ = self._source(site, reading, config)
            return by_argument(extents_of(program), program.inputs, len(site.body.inputs))

        return Offer(
            reading.configs,
            bind=partial(self._bind, site, reading),
            extents=extents,
            cpp_source=lambda config: self._source(site, reading, config)[1],
            compiles=True,
        )

    def _source(self, site: Site, reading: CppReading, config: Config) -> tuple[Program, str]:
        """Written once for equal sites: a model's layers are mostly alike."""
        key = (site.key, *sorted(config.items()))
        if key not in self._sources:
            if len(self._sources) >= KEPT_SOURCES:
                self._sources.clear()
            self._sources[key] = reading.write(config)
        return self._sources[key]

    def _bind(self, site: Site, reading: CppReading, config: Config, weights: Mapping[str, Tensor]) -> Launch:
        program, source = self._source(site, reading, config)
        packed = [shared_copy(copy, *weights.values()) for copy in reading.pack(config, weights)]
        touched = extents_of(program)
        for place, weight in enumerate(packed):
            if touched.get(f"w{place}", sys.maxsize) > weight.nbytes:
                raise RefusedError(f"a packed weight has {weight.nbytes} bytes, the kernel reads others")
        run = compile_cpp(source, cache_dir=self.cache_dir)["run"]
        return staged_launch(
            _freeze(run, program, packed),
            site,
            program.inputs,
            packed_bytes=sum(t.nbytes for t in packed),
            shared=tuple(packed),
            calls_torch=False,
        )


def by_threads(site: Site) -> list[Config]:
    """Variants of a function whose work grows with the items that it touches."""
    items = max((spec.numel for spec in site.specs.values()), default=0)
    return [{"threads": n} for n in thread_counts(site, items, PARALLEL_ITEMS)]


def write_loops(site: Site, config: Config) -> tuple[Program, str]:
    """The region as loops over its elements, or over its rows."""
    program = lower(site)
    # a reduction over axes of size one leaves no fold behind
    generate = reduce_source if any(step.fold for step in program.steps) else pointwise_source
    return program, generate(program, threads=int(config["threads"]))


class CppPointwise(GeneratedCpp):
    """y = f(x…): one generated loop nest for any region of elementwise ops."""

    name = "cpp.pointwise"

    def read(self, site: Site) -> CppReading:
        for op in site.body.ops:
            if op.key in REDUCTIONS:
                raise RefusedError(f"op {op.key} is not pointwise")
        return CppReading(by_threads(site), partial(write_loops, site))


class CppReduce(GeneratedCpp):
    """Pointwise, reduce over the row, pointwise: softmax, norms and means with what surrounds them."""

    name = "cpp.reduce"

    def read(self, site: Site) -> CppReading:
        if not any(op.key in REDUCTIONS for op in site.body.ops):
            raise RefusedError("nothing is reduced")
        return CppReading(by_threads(site), partial(write_loops, site))


class CppMoves(GeneratedCpp):
    """y = x at other places: boxes copied from strided to strided memory."""

    name = "cpp.moves"

    def read(self, site: Site) -> CppReading:
        moves = find_moves(site)
        return CppReading(
            by_threads(site), lambda config: moves_source(site, moves, threads=int(config["threads"]))
        )


class CppGemv(GeneratedCpp):
    """epilogue(x · W) for a few rows of x: the weight is read once, at the speed of the cache it lies in."""

    name = "cpp.gemv"

    def read(self, site: Site) -> CppReading:
        linear = find_linear(site)
        if linear.m > GEMV_ROWS:
            raise RefusedError(f"{linear.m} rows, want at most {GEMV_ROWS}")
        return read_product(site, linear)


class CppGemm(GeneratedCpp):
    """epilogue(x · W) for many rows: packed panels, register-blocked tiles."""

    name = "cpp.gemm"

    def read(self, site: Site) -> CppReading:
        linear = find_linear(site)
        if linear.m <= GEMV_ROWS:
            raise RefusedError(f"{linear.m} rows, want more than {GEMV_ROWS}")
        return read_product(site, linear)


def read_product(site: Site, linear: Linear) -> CppReading:
    """epilogue(x · W) over a packed weight."""

    def write(config: Config) -> tuple[Program, str]:
        return linear_source(site, linear, tile_of(config), threads=int(config["threads"]))

    return CppReading(product_configs(site, linear), write, panels_of(site, linear.weight, linear.weight_kn))


def panels_of(site: Site, name: str, as_kn: Callable[[Tensor], Tensor]) -> Pack:
    """A constant weight, as [K, N], packed in panels as wide as the config says."""

    def pack_panels(config: Config, weights: Mapping[str, Tensor]) -> Sequence[Tensor]:
        return (pack(as_kn(constant_tensors(site, weights)[name]), int(config["panel"])),)

    return pack_panels


def product_configs(site: Site, linear: Linear) -> list[Config]:
    return (gemv_configs if linear.m <= GEMV_ROWS else gemm_configs)(site, linear)


def gemv_configs(site: Site, linear: Linear) -> list[Config]:
    lanes = cpu_lanes(find_compiler() or "c++")
    # registers: rows * vectors * sums accumulators must fit beside the operands
    vectors = (24 if lanes == 16 else 12) // linear.m
    wide = max(v for v in (1, 2, 4) if v <= max(vectors, 1))
    sums = max(1, min(4, vectors // wide))
    tile = {"panel": wide * lanes, "rows": linear.m, "sums": sums}
    counts = thread_counts(site, linear.m * linear.k * linear.n, PARALLEL_MACS)
    return [{"threads": n, **tile} for n in counts]


def gemm_configs(site: Site, linear: Linear) -> list[Config]:
    lanes = cpu_lanes(find_compiler() or "c++")
    shapes = ((8, 3), (6, 4), (12, 2), (24, 1)) if lanes == 16 else ((6, 2), (4, 3), (12, 1))
    tiles = [Tile(vectors * lanes, rows, drag=_DRAG.get(vectors, 1.0)) for rows, vectors in shapes]
    threads = site.target.threads
    best = rank_tiles(linear, tiles, threads)[:3]
    return [{"threads": threads, "panel": t.panel, "rows": t.rows, "sums": t.sums} for t in best]


def tile_of(config: Config) -> Tile:
    return Tile(int(config["panel"]), int(config["rows"]), int(config["sums"]))


class _Pointed(partial[None]):
    """A loaded kernel with its array of pointers: as quick to call as the kernel itself."""

    held: tuple[Any, ...]  # alive as long as the pointers
    slots: dict[int, int]  # argument of the launch -> pointer in the array

    def mover(self, argument: int) -> Move | None:
        slot = self.slots.get(argument)
        return None if slot is None else partial(setitem, self.args[0], slot)


def _freeze(
    run: Callable[[Any], None], program: Program, packed: Sequence[Tensor]
) -> Callable[[Sequence[Any], Sequence[Tensor]], _Pointed]:
    fixed = [*(array.ctypes.data for array in program.extras), *(t.data_ptr() for t in packed)]

    def freeze(inputs: Sequence[Any], outputs: Sequence[Tensor]) -> _Pointed:
        tensors = [*(inputs[i] for i in program.inputs), *outputs]
        pointers = (ctypes.c_void_p * (len(tensors) + len(fixed)))(*(t.data_ptr() for t in tensors), *fixed)
        call = _Pointed(run, pointers)
        call.held = (*program.extras, *packed, *tensors)
        written = range(len(inputs), len(inputs) + len(outputs))
        call.slots = {argument: slot for slot, argument in enumerate((*program.inputs, *written))}
        return call

    return freeze


def thread_counts(site: Site, work: int, worthwhile: int) -> list[int]:
    """All threads, one, or both where only a measurement can tell."""
    threads = site.target.threads
    if threads == 1 or work < worthwhile:
        return [1]
    return [threads, 1] if work < 16 * worthwhile else [threads]
