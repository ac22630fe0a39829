"""What a plan pays beside its arithmetic: fusions that were refused, and steps that only move elements."""

from __future__ import annotations

from dataclasses import dataclass

from ridgeline.analyze.findings.rates import run_us, step_us
from ridgeline.base.ceilings import Ceilings
from ridgeline.plan.plan import Plan

# result elements are operand elements at other places, as the op table has it
MOVES = frozenset({
    "Reshape", "Squeeze", "Unsqueeze", "Flatten", "Identity", "Transpose", "Split", "Slice", "Concat",
    "Expand", "Gather", "Pad", "Tile",
})  # fmt: skip


@dataclass(frozen=True)
class MoveRow:
    """A step that computes nothing: it changes the order of elements, or picks some of them."""

    step: str
    ops: tuple[str, ...]
    nodes: tuple[str, ...]
    bytes: int
    us: float | None
    share: float | None  # of the whole run


def move_rows(plan: Plan) -> tuple[MoveRow, ...]:
    """Those that take time, the longest first; a view takes none and is left out."""
    total, blocks = run_us(plan), {block.value: block.kind for block in plan.memory.blocks}
    rows = []
    for step in plan.steps:
        us = step_us(step)
        is_view = all(blocks.get(name) == "view" for name in step.outputs)
        if set(step.op_types) <= MOVES and not is_view and us != 0:
            share = us / total if us is not None and total else None
            rows.append(MoveRow(step.name, step.op_types, step.sources, step.work.bytes, us, share))
    return tuple(sorted(rows, key=lambda row: -(row.us or 0.0)))


def refusal_us(bytes_lost: int | None, count: int, ceilings: Ceilings | None) -> float | None:
    """What values cost that crossed memory because fusions were refused, and their launches."""
    if bytes_lost is None or ceilings is None:
        return None
    return bytes_lost / ceilings.memory_bytes_per_us + count * ceilings.least_launch_us
