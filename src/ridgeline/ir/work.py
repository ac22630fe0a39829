"""The single source of bytes and flops: what a body must move and compute at the least.

Tactic pruning, benchmarks and reports all count with this.
"""

from __future__ import annotations

from ridgeline.base.spec import Body, Op
from ridgeline.ir.op_row import Specs
from ridgeline.ir.ops import row_of

PICKS = ("Gather", "Slice")  # they read of their first input what they put out


def body_flops(body: Body, specs: Specs) -> int:
    return sum(op_flops(op, specs) for op in body.ops)


def body_bytes(body: Body, specs: Specs) -> int:
    """Inputs read once and outputs written once; what stays inside the region is free."""
    written = sum(specs[n].nbytes for n in body.outputs if n in specs)
    return written + sum(bytes_read(body, n, specs) for n in body.inputs if n in specs)


def bytes_read(body: Body, name: str, specs: Specs) -> int:
    """All of an input; where rows are looked up or cut out of it, no more than those."""
    readers = body.consumers(name)
    found = [op.outputs[0] for op in readers if op.op_type in PICKS and op.inputs[0] == name]
    is_table = bool(readers) and len(found) == len(readers) and all(n in specs for n in found)
    whole = specs[name].nbytes
    return min(whole, sum(specs[n].nbytes for n in found)) if is_table else whole


def op_flops(op: Op, specs: Specs) -> int:
    """0 if a shape is not known."""
    if any(n not in specs for n in (*op.inputs, *op.outputs) if n):
        return 0
    flops = row_of(op).flops
    if not isinstance(flops, int):
        return flops(op, specs)
    return flops * (specs[op.outputs[0]].numel if op.outputs and op.outputs[0] else 0)
