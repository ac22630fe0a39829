"""What follows a product or convolution, as a generated function that a hand-written kernel calls.

The kernel passes a tile of sums with its rows and columns. The epilogue adds the anchor's own bias, computes
the rest of the region in float32 and stores every output.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeVar

import numpy as np

from ridgeline.base.choices import RefusedError
from ridgeline.base.spec import Site
from ridgeline.kernels.scalar.anchor import NO_CODES, Dequantized, lower_around
from ridgeline.kernels.scalar.extents import by_argument, extents_of
from ridgeline.kernels.scalar.moves import MOVES
from ridgeline.kernels.scalar.nest import indexed_axes
from ridgeline.kernels.scalar.ops import POINTWISE
from ridgeline.kernels.scalar.program import Memory, Program, Term
from ridgeline.kernels.scalar.quant import dequantize_for_sums, quantize_sums
from ridgeline.kernels.triton.source import Generated
from ridgeline.kernels.triton.text import (
    HEAD,
    TRITON,
    Flat,
    Scope,
    indented,
    is_wide,
    load_text,
    pointers_of,
    store_text,
    touched_axes,
)

T = TypeVar("T")
# sums are rounded in an order of their own, so codes of them need no exact quotient
HANDLERS = POINTWISE | MOVES | {"QuantizeLinear": quantize_sums, "DequantizeLinear": dequantize_for_sums}


@dataclass(frozen=True)
class Epilogue:
    """`function(acc, m, n, mask, pointers)`; `pointers` are inputs, constants, then all outputs."""

    function: Generated
    types: tuple[str, ...]  # of `pointers`, in the form of a kernel's signature
    inputs: tuple[int, ...]  # positions among the region's inputs
    extras: tuple[np.ndarray, ...]  # constants of the region that a launch keeps on the device
    extents: Mapping[int, int]  # bytes that it touches, by argument of the launch

    def pointers(self, inputs: Sequence[T], extras: Sequence[T], outputs: Sequence[T]) -> list[T]:
        """The arguments for `pointers`, selected from all inputs and outputs of the region."""
        return [*(inputs[i] for i in self.inputs), *extras, *outputs]


def make_epilogue(
    site: Site, anchor_value: str, columns_axis: int, codes: Dequantized = NO_CODES
) -> Epilogue:
    """Everything after the op that computes `anchor_value`, whose dim `columns_axis` holds the columns.

    `acc` is the bare sum of products; the epilogue applies the scales of `codes` and the anchor's alpha, beta
    and bias. Rows count the other dims of the anchor's output, in order. Raises `RefusedError` if the region
    does not fit.
    """
    anchor = site.body.producer(anchor_value)
    if anchor is None:
        raise RefusedError(f"nothing in the region makes {anchor_value}")
    program, dims = lower_around(site, anchor, HANDLERS, TRITON, codes=codes)
    at = columns_axis % len(dims)
    column = dims[at]
    rows = tuple(axis for dim in dims[:at] + dims[at + 1 :] for axis in dim)
    if set(program.sizes) - {*rows, *column}:
        raise RefusedError("an output is larger than the product")
    if any(set(memory.strides) != {*rows, *column} for memory in program.stores):
        raise RefusedError("an output is smaller than the product")
    pointers = pointers_of(program)
    function = Generated("epilogue", _text(program, rows, column, pointers.names))
    extents = by_argument(extents_of(program), program.inputs, len(site.body.inputs))
    return Epilogue(function, pointers.types, pointers.inputs, pointers.extras, extents)


class TileText:
    """A program over a tile as statements: one variable counts the rows, over some axes, one the columns."""

    def __init__(self, program: Program, rows: Flat, columns: Flat) -> None:
        self.program, self.rows, self.columns = program, rows, columns
        self._indexed = indexed_axes(program)
        # makes the address of a single row or column a block
        self.blocks = [f"{flat.var} * 0" for flat in (rows, columns) if not flat.axes]

    def terms(self, memory: Memory) -> list[str]:
        sizes = self.program.sizes
        return [*self.rows.offset(memory, sizes), *self.columns.offset(memory, sizes)]

    def varies(self, memory: Memory) -> tuple[bool, bool]:
        """Whether what is loaded differs from row to row, and from column to column."""
        touched = touched_axes(self.program, memory)
        return bool(touched & set(self.rows.axes)), bool(touched & set(self.columns.axes))

    def load(self, memory: Memory, mask: str, *, is_block: bool = False) -> str:
        where = [*self.terms(memory), *([f"{self.columns.var} * 0"] if is_block else [])]
        return load_text(memory, where, mask, self.rows.names() | self.columns.names())

    def lines(self, load: Callable[[Memory], str], known: Collection[Term] = ()) -> list[str]:
        """Statements that compute every value that is stored; `known` are given."""
        scope = Scope(self.program, self.rows.names() | self.columns.names(), load)
        scope.known.update(known)
        for memory in self.program.stores:
            scope.need(memory.value)
        rows, columns, sizes = self.rows, self.columns, self.program.sizes
        wide = f"{rows.var}, {columns.var} = {rows.var}.to(tl.int64), {columns.var}.to(tl.int64)"
        return [
            *([wide] if is_wide(self.program) else []),
            *rows.unpacked(sizes, self._indexed), *columns.unpacked(sizes, self._indexed),
            *scope.take(),
        ]  # fmt: skip


def _text(program: Program, rows: tuple[int, ...], column: tuple[int, ...], names: Sequence[str]) -> str:
    tile = TileText(program, Flat("m", rows), Flat("n", column))

    def load(memory: Memory) -> str:
        by_row, by_column = tile.varies(memory)
        if by_row:
            return tile.load(memory, "mask", is_block=not by_column)
        end = math.prod(program.sizes[axis] for axis in column)
        return tile.load(memory, f"n < {end}" if by_column else "")

    lines = [
        *(f"{name} = pointers[{place}]" for place, name in enumerate(names)),
        *tile.lines(load, known=["acc"]),
        *(store_text(memory, [*tile.terms(memory), *tile.blocks], "mask") for memory in program.stores),
    ]
    return HEAD + "\n".join(["def epilogue(acc, m, n, mask, pointers):", *indented(lines), ""])
