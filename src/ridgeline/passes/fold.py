"""Computes at build time what does not depend on the inputs: constants, known shapes, settled branches.

Arithmetic that moves constants through an op (BatchNormalization into Conv) lives in `fold_weights.py`.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

import ml_dtypes
import numpy as np
import onnx
import onnx_ir as ir

from ridgeline.base.spec import TensorSpec
from ridgeline.errors import InputError
from ridgeline.ir.body import op_of
from ridgeline.ir.infer import Inferred, dtype_of, evaluator_of, infer_types, spec_of, type_proto
from ridgeline.ir.op_row import Kind, Trait
from ridgeline.ir.ops import of_kind, with_trait
from ridgeline.options import DEFAULT_LIMITS
from ridgeline.passes.fold_shape import elements, reshape_target, sizes, written_shape
from ridgeline.passes.match import attribute, constant
from ridgeline.passes.rule import Names, add_initializer, merged_sources, replace_value

_HALVES = (np.dtype(np.float16), np.dtype(ml_dtypes.bfloat16))
# a folded constant must not make the engine file much larger than the model
MAX_GROWN_BYTES = 16 * 2**20
# of a model's metadata: what all folded constants together may still take besides those they are made of
FOLDED_BYTES = "ridgeline.folded_bytes"
# no inference knows the size of their results, and none makes more than it reads
BOUNDED_BY_INPUT = frozenset({"NonZero", "Compress", "Unique"})
SIZES_READ = 64  # elements of a constant that may say how large a result is

_NEVER = of_kind(Kind.RANDOM | Kind.CONTROL) | with_trait(Trait.WRONG_IN_REFERENCE) | {
    "DynamicQuantizeLinear",
    # the reference evaluator takes seconds for them, and no exporter leaves them on constants
    "Conv", "ConvInteger", "Resize", "LSTM", "GRU", "RNN",
}  # fmt: skip

_SHAPE_OPS = frozenset({
    "Shape", "Size", "Gather", "Slice", "Concat", "Squeeze", "Unsqueeze", "Cast", "Reshape",
    "Add", "Sub", "Mul", "Div",
})  # fmt: skip


def fold_constants(model: ir.Model) -> None:
    """Evaluate every node whose result is the same in all runs."""
    names = Names(model)
    room = Room(model.meta.get(FOLDED_BYTES, DEFAULT_LIMITS.folded_bytes))
    inlined = True
    while inlined:
        inlined = False
        for graph in list(model.graphs()):
            inlined |= _fold_graph(graph, names, room)
    model.meta[FOLDED_BYTES] = room.nbytes


@dataclass
class Room:
    """What may still be folded. What finds none is computed in every run."""

    nbytes: int

    def take(self, grown: int) -> bool:
        """Whether so much more fits."""
        fits = grown <= self.nbytes
        self.nbytes -= max(grown, 0) if fits else 0
        return fits


def _fold_graph(graph: ir.Graph, names: Names, room: Room) -> bool:
    """True when a branch was spliced in: its nodes have not been looked at yet."""
    inlined = False
    for node in list(graph):
        if node.graph is not graph or node.domain:
            continue
        condition = constant(node.inputs[0]) if node.op_type == "If" else None
        if node.op_type == "Constant":
            if (held := constant(node.outputs[0])) is not None:
                _settle(node, [held], names)
        elif condition is not None and condition.size == 1:
            _inline_branch(node, "then_branch" if condition.item() else "else_branch", names)
            inlined = True
        elif not _fold_known_elements(node, names) and not _evaluate(node, names, room):
            _settle_reshape(node, names)
    return inlined


def _fold_known_elements(node: ir.Node, names: Names) -> bool:
    out = node.outputs[0]
    if node.op_type not in _SHAPE_OPS or out.shape is None or not out.shape.is_static():
        return False
    if out.dtype not in (ir.DataType.INT64, ir.DataType.INT32):
        return False
    known = elements(out)
    if known is None or not all(isinstance(size, int) for size in known):
        return False
    shape = out.shape.numpy()
    if math.prod(shape) != len(known):
        return False
    return _settle(node, [np.array(known, dtype=out.dtype.numpy()).reshape(shape)], names)


def _evaluate(node: ir.Node, names: Names, room: Room) -> bool:
    inputs = [None if value is None else constant(value) for value in node.inputs]
    if node.op_type in _NEVER or not inputs or _undoes_quantisation(node):
        return False
    if any(value is not None and array is None for value, array in zip(node.inputs, inputs, strict=True)):
        return False
    read_bytes = sum(array.nbytes for array in inputs if array is not None)
    limit = max(MAX_GROWN_BYTES, read_bytes)
    made_bytes = _output_bytes(node, inputs, read_bytes)
    if made_bytes is None or made_bytes > limit or not room.take(made_bytes - read_bytes):
        return False
    try:
        outputs = _run(node, inputs)
    except Exception:
        # no kernel for this op or type, operands that do not fit, or memory ended: the node stays
        return False
    if any(not isinstance(array, np.ndarray | np.generic) for array in outputs):
        return False
    arrays = [np.asarray(array) for array in outputs]
    return sum(array.nbytes for array in arrays) <= limit and _settle(node, arrays, names)


def _undoes_quantisation(node: ir.Node) -> bool:
    """Whether folding would make a weight larger: a scale, and a bias in 32 bits, stay as they are."""
    if node.op_type != "DequantizeLinear" or node.inputs[0].dtype == ir.DataType.INT32:
        return False
    readers = list(node.outputs[0].uses())
    return not readers or any(
        use.idx == 0 or use.node.op_type not in ("QuantizeLinear", "DequantizeLinear") for use in readers
    )


def _output_bytes(node: ir.Node, inputs: list[np.ndarray | None], read_bytes: int) -> int | None:
    """Size of the results, told without making them, whatever the file says; None if unknown."""
    if node.op_type in BOUNDED_BY_INPUT:
        return 8 * read_bytes
    if node.op_type == "Range":  # ONNX's inference wants scalars, models also give [1]
        return _range_bytes(inputs)
    pairs = zip(node.inputs, inputs, strict=True)
    given = {str(value.name): array for value, array in pairs if value is not None and array is not None}
    types = {name: type_proto(TensorSpec(dtype_of(array), array.shape)) for name, array in given.items()}
    data = {name: array for name, array in given.items() if array.size <= SIZES_READ}
    try:
        made = infer_types(op_of(node), Inferred(values=data, types=types), _opsets(node))
    except InputError:
        return None
    specs = [spec_of(kind) for kind in made.values()]
    return None if None in specs else sum(spec.nbytes for spec in specs if spec is not None)


def _range_bytes(inputs: list[np.ndarray | None]) -> int | None:
    if len(inputs) != 3 or any(array is None or array.size != 1 for array in inputs):
        return None
    start, limit, step = (float(array.item()) for array in inputs if array is not None)
    count = (limit - start) / step if step else math.nan
    return max(0, math.ceil(count)) * 8 if math.isfinite(count) else None


def _run(node: ir.Node, inputs: list[np.ndarray | None]) -> list[np.ndarray]:
    feeds = {f"i{i}": array for i, array in enumerate(_widened(node, inputs)) if array is not None}
    names = tuple(f"i{i}" if f"i{i}" in feeds else "" for i in range(len(inputs)))
    made = tuple(f"o{i}" for i in range(len(node.outputs)))  # one that is left out has no name of its own
    op = replace(op_of(node), inputs=names, outputs=made, name="")
    # infinities and NaN are results like any other; numpy would warn of them
    with np.errstate(all="ignore"):
        results: list[np.ndarray] = evaluator_of(op, _opsets(node)).run(None, feeds)
    return results


def _opsets(node: ir.Node) -> dict[str, int]:
    return dict(node.graph.opset_imports) or {"": 23}


def _widened(node: ir.Node, inputs: list[np.ndarray | None]) -> list[np.ndarray | None]:
    """Half inputs in the widest type the op takes; the result is rounded once, to the type it has.

    A long sum in a half type is off by as much as itself, and no kernel of ours or others adds up like that.
    """
    halves = [i for i, array in enumerate(inputs) if array is not None and array.dtype in _HALVES]
    if not halves or any(out.dtype is None for out in node.outputs):
        return inputs
    version = node.graph.opset_imports.get(node.domain) or onnx.defs.onnx_opset_version()
    schema = onnx.defs.get_schema(node.op_type, version, node.domain)
    slots = [schema.inputs[min(i, len(schema.inputs) - 1)] for i in halves]
    for wide, name in ((np.float64, "tensor(double)"), (np.float32, "tensor(float)")):
        if all(name in slot.types for slot in slots):
            return [a.astype(wide) if a is not None and i in halves else a for i, a in enumerate(inputs)]
    return inputs


def _settle(node: ir.Node, arrays: Sequence[np.ndarray], names: Names) -> bool:
    """Put initializers in the place of a node's outputs. A graph output must keep its node."""
    if any(out.is_graph_output() for out in node.outputs):
        return False
    for out, array in zip(node.outputs, arrays, strict=True):
        if out.dtype is not None and array.dtype != out.dtype.numpy():
            array = array.astype(out.dtype.numpy())
        name, out.name = out.name, None
        replace_value(out, add_initializer(node.graph, name or names.fresh("folded"), array))
    node.graph.remove(node, safe=True)
    return True


def _settle_reshape(node: ir.Node, names: Names) -> None:
    """Write the target of a Reshape as a constant; other nodes stay as they are."""
    if node.op_type != "Reshape" or constant(node.inputs[1]) is not None:
        return
    source, target = sizes(node.inputs[0]), reshape_target(node)
    if source is None or target is None or 0 in source:
        return
    shape = written_shape(source, target)
    # a literal 0 in the target would now mean "copy"
    if shape.count(-1) > 1 or any(size == 0 for size in target):
        return
    name = names.fresh(f"{node.outputs[0].name}/shape")
    node.replace_input_with(1, add_initializer(node.graph, name, np.array(shape, dtype=np.int64)))
    node.attributes["allowzero"] = ir.AttrInt64("allowzero", 0)


def _inline_branch(node: ir.Node, branch: str, names: Names) -> None:
    graph = node.graph
    body: ir.Graph = attribute(node, branch)
    sources = merged_sources([node])
    outputs = list(body.outputs)
    nodes = list(body)
    body.outputs.clear()
    for value in list(body.initializers.values()):
        del body.initializers[value.name]
        value.name = names.fresh(value.name)
        graph.register_initializer(value)
    body.remove(nodes)
    for inner in nodes:
        for out in inner.outputs:
            # the other branch, or another If, may use the same names
            out.name = names.fresh(f"{out.name}/inlined") if out.name else None
        inner.metadata_props.setdefault("ridgeline.sources", f"{sources};{merged_sources([inner])}")
    graph.insert_before(node, nodes)
    made = set(nodes)
    for old, new in zip(node.outputs, outputs, strict=True):
        if old.is_graph_output() and new.producer() not in made:
            # a branch that hands an outer value through: the graph output needs a node of its own
            copy = ir.node("Identity", [new])
            copy.outputs[0].name = names.fresh(f"{old.name}/copy")
            graph.insert_before(node, copy)
            new = copy.outputs[0]
        if new.producer() in made or old.is_graph_output():
            replace_value(old, new)
        else:
            old.replace_all_uses_with(new)
    graph.remove(node, safe=True)
