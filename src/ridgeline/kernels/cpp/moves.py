"""Slice, Split, Concat, Pad and Gather as copies of boxes: items from strided places to strided places."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from ridgeline.base.spec import ITEM_BITS, Op, Site, TensorSpec
from ridgeline.kernels.cpp.loops import parallel
from ridgeline.kernels.cpp.prelude import PRELUDE
from ridgeline.kernels.elements import numpy_dtype
from ridgeline.kernels.scalar.axes import Refusal
from ridgeline.kernels.scalar.program import Program

ITEM_TYPES = {1: "unsigned char", 2: "unsigned short", 4: "unsigned", 8: "unsigned long long"}
# more pieces than this make a long text for little
MOST_BOXES = 64


@dataclass(frozen=True)
class Run:
    """Places of one output axis from `to` on that read an input axis from `start` on, by `step`."""

    to: int
    start: int
    step: int
    count: int


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
    """All copies of one op, after its results were filled with `fill` where it leaves places unread."""

    boxes: tuple[Box, ...]
    fill: int | None = None  # the bits of an item


def find_moves(site: Site) -> Moves:
    """What the site's one op copies, or `Refusal`."""
    ops = site.body.ops
    if len(ops) != 1 or ops[0].domain or ops[0].op_type not in _READERS:
        raise Refusal("the region is not one Slice, Split, Concat, Pad or Gather")
    op = ops[0]
    for name in (*op.inputs[:1], *site.body.outputs):
        spec = _spec(site, name)
        if ITEM_BITS[spec.dtype] // 8 not in ITEM_TYPES or spec.dtype == "string":
            raise Refusal(f"items are {spec.dtype}")
    found = _READERS[op.op_type](site, op)
    if len(found.boxes) > MOST_BOXES:
        raise Refusal(f"{len(found.boxes)} pieces, want at most {MOST_BOXES}")
    return found


def _spec(site: Site, name: str) -> TensorSpec:
    held = site.body.constants.get(name)
    if held is not None:
        return TensorSpec(str(held.dtype), held.shape)
    if name not in site.specs:
        raise Refusal(f"the shape of {name} depends on data")
    return site.specs[name]


def _known(site: Site, op: Op, index: int) -> list[int] | None:
    """The numbers of an input that says what is moved; None where it is absent."""
    name = op.inputs[index] if index < len(op.inputs) else ""
    if not name:
        return None
    held = site.body.constants.get(name)
    array = held if held is not None else site.values.get(name)
    if array is None:
        raise Refusal(f"{name} is known only when the region runs")
    return [int(i) for i in array.reshape(-1)]


def _slice(site: Site, op: Op) -> Moves:
    shape = _spec(site, op.inputs[0]).shape
    starts, ends, axes, steps = (_known(site, op, i) for i in (1, 2, 3, 4))
    if starts is None or ends is None:
        raise Refusal("Slice without bounds")
    runs = [[Run(0, 0, 1, size)] for size in shape]
    bounds = zip(starts, ends, axes or range(len(starts)), steps or [1] * len(starts), strict=True)
    for start, end, axis, step in bounds:
        taken = range(shape[axis])[start:end:step]
        runs[axis] = [Run(0, taken.start, step, len(taken))]
    return Moves(_boxes(site, op.inputs[0], op.outputs[0], runs))


def _split(site: Site, op: Op) -> Moves:
    shape = _spec(site, op.inputs[0]).shape
    axis, first = int(op.attrs.get("axis", 0)) % len(shape), 0
    boxes: list[Box] = []
    for name in op.outputs:
        if name not in site.specs:
            raise Refusal("a part is not used, its size is unknown")
        runs = [[Run(0, 0, 1, size)] for size in shape]
        size = site.specs[name].shape[axis]
        runs[axis] = [Run(0, first, 1, size)]
        first += size
        if name in site.body.outputs:
            boxes += _boxes(site, op.inputs[0], name, runs)
    return Moves(tuple(boxes))


def _concat(site: Site, op: Op) -> Moves:
    axis, first = int(op.attrs["axis"]), 0
    boxes: list[Box] = []
    for name in op.inputs:
        shape = _spec(site, name).shape
        runs = [[Run(0, 0, 1, size)] for size in shape]
        runs[axis] = [Run(first, 0, 1, shape[axis])]
        first += shape[axis]
        boxes += _boxes(site, name, op.outputs[0], runs)
    return Moves(tuple(boxes))


def _pad(site: Site, op: Op) -> Moves:
    mode = op.attrs.get("mode", "constant")
    spec = _spec(site, op.inputs[0])
    pads, axes = _known(site, op, 1), _known(site, op, 3)
    if pads is None or mode not in _PADDED:
        raise Refusal(f"Pad by mode {mode}")
    axes = list(range(len(spec.shape))) if axes is None else axes
    runs = [[Run(0, 0, 1, size)] for size in spec.shape]
    for place, axis in enumerate(axes):
        before, after, size = pads[place], pads[place + len(axes)], spec.shape[axis]
        # what is cut away is not there to be repeated
        first, past = max(-before, 0), size - max(-after, 0)
        if mode != "constant" and past <= first:
            raise Refusal("an axis has no elements")
        read = _PADDED[mode](np.arange(-before, size + after) - first, past - first)
        runs[axis] = _runs(np.where(read < 0, read, read + first))
    boxes = _boxes(site, op.inputs[0], op.outputs[0], runs)
    covered = sum(int(np.prod([count for count, _, _ in box.loops])) for box in boxes)
    is_whole = covered == site.specs[op.outputs[0]].numel
    return Moves(boxes, None if is_whole else _fill(site, op, spec.dtype))


def _gather(site: Site, op: Op) -> Moves:
    """At places that are known beforehand: one, whose axis then goes, or a list of them."""
    shape = _spec(site, op.inputs[0]).shape
    places, axis = _known(site, op, 1), int(op.attrs.get("axis", 0)) % len(shape)
    rank = len(_spec(site, op.inputs[1]).shape)
    if places is None or rank > 1:
        raise Refusal(f"places of rank {rank}, want at most 1")
    if any(not -shape[axis] <= place < shape[axis] for place in places):
        raise Refusal("a place lies outside its axis")
    runs = [[Run(0, 0, 1, size)] for size in shape]
    runs[axis] = _runs(np.array([place % shape[axis] for place in places]))
    return Moves(_boxes(site, op.inputs[0], op.outputs[0], runs, dropped=() if rank else (axis,)))


def _reflected(places: np.ndarray, size: int) -> np.ndarray:
    if size == 1:
        return np.zeros_like(places)
    turned = places % (2 * size - 2)
    return np.where(turned < size, turned, 2 * size - 2 - turned)


# from places relative to the input's first item to the items they read; -1: none
_PADDED: dict[str, Callable[[np.ndarray, int], np.ndarray]] = {
    "constant": lambda places, size: np.where((places >= 0) & (places < size), places, -1),
    "edge": lambda places, size: places.clip(0, size - 1),
    "wrap": lambda places, size: places % size,
    "reflect": _reflected,
}


def _fill(site: Site, op: Op, dtype: str) -> int:
    """The bits of the value that constant padding writes."""
    name = op.inputs[2] if len(op.inputs) > 2 else ""
    if not name:
        return 0
    held = site.body.constants.get(name)
    array = held if held is not None else site.values.get(name)
    if array is None:
        raise Refusal(f"{name} is known only when the region runs")
    return int.from_bytes(np.asarray(array).astype(numpy_dtype(dtype)).reshape(-1)[:1].tobytes(), "little")


def _runs(read: np.ndarray) -> list[Run]:
    """Places in a row that read items at one distance from each other."""
    runs: list[Run] = []
    first = 0
    while first < len(read):
        step = int(read[first + 1] - read[first]) if first + 1 < len(read) else 1
        last = first + 1
        if read[first] < 0:
            first += 1
            continue
        while last < len(read) and read[last] >= 0 and read[last] - read[last - 1] == step:
            last += 1
        runs.append(Run(first, int(read[first]), step, last - first))
        first = last
    return runs


def _boxes(
    site: Site, source: str, result: str, runs: Sequence[Sequence[Run]], *, dropped: Sequence[int] = ()
) -> tuple[Box, ...]:
    """A box for every choice of one run in each axis, its axes in the order of the result's memory."""
    read, written = _spec(site, source).strides, list(site.specs[result].strides)
    for axis in dropped:
        written.insert(axis, 0)
    order = sorted(range(len(runs)), key=lambda axis: -written[axis])
    made = []
    for choice in itertools.product(*runs):
        if any(run.count == 0 for run in choice):
            continue
        start = sum(run.start * read[axis] for axis, run in enumerate(choice))
        to = sum(run.to * written[axis] for axis, run in enumerate(choice))
        loops = [(choice[a].count, choice[a].step * read[a], written[a]) for a in order]
        made.append(Box(source, result, start, to, _merged(loops)))
    return tuple(made)


def _merged(loops: Sequence[tuple[int, int, int]]) -> tuple[tuple[int, int, int], ...]:
    """Loops that go on where the next one ends are one loop."""
    made: list[tuple[int, int, int]] = []
    for count, read, written in loops:
        if count == 1:
            continue
        if made and made[-1][1] == read * count and made[-1][2] == written * count:
            count *= made.pop()[0]
        made.append((count, read, written))
    return tuple(made)


_READERS: dict[str, Callable[[Site, Op], Moves]] = {
    "Slice": _slice, "Split": _split, "Concat": _concat, "Pad": _pad, "Gather": _gather,
}  # fmt: skip


def moves_source(site: Site, moves: Moves, *, threads: int) -> tuple[Program, str]:
    """The kernel's text, and which inputs and constants it is given."""
    sources = list(dict.fromkeys(box.source for box in moves.boxes))
    inputs = [name for name in sources if name in site.body.inputs]
    held = [name for name in sources if name not in inputs]
    places = {name: i for i, name in enumerate((*inputs, *site.body.outputs, *held))}
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
    slots = tuple(site.body.inputs.index(name) for name in inputs)
    arrays = tuple(np.ascontiguousarray(site.body.constants[name]) for name in held)
    pointers = [f"p{i}" for i in range(len(inputs))] + [f"q{i}" for i in range(len(site.body.outputs))]
    pointers += [f"x{i}" for i in range(len(held))]
    touched = _touched(site, moves, {name: pointers[place] for name, place in places.items()})
    program = Program({}, (), (), (), slots, (), arrays, touched)
    return program, "\n".join([*lines, "}", ""])


def _touched(site: Site, moves: Moves, pointers: Mapping[str, str]) -> dict[str, int]:
    """Bytes up to the last that a box reads or writes; `Refusal` for one before the first."""
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
                raise Refusal(f"a copy starts {-low} items before its tensor")
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
