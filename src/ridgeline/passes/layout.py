"""Layouts: which rank-4 values lie channels last. Decided from the graph alone, the same for every tactic.

Convolutions on the CPU run best on channels-last images, so what lies between them keeps that order;
the model's own inputs and outputs stay as users give and expect them.
"""

from __future__ import annotations

from dataclasses import replace

from ridgeline.passes.body import Program
from ridgeline.passes.op_kinds import KEEPS_LAYOUT
from ridgeline.passes.settle import Settled

CONVOLUTIONS = frozenset({"Conv", "ConvTranspose"})


def assign_layouts(program: Program, settled: Settled) -> None:
    """Mark specs channels_last in place."""
    last: set[str] = set()
    for region in program.regions:
        kinds = {op.op_type for op in region.body.ops}
        convolves = bool(kinds & CONVOLUTIONS)
        keeps = kinds <= KEEPS_LAYOUT and any(name in last for name in region.inputs)
        if not convolves and not keeps:
            continue
        ops, _ = program.flat_ops([region])
        for name in {n for op in ops for n in op.outputs} | set(region.outputs):
            spec = settled.specs.get(name)
            if spec is not None and len(spec.shape) == 4 and spec.is_float and name not in program.outputs:
                last.add(name)
    for name in last:
        settled.specs[name] = replace(settled.specs[name], layout="channels_last")
