"""Loop nests over a program's axes: their order, and which of them may be walked as one."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from ridgeline.kernels.scalar.program import Memory, Program


def memory_order(sizes: Mapping[int, int], lead: Memory) -> list[int]:
    """Axes from outermost to innermost as `lead` lies in memory; those it lacks come first."""
    return sorted(sizes, key=lambda axis: (axis in lead.strides, -lead.strides.get(axis, 0)))


def merged(order: Sequence[int], program: Program) -> list[list[int]]:
    """Groups of neighbours in this order that lie behind one another in every operand."""
    fixed = _coordinates(program)
    groups: list[list[int]] = []
    for axis in order:
        if (
            groups
            and axis not in fixed
            and groups[-1][-1] not in fixed
            and all(is_joined(m, groups[-1][-1], axis, program.sizes) for m in program.memories)
        ):
            groups[-1].append(axis)
        else:
            groups.append([axis])
    return groups


def is_joined(memory: Memory, outer: int, inner: int, sizes: Mapping[int, int]) -> bool:
    """Whether a step along `outer` goes just past the end of `inner`."""
    return memory.strides.get(outer, 0) == memory.strides.get(inner, 0) * sizes[inner]


def _coordinates(program: Program) -> set[int]:
    """Axes whose index is itself a value or a bound: they keep an index of their own."""
    terms: Iterable[tuple[int, int]] = [
        *(pair for step in program.steps for pair in step.coordinate),
        *(pair for m in program.loads for guard in m.guards for pair in guard.coordinate),
    ]
    return {axis for axis, _ in terms}
