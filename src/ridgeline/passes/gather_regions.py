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
    """Each Concat and Transpose that copies what others move or compute for it alone does so itself.

    The last of several in a row takes the others.
    """
    for node in reversed(list(part.graph)):
        if node.op_type not in _COPYING or not part.may_move(node) or not _COPYING[node.op_type](part, node):
            continue
        draft = Draft("join", [node])
        if _feeders(part, draft) or _moves(part, draft):
            part.owner[node] = draft
            part.drafts.append(draft)
            _gather(part, draft)


def _is_apart(part: Partition, concat: ir.Node) -> bool:
    """Whether its parts lie apart: along the outermost axis they are written in place."""
    spec = part.spec(concat.outputs[0])
    axis = concat.attributes["axis"].as_int()
    return spec is not None and math.prod(spec.shape[: axis % len(spec.shape)]) > 1


def _is_by_rows(_: Partition, transpose: ir.Node) -> bool:
    return keeps_columns(transpose)


_COPYING = {"Concat": _is_apart, "Transpose": _is_by_rows}


def _moves(part: Partition, draft: Draft) -> list[ir.Node]:
    # a kernel of windows reads its image where it lies
    nodes = [node for node in draft.nodes if draft.kind != "window" or node is not draft.anchor]
    return moves_before(nodes, part.may_move, turns=draft.kind != "row")


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
    return reader.op_type in _COPYING or (is_a(reader, Kind.POINTWISE) and mine.shape == made.shape)
