"""Loop nests over a program's axes: their order, and which of them one loop can cover."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from ridgeline.kernels.scalar.program import Memory, Program


def memory_order(sizes: Mapping[int, int], lead: Memory) -> list[int]:
    """Axes from outermost to innermost in the memory of `lead`; axes that it lacks come first."""
    return sorted(sizes, key=lambda axis: (axis in lead.strides, -lead.strides.get(axis, 0)))


def merged(order: Sequence[int], program: Program) -> list[list[int]]:
    """Groups of neighbouring axes that one index can count: they are contiguous in every operand.

    An axis whose own index is needed stays alone.
    """
    alone = indexed_axes(program)
    groups: list[list[int]] = []
    for axis in order:
        outer = groups[-1][-1] if groups else None
        if outer is not None and not {outer, axis} & alone and _continue(outer, axis, program):
            groups[-1].append(axis)
        else:
            groups.append([axis])
    return groups


def _continue(outer: int, inner: int, program: Program) -> bool:
    """Whether a step along `outer` goes just past the end of `inner`, in every operand."""
    size = program.sizes[inner]
    return all(m.strides.get(outer, 0) == m.strides.get(inner, 0) * size for m in program.memories)


def indexed_axes(program: Program) -> set[int]:
    """Axes whose own index is a value, or a bound of a load."""
    guards = [guard.coordinate for memory in program.loads for guard in memory.guards]
    steps = [step.coordinate for step in program.steps]
    return {axis for coordinate in (*guards, *steps) for axis, _ in coordinate}
