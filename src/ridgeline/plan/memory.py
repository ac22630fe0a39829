"""Memory: lifetimes to offsets in one arena, views and in-place results shared, every byte accounted for.

Pure arithmetic over specs; tensors are made from it by the runtime.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from ridgeline.base.spec import TensorSpec
from ridgeline.plan.plan import Block, Memory

ALIGNMENT = 64


@dataclass(frozen=True)
class StepIO:
    """What a step reads and writes, as far as memory is concerned."""

    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    writes_out: bool  # False: a library allocates the outputs
    in_place: bool = False
    views: tuple[tuple[str, str, int], ...] = ()  # (value, what it looks at, first element): moves nothing
    joins: tuple[tuple[str, int], ...] = ()  # (input, first element): inputs written straight into the output


@dataclass
class ArenaLayout:
    """Where each value lies at one set of shapes."""

    offsets: dict[str, int] = field(default_factory=dict)  # arena values: bytes from its start
    aliases: dict[str, tuple[str, int]] = field(default_factory=dict)  # value -> (root value, first element)
    joined: set[str] = field(default_factory=set)  # concats whose parts are written in place
    library: set[str] = field(default_factory=set)
    arena_bytes: int = 0
    lifetimes: dict[str, tuple[int, int]] = field(default_factory=dict)
    order: StreamOrder | None = None  # None: one step after the other

    def root(self, value: str) -> tuple[str, int]:
        """The value that owns the memory, and where in it this one begins, in elements."""
        first = 0
        while value in self.aliases:
            value, more = self.aliases[value]
            first += more
        return value, first

    def live_together(self, one: str, other: str) -> bool:
        """Whether two root values may be in use at the same time."""
        if self.order is not None:
            return self.order.live_together(one, other)
        (first, last), (other_first, other_last) = self.lifetimes[one], self.lifetimes[other]
        return first <= other_last and other_first <= last

    def ends_at(self, root: str, step: int) -> bool:
        """Whether the step is the last to use the value, and all other uses are over when it begins."""
        if self.order is not None:
            return self.order.ends_at(root, step)
        return self.lifetimes[root][1] == step


@dataclass
class StreamOrder:
    """Which steps use each root value, and which steps are over when another begins; one bit a step.

    The run's end counts as one more step, behind all others.
    """

    before: Sequence[int]
    uses: dict[str, int] = field(default_factory=dict)
    _over: dict[str, int] = field(default_factory=dict)

    def ends_at(self, root: str, step: int) -> bool:
        mine = 1 << step
        return bool(self.uses[root] & mine) and not self.uses[root] & ~mine & ~self.before[step]

    def live_together(self, one: str, other: str) -> bool:
        return bool(self.uses[one] & ~self._over_at(other) and self.uses[other] & ~self._over_at(one))

    def _over_at(self, root: str) -> int:
        """Steps that are over before any use of the value."""
        if root not in self._over:
            over = -1
            for step, before in enumerate((*self.before, (1 << len(self.before)) - 1)):
                if self.uses[root] >> step & 1:
                    over &= before
            self._over[root] = over
        return self._over[root]


def lay_out(
    steps: Sequence[StepIO],
    specs: Mapping[str, TensorSpec],
    *,
    borders: Iterable[str],
    outputs: Sequence[str],
    before: Sequence[int] | None = None,
) -> ArenaLayout:
    """Place every value that some step makes. `borders` (inputs, weights, host values) lie elsewhere.

    `before`: for each step those that are over when it begins (`Schedule.before`), where steps run on several
    streams. Then two values share bytes only if every use of one is over before the other is made.
    """
    layout = ArenaLayout(order=None if before is None else StreamOrder(before))
    made_at: dict[str, int] = {}
    for i, step in enumerate(steps):
        made_at.update((name, i) for name in step.outputs)
        layout.aliases.update((value, (source, first)) for value, source, first in step.views)
        if not step.writes_out and not step.views:
            layout.library.update(step.outputs)
    outside = set(borders)
    for step in steps:
        if _can_join(step, layout, outside, made_at, outputs):
            layout.aliases.update((name, (step.outputs[0], first)) for name, first in step.joins)
            layout.joined.add(step.outputs[0])
    layout.lifetimes = _lifetimes(steps, layout, outputs)
    _share_in_place(steps, specs, layout, outside, outputs)
    needs = [
        (specs[name].nbytes, name)
        for name in made_at
        if name not in layout.aliases and name not in layout.library and name not in outside
    ]
    _place(needs, layout)
    return layout


def _can_join(
    step: StepIO, layout: ArenaLayout, outside: set[str], made: Collection[str], outputs: Sequence[str]
) -> bool:
    """A concat costs nothing when each part is written by its own step, used as it is, and only once here."""
    names = [name for name, _ in step.joins]
    if not names or len(set(names)) < len(names):
        return False
    if any(name not in made or name in outside or name in layout.library for name in names):
        return False
    return not any(name in layout.aliases or name in outputs for name in names)


def _lifetimes(
    steps: Sequence[StepIO], layout: ArenaLayout, outputs: Sequence[str]
) -> dict[str, tuple[int, int]]:
    """First and last step of each root value, all its aliases counted in."""
    spans: dict[str, tuple[int, int]] = {}
    uses = [(name, i) for i, step in enumerate(steps) for name in (*step.inputs, *step.outputs) if name]
    uses += [(name, len(steps)) for name in outputs]
    for name, at in uses:
        root, _ = layout.root(name)
        first, last = spans.get(root, (at, at))
        spans[root] = (min(first, at), max(last, at))
        if layout.order is not None:
            layout.order.uses[root] = layout.order.uses.get(root, 0) | 1 << at
    return spans


def _share_in_place(
    steps: Sequence[StepIO],
    specs: Mapping[str, TensorSpec],
    layout: ArenaLayout,
    outside: set[str],
    outputs: Sequence[str],
) -> None:
    """A step that may write over an input does so, when that input ends there and has the same spec."""
    for i, step in enumerate(steps):
        if not step.in_place or len(step.outputs) != 1 or step.outputs[0] in layout.aliases:
            continue
        result = step.outputs[0]
        for name in step.inputs:
            root, _ = layout.root(name) if name else ("", 0)
            if root != name or name in outside or name in layout.library or name not in specs:
                continue
            if specs[name] != specs[result] or not layout.ends_at(root, i) or step.inputs.count(name) != 1:
                continue
            if any(layout.root(other)[0] == root for other in step.inputs if other and other != name):
                continue
            first, last = layout.lifetimes[result]
            layout.aliases[result] = (root, 0)
            layout.lifetimes[root] = (min(layout.lifetimes[root][0], first), last)
            if layout.order is not None:
                layout.order.uses[root] |= layout.order.uses[result]
            break


def _place(needs: list[tuple[int, str]], layout: ArenaLayout) -> None:
    """Greedy by size: the largest first, each in the lowest gap that no living neighbour takes."""
    placed: list[tuple[int, int, str]] = []  # offset, end, value
    for nbytes, name in sorted(needs, key=lambda need: (-need[0], need[1])):
        size = aligned(nbytes)
        offset = 0
        for begin, end, other in sorted(placed):
            if not layout.live_together(name, other):
                continue
            if begin - offset >= size:
                break
            offset = max(offset, end)
        placed.append((offset, offset + size, name))
        layout.offsets[name] = offset
    layout.arena_bytes = max((end for _, end, _ in placed), default=0)


def aligned(nbytes: int) -> int:
    return math.ceil(nbytes / ALIGNMENT) * ALIGNMENT


def account(
    layout: ArenaLayout,
    steps: Sequence[StepIO],
    specs: Mapping[str, TensorSpec],
    *,
    io_bytes: int,
    weight_bytes: int,
    packed_bytes: int,
) -> Memory:
    """The layout in figures, for the plan and for people."""
    blocks = []
    library_live = [0] * (len(steps) + 1)
    live = [0] * len(steps)
    for name, (first, last) in layout.lifetimes.items():
        spec = specs.get(name)
        if spec is None or (name not in layout.offsets and name not in layout.library):
            continue
        for i in range(first, min(last, len(steps) - 1) + 1):
            if name in layout.library:
                library_live[i] += spec.nbytes
            live[i] += spec.nbytes
        kind = "library" if name in layout.library else "arena"
        offset = layout.offsets.get(name, 0)
        blocks.append(Block(name, str(spec), spec.nbytes, kind, offset, "", first, last))
    for name in layout.aliases:
        root, first_element = layout.root(name)
        spec = specs.get(name)
        if spec is not None:
            blocks.append(Block(name, str(spec), spec.nbytes, "view", first_element, root))
    return Memory(
        arena_bytes=layout.arena_bytes,
        unshared_bytes=sum(aligned(specs[n].nbytes) for n in layout.offsets),
        io_bytes=io_bytes,
        weight_bytes=weight_bytes,
        packed_bytes=packed_bytes,
        library_bytes=max(library_live, default=0),
        live_bytes=tuple(live),
        blocks=tuple(sorted(blocks, key=lambda b: (b.first, b.value))),
    )
