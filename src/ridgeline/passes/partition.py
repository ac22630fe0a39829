"""Partition: grow fused regions around anchors, and write each as a model-local ONNX function.

Regions grow by what ops are: products and rows take the pointwise ops around them, what is left of pointwise
ops forms regions of its own. A boundary that could have been fused keeps its reason. Nothing is measured.
"""

from __future__ import annotations

import onnx_ir as ir

from ridgeline.base.choices import Refusal
from ridgeline.base.spec import Target
from ridgeline.ir.infer import Inferred
from ridgeline.ir.op_row import Kind
from ridgeline.ir.ops import is_a
from ridgeline.ir.quant import quantizes
from ridgeline.passes.drafts import HOST, Draft, Partition
from ridgeline.passes.gather_regions import gather_regions
from ridgeline.passes.outline import leaving, name_nodes, outline
from ridgeline.passes.quant_regions import (
    attends_levels,
    drop_trailing,
    ends_dequantized,
    repeat_dequantizers,
    take_attended_levels,
    take_dequantizers,
    take_levels,
)
from ridgeline.passes.take_moves import guard_of, views_after, views_before
from ridgeline.passes.window_regions import starts_window

MAX_POINTWISE_OUTPUTS = 4
# how many ops may be tried at once to bring several live values back to one, as SiLU and GELU spellings need
MAX_DETOUR = 12
# ops of plugins whose kernels on a GPU take over what follows; `plugins.register` fills it
EPILOGUE_OPS: set[str] = set()


def partition(model: ir.Model, inferred: Inferred, *, target: Target = HOST) -> list[Refusal]:
    """Fuse the model in place. Returns what was refused, and why."""
    inferred = repeat_dequantizers(model, inferred)
    name_nodes(model.graph)
    part = Partition(model.graph, inferred, target)
    products = [part.start("product", n) for n in model.graph if is_a(n, Kind.PRODUCT) and _settles(part, n)]
    # before any region grows: the one before would take them behind its QuantizeLinear
    for draft in products:
        if draft.anchor.op_type != "Attention" or attends_levels(part, draft.anchor):
            take_dequantizers(part, draft, [draft.anchor])
    for draft in products:
        _start(part, draft)
    for node in model.graph:
        if is_a(node, Kind.ROW) and _settles(part, node):
            _start(part, part.start("row", node))
    for node in model.graph if target.traits.reads_by_index else ():
        if f"{node.domain}::{node.op_type}" in EPILOGUE_OPS and _settles(part, node):
            _start(part, part.start("product", node))
        if starts_window(part, node) and _settles(part, node):
            _start(part, part.start("window", node))
    _pointwise_regions(part)
    if target.traits.reads_by_index:
        gather_regions(part)
    groups = [draft.nodes for draft in part.drafts if len(draft.nodes) > 1]
    outline(model, groups, order=part.order)
    return part.refusals


def _settles(part: Partition, node: ir.Node) -> bool:
    return part.is_work(node) and node not in part.owner and part.spec(node.outputs[0]) is not None


def _start(part: Partition, draft: Draft) -> None:
    if draft.kind == "row":
        _grow_up(part, draft)
    if draft.anchor.op_type == "Attention":
        guard = guard_of(draft.anchor)
        part.take(draft, guard if all(map(part.is_free, guard)) else [])
        # a kernel that reads and writes by strides: the views around it cost nothing inside the region
        if part.target.traits.reads_by_index:
            part.take(draft, views_before(draft.anchor, part.is_free))
            part.take(draft, views_after(draft.anchor, part.is_free))
            take_attended_levels(part, draft)
    _grow_down(part, draft)


def _grow_down(part: Partition, draft: Draft) -> None:
    """Take the pointwise ops that follow, while one value leaves the region."""
    tip = draft.anchor.outputs[0]
    if leaving(draft.nodes) != [tip]:
        return  # a region with several results in use, or with views behind its anchor, stays as it is
    while True:
        found = _next_tip(part, draft, tip)
        if found is None:
            if draft.anchor.op_type != "Attention":
                take_levels(part, draft, tip)
            return
        added, tip = found
        part.take(draft, added)
        take_dequantizers(part, draft, added)


def _next_tip(part: Partition, draft: Draft, tip: ir.Value) -> tuple[list[ir.Node], ir.Value] | None:
    """The smallest set of followers after which again exactly one value leaves the region."""
    rule = f"{draft.anchor.op_type} epilogue"
    like = part.spec(tip)
    if tip.is_graph_output() or part.used_in_subgraph(tip) or not part.consumers(tip):
        return None
    added: list[ir.Node] = []
    frontier = part.consumers(tip)
    while len(added) <= MAX_DETOUR:
        for node in sorted(frontier, key=part.order.__getitem__):
            wanted = part.spec(draft.anchor.inputs[0]) if _reads_row_again(part, draft, node) else like
            reason = part.blocked([*draft.nodes, *added], node, wanted)
            if draft.anchor.op_type == "Attention" and quantizes(node):
                reason = "attention makes levels only of levels"
            if reason is not None:
                if len(frontier) > 1 or added:
                    reason += f"; {tip.name!r} has {len(part.consumers(tip))} readers"
                part.refuse(rule, reason, node, tip)
                return None
            if node not in added:
                added.append(node)
        live = leaving([*draft.nodes, *added])
        if len(live) == 1 and live[0] is not tip and not ends_dequantized(live[0], [*draft.nodes, *added]):
            return added, live[0]
        frontier = [node for value in live for node in part.consumers(value) if node not in added]
        frontier = [node for node in frontier if node not in draft.nodes]
        if not frontier or any(value.is_graph_output() for value in live[:-1]):
            break
    part.refuse(rule, f"{tip.name!r} and values made from it are needed outside too", added[-1], tip)
    return None


def _reads_row_again(part: Partition, draft: Draft, node: ir.Node) -> bool:
    """Whether an op spreads a reduction over the row it came from, which a GPU kernel still holds."""
    row, made = draft.anchor.inputs[0], part.spec(node.outputs[0])
    if not part.target.traits.reads_by_index or draft.kind != "row" or row not in node.inputs or made is None:
        return False
    held = part.spec(row)
    # a row op behind it, over another axis maybe, takes it as its own beginning
    is_awaited = any(is_a(reader, Kind.ROW) for reader in part.consumers(node.outputs[0]))
    return held is not None and held.shape == made.shape and not is_awaited


def _grow_up(part: Partition, draft: Draft) -> None:
    """Take the pointwise ops that feed a row op, when nobody else needs them, or only one value of them."""
    anchor = draft.anchor
    source = anchor.inputs[0]
    while source is not None and (producer := source.producer()) is not None:
        like = part.spec(source)
        if not is_a(producer, Kind.POINTWISE) or producer in part.owner or not part.is_work(producer):
            return
        if like is None or part.spec(producer.outputs[0]) != like or source.is_graph_output():
            return
        outside = [n for n in part.consumers(source) if n not in draft.nodes]
        if part.used_in_subgraph(source):
            return
        # one extra output is worth it: the row op reads what the residual branch needs as well
        if outside and (len(draft.nodes) > 1 or not _comes_later(part, outside, draft)):
            part.refuse(
                f"{anchor.op_type} prologue", f"{source.name!r} is needed outside too", producer, source
            )
            return
        draft.nodes.insert(0, producer)
        part.owner[producer] = draft
        if outside:
            return
        wide = [
            v for v in producer.inputs if v is not None and part.spec(v) == like and v.producer() is not None
        ]
        source = wide[0] if len(wide) == 1 else None


def _comes_later(part: Partition, users: list[ir.Node], draft: Draft) -> bool:
    """None of the users is needed by the region itself."""
    mask = sum(1 << part.order[user] for user in users)
    return not any(part.ancestors[node] & mask for node in draft.nodes)


def _pointwise_regions(part: Partition) -> None:
    """Connected pointwise ops of one shape that no anchor took."""
    for node in part.graph:
        if not is_a(node, Kind.POINTWISE) or node in part.owner or not _settles(part, node):
            continue
        draft = part.start("pointwise", node)
        grown = True
        while grown:
            grown = False
            like = part.spec(draft.nodes[0].outputs[0])
            for value in leaving(draft.nodes):
                for follower in part.consumers(value):
                    if follower in draft.nodes or part.blocked(draft.nodes, follower, like) is not None:
                        continue
                    if len(leaving([*draft.nodes, follower])) > MAX_POINTWISE_OUTPUTS:
                        part.refuse("pointwise", "too many results would leave the region", follower, value)
                        continue
                    part.take(draft, [follower])
                    take_dequantizers(part, draft, [follower])
                    grown = True
        drop_trailing(part, draft)
        _note_boundaries(part, draft)


def _note_boundaries(part: Partition, draft: Draft) -> None:
    like = part.spec(draft.nodes[0].outputs[0])
    for value in leaving(draft.nodes):
        for follower in part.consumers(value):
            if follower not in draft.nodes:
                reason = part.blocked(draft.nodes, follower, like)
                part.refuse("pointwise", reason or "it would make the region cyclic", follower, value)
