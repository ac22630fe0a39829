"""A search for input shapes where no common guess fits: one axis at a time, by how far the model then gets.

Files name dims carelessly (one name for two sizes) or not at all. What an axis must be follows from the
weights that it meets, so their sizes are tried first.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from time import perf_counter

from torch import Tensor

from ridgeline.base.spec import Port, TensorSpec
from ridgeline.errors import InputError
from ridgeline.ir.infer import Inferred
from ridgeline.runtime.inference import Inference

Shapes = Mapping[str, TensorSpec]
# sizes, trials and time worth spending on a model whose shapes nobody gave
MOST_SIZES, MOST_TRIALS, MOST_SECONDS = 16, 400, 10.0
COMMON = (64, 32, 4, 2, 80, 3, 1)
# for axes that were guessed to be 1: reflected borders, windows and the like need a few rows
LARGER, MOST_ELEMENTS = (4, 16, 64, 256), 1 << 20


class ShapeSearch:
    """Shapes that settle, from the start that gets furthest on; whoever iterates says which are refused."""

    def __init__(self, ports: Sequence[Port], starts: Sequence[Shapes], inference: Inference) -> None:
        self._places, self._starts = _places(ports), starts
        self._inference = inference
        self._end = math.inf
        self.is_cut_short = False

    def __iter__(self) -> Iterator[dict[str, TensorSpec]]:
        self._end = perf_counter() + MOST_SECONDS
        if self._places:
            for shapes in self._found():
                yield shapes
                if self._is_late():
                    return

    def _found(self) -> Iterator[dict[str, TensorSpec]]:
        reached = [(self._reach(start), start) for start in self._starts]
        partly = [(count, start) for (count, is_whole), start in reached if not is_whole]
        if partly:
            yield from self._further(*max(partly, key=lambda pair: pair[0]))
        # shapes that settle and that the model refuses all the same give no direction
        for (_, is_whole), start in reached:
            if is_whole:
                yield from self._larger(start)

    def _further(self, far: int, first: Shapes) -> Iterator[dict[str, TensorSpec]]:
        """From shapes of which `far` values settle: one size after the other that settles more."""
        best, left = dict(first), MOST_TRIALS
        trials = [(place, size) for place in self._places for size in _sizes(self._inference.weights)]
        while True:
            for place, size in trials:
                trial = _with_size(best, place, size)
                if trial == best:
                    continue
                left -= 1
                count, is_whole = self._reach(trial)
                if is_whole:
                    yield trial
                    yield from self._larger(trial)
                elif count > far:
                    best, far = trial, count
                    break
                if not left or self._is_late():
                    return
            else:
                return

    def _larger(self, shapes: Shapes) -> Iterator[dict[str, TensorSpec]]:
        """The same with more than one row where there was one."""
        ones = [place for place in self._places if all(shapes[n].shape[axis] == 1 for n, axis in place)]
        for size in LARGER if ones else ():
            made = dict(shapes)
            for place in ones:
                made = _with_size(made, place, size)
            if sum(spec.numel for spec in made.values()) <= MOST_ELEMENTS:
                yield made

    def _reach(self, shapes: Shapes) -> tuple[int, bool]:
        """How many values are settled before something does not fit, and whether all are."""
        into = Inferred()
        try:
            return len(self._inference.at(shapes, into).specs), True
        except InputError:
            return len(into.specs), False

    def _is_late(self) -> bool:
        self.is_cut_short = perf_counter() > self._end
        return self.is_cut_short


def _places(ports: Sequence[Port]) -> list[tuple[tuple[str, int], ...]]:
    """Open axes: those of one name together, then each alone."""
    named: dict[str, list[tuple[str, int]]] = {}
    for port in ports:
        for axis, dim in enumerate(port.dims or ()):
            if isinstance(dim, str):
                named.setdefault(dim, []).append((port.name, axis))
    together = [tuple(axes) for axes in named.values()]
    alone = [(axis,) for axes in together if len(axes) > 1 for axis in axes]
    return [*together, *alone]


def _sizes(weights: Mapping[str, Tensor]) -> list[int]:
    """The sizes that most weights have, then common ones; 1 last, since it fits where others are meant."""
    counts = Counter(size for tensor in weights.values() for size in set(tensor.shape) if size > 1)
    return list(dict.fromkeys([*(size for size, _ in counts.most_common(MOST_SIZES)), *COMMON]))


def _with_size(shapes: Shapes, place: Sequence[tuple[str, int]], size: int) -> dict[str, TensorSpec]:
    made = dict(shapes)
    for name, axis in place:
        shape = made[name].shape
        made[name] = replace(made[name], shape=(*shape[:axis], size, *shape[axis + 1 :]))
    return made
