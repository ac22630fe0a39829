"""Padding that cannot change results: which ops keep rows apart, op by op, and the first that does not.

A padded input repeats its last row, so a padded row is the copy of a real one and goes wherever that may go.
What is proved here is that no real row reads a padded one: every value has at most one axis whose tail is
padding, every op either carries that axis along or forbids the padding. What has no rule forbids it.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from ridgeline.base.spec import Body, Op
from ridgeline.ir.body import Program
from ridgeline.ir.infer import Inferred
from ridgeline.ir.ops import row_of
from ridgeline.passes.padding_rules import RULES, At, Forbidden, difference


def padded_axes(program: Program, real: Inferred, padded: Inferred) -> dict[str, int | None]:
    """For every output the axis to cut off again; `Forbidden` names the op that makes padding unsafe."""
    ops, constants = program.flat_ops(program.regions)
    found = [(name, difference(name, None, real, padded)) for name in program.inputs]
    found += [(name, _known_axis(name, real, padded)) for name in {*padded.values, *constants}]
    axes = {name: axis for name, axis in found if axis is not None}
    for op in ops:
        _walk(op, axes, real, padded)
    makers = {name: op for op in ops for name in op.outputs}
    for name in program.outputs:
        if _is_sized(name, axes, real, padded):
            raise Forbidden(makers.get(name), f"output {name!r} is a number that depends on the padded size")
    return {name: axes.get(name) for name in program.outputs}


def _walk(op: Op, axes: dict[str, int], real: Inferred, padded: Inferred) -> None:
    made = [name for name in op.outputs if name]
    if all(name in padded.values and name in real.values for name in made):
        return  # shape arithmetic: its consumers decide whether padding is allowed
    captured = [n for attr in op.attrs.values() if isinstance(attr, Body) for n in attr.free_names()]
    if any(name in axes or _is_sized(name, axes, real, padded) for name in captured):
        raise Forbidden(op, "its body reads a value that would be padded")
    touched = tuple(axes.get(name) for name in op.inputs)
    sized = [i for i, name in enumerate(op.inputs) if name and _is_sized(name, axes, real, padded)]
    operands = row_of(op).shape_operands
    for i in sized:
        if i not in operands:
            raise Forbidden(op, f"operand {i} is a number that depends on the padded size")
    if not sized and all(axis is None for axis in touched):
        return
    rule = RULES.get(op.op_type) if not op.domain else None
    if rule is None:
        raise Forbidden(op, "there is no rule that keeps its rows apart")
    if any(name not in real.specs or name not in padded.specs for name in made):
        raise Forbidden(op, "the shape of its result depends on data")
    data = tuple(None if i in operands else axis for i, axis in enumerate(touched))
    axis = rule(At(op, data, real, padded))
    for name in made:
        if difference(name, op, real, padded) != axis:
            raise Forbidden(op, "its result is padded in another way than its rows")
        if axis is not None:
            axes[name] = axis


def _known_axis(name: str, real: Inferred, padded: Inferred) -> int | None:
    """Of a value that shapes alone decide: where it only goes on, as positions and masks do."""
    a, b = real.values.get(name), padded.values.get(name)
    if a is None or b is None or a.ndim != b.ndim or a.shape == b.shape:
        return None
    changed = [i for i, (x, y) in enumerate(zip(a.shape, b.shape, strict=True)) if x != y]
    if len(changed) != 1 or a.shape[changed[0]] > b.shape[changed[0]]:
        return None
    prefix = b[(slice(None),) * changed[0] + (slice(0, a.shape[changed[0]]),)]
    return changed[0] if np.array_equal(prefix, a) else None


def _is_sized(name: str, axes: Mapping[str, int], real: Inferred, padded: Inferred) -> bool:
    a, b = real.values.get(name), padded.values.get(name)
    return name not in axes and b is not None and (a is None or not np.array_equal(a, b))
