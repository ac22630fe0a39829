"""What ops that move elements do, read once: which element of an input each element of a result is.

`moves_of` describes such an op at known shapes, axis by axis: a `Run` of places along an axis of the result
reads places a constant step apart along an axis of an input; places that no run covers hold the fill value.
Views, copies in C++, generated kernels, attention and padding are read from it, or from the readers of single
ops (`cuts`, `parts`, `pads`), and the shape checks of `op_rules` from the same readers. All of them raise
`MisfitError` if operands contradict one another. If a number is not known, readers of single ops raise
`NotKnownError` and the others return None.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np

from ridgeline.ir.op_given import Given, MisfitError, NotKnownError, Shape, placed_axis

Numbers: TypeAlias = Sequence[int]


@dataclass(frozen=True)
class Run:
    """Places of one axis of the result from `to` on that read an input axis from `start` on, by `step`."""

    to: int
    start: int
    step: int
    count: int


@dataclass(frozen=True)
class Move:
    """Elements of one input as elements of one output."""

    runs: tuple[tuple[Run, ...], ...]  # by axis of the input
    axes: tuple[int | None, ...]  # of the result, by axis of the input; None for an axis that is dropped
    source: int = 0  # place among the op's inputs
    result: int = 0  # place among its outputs
    is_reshape: bool = False  # all elements in the same order; there are no runs then

    @property
    def order(self) -> tuple[int, ...]:
        """For each axis of the result the axis of the input, of a move that drops and adds none."""
        return tuple(self.axes.index(axis) for axis in range(len(self.axes)))

    def first(self, shape: Shape, *, in_result: bool = False) -> int | None:
        """The first element, counted in the input's (or result's) own order, if its elements follow one
        another there; None if they do not."""
        if self.is_reshape:
            return 0
        if self.axes != tuple(range(len(shape))):
            return None
        first = 0
        for axis, (runs, size) in enumerate(zip(self.runs, shape, strict=True)):
            if len(runs) != 1 or runs[0].step != 1:
                return None
            if runs[0].count != size and math.prod(shape[:axis]) != 1:
                return None  # other axes lie outside of it
            first += (runs[0].to if in_result else runs[0].start) * math.prod(shape[axis + 1 :])
        return first

    def narrowed(self, shape: Shape) -> tuple[int, int, int] | None:
        """Axis, start and length, if all that a move does is to take some places in a row of one axis."""
        if self.is_reshape or self.axes != tuple(range(len(shape))):
            return None
        cut = [axis for axis, runs in enumerate(self.runs) if runs != (Run(0, 0, 1, shape[axis]),)] or [0]
        runs = self.runs[cut[0]] if shape else ()
        if len(cut) != 1 or len(runs) != 1 or runs[0].step != 1:
            return None
        return cut[0], runs[0].start, runs[0].count


def moves_of(given: Given) -> tuple[Move, ...] | None:
    """Everything that the op moves; None for an op that is not movement, or whose operands are not known."""
    read = _READERS.get(given.op.key)
    is_known = all(
        shape is not None for name, shape in zip(given.op.inputs, given.shapes, strict=True) if name
    )
    try:
        return read(given) if read is not None and is_known else None
    except NotKnownError:
        return None


def _whole(shape: Shape) -> list[tuple[Run, ...]]:
    return [(Run(0, 0, 1, size),) for size in shape]


def _move(runs: Sequence[tuple[Run, ...]], *, source: int = 0, result: int = 0) -> Move:
    return Move(tuple(runs), tuple(range(len(runs))), source, result)


def _reshape(given: Given) -> tuple[Move, ...]:
    return (Move((), (), is_reshape=True),)


def order(given: Given) -> Shape:
    """For each axis of a Transpose's result the axis of its input."""
    rank = len(given.shape(0))
    found = given.integers("perm", tuple(reversed(range(rank))))
    if sorted(found) != list(range(rank)):
        raise MisfitError(f"perm {list(found)} of {rank} axes")
    return found


def _transpose(given: Given) -> tuple[Move, ...]:
    found = order(given)
    return (Move(tuple(_whole(given.shape(0))), tuple(found.index(axis) for axis in range(len(found)))),)


def cut_places(
    sizes: Sequence[int | None], starts: Numbers, ends: Numbers, axes: Numbers, steps: Numbers
) -> dict[int, range]:
    """The places that a Slice takes along each axis it names; `axes` and `steps` are empty if it has none."""
    axes, steps = axes or range(len(starts)), steps or (1,) * len(starts)
    if not len(starts) == len(ends) == len(axes) == len(steps):
        raise MisfitError("starts, ends, axes and steps differ in number")
    taken: dict[int, range] = {}
    for start, end, axis, step in zip(starts, ends, axes, steps, strict=True):
        if not step:
            raise MisfitError("a step is zero")
        place = placed_axis(axis, len(sizes))
        size = sizes[place]
        if size is None:
            raise NotKnownError
        taken[place] = taken.get(place, range(size))[start:end:step]
    return taken


def as_slice(places: range) -> slice:
    """The places as numpy takes them: a stop before the first element is written as None."""
    return slice(places.start, None if places.stop < 0 else places.stop, places.step)


def cuts(given: Given) -> dict[int, range]:
    """The places that a Slice takes along each axis it names."""
    listed = [given.listed(i, name) for i, name in enumerate(("starts", "ends", "axes", "steps"), 1)]
    return cut_places(given.shape(0), *listed)


def _slice(given: Given) -> tuple[Move, ...]:
    runs = _whole(given.shape(0))
    for axis, places in cuts(given).items():
        runs[axis] = (Run(0, places.start, places.step, len(places)),)
    return (_move(runs),)


def parts(given: Given) -> tuple[int, Shape]:
    """The axis of a Split, and how long each of its parts is."""
    shape, count = given.shape(0), len(given.op.outputs)
    if not shape:
        raise MisfitError("a scalar is split")
    axis = given.axis("axis", 0, len(shape))
    made = [made for made in given.made if made is not None and len(made) == len(shape)]
    if given.has(1) and 1 not in given.values and len(made) == len(given.made):
        # known to the run alone: what the outputs are must still add up
        sizes = tuple(part[axis] for part in made)
    else:
        sizes = given.listed(1, "split")
    if not sizes:
        piece = -(-shape[axis] // max(count, 1))
        sizes = tuple(min(piece, max(shape[axis] - i * piece, 0)) for i in range(count))
    if len(sizes) != count or sum(sizes) != shape[axis] or any(size < 0 for size in sizes):
        raise MisfitError(f"parts {list(sizes)} of {shape[axis]} items in {count} outputs")
    return axis, sizes


def _split(given: Given) -> tuple[Move, ...]:
    (axis, sizes), made = parts(given), []
    for place, size in enumerate(sizes):
        runs = _whole(given.shape(0))
        runs[axis] = (Run(0, sum(sizes[:place]), 1, size),)
        made.append(_move(runs, result=place))
    return tuple(made)


def joined_axis(given: Given) -> int:
    """The axis of a Concat, whose parts agree in all others."""
    first, *rest = [shape for shape in given.shapes if shape is not None] or [()]
    if not first:
        raise MisfitError("nothing to concatenate")
    axis = given.axis("axis", 0, len(first))
    for shape in rest:
        if shape[:axis] != first[:axis] or shape[axis + 1 :] != first[axis + 1 :]:
            raise MisfitError(f"{list(first)} and {list(shape)} differ beside axis {axis}")
    return axis


def _concat(given: Given) -> tuple[Move, ...]:
    axis, first, made = joined_axis(given), 0, []
    for place, shape in enumerate(given.shapes):
        if shape is not None:
            runs = _whole(shape)
            runs[axis] = (Run(first, 0, 1, shape[axis]),)
            made.append(_move(runs, source=place))
            first += shape[axis]
    return tuple(made)


def pads(given: Given) -> dict[int, tuple[int, int]]:
    """How much a Pad adds before and after each axis it names; less than nothing where it cuts."""
    rank, listed = len(given.shape(0)), given.listed(1, "pads")
    placed = [placed_axis(a, rank) for a in (given.numbers(3) if given.has(3) else range(rank))]
    if len(listed) != 2 * len(placed) or len(set(placed)) != len(placed):
        raise MisfitError(f"{len(listed)} pads for {len(placed)} axes")
    return dict(zip(placed, zip(listed[: len(placed)], listed[len(placed) :], strict=True), strict=True))


def _pad(given: Given) -> tuple[Move, ...] | None:
    added, mode, runs = pads(given), given.text("mode", "constant"), _whole(given.shape(0))
    if mode not in _PADDED:
        return None
    for axis, (before, after) in added.items():
        size = given.shape(0)[axis]
        # what is cut away is not there to be repeated
        first, past = max(-before, 0), size - max(-after, 0)
        if mode != "constant" and past <= first:
            raise MisfitError("an axis has no elements")
        read = _PADDED[mode](np.arange(-before, size + after) - first, past - first)
        runs[axis] = tuple(runs_of(np.where(read < 0, read, read + first)))
    return (_move(runs),)


def _reflected(places: np.ndarray, size: int) -> np.ndarray:
    if size == 1:
        return np.zeros_like(places)
    turned = places % (2 * size - 2)
    return np.where(turned < size, turned, 2 * size - 2 - turned)


# from places relative to the input's first item to the items they read; -1: none
_PADDED: Mapping[str, Callable[[np.ndarray, int], np.ndarray]] = {
    "constant": lambda places, size: np.where((places >= 0) & (places < size), places, -1),
    "edge": lambda places, size: places.clip(0, size - 1),
    "wrap": lambda places, size: places % size,
    "reflect": _reflected,
}


def runs_of(read: np.ndarray) -> Iterable[Run]:
    """Places in a row that read items at one distance from each other; a place below zero reads nothing."""
    first = 0
    while first < len(read):
        step = int(read[first + 1] - read[first]) if first + 1 < len(read) else 1
        last = first + 1
        if read[first] < 0:
            first += 1
            continue
        while last < len(read) and read[last] >= 0 and read[last] - read[last - 1] == step:
            last += 1
        yield Run(first, int(read[first]), step, last - first)
        first = last


def _gather(given: Given) -> tuple[Move, ...]:
    """At places that are known beforehand: one, whose axis is then dropped, or a list of them."""
    shape, places = given.shape(0), given.numbers(1)
    axis = given.axis("axis", 0, len(shape))
    if any(not -shape[axis] <= place < shape[axis] for place in places):
        raise MisfitError("a place lies outside its axis")
    runs = _whole(shape)
    runs[axis] = tuple(runs_of(np.array([place % shape[axis] for place in places], np.int64)))
    if given.shape(1):
        return (_move(runs),)
    axes = [None if d == axis else d - (d > axis) for d in range(len(shape))]
    return (Move(tuple(runs), tuple(axes)),)


_READERS: Mapping[str, Callable[[Given], tuple[Move, ...] | None]] = {
    **dict.fromkeys(("Reshape", "Flatten", "Squeeze", "Unsqueeze", "Identity"), _reshape),
    "Transpose": _transpose, "Slice": _slice, "Split": _split, "Concat": _concat, "Pad": _pad,
    "Gather": _gather,
}  # fmt: skip
