"""Slice, Split, Concat, Pad and Gather as copies of boxes of items, with strides on both sides."""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from ridgeline.base.choices import RefusedError
from ridgeline.base.spec import ITEM_BITS, Op, Site
from ridgeline.ir.moves import Run, moves_of
from ridgeline.ir.op_given import Given, MisfitError, given_of
from ridgeline.ir.ops import row_of
from ridgeline.kernels.cpp.loops import parallel
from ridgeline.kernels.cpp.operands import operands_of, spec_of
from ridgeline.kernels.cpp.prelude import PRELUDE
from ridgeline.kernels.elements import numpy_dtype
from ridgeline.kernels.scalar.program import Program

COPIES = ("Slice", "Split", "Concat", "Pad", "Gather")
ITEM_TYPES = {1: "unsigned char", 2: "unsigned short", 4: "unsigned", 8: "unsigned long long"}
# more boxes would make a long text that saves little
MOST_BOXES = 64


@dataclass(frozen=True)
class Box:
    """One copy; offsets and strides count items, outermost axis of the result first."""

    source: str
    result: str
    start: int
    to: int
    loops: tuple[tuple[int, int, int], ...]  # (count, stride read, stride written)


@dataclass(frozen=True)
class Moves:
    """All copies of one op. If they do not cover its result, it is first filled with `fill`."""

    boxes: tuple[Box, ...]
    fill: int | None = None  # the bits of an item


def find_moves(site: Site) -> Moves:
    """The copies of the site's one op, or `RefusedError`."""
    ops = site.body.ops
    if len(ops) != 1 or ops[0].key not in COPIES:
        raise RefusedError("the region is not one Slice, Split, Concat, Pad or Gather")
    op = ops[0]
    for name in (*op.inputs[:1], *site.body.outputs):
        spec = spec_of(site, name)
        if ITEM_BITS[spec.dtype] // 8 not in ITEM_TYPES or spec.dtype == "string":
            raise RefusedError(f"items are {spec.dtype}")
    boxes = _boxes(site, op)
    covered = sum(math.prod(count for count, _, _ in box.loops) for box in boxes)
    is_whole = op.op_type != "Pad" or covered == site.specs[op.outputs[0]].numel
    if len(boxes) > MOST_BOXES:
        raise RefusedError(f"{len(boxes)} pieces, want at most {MOST_BOXES}")
    return Moves(boxes, None if is_whole else _fill(site, op, spec_of(site, op.inputs[0]).dtype))


def _fill(site: Site, op: Op, dtype: str) -> int:
    """The bits of the value that constant padding writes."""
    name = op.inputs[2] if len(op.inputs) > 2 else ""
    if not name:
        return 0
    held = site.body.constants.get(name)
    array = held if held is not None else site.values.get(name)
    if array is None:
        raise RefusedError(f"{name} is known only when the region runs")
    return int.from_bytes(np.asarray(array).astype(numpy_dtype(dtype)).reshape(-1)[:1].tobytes(), "little")


def _boxes(site: Site, op: Op) -> tuple[Box, ...]:
    """A box for every combination of one run per axis."""
    given = given_of(site, op)
    try:
        moves = moves_of(given)
    except MisfitError as misfit:
        raise RefusedError(str(misfit)) from misfit
    if moves is None:
        raise RefusedError(_why_unknown(given, {**site.body.constants, **site.values}))
    made = []
    for move in moves:
        source, result = op.inputs[move.source], op.outputs[move.result]
        if result in site.body.outputs:
            choices = itertools.product(*move.runs)
            made += [_box(site, source, result, move.axes, choice) for choice in choices if all(
                run.count for run in choice)]  # fmt: skip
    return tuple(made)


def _why_unknown(given: Given, arrays: Mapping[str, np.ndarray]) -> str:
    """Why the moves of an op are not known."""
    op = given.op
    for place in row_of(op).shape_operands or (1,):
        name = op.inputs[place] if place < len(op.inputs) else ""
        if name and name not in arrays:
            return f"{name} is known only when the region runs"
        if name and len(given.shape(place)) > 1:
            return f"{name} has {len(given.shape(place))} axes, want at most 1"
    return f"{op.op_type} by mode {op.attrs.get('mode')}"


def _box(site: Site, source: str, result: str, axes: Sequence[int | None], choice: Sequence[Run]) -> Box:
    """The box of one run per axis, with the axes in the order of the result's memory."""
    read = spec_of(site, source).strides
    written = [0 if axis is None else site.specs[result].strides[axis] for axis in axes]
    start = sum(run.start * stride for run, stride in zip(choice, read, strict=True))
    to = sum(run.to * stride for run, stride in zip(choice, written, strict=True))
    order = sorted(range(len(choice)), key=lambda axis: -written[axis])
    loops = [(choice[a].count, choice[a].step * read[a], written[a]) for a in order]
    return Box(source, result, start, to, _merged(loops))


def _merged(loops: Sequence[tuple[int, int, int]]) -> tuple[tuple[int, int, int], ...]:
    """Merges a loop with the next one if it continues where that one ends."""
    made: list[tuple[int, int, int]] = []
    for count, read, written in loops:
        if count == 1:
            continue
        if made and made[-1][1] == read * count and made[-1][2] == written * count:
            count *= made.pop()[0]
        made.append((count, read, written))
    return tuple(made)


def moves_source(site: Site, moves: Moves, *, threads: int) -> tuple[Program, str]:
    """The program with the kernel's operands, and the kernel's text."""
    operands = operands_of(site, (box.source for box in moves.boxes))
    places = operands.places
    lines = [PRELUDE.strip(), 'extern "C" void run(void** p) {', "(void)p;"]
    if moves.fill is not None:
        for name in site.body.outputs:
            kind = ITEM_TYPES[ITEM_BITS[site.specs[name].dtype] // 8]
            count = site.specs[name].numel
            value = f"({kind}){moves.fill}ULL"
            lines.append(f"for (i64 i = 0; i < {count}; ++i) (({kind}*)p[{places[name]}])[i] = {value};")
    for box in moves.boxes:
        size = ITEM_BITS[site.specs[box.result].dtype] // 8
        lines += _box_text(box, places[box.source], places[box.result], size, threads)
    return operands.program(_touched(site, moves, operands.names)), "\n".join([*lines, "}", ""])


def _touched(site: Site, moves: Moves, pointers: Mapping[str, str]) -> dict[str, int]:
    """Bytes up to the last that a box touches; `RefusedError` if one before the tensor is touched."""
    found: dict[str, int] = {}
    if moves.fill is not None:
        found = {pointers[name]: site.specs[name].nbytes for name in site.body.outputs}
    for box in moves.boxes:
        size = ITEM_BITS[site.specs[box.result].dtype] // 8
        for name, start, strides in (
            (box.source, box.start, [(count, read) for count, read, _ in box.loops]),
            (box.result, box.to, [(count, written) for count, _, written in box.loops]),
        ):
            low = start + sum(min(0, (count - 1) * stride) for count, stride in strides)
            high = start + sum(max(0, (count - 1) * stride) for count, stride in strides)
            if low < 0:
                raise RefusedError(f"a copy starts {-low} items before its tensor")
            found[pointers[name]] = max(found.get(pointers[name], 0), (high + 1) * size)
    return found


def _box_text(box: Box, source: int, result: int, size: int, threads: int) -> list[str]:
    kind = ITEM_TYPES[size]
    head = [
        "{",
        f"const {kind}* from = (const {kind}*)p[{source}] + {box.start}LL;",
        f"{kind}* to = ({kind}*)p[{result}] + {box.to}LL;",
    ]
    is_solid = bool(box.loops) and box.loops[-1][1:] == (1, 1)
    outer = box.loops[:-1] if is_solid else box.loops
    read = " + ".join(f"i{n} * {loop[1]}LL" for n, loop in enumerate(outer)) or "0"
    written = " + ".join(f"i{n} * {loop[2]}LL" for n, loop in enumerate(outer)) or "0"
    loops = [f"for (i64 i{n} = 0; i{n} < {loop[0]}; ++i{n})" for n, loop in enumerate(outer)]
    if loops and threads > 1:
        loops.insert(0, parallel(1, threads))
    if is_solid:
        copy = f"__builtin_memcpy(to + {written}, from + {read}, {box.loops[-1][0] * size});"
    else:
        copy = f"to[{written}] = from[{read}];"
    return [*head, *loops, copy, "}"]
