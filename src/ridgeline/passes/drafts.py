"""Regions in the making: which nodes each has, what may join it, and why the rest may not."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

import onnx_ir as ir

from ridgeline.base.choices import Refusal
from ridgeline.base.spec import Target, TensorSpec
from ridgeline.ir.infer import Inferred
from ridgeline.ir.op_row import Kind
from ridgeline.ir.ops import is_a
from ridgeline.ir.provenance import node_name
from ridgeline.passes.match import read_values

HOST = Target()
MAX_OPS = 32


@dataclass(eq=False)
class Draft:
    """A region in the making."""

    kind: str  # product | row | window | pointwise
    nodes: list[ir.Node]

    def __post_init__(self) -> None:
        self.anchor = self.nodes[0]


@dataclass
class Partition:
    """Drafts over one graph, with what is needed to keep them convex."""

    graph: ir.Graph
    inferred: Inferred
    target: Target = HOST
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
        return self.inferred.specs.get(str(value.name))

    def is_work(self, node: ir.Node) -> bool:
        """False for shape arithmetic, which is settled on the host and never fused."""
        return not all(str(v.name) in self.inferred.values for v in node.outputs if v.name)

    def is_free(self, node: ir.Node) -> bool:
        """Whether a region may still take this node."""
        is_here = node.graph is self.graph and not node.domain and node not in self.owner
        return is_here and self.is_work(node) and self.spec(node.outputs[0]) is not None

    def reads_image(self, node: ir.Node) -> bool:
        """Whether its first operand is an image that lies channels last."""
        return self.is_image(node.inputs[0])

    def touches_image(self, node: ir.Node) -> bool:
        return any(map(self.is_image, (*node.inputs, *node.outputs)))

    def is_image(self, value: ir.Value | None) -> bool:
        spec = self.spec(value) if value is not None else None
        return spec is not None and spec.layout == "channels_last"

    def shape(self, value: ir.Value | None) -> tuple[int, ...] | None:
        spec = self.spec(value) if value is not None else None
        return None if spec is None else spec.shape

    def start(self, kind: str, *nodes: ir.Node) -> Draft:
        """A new region around these nodes."""
        draft = Draft(kind, list(nodes))
        self.drafts.append(draft)
        self.owner.update(dict.fromkeys(nodes, draft))
        return draft

    def take(self, draft: Draft, nodes: Iterable[ir.Node]) -> None:
        """Make free nodes part of a region."""
        nodes = list(nodes)
        draft.nodes += nodes
        self.owner.update((node, draft) for node in nodes)

    def consumers(self, value: ir.Value) -> list[ir.Node]:
        return list(dict.fromkeys(node for node, _ in value.uses() if node.graph is self.graph))

    def used_in_subgraph(self, value: ir.Value) -> bool:
        return any(node.graph is not self.graph for node, _ in value.uses())

    def blocked(self, nodes: list[ir.Node], joining: ir.Node, like: TensorSpec | None) -> str | None:
        """Why `joining` may not become part of a region made of `nodes`; None when it may."""
        if not is_a(joining, Kind.POINTWISE):
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


def boundary_reason(node: ir.Node) -> str:
    """Why a neighbour that is not pointwise stays outside."""
    found = (reason for kind, reason in _BOUNDARIES.items() if is_a(node, kind))
    return f"{node.op_type} {next(found, 'is not pointwise')}"


# the first kind that an op is of; a view is movement too
_BOUNDARIES = {
    Kind.PRODUCT: "needs whole rows of its input: it starts a region of its own",
    Kind.ROW: "reduces over elements of other tiles: it starts a region of its own",
    Kind.VIEW: "moves nothing: it is a view of the same memory",
    Kind.MOVEMENT: "changes which element goes where: kept as a copy of its own",
}
