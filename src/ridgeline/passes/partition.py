"""Partition: grow fused regions around anchors, and write each as a model-local ONNX function.

Regions grow by what ops are: products and rows take the pointwise ops around them, what is left of pointwise
ops forms regions of its own. A boundary that could have been fused keeps its reason. Nothing is measured.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

import onnx_ir as ir

from ridgeline.passes.op_kinds import MOVEMENT, POINTWISE, PRODUCTS, ROWS, VIEWS
from ridgeline.passes.outline import name_nodes, outline
from ridgeline.passes.rule import Refusal, node_name
from ridgeline.passes.settle import Settled
from ridgeline.spec import TensorSpec

MAX_OPS = 32
MAX_POINTWISE_OUTPUTS = 4
# how many ops may be tried at once to bring several live values back to one, as SiLU and GELU spellings need
MAX_DETOUR = 12


@dataclass(eq=False)
class Draft:
    """A region in the making."""

    kind: str  # product | row | pointwise
    nodes: list[ir.Node]

    def __post_init__(self) -> None:
        self.anchor = self.nodes[0]

    def add(self, nodes: Iterable[ir.Node]) -> None:
        self.nodes += nodes


@dataclass
class Partition:
    """Drafts over one graph, with what is needed to keep them convex."""

    graph: ir.Graph
    settled: Settled
    drafts: list[Draft] = field(default_factory=list)
    refusals: list[Refusal] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.order = {node: i for i, node in enumerate(self.graph)}
        self.owner: dict[ir.Node, Draft] = {}
        self.ancestors: dict[ir.Node, int] = {}
        for node in self.graph:
            bits = 0
            for value in read_values(node):
                producer = value.producer()
                if producer is not None and producer in self.ancestors:
                    bits |= self.ancestors[producer] | (1 << self.order[producer])
            self.ancestors[node] = bits

    def spec(self, value: ir.Value) -> TensorSpec | None:
        return self.settled.specs.get(str(value.name))

    def is_work(self, node: ir.Node) -> bool:
        """False for shape arithmetic, which is settled on the host and never fused."""
        return not all(str(v.name) in self.settled.values for v in node.outputs if v.name)

    def consumers(self, value: ir.Value) -> list[ir.Node]:
        return list(dict.fromkeys(node for node, _ in value.uses() if node.graph is self.graph))

    def used_in_subgraph(self, value: ir.Value) -> bool:
        return any(node.graph is not self.graph for node, _ in value.uses())

    def leaving(self, nodes: list[ir.Node]) -> list[ir.Value]:
        """Values that others need from these nodes."""
        inside = set(nodes)
        return [
            value
            for node in nodes
            for value in node.outputs
            if value.is_graph_output() or any(user not in inside for user, _ in value.uses())
        ]

    def blocked(self, nodes: list[ir.Node], joining: ir.Node, like: TensorSpec | None) -> str | None:
        """Why `joining` may not become part of a region made of `nodes`; None when it may."""
        if joining.op_type not in POINTWISE or joining.domain not in ("", "ai.onnx"):
            return boundary_reason(joining)
        if joining in self.owner:
            return "it is part of another region already"
        if not self.is_work(joining):
            return "it is shape arithmetic, settled on the host"
        mine = self.spec(joining.outputs[0])
        if mine is None or like is None:
            return "its shape depends on data"
        if mine.shape != like.shape:
            return f"its result is {mine}, the region works on {like}"
        if len(nodes) >= MAX_OPS:
            return f"the region has {MAX_OPS} ops already"
        inside = set(nodes)
        mask = sum(1 << self.order[node] for node in nodes)
        for value in read_values(joining):
            producer = value.producer()
            if producer is None or producer in inside or producer not in self.order:
                continue
            if self.ancestors[producer] & mask:
                return f"its input {value.name!r} needs the region's result first"
        return None

    def refuse(self, rule: str, reason: str, at: ir.Node, value: ir.Value) -> None:
        spec = self.spec(value)
        # what crosses memory because of it: written once, read once
        lost = 2 * spec.nbytes if spec is not None else None
        self.refusals.append(Refusal(rule=rule, reason=reason, at=node_name(at), bytes_lost=lost))


def read_values(node: ir.Node) -> Iterator[ir.Value]:
    """What a node reads, through its subgraphs too."""
    yield from (v for v in node.inputs if v is not None)
    for attr in node.attributes.values():
        if attr.type == ir.AttributeType.GRAPH:
            for inner in attr.as_graph():
                yield from read_values(inner)


def boundary_reason(node: ir.Node) -> str:
    """Why a neighbour that is not pointwise stays outside."""
    kind = node.op_type
    if kind in PRODUCTS:
        return f"{kind} needs whole rows of its input: it starts a region of its own"
    if kind in ROWS:
        return f"{kind} reduces over elements of other tiles: it starts a region of its own"
    if kind in VIEWS:
        return f"{kind} moves nothing: it is a view of the same memory"
    if kind in MOVEMENT:
        return f"{kind} changes which element goes where: kept as a copy of its own"
    return f"{kind} is not pointwise"


def partition(model: ir.Model, settled: Settled) -> list[Refusal]:
    """Fuse the model in place. Returns what was refused, and why."""
    name_nodes(model.graph)
    part = Partition(model.graph, settled)
    for kind, ops in (("product", PRODUCTS), ("row", ROWS)):
        for node in model.graph:
            if node.op_type in ops and node.domain in ("", "ai.onnx") and _settles(part, node):
                _start(part, Draft(kind, [node]))
    _pointwise_regions(part)
    groups = [draft.nodes for draft in part.drafts if len(draft.nodes) > 1]
    outline(model, groups, order=part.order)
    return part.refusals


def _settles(part: Partition, node: ir.Node) -> bool:
    return part.is_work(node) and node not in part.owner and part.spec(node.outputs[0]) is not None


def _start(part: Partition, draft: Draft) -> None:
    part.drafts.append(draft)
    part.owner[draft.nodes[0]] = draft
    if draft.kind == "row":
        _grow_up(part, draft)
    _grow_down(part, draft)


def _grow_down(part: Partition, draft: Draft) -> None:
    """Take the pointwise ops that follow, while one value leaves the region."""
    tip = draft.anchor.outputs[0]
    if len(part.leaving(draft.nodes)) != 1:
        return  # a region with several results in use stays as it is
    while True:
        found = _next_tip(part, draft, tip)
        if found is None:
            return
        added, tip = found
        draft.add(added)
        part.owner.update((node, draft) for node in added)


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
            reason = part.blocked([*draft.nodes, *added], node, like)
            if reason is not None:
                if len(frontier) > 1 or added:
                    reason += f"; {tip.name!r} has {len(part.consumers(tip))} readers"
                part.refuse(rule, reason, node, tip)
                return None
            if node not in added:
                added.append(node)
        live = part.leaving([*draft.nodes, *added])
        if len(live) == 1 and live[0] is not tip:
            return added, live[0]
        frontier = [node for value in live for node in part.consumers(value) if node not in added]
        frontier = [node for node in frontier if node not in draft.nodes]
        if not frontier or any(value.is_graph_output() for value in live[:-1]):
            break
    part.refuse(rule, f"{tip.name!r} and values made from it are needed outside too", added[-1], tip)
    return None


def _grow_up(part: Partition, draft: Draft) -> None:
    """Take the pointwise ops that feed a row op, when nobody else needs them, or only one value of them."""
    anchor = draft.anchor
    source = anchor.inputs[0]
    while source is not None and (producer := source.producer()) is not None:
        like = part.spec(source)
        if producer.op_type not in POINTWISE or producer in part.owner or not part.is_work(producer):
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
        if node.op_type not in POINTWISE or node in part.owner or not _settles(part, node):
            continue
        draft = Draft("pointwise", [node])
        part.drafts.append(draft)
        part.owner[node] = draft
        grown = True
        while grown:
            grown = False
            like = part.spec(draft.nodes[0].outputs[0])
            for value in part.leaving(draft.nodes):
                for follower in part.consumers(value):
                    if follower in draft.nodes or part.blocked(draft.nodes, follower, like) is not None:
                        continue
                    if len(part.leaving([*draft.nodes, follower])) > MAX_POINTWISE_OUTPUTS:
                        part.refuse("pointwise", "too many results would leave the region", follower, value)
                        continue
                    draft.add([follower])
                    part.owner[follower] = draft
                    grown = True
        _note_boundaries(part, draft)


def _note_boundaries(part: Partition, draft: Draft) -> None:
    like = part.spec(draft.nodes[0].outputs[0])
    for value in part.leaving(draft.nodes):
        for follower in part.consumers(value):
            if follower not in draft.nodes:
                reason = part.blocked(draft.nodes, follower, like)
                part.refuse("pointwise", reason or "it would make the region cyclic", follower, value)
