"""Regions of generated GPU kernels, which read by index: they take in what moves their operands.

A rotation of positions, say, is one region with its halves cut out, turned and joined again; a cache is
joined with what was just computed for it.
"""

from __future__ import annotations

import math

import onnx_ir as ir

from ridgeline.ir.op_row import Kind
from ridgeline.ir.ops import is_a
from ridgeline.passes.drafts import MAX_OPS, Draft, Partition
from ridgeline.passes.outline import leaving
from ridgeline.passes.take_moves import keeps_columns, moves_before


def gather_regions(part: Partition) -> None:
    """Let drafts take the moves before them, and pointwise drafts the ones that feed them alone."""
    for draft in reversed(part.drafts):
        if draft.nodes and draft.kind != "product":
            _gather(part, draft)
    _copies_of_moves(part)
    part.drafts = [draft for draft in part.drafts if draft.nodes]


def _copies_of_moves(part: Partition) -> None:
    """Each move that copies what others move or compute for it alone does so itself.

    The last of several in a row takes the others. The parts of an image whose channels were shuffled are made
    together, also where one of them is moved again.
    """
    nodes = list(reversed(list(part.graph)))
    cut = [part.start("join", *found) for node in nodes if (found := _parts_of_shuffled(part, node))]
    for draft in cut:
        _gather(part, draft)
    for node in nodes:
        is_last = node.op_type in _COPYING and part.is_free(node) and _COPYING[node.op_type](part, node)
        if is_last and (_feeders(part, Draft("join", [node])) or _moves(part, Draft("join", [node]))):
            _gather(part, part.start("join", node))


def _is_apart(part: Partition, concat: ir.Node) -> bool:
    """Whether its parts lie apart: along the outermost axis they are written in place."""
    spec = part.spec(concat.outputs[0])
    axis = concat.attributes["axis"].as_int()
    return spec is not None and math.prod(spec.shape[: axis % len(spec.shape)]) > 1


def _is_by_rows(part: Partition, transpose: ir.Node) -> bool:
    return keeps_columns(transpose) and not part.touches_image(transpose)


def _ends_shuffle(part: Partition, reshape: ir.Node) -> bool:
    return _shuffled_groups(part, reshape.outputs[0]) is not None


_COPYING = {"Concat": _is_apart, "Transpose": _is_by_rows, "Reshape": _ends_shuffle}


def _shuffled_groups(part: Partition, value: ir.Value | None) -> int | None:
    """Into how many groups channels, lying last, were cut before they were turned and joined again.

    None if the value is no such image.
    """
    source, shapes = value, []
    for op_type in ("Reshape", "Transpose", "Reshape"):
        node = source.producer() if source is not None else None
        if node is None or node.op_type != op_type:
            return None
        shapes.append(part.shape(node.outputs[0]))
        source = node.inputs[0]
    made, turned, cut = shapes
    is_same = part.is_image(source) and part.shape(source) == made
    if not is_same or cut is None or len(cut) != 5:
        return None
    return cut[1] if turned == (cut[0], cut[2], cut[1], *cut[3:]) else None


def _parts_of_shuffled(part: Partition, node: ir.Node) -> list[ir.Node]:
    """A Split, or all slices, of a shuffled image, if its parts have one size and channels of all groups."""
    groups = _shuffled_groups(part, node.inputs[0]) if node.op_type in ("Slice", "Split") else None
    readers = part.consumers(node.inputs[0]) if groups is not None else []
    if groups is None or node is not readers[0] or not all(map(part.is_free, readers)):
        return []
    shapes = {part.shape(value) for reader in readers for value in reader.outputs}
    shape = shapes.pop() if len(shapes) == 1 else None
    is_whole = shape is not None and len(shape) == 4 and shape[1] % groups == 0
    return readers if is_whole and all(reader.op_type == node.op_type for reader in readers) else []


def _moves(part: Partition, draft: Draft) -> list[ir.Node]:
    if draft.kind in ("pointwise", "join"):
        return moves_before(draft.nodes, part.is_free, turns=True, is_copied=part.reads_image)
    # a kernel of windows reads its image where it lies
    nodes = [node for node in draft.nodes if draft.kind != "window" or node is not draft.anchor]
    return moves_before(
        nodes, lambda node: part.is_free(node) and not part.touches_image(node), turns=draft.kind != "row"
    )


def _gather(part: Partition, draft: Draft) -> None:
    grown = True
    while grown:
        moves = _moves(part, draft)
        grown = bool(moves) and len(draft.nodes) + len(moves) <= MAX_OPS
        if grown:
            part.take(draft, moves)
        for feeder in _feeders(part, draft) if draft.kind != "row" else ():
            if len(draft.nodes) + len(feeder.nodes) <= MAX_OPS:
                part.take(draft, feeder.nodes)
                feeder.nodes = []
                grown = True


def _feeders(part: Partition, draft: Draft) -> list[Draft]:
    makers = [v.producer() for node in draft.nodes for v in node.inputs if v is not None]
    owners = dict.fromkeys(part.owner[maker] for maker in makers if maker in part.owner)
    return [owner for owner in owners if _feeds_only(part, owner, draft)]


def _feeds_only(part: Partition, feeder: Draft, draft: Draft) -> bool:
    """Whether a region computes for this one alone, and each of its elements once."""
    if feeder is draft or feeder.kind != "pointwise" or not feeder.nodes:
        return False
    for value in leaving(feeder.nodes):
        readers = {node for node, _ in value.uses()}
        if value.is_graph_output() or not readers <= set(draft.nodes):
            return False
        if not all(_reads_once(part, value, reader) for reader in readers):
            return False
    return True


def _reads_once(part: Partition, value: ir.Value, reader: ir.Node) -> bool:
    """A part of a Concat, what a Transpose copies, or an operand that is not spread."""
    mine, made = part.spec(value), part.spec(reader.outputs[0])
    if mine is None or made is None or mine.layout != "contiguous":
        return False
    return reader.op_type in ("Concat", "Transpose") or (
        is_a(reader, Kind.POINTWISE) and mine.shape == made.shape
    )
