"""What comes before a product, as a generated function that a hand-written kernel calls for each tile of x.

The kernel passes rows and depths; the prologue loads its operands, computes in float32 as a kernel of its own
would, and gives back a tile of x rounded to the type that is multiplied.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import takewhile
from typing import TypeVar

import numpy as np

from ridgeline.base.choices import RefusedError
from ridgeline.base.spec import Site
from ridgeline.kernels.scalar.axes import ONE
from ridgeline.kernels.scalar.extents import by_argument, extents_of
from ridgeline.kernels.scalar.lowering import Lowering
from ridgeline.kernels.scalar.moves import MOVES
from ridgeline.kernels.scalar.ops import POINTWISE
from ridgeline.kernels.scalar.program import Memory, Program
from ridgeline.kernels.triton.epilogue import Epilogue, TileText
from ridgeline.kernels.triton.source import Generated
from ridgeline.kernels.triton.text import (
    HEAD,
    TRITON,
    TYPES,
    Flat,
    indented,
    is_wide,
    pointers_of,
    term,
    touched_axes,
)

T = TypeVar("T")
MOST_WHOLE = 2  # operands as large as x


@dataclass(frozen=True)
class Prologue:
    """`function(x_ptr, first, last, m, k, mask, pointers)` gives x[m, k], for rows `m` from first to last.

    x_ptr is the operand `x`; the others are among the pointers.
    """

    whole: Generated  # for tiles that end with a row
    cut: Generated  # does not read where `mask` is false
    x: int  # the position of an operand as large as x among the region's inputs
    wholes: int  # operands that differ from row to row
    spans: tuple[int, ...]  # of operands that stay the same for so many rows: how many
    types: tuple[str, ...]  # of the pointers after x
    inputs: tuple[int, ...]  # their positions among the region's inputs
    extras: tuple[np.ndarray, ...]  # constants of the region, whose pointers come last
    extents: Mapping[int, int]  # bytes that it touches, by argument of the launch


@dataclass(frozen=True)
class Around(Epilogue):
    """What comes before a product and what follows it: pointers of the prologue after all others."""

    prologue: Prologue

    def pointers(self, inputs: Sequence[T], extras: Sequence[T], outputs: Sequence[T]) -> list[T]:
        before = self.prologue
        own = len(self.inputs) - len(before.inputs)
        constants = len(extras) - len(before.extras)
        given = (inputs[place] for place in self.inputs)
        first = [next(given) for _ in range(own)]
        return [*first, *extras[:constants], *outputs, *given, *extras[constants:]]


def surround(prologue: Prologue, tail: Epilogue) -> Around:
    """Both for one kernel."""
    found = dict(tail.extents)
    for argument, touched in prologue.extents.items():
        found[argument] = max(found.get(argument, 0), touched)
    return Around(
        tail.function, (*tail.types, *prologue.types), (*tail.inputs, *prologue.inputs),
        (*tail.extras, *prologue.extras), found, prologue,
    )  # fmt: skip


def make_prologue(site: Site, columns_axis: int, first: int) -> Prologue:
    """The whole body of a site, whose one output is x with its depths along the dim `columns_axis`.

    Its pointers follow `first` others. Raises `RefusedError` if tiles cannot be computed one by one.
    """
    program, rows, columns = _lowered(site, columns_axis)
    tile = TileText(program, Flat("m", rows), Flat("k", columns))
    wholes = {m.pointer: m for m in program.loads if set(m.strides) == {*rows, *columns}}
    x = next((name for name in wholes if name[0] == "p"), None)
    if x is None or set(program.sizes) != {*rows, *columns}:
        raise RefusedError("no operand of the ops before the product is as large as what they make")
    if rows and len(wholes) > MOST_WHOLE:
        raise RefusedError(f"{len(wholes)} operands are as large as x, want at most {MOST_WHOLE}")
    if columns and any(memory.strides[columns[-1]] != 1 for memory in wholes.values()):
        raise RefusedError("channels of x do not lie together")
    pointers = pointers_of(program)
    names = [name for name in pointers.names if name != x and name[0] != "q"]
    slots = dict(zip(pointers.names, pointers.inputs, strict=False))
    extents = by_argument(extents_of(program), program.inputs, len(site.body.inputs))
    return Prologue(
        whole=_text(tile, x, names, first, ""),
        cut=_text(tile, x, names, first, "mask"),
        x=slots[x],
        wholes=sum(all(tile.varies(m)) and _span(tile, m) == 1 for m in program.loads),
        spans=tuple(span for m in program.loads if (span := _span(tile, m)) > 1),
        types=tuple(pointers.kinds[name] for name in names),
        inputs=tuple(slots[name] for name in names if name in slots),
        extras=pointers.extras,
        extents={slot: touched for slot, touched in extents.items() if slot < len(site.body.inputs)},
    )


def _lowered(site: Site, columns_axis: int) -> tuple[Program, tuple[int, ...], tuple[int, ...]]:
    """The program of the body, and the axes of what it makes: those of rows, then those of columns."""
    low = Lowering(site, POINTWISE | MOVES, TRITON)
    for op in site.body.ops:
        low.run(op)
    program = low.finish()
    made = low.value(site.body.outputs[0])
    dims = [() if axis == ONE else low.axes.leaves(axis) for axis in made.axes]
    columns = dims.pop(columns_axis)
    return program, tuple(axis for dim in dims for axis in dim), columns


def _span(tile: TileText, memory: Memory) -> int:
    """For how many neighbouring rows a load of single columns reads the same; 1 if this is not known."""
    touched = touched_axes(tile.program, memory)
    if not all(tile.varies(memory)) or touched != set(memory.strides):
        return 1
    inner = takewhile(lambda axis: axis not in touched, reversed(tile.rows.axes))
    return math.prod(tile.program.sizes[axis] for axis in inner)


def _steady(tile: TileText, memory: Memory, span: int, mask: str) -> list[str]:
    """A load of what stays the same for `span` rows: a vector or two for a tile of no more rows than that."""
    first, last = (
        TileText(tile.program, Flat(var, tile.rows.axes), tile.columns).load(memory, mask)
        for var in ("first", "last")
    )
    name = memory.value
    return [
        f"if m.shape[0] <= {span}:",
        f"    {first}",
        f"    if m.shape[0] > {span & -span}:",  # a power of two: it does not divide the span
        f"        first_{name} = {name}",
        f"        {last}",
        f"        {name} = tl.where(m // {span} == first // {span}, first_{name}, {name})",
        "else:",
        f"    {tile.load(memory, mask)}",
    ]


def _text(tile: TileText, x: str, names: Sequence[str], first: int, mask: str) -> Generated:
    def load(memory: Memory) -> str:
        _, by_column = tile.varies(memory)
        span = _span(tile, memory)
        own_mask = mask if by_column else ""
        return "\n".join(_steady(tile, memory, span, own_mask)) if span > 1 else tile.load(memory, own_mask)

    (made,) = tile.program.stores
    lines = [
        f"{x} = x_ptr",
        *(f"{name} = pointers[{first + place}]" for place, name in enumerate(names)),
        *(["first, last = first.to(tl.int64), last.to(tl.int64)"] if is_wide(tile.program) else []),
        *(part for line in tile.lines(load) for part in line.split("\n")),
        f"return ({term(made.value)}).to({TYPES[made.dtype][1]})",
    ]
    text = "\n".join(["def prologue(x_ptr, first, last, m, k, mask, pointers):", *indented(lines), ""])
    return Generated("prologue", HEAD + text)
