"""What a shape rule sees of one op, and what the rules share. The rules themselves are in `op_rules*`."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np

from ridgeline.base.spec import Op, Site, TensorSpec

Shape: TypeAlias = tuple[int, ...]


class MisfitError(Exception):
    """Operands that contradict one another, in words."""


class NotKnownError(Exception):
    """A rule needs what an operand holds, and only the run knows it."""

    def __init__(self) -> None:
        super().__init__("what its operands hold is not known")


@dataclass(frozen=True)
class Given:
    """What a rule sees of one op."""

    op: Op
    shapes: tuple[Shape | None, ...]  # of the inputs; None where one is absent
    made: tuple[Shape | None, ...]  # of the outputs; None where one is absent or not known
    values: Mapping[int, tuple[int, ...]]  # integers of inputs that are known before the run, by place

    def has(self, place: int) -> bool:
        return place < len(self.shapes) and self.shapes[place] is not None

    def shape(self, place: int) -> Shape:
        found = self.shapes[place] if place < len(self.shapes) else None
        if found is None:
            raise MisfitError(f"input {place} is missing")
        return found

    def integer(self, name: str, default: int) -> int:
        found = self.op.attrs.get(name, default)
        if not isinstance(found, int):
            raise MisfitError(f"{name} is {found!r}, want an integer")
        return found

    def integers(self, name: str, default: Shape) -> Shape:
        """A list with one number for each that `default` has."""
        found = self.op.attrs.get(name)
        if found is None or found == ():
            return default
        if not isinstance(found, tuple) or not all(isinstance(n, int) for n in found):
            raise MisfitError(f"{name} is {found!r}, want integers")
        if len(found) != len(default):
            raise MisfitError(f"{name} has {len(found)} numbers, want {len(default)}")
        return found

    def text(self, name: str, default: str) -> str:
        found = self.op.attrs.get(name, default)
        return found.decode("utf-8", "replace") if isinstance(found, bytes) else str(found)

    def axis(self, name: str, default: int, rank: int) -> int:
        return placed_axis(self.integer(name, default), rank)

    def numbers(self, place: int) -> Shape:
        """What an input holds; raises `NotKnownError` where that is not known before the run."""
        if place not in self.values:
            raise NotKnownError
        return self.values[place]

    def listed(self, place: int, name: str) -> Shape:
        """Numbers that are an input, or an attribute in old files; () where absent."""
        if self.has(place):
            return self.numbers(place)
        found = self.op.attrs.get(name, ())
        return tuple(int(n) for n in found) if isinstance(found, tuple) else ()


def given_at(op: Op, specs: Mapping[str, TensorSpec], arrays: Mapping[str, np.ndarray]) -> Given:
    """What is known of an op among values of these specs, of which some are known before the run."""

    def shape(name: str) -> Shape | None:
        if name in arrays:
            return tuple(arrays[name].shape)
        return specs[name].shape if name in specs else None

    values = {
        place: tuple(int(n) for n in arrays[name].reshape(-1))
        for place, name in enumerate(op.inputs)
        if name in arrays and arrays[name].dtype.kind in "iu" and arrays[name].ndim <= 1
    }
    made = tuple(specs[name].shape if name in specs else None for name in op.outputs)
    return Given(op, tuple(map(shape, op.inputs)), made, values)


def given_of(site: Site, op: Op) -> Given:
    """The same at a site."""
    return given_at(op, site.specs, {**site.values, **site.body.constants})


Rule: TypeAlias = Callable[[Given], Sequence[Shape | None]]


def placed_axis(axis: int, rank: int) -> int:
    if not -rank <= axis < rank:
        raise MisfitError(f"axis {axis} of {rank} axes")
    return axis % rank


def broadcast(*shapes: Shape) -> Shape:
    made = [1] * max((len(shape) for shape in shapes), default=0)
    for shape in shapes:
        for back, size in enumerate(reversed(shape), 1):
            if size not in (1, made[-back]) and made[-back] != 1:
                raise MisfitError(
                    "shapes " + " and ".join(str(list(s)) for s in shapes) + " do not broadcast"
                )
            made[-back] = size if size != 1 else made[-back]
    return tuple(made)


def require_into(given: Given, place: int, whole: Shape) -> None:
    """An operand that may be smaller than the whole, and never makes it larger."""
    if given.has(place) and broadcast(whole, given.shape(place)) != whole:
        raise MisfitError(f"input {place} of {list(given.shape(place))} does not broadcast to {list(whole)}")


def require_shape(given: Given, place: int, want: Shape) -> None:
    if given.has(place) and given.shape(place) != want:
        raise MisfitError(f"input {place} has shape {list(given.shape(place))}, want {list(want)}")
