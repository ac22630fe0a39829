"""Which regions move nothing: reshapes and leading-axis splits are views, such concats are joins."""

from __future__ import annotations

import math
from collections.abc import Mapping

from ridgeline.passes.op_kinds import VIEWS
from ridgeline.spec import Op, Site, TensorSpec

Views = tuple[tuple[str, str, int], ...]


def views_of(site: Site) -> Views:
    """(output, input, first element) for a region that only looks at its input in another way."""
    if len(site.body.ops) != 1:
        return ()
    op = site.body.ops[0]
    specs = [site.specs.get(n) for n in (op.inputs[:1] + op.outputs)]
    if op.domain or not specs or any(s is None or s.layout != "contiguous" for s in specs):
        return ()
    if op.inputs[0] in site.weights or any(not n for n in op.outputs):
        return ()
    if op.op_type in VIEWS:
        return ((op.outputs[0], op.inputs[0], 0),)
    if op.op_type == "Split":
        return _split(op, site.specs)
    return ()


def _split(op: Op, specs: Mapping[str, TensorSpec]) -> Views:
    source = specs[op.inputs[0]]
    if not _is_leading(source, op.attrs.get("axis", 0)):
        return ()
    made, first = [], 0
    for name in op.outputs:
        made.append((name, op.inputs[0], first))
        first += specs[name].numel
    return tuple(made)


def joins_of(site: Site) -> tuple[tuple[str, int], ...]:
    """(input, first element) for a concat whose parts lie one after the other in its result."""
    if len(site.body.ops) != 1 or site.body.ops[0].op_type != "Concat" or site.body.ops[0].domain:
        return ()
    op = site.body.ops[0]
    specs = [site.specs.get(n) for n in (*op.inputs, *op.outputs)]
    if any(s is None or s.layout != "contiguous" for s in specs):
        return ()
    if not _is_leading(site.specs[op.outputs[0]], op.attrs["axis"]):
        return ()
    made, first = [], 0
    for name in op.inputs:
        made.append((name, first))
        first += site.specs[name].numel
    return tuple(made)


def _is_leading(spec: TensorSpec, axis: int) -> bool:
    """Nothing but ones lies outside the axis, so its parts are contiguous pieces."""
    return math.prod(spec.shape[: axis % len(spec.shape)]) == 1
