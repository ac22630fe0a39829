"""Axes of a loop nest while a body is lowered: which are the same, and which are split into others."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import TypeAlias

from ridgeline.base.choices import RefusedError

ONE = -1  # the axis of a dim of size one

Coordinate: TypeAlias = tuple[tuple[int, int], ...]  # axes with their multipliers: the sum is an index


class Axes:
    """Axes by number. Equal ones share a root; a root may be split, outermost part first."""

    def __init__(self) -> None:
        self._parent: list[int] = []
        self._sizes: list[int] = []
        self._parts: dict[int, tuple[int, ...]] = {}  # of roots

    def fresh(self, size: int) -> int:
        self._parent.append(len(self._parent))
        self._sizes.append(size)
        return len(self._parent) - 1

    def size(self, axis: int) -> int:
        return 1 if axis == ONE else self._sizes[axis]

    def sizes_of(self, axes: Iterable[int]) -> tuple[int, ...]:
        return tuple(map(self.size, axes))

    def root(self, axis: int) -> int:
        while self._parent[axis] != axis:
            axis = self._parent[axis]
        return axis

    def leaves(self, axis: int) -> tuple[int, ...]:
        """The axes that it consists of in the end; itself where it was never split."""
        root = self.root(axis)
        parts = self._parts.get(root)
        return (root,) if parts is None else tuple(leaf for part in parts for leaf in self.leaves(part))

    def all_leaves(self, axes: Iterable[int]) -> frozenset[int]:
        return frozenset(leaf for axis in axes if axis != ONE for leaf in self.leaves(axis))

    def unite(self, a: int, b: int) -> None:
        """From here on the two are one."""
        a, b = self.root(a), self.root(b)
        if a == b:
            return
        if self._sizes[a] != self._sizes[b]:
            raise RefusedError(f"axes of {self._sizes[a]} and {self._sizes[b]} items meet")
        if a in self._parts and b in self._parts:
            ours, theirs = self.leaves(a), self.leaves(b)
            if self.sizes_of(ours) != self.sizes_of(theirs):
                raise RefusedError("an axis is split in two ways")
            for one, other in zip(ours, theirs, strict=True):
                self.unite(one, other)
            return
        # a split axis keeps its parts; else the older one stays
        keep, drop = (a, b) if a in self._parts or (b not in self._parts and a < b) else (b, a)
        self._parent[drop] = keep

    def split(self, axis: int, sizes: Sequence[int]) -> tuple[int, ...]:
        """The parts of an axis, outermost first."""
        if len(sizes) == 1:
            return (axis,)
        root = self.root(axis)
        parts = tuple(self.fresh(size) for size in sizes)
        if root in self._parts:
            self.unite(root, self.joined(parts))
        else:
            self._parts[root] = parts
        return parts

    def joined(self, parts: Sequence[int]) -> int:
        """One axis that consists of these, outermost first."""
        if len(parts) == 1:
            return parts[0]
        whole = self.fresh(math.prod(map(self.size, parts)))
        self._parts[whole] = tuple(parts)
        return whole

    def spread(self, strides: Mapping[int, int]) -> dict[int, int]:
        """Strides by axes as strides by leaves."""
        return {leaf: step for axis, stride in strides.items() for leaf, step in self._spread(axis, stride)}

    def coordinate(self, terms: Coordinate) -> Coordinate:
        return tuple(pair for axis, factor in terms for pair in self._spread(axis, factor))

    def _spread(self, axis: int, stride: int) -> list[tuple[int, int]]:
        found = []
        for leaf in reversed(self.leaves(axis)):
            found.append((leaf, stride))
            stride *= self._sizes[leaf]
        return found[::-1]

    def reshaped(self, axes: Sequence[int], sizes: Sequence[int]) -> list[int]:
        """These axes, none of size one, as axes of the given sizes: split and joined as needed."""
        pieces = _refine(self.sizes_of(axes), sizes)
        parts: list[int] = []
        at = 0
        for axis in axes:
            count = _span(pieces, at, self.size(axis))
            parts += self.split(axis, pieces[at : at + count])
            at += count
        made, at = [], 0
        for size in sizes:
            count = _span(pieces, at, size)
            made.append(self.joined(parts[at : at + count]))
            at += count
        return made


def _span(pieces: Sequence[int], at: int, size: int) -> int:
    """How many pieces from `at` make up `size`."""
    count = 1
    while math.prod(pieces[at : at + count]) != size:
        count += 1
    return count


def _refine(before: Sequence[int], after: Sequence[int]) -> list[int]:
    """Sizes that both shapes are made of, or `RefusedError` where an item's place would need a remainder."""
    left, right, pieces = list(before), list(after), []
    while left and right:
        a, b = left.pop(), right.pop()
        piece = min(a, b)
        if piece == 0 or a % piece or b % piece:
            raise RefusedError(f"a reshape from {list(before)} to {list(after)} items cuts across axes")
        pieces.append(piece)
        if a > piece:
            left.append(a // piece)
        if b > piece:
            right.append(b // piece)
    return pieces[::-1]
