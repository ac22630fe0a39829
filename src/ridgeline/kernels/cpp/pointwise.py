"""One loop nest for a region of elementwise ops: y = f(x…), operands read once, outputs written once."""

from __future__ import annotations

import math

from ridgeline.base.choices import RefusedError
from ridgeline.kernels.cpp.loops import (
    PARALLEL_ITEMS,
    Loop,
    assign,
    load,
    merge,
    nothing,
    parallel,
    store,
    whole,
)
from ridgeline.kernels.scalar.nest import memory_order
from ridgeline.kernels.scalar.program import Program


def pointwise_source(program: Program, *, threads: int) -> str:
    """The kernel's text, parallel over outer loops when `threads` > 1 and the work is worth it."""
    if any(step.fold for step in program.steps):
        raise RefusedError("the body reduces, it is not pointwise")
    if any(set(store.strides) != set(program.sizes) for store in program.stores):
        raise RefusedError("an output is smaller than the region's loops")
    if 0 in program.sizes.values():
        return nothing()
    lead = program.stores[0]
    loops = merge(memory_order(program.sizes, lead), program, prefix="i") or [Loop("i0", -1, 1, frozenset())]
    *outer, inner = loops
    lines: list[str] = []
    count = math.prod(loop.size for loop in loops)
    is_parallel = threads > 1 and count >= PARALLEL_ITEMS
    start, stop = "0", str(inner.size)
    if is_parallel and math.prod(loop.size for loop in outer) < 4 * threads:
        # too few outer turns to share out: each thread takes whole cache lines of the inner loop
        piece = -(-inner.size // threads // 64) * 64 or 64
        outer = [*outer, Loop("part", -1, -(-inner.size // piece), frozenset())]
        lines.append(f"const i64 piece = {piece};")
        start, stop = "part * piece", f"(part + 1) * piece < {inner.size} ? (part + 1) * piece : {inner.size}"
    if is_parallel:
        lines.append(parallel(len(outer), threads))
    lines += [f"{loop.header()} {{" if loop is outer[-1] else loop.header() for loop in outer]
    fixed = {m.value for m in program.loads if not m.strides.get(inner.axis, 0)}
    hoisted: list[str] = []
    inside: list[str] = []
    for memory in program.loads:
        (hoisted if memory.value in fixed else inside).append(load(memory, loops))
    for step in program.steps:
        is_fixed = not step.axes & inner.axes
        (hoisted if is_fixed else inside).append(assign(step))
    lines += hoisted
    lines += [f"const i64 stop = {stop};", "#pragma omp simd", f"{inner.header(start, 'stop')} {{"]
    lines += inside
    lines += [store(memory, loops) for memory in program.stores]
    lines += ["}", *(["}"] if outer else [])]
    return whole(program, lines)
