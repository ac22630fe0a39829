"""Which tensors of a graph are quantised, and why the others are not. Nothing is rewritten here.

Both operands of convolutions and matrix products are quantised, activations per tensor and weights per
channel or block. A QuantizeLinear stands as early as possible: before ops that only move elements, and before
a concatenation, whose inputs then share one scale. Of a residual sum, the branch that does not come from
the convolution is quantised, so that the convolution can add it and write low precision in one kernel.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass, field

import numpy as np
import onnx_ir as ir

from ridgeline.base.scales import Granularity
from ridgeline.ir.provenance import node_name
from ridgeline.ir.quant import INTEGER_PRODUCTS, dequantizes
from ridgeline.precision.calibrate import Group
from ridgeline.precision.histograms import Range
from ridgeline.precision.patterns import WANTED, match_nodes, names_of
from ridgeline.precision.schemes import Scheme, why_not

PRODUCTS = ("Conv", "ConvTranspose", "Gemm", "MatMul")
# a float op that gives the same numbers before and after rounding to levels; the first operand is moved
MOVING = frozenset(
    {
        "Reshape", "Flatten", "Squeeze", "Unsqueeze", "Transpose", "Slice", "Identity", "MaxPool",
        "DepthToSpace", "SpaceToDepth", "Expand", "Tile",
    }
)  # fmt: skip
# of those, the ones that ONNX has for every type: the others move no small floats
ANY_TYPE = frozenset({"Reshape", "Flatten", "Squeeze", "Unsqueeze", "Transpose", "Identity"})
# between a convolution and the sum with its residual, and behind that sum
POINTWISE = frozenset(
    {
        "Relu", "Clip", "LeakyRelu", "PRelu", "Sigmoid", "HardSigmoid", "HardSwish", "Mish",
        "Gelu", "Elu", "Mul", "Add", "Sub", "Div", "Identity", "Tanh", "Swish",
    }
)  # fmt: skip
# what bounds a tensor by construction; data could only show less of it
BOUNDED = {"Softmax": Range(0.0, 1.0)}
FLOAT = ir.DataType.FLOAT
EXCLUDED = "excluded by {!r}"  # a pattern


@dataclass(frozen=True)
class Edge:
    """One operand of one node."""

    node: ir.Node
    index: int

    @property
    def value(self) -> ir.Value:
        value = self.node.inputs[self.index]
        assert value is not None, "an edge has a value"
        return value


@dataclass(frozen=True)
class WeightEdge:
    """A constant operand, and which of its elements share a scale."""

    edge: Edge
    granularity: Granularity

    @property
    def array(self) -> np.ndarray:
        tensor = ir.convenience.get_const_tensor(self.edge.value)
        assert tensor is not None, "weights are constant"
        array: np.ndarray = tensor.numpy()
        return array


@dataclass(frozen=True)
class OperandRow:
    """What was decided for one operand of a node, as a row of the report."""

    node: str
    op: str
    tensor: str
    role: str  # activation, weight, residual, or product for a node as a whole
    scheme: str  # float where it stays as it is
    why: str


@dataclass
class Placement:
    """Edges to be quantised. Activations of one group share a scale."""

    scheme: Scheme
    products: list[ir.Node] = field(default_factory=list)
    activations: dict[Edge, None] = field(default_factory=dict)  # where a DequantizeLinear is read
    weights: list[WeightEdge] = field(default_factory=list)
    groups: list[Group] = field(default_factory=list)
    decisions: list[OperandRow] = field(default_factory=list)

    def note(self, node: ir.Node, tensor: ir.Value | None, role: str, scheme: str, why: str) -> None:
        name = "" if tensor is None else str(tensor.name)
        self.decisions.append(OperandRow(node_name(node), node.op_type, name, role, scheme, why))


def place(
    model: ir.Model, scheme: Scheme, *, exclude: Sequence[str] = (), floats: Collection[str] = ()
) -> Placement:
    """Decide for every product of the main graph. Raises for a pattern that matches nothing.

    `exclude` are a user's patterns, `floats` the names of single nodes.
    """
    excluded = excluded_nodes(model, exclude)
    excluded |= {node: node_name(node) for node in model.graph if node_name(node) in floats}
    made = Placement(scheme)
    for node in model.graph:
        if node.domain == "" and node.op_type in PRODUCTS:
            _place_product(node, made, excluded.get(node))
        elif node.domain == "" and node.op_type == "Attention":
            _place_attention(node, made, excluded.get(node))
    if not scheme.is_weight_only:
        _place_residuals(model.graph, made, excluded)
        made.groups = _grouped(model.graph, made)
    return made


def excluded_nodes(model: ir.Model, patterns: Sequence[str]) -> dict[ir.Node, str]:
    """Nodes that a pattern names, with the pattern: an op type, a node's name, or a glob over either."""
    names = {node: (node.op_type, *names_of(node)) for node in model.graph}
    return match_nodes(patterns, names, want=WANTED)


def is_quantised(model: ir.Model) -> bool:
    """Whether a product of the model reads codes already."""
    return any(
        node.op_type in INTEGER_PRODUCTS
        or (node.op_type in PRODUCTS and any(map(_is_coded, node.inputs[:2])))
        for node in model.graph
    )


def _is_coded(value: ir.Value | None) -> bool:
    node = None if value is None else value.producer()
    while node is not None and node.op_type in MOVING:
        value = node.inputs[0]
        node = None if value is None else value.producer()
    return node is not None and dequantizes(node)


def shape_of(value: ir.Value) -> tuple[int | None, ...] | None:
    if value.shape is None:
        tensor = ir.convenience.get_const_tensor(value)
        return None if tensor is None else tuple(int(d) for d in tensor.shape.numpy())
    return tuple(dim if isinstance(dim, int) else None for dim in value.shape)


def is_constant(value: ir.Value) -> bool:
    return ir.convenience.get_const_tensor(value) is not None


def _place_product(node: ir.Node, made: Placement, pattern: str | None) -> None:
    x, w = node.inputs[0], node.inputs[1]
    if x is None or w is None:
        return
    if is_constant(x):
        made.note(node, x, "product", "float", "the constant is the first operand, which no kernel prepacks")
        return
    reason = EXCLUDED.format(pattern) if pattern else _why_not_here(made, node, x, w)
    if reason:
        made.note(node, None, "product", "float", reason)
        return
    made.products.append(node)
    if is_constant(w):
        granularity = made.scheme.weight_granularity(node)
        made.weights.append(WeightEdge(Edge(node, 1), granularity))
        made.note(node, w, "weight", f"{made.scheme.weight}, {granularity}", "weight of a product")
    indices = [i for i in (0, 1) if not is_constant(Edge(node, i).value)]
    for i in [] if made.scheme.is_weight_only else indices:
        made.activations[Edge(node, i)] = None
        value = Edge(node, i).value
        made.note(node, value, "activation", made.scheme.describe_activation(), "operand of a product")


def _why_not_here(made: Placement, node: ir.Node, x: ir.Value, w: ir.Value) -> str:
    for value in (x, w):
        tensor = ir.convenience.get_const_tensor(value)
        dtype = value.dtype if tensor is None else tensor.dtype
        if dtype is not None and dtype != FLOAT:
            return f"{value.name!r} is {dtype.name.lower()}: quantise the float32 model"
    if made.scheme.is_weight_only and not is_constant(w):
        return "both operands are computed: there is no weight to store"
    if not is_constant(w) and _comes_from_constant(w):
        return "the weights are computed from constants that were too large to fold"
    return why_not(node, made.scheme, (shape_of(x), shape_of(w)))


def _comes_from_constant(value: ir.Value) -> bool:
    node = value.producer()
    if is_constant(value):
        return True
    return node is not None and node.op_type in MOVING and _comes_from_constant(Edge(node, 0).value)


def _place_attention(node: ir.Node, made: Placement, pattern: str | None) -> None:
    """Queries, keys and values in float8; integer kernels do not reach inside the op."""
    activation = made.scheme.activation
    if pattern or activation is None or activation.is_integer:
        why = EXCLUDED.format(pattern) if pattern else "no integer kernel computes attention as one op"
        made.note(node, None, "product", "float", "no weights" if activation is None else why)
        return
    values = [node.inputs[i] for i in range(3)]
    if any(value is None or value.dtype not in (FLOAT, None) or is_constant(value) for value in values):
        made.note(node, None, "product", "float", "an operand is constant or not float32")
        return
    for i in range(3):
        made.activations[Edge(node, i)] = None
        made.note(node, values[i], "activation", made.scheme.describe_activation(), "operand of attention")


def _place_residuals(graph: ir.Graph, made: Placement, excluded: dict[ir.Node, str]) -> None:
    """The branch of a residual sum that does not come from the convolution, if the sum is quantised."""
    convs = {node for node in made.products if node.op_type in ("Conv", "ConvTranspose")}
    for node in graph:
        if node.op_type != "Add" or node.domain != "" or node in excluded:
            continue
        edges = [Edge(node, 0), Edge(node, 1)]
        if any(is_constant(e.value) for e in edges) or shape_of(edges[0].value) != shape_of(edges[1].value):
            continue
        depths = [_branch_depth(edge.value, convs) for edge in edges]
        if max(depths) == 0:
            continue
        # the longer branch is computed last, so its convolution adds the other
        main = int(depths[1] > depths[0])
        other = edges[1 - main]
        if not _is_quantized_later(node.outputs[0], made):
            made.note(
                node, other.value, "residual", "float", "the sum is not quantised, so a float one is free"
            )
            continue
        made.activations[other] = None
        scheme = made.scheme.describe_activation()
        made.note(node, other.value, "residual", scheme, "the convolution adds it and writes low precision")
        made.note(node, edges[main].value, "residual", "float", "stays inside the convolution's kernel")


def _branch_depth(value: ir.Value, convs: set[ir.Node]) -> int:
    """Convolutions on the way back to where the branch begins; 0 if the branch does not end in one."""
    depth = 0
    while len(value.uses()) == 1 and (node := value.producer()) is not None:
        if node in convs:
            depth += 1
        elif node.op_type not in POINTWISE:
            break
        value = Edge(node, 0).value
        if not depth and is_constant(value):
            break
    return depth


def _is_quantized_later(value: ir.Value, made: Placement) -> bool:
    """Whether an operand of a product is this value, behind pointwise ops and moves of elements."""
    for use in value.uses():
        if Edge(use.node, use.idx) in made.activations:
            return True
        onward = use.node.op_type in MOVING or (use.node.op_type in POINTWISE and use.node.op_type != "Add")
        if onward and _is_quantized_later(use.node.outputs[0], made):
            return True
    return False


def _grouped(graph: ir.Graph, made: Placement) -> list[Group]:
    """Moves the edges as early as possible, and unites the tensors that share a scale."""
    shared: list[set[str]] = []
    moved: dict[str, str] = {}  # from a tensor to the earlier one that is quantised in its place
    fixed: dict[str, Range] = {}
    pending = list(made.activations)
    while pending:
        edge = pending.pop()
        if edge not in made.activations:
            continue
        earlier = _earlier(edge, made, graph)
        node = edge.value.producer()
        if earlier and node is not None:
            for use in edge.value.uses():
                # a concatenation is quantised on both sides, a move of elements only before it
                if node.op_type != "Concat":
                    made.activations.pop(Edge(use.node, use.idx), None)
            made.activations.update(dict.fromkeys(earlier))
            pending += [e for e in earlier if e != edge]
            if node.op_type != "Concat":
                moved[str(edge.value.name)] = str(earlier[0].value.name)
            else:
                shared.append({str(edge.value.name), *(str(e.value.name) for e in earlier)})
    for edge in made.activations:
        shared.append({str(edge.value.name)})
        bound = _bound(edge.value)
        if bound is not None:
            fixed[str(edge.value.name)] = bound
    scheme = made.scheme
    assert scheme.activation is not None
    order = {str(v.name): i for i, v in enumerate(_values(graph))}
    united = [tuple(sorted(names, key=lambda n: order[n])) for names in _united(shared)]
    return [
        Group(
            names,
            scheme.activation,
            scheme.symmetric,
            fixed=fixed.get(names[0]) if len(names) == 1 else None,
            aliases=tuple(name for name in moved if _origin(name, moved) in names),
        )
        for names in sorted(united, key=lambda names: order[names[0]])
    ]


def _origin(name: str, moved: dict[str, str]) -> str:
    while name in moved:
        name = moved[name]
    return name


def _earlier(edge: Edge, made: Placement, graph: ir.Graph) -> list[Edge]:
    """The operands to quantise instead: of an op that only moves elements and has quantised readers only."""
    node = edge.value.producer()
    if node is None or node.domain != "" or len(node.outputs) != 1 or edge.value in graph.outputs:
        return []
    if any(Edge(use.node, use.idx) not in made.activations for use in edge.value.uses()):
        return []
    activation = made.scheme.activation
    if activation is not None and not activation.is_integer and node.op_type not in ANY_TYPE:
        return []
    if node.op_type in MOVING:
        edges = [Edge(node, 0)]
    elif node.op_type == "Concat":
        edges = [Edge(node, i) for i in range(len(node.inputs))]
        if all(e in made.activations for e in edges):
            return []
    else:
        return []
    is_movable = all(e.value.dtype in (FLOAT, None) and not is_constant(e.value) for e in edges)
    return edges if is_movable else []


def _bound(value: ir.Value) -> Range | None:
    """The range that the op which made a value guarantees; a Where that replaces NaN by zero keeps it."""
    node = value.producer()
    if node is None:
        return None
    if node.op_type in BOUNDED:
        return BOUNDED[node.op_type]
    if node.op_type in MOVING:
        return _bound(Edge(node, 0).value)
    if node.op_type == "Where":
        ranges = [_bound(v) or _constant_range(v) for v in node.inputs[1:] if v is not None]
        if len(ranges) == 2 and ranges[0] is not None and ranges[1] is not None:
            joined = ranges[0].joined(ranges[1])
            return joined if joined in BOUNDED.values() else None
    return None


def _constant_range(value: ir.Value) -> Range | None:
    tensor = ir.convenience.get_const_tensor(value)
    if tensor is None or tensor.size != 1 or not np.isfinite(number := float(tensor.numpy().reshape(()))):
        return None
    return Range(min(number, 0.0), max(number, 0.0))


def _values(graph: ir.Graph) -> Iterator[ir.Value]:
    yield from graph.inputs
    for node in graph:
        yield from node.outputs


def _united(sets: Iterable[set[str]]) -> list[set[str]]:
    """Sets that overlap, as one."""
    made: list[set[str]] = []
    for names in sets:
        meeting = [other for other in made if other & names]
        made = [other for other in made if not other & names]
        made.append(names.union(*meeting))
    return made
