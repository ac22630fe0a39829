"""How many bytes a program touches behind each pointer; computed from its loops, not from any shape."""

from __future__ import annotations

from ridgeline.base.choices import RefusedError
from ridgeline.base.spec import ITEM_BITS
from ridgeline.kernels.scalar.program import Guard, Memory, Number, Program, Term


def extents_of(program: Program) -> dict[str, int]:
    """Bytes from each pointer to the last that is touched; `RefusedError` if one before it is touched.

    The program's own constants are checked here.
    """
    found = dict(program.touched)
    for memory in program.memories:
        low, past = _reach(memory, program)
        if low < 0:
            raise RefusedError(f"a load starts {-low} items before its tensor")
        found[memory.pointer] = max(found.get(memory.pointer, 0), past * ITEM_BITS[memory.dtype] // 8)
    own = {f"x{i}": array.nbytes for i, array in enumerate(program.extras)}
    own |= {f"t{i}": len(table) * ITEM_BITS[table[0].dtype] // 8 for i, table in enumerate(program.tables)}
    for pointer, held in own.items():
        if found.get(pointer, 0) > held:
            raise RefusedError(f"{found[pointer]} bytes of a constant are read, it has {held}")
    return found


def by_argument(found: dict[str, int], inputs: tuple[int, ...], count: int) -> dict[int, int]:
    """Extents of pointers as those of a launch's arguments: the region's `count` inputs, then its outputs."""
    slots = {f"p{i}": place for i, place in enumerate(inputs)}
    slots |= {pointer: count + int(pointer[1:]) for pointer in found if pointer.startswith("q")}
    return {slots[pointer]: size for pointer, size in found.items() if pointer in slots}


def _reach(memory: Memory, program: Program) -> tuple[int, int]:
    """The first item that is touched, and the one past the last; (0, 0) if none is."""
    strides = dict(memory.strides)
    spans: list[tuple[int, int, int]] = []  # stride, first and last index
    for guard in memory.guards:
        unit = _unit(guard, strides)
        if unit is not None:
            ends = [factor * (program.sizes[axis] - 1) for axis, factor in guard.coordinate]
            bottom, top = sum(min(end, 0) for end in ends), sum(max(end, 0) for end in ends)
            spans.append((unit, max(guard.low, bottom), min(guard.high - 1, top)))
            for axis, _ in guard.coordinate:
                del strides[axis]
    spans += [(stride, 0, program.sizes[axis] - 1) for axis, stride in strides.items()]
    spans += [(stride, 0, _axis_size(program, index) - 1) for index, stride in memory.gathers]
    if any(last < first for _, first, last in spans):
        return 0, 0
    low = memory.offset + sum(min(stride * first, stride * last) for stride, first, last in spans)
    high = memory.offset + sum(max(stride * first, stride * last) for stride, first, last in spans)
    return low, high + 1


def _unit(guard: Guard, strides: dict[int, int]) -> int | None:
    """The stride of a guarded coordinate; None if its axes have no common stride."""
    units = {strides.get(axis, 0) / factor for axis, factor in guard.coordinate}
    unit = units.pop() if len(units) == 1 else 0.5
    return int(unit) if unit == int(unit) and all(axis in strides for axis, _ in guard.coordinate) else None


def _axis_size(program: Program, index: Term) -> int:
    """The size of the axis that an index is clamped to."""
    step = next((step for step in program.steps if step.name == index), None)
    # the last operand of both
    is_clamped = step is not None and step.template.startswith(("rl_place(", "rl_part("))
    size = step.args[-1] if step is not None and is_clamped else None
    if not isinstance(size, Number):
        raise RefusedError("an index is not kept inside its axis")
    return int(size.value)
