"""Which regions move nothing: reshapes and leading-axis splits are views, such concats are joins.

So is a transpose that only spells out the order in which a channels-last image lies, or that moves no
axis but those of one item.
"""

from __future__ import annotations

from ridgeline.base.spec import ITEM_BITS, Op, Site, Target, TensorSpec
from ridgeline.ir.moves import moves_of
from ridgeline.ir.op_given import given_of
from ridgeline.ir.op_row import Kind
from ridgeline.ir.ops import is_a

Views = tuple[tuple[str, str, int], ...]
# layouts of source and result between which a transpose moves nothing
SPELLINGS = {
    (0, 2, 3, 1): ("channels_last", "contiguous"),
    (0, 3, 1, 2): ("contiguous", "channels_last"),
}


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
    if is_a(op, Kind.VIEW) or _keeps_order(op, site):
        return ((op.outputs[0], op.inputs[0], 0),)
    is_cut = op.op_type == "Split" or (op.op_type == "Slice" and site.target.traits.reads_by_index)
    return _parts(op, site) if is_cut else ()


def _spells_channels_last(site: Site) -> bool:
    op = site.body.ops[0]
    layouts = SPELLINGS.get(tuple(op.attrs.get("perm", ()))) if op.key == "Transpose" else None
    if layouts is None or not site.target.traits.reads_by_index:
        return False
    source, result = site.specs.get(op.inputs[0]), site.specs.get(op.outputs[0])
    if source is None or result is None or op.inputs[0] in site.weights:
        return False
    return (source.layout, result.layout) == layouts


def _keeps_order(op: Op, site: Site) -> bool:
    """Whether a transpose only moves axes of one item."""
    perm = op.attrs.get("perm", ()) if op.key == "Transpose" else ()
    shape = site.specs[op.inputs[0]].shape
    kept = [axis for axis in perm if shape[axis] != 1]
    return bool(perm) and kept == sorted(kept)


def _parts(op: Op, site: Site) -> Views:
    """Parts that follow one another in the source, if kernels can read each from its first element on."""
    source, made = site.specs[op.inputs[0]], []
    for move in moves_of(given_of(site, op)) or ():
        first = move.first(source.shape)
        is_empty = op.op_type == "Slice" and not site.specs[op.outputs[0]].numel
        if first is None or is_empty or not _may_start(source, first, site.target):
            return ()
        made.append((op.outputs[move.result], op.inputs[0], first))
    return tuple(made)


def _may_start(source: TensorSpec, first: int, target: Target) -> bool:
    """Whether kernels can read from this element on: they may be compiled for aligned memory."""
    return first * ITEM_BITS[source.dtype] % (8 * target.traits.view_alignment) == 0


def joins_of(site: Site) -> tuple[tuple[str, int], ...]:
    """(input, first element) for a concat whose parts lie one after the other in its result."""
    if len(site.body.ops) != 1 or site.body.ops[0].op_type != "Concat" or site.body.ops[0].domain:
        return ()
    op = site.body.ops[0]
    specs = [site.specs.get(n) for n in (*op.inputs, *op.outputs)]
    if any(s is None or s.layout != "contiguous" for s in specs):
        return ()
    made, whole = [], site.specs[op.outputs[0]].shape
    for move in moves_of(given_of(site, op)) or ():
        name, first = op.inputs[move.source], move.first(whole, in_result=True)
        if first is None or not _may_start(site.specs[name], first, site.target):
            return ()
        made.append((name, first))
    return tuple(made)
