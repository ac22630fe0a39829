"""What follows a product or convolution, as a generated function that a hand-written kernel calls.

The kernel passes a tile of sums with its rows and columns. The epilogue adds the anchor's own bias, computes
the rest of the region in float32 and stores every output.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
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
from ridgeline.kernels.scalar.program import Memory, Program
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


def _text(program: Program, rows: tuple[int, ...], column: tuple[int, ...], names: Sequence[str]) -> str:
    along_m, along_n = Flat("m", rows), Flat("n", column)
    sizes = program.sizes

    def terms(memory: Memory) -> list[str]:
        return [*along_m.offset(memory, sizes), *along_n.offset(memory, sizes)]

    def load(memory: Memory) -> str:
        mask = "mask"
        where = terms(memory)
        touches = touched_axes(program, memory)
        if not touches & {*rows, *column}:
            mask = ""
        elif not touches & set(rows):
            mask = f"n < {math.prod(sizes[axis] for axis in column)}"
        elif not touches & set(column):
            where.append("n * 0")
        return load_text(memory, where, mask, index)

    index = along_m.names() | along_n.names()
    scope = Scope(program, index, load)
    scope.known.add("acc")
    for memory in program.stores:
        scope.need(memory.value)
    wanted = indexed_axes(program)
    # makes the address of a single row or column a block
    blocks = [f"{flat.var} * 0" for flat in (along_m, along_n) if not flat.axes]
    lines = [
        *(f"{name} = pointers[{place}]" for place, name in enumerate(names)),
        *(["m, n = m.to(tl.int64), n.to(tl.int64)"] if is_wide(program) else []),
        *along_m.unpacked(sizes, wanted), *along_n.unpacked(sizes, wanted),
        *scope.take(),
        *(store_text(memory, [*terms(memory), *blocks], "mask") for memory in program.stores),
    ]  # fmt: skip
    return HEAD + "\n".join(["def epilogue(acc, m, n, mask, pointers):", *indented(lines), ""])
