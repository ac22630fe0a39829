"""Which regions move nothing: reshapes and leading-axis splits are views, such concats are joins.

So is a transpose that only spells out the order in which a channels-last image lies.
"""

from __future__ import annotations

import math

from ridgeline.base.spec import ITEM_BITS, Op, Site, Target, TensorSpec
from ridgeline.ir.op_row import Kind
from ridgeline.ir.ops import is_a

VIEW_ALIGNMENT = 16  # bytes that a GPU kernel loads at once
Views = tuple[tuple[str, str, int], ...]


def views_of(site: Site) -> Views:
    """(output, input, first element) for a region that only looks at its input in another way."""
    if len(site.body.ops) != 1:
        return ()
    op = site.body.ops[0]
    specs = [site.specs.get(n) for n in (op.inputs[:1] + op.outputs)]
    if _spells_channels_last(site):
        return ((op.outputs[0], op.inputs[0], 0),)
    if op.domain or not specs or any(s is None or s.layout != "contiguous" for s in specs):
        return ()
    if op.inputs[0] in site.weights or any(not n for n in op.outputs):
        return ()
    if is_a(op, Kind.VIEW):
        return ((op.outputs[0], op.inputs[0], 0),)
    if op.op_type == "Split":
        return _split(op, site)
    if op.op_type == "Slice" and site.target.kind == "cuda":
        return _slice(op, site)
    return ()


def _spells_channels_last(site: Site) -> bool:
    op = site.body.ops[0]
    if site.target.kind != "cuda" or op.key != "Transpose" or tuple(op.attrs.get("perm", ())) != (0, 2, 3, 1):
        return False
    source, result = site.specs.get(op.inputs[0]), site.specs.get(op.outputs[0])
    if source is None or result is None or op.inputs[0] in site.weights:
        return False
    return source.layout == "channels_last" and result.layout == "contiguous"


def _split(op: Op, site: Site) -> Views:
    source = site.specs[op.inputs[0]]
    if not _is_leading(source, op.attrs.get("axis", 0)):
        return ()
    made, first = [], 0
    for name in op.outputs:
        if not _may_start(source, first, site.target):
            return ()
        made.append((name, op.inputs[0], first))
        first += site.specs[name].numel
    return tuple(made)


def _may_start(source: TensorSpec, first: int, target: Target) -> bool:
    """Whether kernels can read from this element on: those of a GPU are compiled for aligned memory."""
    return target.kind != "cuda" or first * ITEM_BITS[source.dtype] % (8 * VIEW_ALIGNMENT) == 0


def _slice(op: Op, site: Site) -> Views:
    """Some of the outermost rows, where kernels that want aligned memory can still read them."""
    source, made = site.specs[op.inputs[0]], site.specs[op.outputs[0]]
    known = {**site.body.constants, **site.values}
    bounds = [known.get(name) for name in op.inputs[1:] if name]
    if not 3 <= len(bounds) <= 4 or any(bound is None or bound.size != 1 for bound in bounds):
        return ()
    start, _, axis, step = [int(bound.item()) for bound in bounds if bound is not None] + [1] * (
        4 - len(bounds)
    )
    inner = source.numel // max(math.prod(source.shape[: axis % len(source.shape) + 1]), 1)
    first = slice(start, None).indices(source.shape[axis])[0] * inner
    is_aligned = _may_start(source, first, site.target)
    is_view = step == 1 and made.numel > 0 and is_aligned and _is_leading(source, axis)
    return ((op.outputs[0], op.inputs[0], first),) if is_view else ()


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
        if not _may_start(site.specs[name], first, site.target):
            return ()
        made.append((name, first))
        first += site.specs[name].numel
    return tuple(made)


def _is_leading(spec: TensorSpec, axis: int) -> bool:
    """Nothing but ones lies outside the axis, so its parts are contiguous pieces."""
    return math.prod(spec.shape[: axis % len(spec.shape)]) == 1
