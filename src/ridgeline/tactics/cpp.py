"""Generated C++ as tactics on the CPU: pointwise regions, row reductions, products with a constant weight.

The text comes from `kernels/cpp`; here it is offered, compiled and bound to pointers.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from ridgeline.kernels.cpp.compiler import CompileError, compile_cpp, compile_many, cpu_lanes, find_compiler
from ridgeline.kernels.cpp.linear import (
    GEMV_ROWS,
    PARALLEL_MACS,
    find_linear,
    linear_source,
    lower_linear,
    pack,
)
from ridgeline.kernels.cpp.loops import PARALLEL_ITEMS
from ridgeline.kernels.cpp.ops import REDUCTIONS, lower
from ridgeline.kernels.cpp.pointwise import pointwise_source
from ridgeline.kernels.cpp.program import Program, Refusal
from ridgeline.kernels.cpp.reduce import reduce_source
from ridgeline.spec import Config, Site, TensorSpec
from ridgeline.tactics.base import Launch

CACHE_DIR = Path("~/.cache/ridgeline/cpp")


class _Cpp:
    """What the tactics share: refusals as reasons, the cache, compiling ahead."""

    name: str

    def __init__(self, *, cache_dir: Path = CACHE_DIR) -> None:
        self.cache_dir = cache_dir

    def why_not(self, site: Site) -> str | None:
        if site.target.kind != "cpu":
            return f"target is {site.target}, want cpu"
        if find_compiler() is None:
            return "no C++ compiler found"
        try:
            self._require(site)
            self._source(site, next(iter(self.configs(site))))
        except Refusal as refusal:
            return str(refusal)
        return None

    def configs(self, site: Site) -> Iterable[Config]:
        items = max((spec.numel for spec in site.specs.values()), default=0)
        return [{"threads": n} for n in _thread_counts(site, items, PARALLEL_ITEMS)]

    def precompile(self, jobs: Sequence[tuple[Site, Config]]) -> list[CompileError]:
        """Compile what these sites will bind, several at a time; failures return when bound."""
        return compile_many(
            [self._source(site, config)[1] for site, config in jobs], cache_dir=self.cache_dir
        )

    def bind(self, site: Site, config: Config, weights: Mapping[str, Tensor]) -> Launch:
        program, source = self._source(site, config)
        return self._launch(site, program, source, ())

    def _require(self, site: Site) -> None:
        """Raise `Refusal` for a site of another kind."""

    def _source(self, site: Site, config: Config) -> tuple[Program, str]:
        raise NotImplementedError

    def _launch(self, site: Site, program: Program, source: str, packed: Sequence[Tensor]) -> Launch:
        run = compile_cpp(source, cache_dir=self.cache_dir).run
        run.restype = None
        bound = _Bound(run, site, program, packed)
        size = sum(t.nbytes for t in packed)
        return Launch(bound.call, writes_out=True, packed_bytes=size, freeze=bound.freeze)


class CppPointwise(_Cpp):
    """y = f(x…): one generated loop nest for any region of elementwise ops."""

    name = "cpp.pointwise"

    def _require(self, site: Site) -> None:
        for op in site.body.ops:
            if op.key in REDUCTIONS:
                raise Refusal(f"op {op.key} is not pointwise")

    def _source(self, site: Site, config: Config) -> tuple[Program, str]:
        program = lower(site)
        return program, pointwise_source(program, threads=int(config["threads"]))


class CppReduce(_Cpp):
    """Pointwise, reduce over the row, pointwise: softmax, norms and means with what surrounds them."""

    name = "cpp.reduce"

    def _require(self, site: Site) -> None:
        if not any(op.key in REDUCTIONS for op in site.body.ops):
            raise Refusal("nothing is reduced")

    def _source(self, site: Site, config: Config) -> tuple[Program, str]:
        program = lower(site)
        # a reduction over axes of size one leaves no fold behind
        generate = reduce_source if any(step.fold for step in program.steps) else pointwise_source
        return program, generate(program, threads=int(config["threads"]))


class _CppLinear(_Cpp):
    def _source(self, site: Site, config: Config) -> tuple[Program, str]:
        linear = find_linear(site)
        program, column = lower_linear(site, linear)
        text = linear_source(
            program, linear, column=column, threads=int(config["threads"]), panel=int(config["panel"]),
            rows=int(config["rows"]), sums=int(config["sums"]),
        )  # fmt: skip
        return program, text

    def bind(self, site: Site, config: Config, weights: Mapping[str, Tensor]) -> Launch:
        linear = find_linear(site)
        program, source = self._source(site, config)
        weight = weights.get(linear.weight)
        if weight is None:
            weight = torch.from_numpy(site.body.constants[linear.weight])
        return self._launch(site, program, source, (pack(weight, linear, int(config["panel"])),))


class CppGemv(_CppLinear):
    """epilogue(x · W) for a few rows of x: the weight is read once, at the speed of the cache it lies in."""

    name = "cpp.gemv"

    def _require(self, site: Site) -> None:
        rows = find_linear(site).m
        if rows > GEMV_ROWS:
            raise Refusal(f"{rows} rows, want at most {GEMV_ROWS}")

    def configs(self, site: Site) -> Iterable[Config]:
        lanes = cpu_lanes(find_compiler() or "c++")
        try:
            linear = find_linear(site)
        except Refusal:
            return ()
        rows = linear.m
        # registers: rows * vectors * sums accumulators must fit beside the operands
        vectors = (24 if lanes == 16 else 12) // rows
        wide = max(v for v in (1, 2, 4) if v <= max(vectors, 1))
        sums = max(1, min(4, vectors // wide))
        tile = {"panel": wide * lanes, "rows": rows, "sums": sums}
        counts = _thread_counts(site, linear.m * linear.k * linear.n, PARALLEL_MACS)
        return [{"threads": n, **tile} for n in counts]


class CppGemm(_CppLinear):
    """epilogue(x · W) for many rows: packed panels, register-blocked tiles."""

    name = "cpp.gemm"

    def _require(self, site: Site) -> None:
        rows = find_linear(site).m
        if rows <= GEMV_ROWS:
            raise Refusal(f"{rows} rows, want more than {GEMV_ROWS}")

    def configs(self, site: Site) -> Iterable[Config]:
        lanes = cpu_lanes(find_compiler() or "c++")
        tiles = ((8, 3), (6, 4), (12, 2)) if lanes == 16 else ((6, 2), (4, 3))
        return (
            {"threads": site.target.threads, "panel": vectors * lanes, "rows": rows, "sums": 1}
            for rows, vectors in tiles
        )


class _Bound:
    """A loaded kernel and the layouts it was generated for."""

    def __init__(
        self, run: Callable[[Any], None], site: Site, program: Program, packed: Sequence[Tensor]
    ) -> None:
        self.run, self.inputs = run, program.inputs
        self.held = (*program.extras, *packed)
        self.input_formats = [_format(site.inputs[i]) for i in program.inputs]
        self.output_formats = [_format(spec) for spec in site.outputs]
        self.fixed = [*(array.ctypes.data for array in program.extras), *(t.data_ptr() for t in packed)]
        self.array_type = ctypes.c_void_p * (len(self.inputs) + len(site.outputs) + len(self.fixed))

    def call(self, inputs: Sequence[Any], outputs: Sequence[Tensor]) -> None:
        reads = [
            t if t.is_contiguous(memory_format=form) else t.contiguous(memory_format=form)
            for t, form in zip([inputs[i] for i in self.inputs], self.input_formats, strict=True)
        ]
        writes = [
            t if t.is_contiguous(memory_format=form) else torch.empty_like(t, memory_format=form)
            for t, form in zip(outputs, self.output_formats, strict=True)
        ]
        self.run(self._pointers(reads, writes))
        for made, wanted in zip(writes, outputs, strict=True):
            if made is not wanted:
                wanted.copy_(made)

    def freeze(self, inputs: Sequence[Any], outputs: Sequence[Tensor]) -> Callable[[], object]:
        reads = [inputs[i] for i in self.inputs]
        placed = zip([*reads, *outputs], [*self.input_formats, *self.output_formats], strict=True)
        if not all(t.is_contiguous(memory_format=form) for t, form in placed):
            return partial(self.call, inputs, outputs)
        call = partial(self.run, self._pointers(reads, outputs))
        call.held = (*self.held, *reads, *outputs)  # type: ignore[attr-defined]  # alive as long as the pointers
        return call

    def _pointers(self, reads: Sequence[Tensor], writes: Sequence[Tensor]) -> ctypes.Array[ctypes.c_void_p]:
        return self.array_type(*(t.data_ptr() for t in reads), *(t.data_ptr() for t in writes), *self.fixed)


def _thread_counts(site: Site, work: int, worthwhile: int) -> list[int]:
    """All threads, one, or both where only a measurement can tell."""
    threads = site.target.threads
    if threads == 1 or work < worthwhile:
        return [1]
    return [threads, 1] if work < 16 * worthwhile else [threads]


def _format(spec: TensorSpec | None) -> torch.memory_format:
    if spec is not None and spec.layout == "channels_last":
        return torch.channels_last if len(spec.shape) == 4 else torch.channels_last_3d
    return torch.contiguous_format
