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
from ridgeline.passes.take_moves import moves_before


def gather_regions(part: Partition) -> None:
    """Let drafts take the moves before them, and pointwise drafts the ones that feed them alone."""
    for draft in reversed(part.drafts):
        if draft.nodes and draft.kind != "product":
            _gather(part, draft)
    for draft in _joins(part):
        _gather(part, draft)
    part.drafts = [draft for draft in part.drafts if draft.nodes]


def _joins(part: Partition) -> list[Draft]:
    """Each Concat that copies what others move or compute for it alone, as a region that does so itself."""
    found = []
    for node in part.graph:
        if node.op_type != "Concat" or not part.may_move(node) or not _copies(part, node):
            continue
        draft = Draft("join", [node])
        if _feeders(part, draft) or _moves(part, draft):
            part.owner[node] = draft
            found.append(draft)
    part.drafts += found
    return found


def _copies(part: Partition, concat: ir.Node) -> bool:
    """Whether its parts lie apart: along the outermost axis they are written in place."""
    spec = part.spec(concat.outputs[0])
    axis = concat.attributes["axis"].as_int()
    return spec is not None and math.prod(spec.shape[: axis % len(spec.shape)]) > 1


def _moves(part: Partition, draft: Draft) -> list[ir.Node]:
    return moves_before(draft.nodes, part.may_move, turns=draft.kind != "row")


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
    """A part of a Concat, or an operand that is not spread."""
    mine, made = part.spec(value), part.spec(reader.outputs[0])
    if mine is None or made is None or mine.layout != "contiguous":
        return False
    return reader.op_type == "Concat" or (is_a(reader, Kind.POINTWISE) and mine.shape == made.shape)
