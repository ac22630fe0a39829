"""Elementwise regions: every operand is read once and every output written once, 16 bytes at a time.

`flat` walks all elements in the order of the widest output. If an operand has another innermost axis, `tiled`
takes squares of the two axes, so that loads and stores both touch whole cache lines.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping
from dataclasses import dataclass

from ridgeline.base.choices import RefusedError
from ridgeline.kernels.scalar.nest import indexed_axes, memory_order, merged
from ridgeline.kernels.scalar.program import Memory, Program
from ridgeline.kernels.triton.stage import WAIT, Stages, make_stage
from ridgeline.kernels.triton.text import (
    Flat,
    Scope,
    is_wide,
    load_text,
    pointers_of,
    steady_loads,
    store_text,
    touched_axes,
)

ALIGNMENT = 16  # elements; a size must be a multiple of it for the compiler to use the widest accesses


@dataclass(frozen=True)
class Cut:
    """The block of one program: `width` along the innermost axis, `height` along the other, and its warps."""

    width: int
    warps: int
    height: int = 0  # 0: flat


def why_not_pointwise(program: Program) -> str | None:
    """The reason a program has no elementwise kernel."""
    if any(step.fold for step in program.steps):
        return "the body reduces, it is not pointwise"
    if 0 in program.sizes.values() and not program.is_empty:
        return "some outputs have elements and others none"
    # over axes that only some outputs have, a kernel would go through every combination of theirs
    is_spanned = any(set(memory.strides) == set(program.sizes) for memory in program.stores)
    return None if is_spanned else "no output spans all axes"


def pointwise_stages(program: Program, constants: Collection[int], cut: Cut, *, pdl: bool) -> Stages:
    """The kernel for one cut. `constants` are inputs that never change; they are loaded before the wait."""
    reason = why_not_pointwise(program)
    if reason is not None:
        raise RefusedError(reason)
    pointers = pointers_of(program)
    if program.is_empty:
        return Stages((), pointers)
    lines, programs, number = (_tiled if cut.height else _flat)(program, constants, cut)
    stage = make_stage(
        "pointwise", lines, pointers.kinds, programs=programs, number=number, warps=cut.warps, pdl=pdl
    )
    return Stages((stage,), pointers)


def widest(program: Program) -> Memory:
    return max(program.stores, key=lambda m: math.prod(program.sizes[axis] for axis in m.strides))


def crossing(program: Program) -> tuple[list[int], list[int], list[int]] | None:
    """The other axes, the innermost axes of some operand, and the innermost axes of the widest output.

    None if all operands agree on the innermost axis, or if those that do not are small enough for the cache.
    """
    lead = widest(program)
    groups = merged(memory_order(program.sizes, lead), program)
    if len(groups) < 2:
        return None
    inner, total = groups[-1], math.prod(program.sizes.values())
    for memory in program.memories:
        items = math.prod(program.sizes[axis] for axis in memory.strides)
        steps = {group[-1]: abs(memory.strides.get(group[-1], 0)) for group in groups}
        nearest = min((step for step in steps.values() if step), default=0)
        other = next((group for group in groups if nearest and steps[group[-1]] == nearest), inner)
        if other is not inner and steps[inner[-1]] and 2 * items >= total:
            rest = [axis for group in groups if group not in (other, inner) for axis in group]
            return rest, other, inner
    return None


def _flat(program: Program, constants: Collection[int], cut: Cut) -> tuple[list[str], int, int]:
    """The lines of the kernel over all elements in one order, its programs, and its size argument."""
    sizes = program.sizes
    axes = tuple(memory_order(sizes, widest(program)))
    total = math.prod(sizes.values())
    unit = counted_unit(total, math.prod(sizes[axis] for axis in axes[1:]))
    wide = ".to(tl.int64)" if is_wide(program) else ""
    lines = [
        f"i = tl.program_id(0){wide} * {cut.width} + tl.arange(0, {cut.width})",
        f"mask = i < size{wide} * {unit}",
        *_inside(program, {"i": Flat("i", axes)}, {"i": "mask"}, constants),
    ]
    return lines, -(-total // cut.width), total // unit


def counted_unit(total: int, inner: int) -> int:
    """The unit of a size argument: a multiple of `ALIGNMENT` if possible, so that accesses are wide."""
    aligned = math.gcd(total, ALIGNMENT)
    return inner if math.gcd(inner, ALIGNMENT) == aligned else aligned


def _tiled(program: Program, constants: Collection[int], cut: Cut) -> tuple[list[str], int, int]:
    """The lines of the kernel over squares of two axes, its programs, and its size argument."""
    found = crossing(program)
    if found is None:
        raise RefusedError("all operands agree on the innermost axis")
    rest, across, along = found
    sizes = program.sizes
    flats = {"z": Flat("z", tuple(rest)), "x": Flat("x", tuple(across)), "y": Flat("y", tuple(along))}
    high, wide = (math.prod(sizes[axis] for axis in group) for group in (across, along))
    rows, columns = -(-high // cut.height), -(-wide // cut.width)
    cast = ".to(tl.int64)" if is_wide(program) else ""
    lines = [
        f"pid = tl.program_id(0){cast}",
        f"z = pid // {rows * columns}",
        f"x = (pid // {columns} % {rows} * {cut.height} + tl.arange(0, {cut.height}))[:, None]",
        f"y = (pid % {columns} * {cut.width} + tl.arange(0, {cut.width}))[None, :]",
        f"mask = (x < {high}) & (y < {wide})",
        *_inside(program, flats, {"x": f"(x < {high})", "y": f"(y < {wide})"}, constants),
    ]  # fmt: skip
    outer = math.prod(sizes[axis] for axis in rest)
    return lines, outer * rows * columns, outer


def _inside(
    program: Program, flats: Mapping[str, Flat], bounds: Mapping[str, str], constants: Collection[int]
) -> list[str]:
    """What follows the indices: loads, the wait, steps, stores. `bounds` are the tests of single indices."""
    index = {axis: name for flat in flats.values() for axis, name in flat.names().items()}
    missing = {m.pointer: set(program.sizes) - set(m.strides) for m in program.stores}
    unpacked = indexed_axes(program).union(*missing.values())

    def terms(memory: Memory) -> list[str]:
        return [term for flat in flats.values() for term in flat.offset(memory, program.sizes)]

    def load(memory: Memory) -> str:
        touched = touched_axes(program, memory)
        masks = [bound for name, bound in bounds.items() if touched & set(flats[name].axes)]
        return load_text(memory, terms(memory), " & ".join(masks), index)

    def store(memory: Memory) -> str:
        firsts = [f"({index[axis]} == 0)" for axis in sorted(missing[memory.pointer])]
        # a block also writes a single element, with all but one of its lanes masked
        blocks = [f"{name} * 0" for name in bounds if not flats[name].offset(memory, program.sizes)]
        return store_text(memory, [*terms(memory), *blocks], " & ".join(["mask", *firsts]))

    scope = Scope(program, index, load)
    steady = steady_loads(program, constants)
    scope.need(*(m.value for m in program.loads if m.value in steady and not m.gathers))
    lines = [line for flat in flats.values() for line in flat.unpacked(program.sizes, unpacked)]
    lines += [*scope.take(), *WAIT]
    scope.need(*(m.value for m in program.loads if not m.gathers))
    for memory in program.stores:
        scope.need(memory.value)
    return lines + scope.take() + [store(memory) for memory in program.stores]
