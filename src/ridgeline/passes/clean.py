"""Removes what computes nothing: dead nodes, no-op nodes, pairs that cancel, duplicates of nodes and weights.

A node goes only when types and shapes prove that its result equals a value that is already there.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import numpy as np
import onnx_ir as ir
from onnx_ir.passes.common import CommonSubexpressionEliminationPass, RemoveUnusedNodesPass

from ridgeline.ir.provenance import KEEP, SOURCES
from ridgeline.passes.fold_shape import elements, reshape_target, sizes, slice_bounds
from ridgeline.passes.match import attribute, constant, is_read, key_of
from ridgeline.passes.rule import Names, add_initializer, merged_sources, replace_value

# casts to a type that holds every value of the first one may be taken in one step
_WIDENS = {
    ("BOOL", "INT32"), ("BOOL", "INT64"), ("BOOL", "FLOAT"), ("INT32", "INT64"), ("INT32", "DOUBLE"),
    ("FLOAT16", "FLOAT"), ("BFLOAT16", "FLOAT"), ("FLOAT", "DOUBLE"), ("FLOAT16", "DOUBLE"),
    ("UINT8", "INT32"), ("INT8", "INT32"), ("UINT8", "INT64"), ("INT8", "INT64"),
}  # fmt: skip


def remove_noops(model: ir.Model) -> None:
    """Drop nodes whose result is their input, and merge movement nodes that follow each other."""
    names = Names(model)
    for graph in list(model.graphs()):
        for node in list(graph):
            if node.domain or any(is_read(extra) for extra in node.outputs[1:]):
                continue
            has_input = bool(node.inputs) and node.inputs[0] is not None
            before = node.inputs[0].producer() if has_input else None
            if before is not None and (merge := _MERGES.get((key_of(before), node.op_type))) is not None:
                merge(node, before, names)
            is_noop = _NOOPS.get(node.op_type)
            if is_noop is not None and has_input and is_noop(node):
                _bypass(node, _data_input(node))


def remove_duplicates(model: ir.Model) -> None:
    """Keep one of each group of equal nodes and of equal weights."""
    for graph in model.graphs():
        _merge_equal_initializers(graph)
    # the pass hashes attributes, and cannot hash types; who writes those repeats no work worth finding
    if not any(
        attr.type == ir.AttributeType.TYPE_PROTO
        for node in model.graph.all_nodes()
        for attr in node.attributes.values()
    ):
        with _kept_apart(model):
            CommonSubexpressionEliminationPass(size_limit=64)(model)


@contextmanager
def _kept_apart(model: ir.Model) -> Iterator[None]:
    """Nodes that must keep a type differ from others by an attribute, so that no pass takes one for both."""
    kept = [node for node in model.graph.all_nodes() if KEEP in node.metadata_props]
    for node in kept:
        node.attributes[KEEP] = ir.AttrString(KEEP, node.metadata_props[KEEP])
    yield
    for node in kept:
        del node.attributes[KEEP]


def remove_unused(model: ir.Model) -> None:
    """Drop nodes and initializers that no output depends on."""
    RemoveUnusedNodesPass()(model)


def _bypass(node: ir.Node, source: ir.Value) -> None:
    old, maker = node.outputs[0], source.producer()
    if old.is_graph_output():
        # an output keeps its own node unless its maker can take over the name
        if maker is None or maker.graph is not node.graph or source.is_graph_output():
            return
        replace_value(old, source)
    else:
        old.replace_all_uses_with(source)
    node.graph.remove(node, safe=True)


def _data_input(node: ir.Node) -> ir.Value:
    """The input that flows through: for Add and Mul, the one that is not the neutral constant."""
    first, *rest = node.inputs
    if node.op_type in ("Add", "Mul") and constant(first) is not None:
        return rest[0]
    return first


def _is_inference(node: ir.Node) -> bool:
    mode = node.inputs[2] if len(node.inputs) > 2 else None
    return mode is None or not bool(np.any(constant(mode) if constant(mode) is not None else True))


def _is_same_cast(node: ir.Node) -> bool:
    source = node.inputs[0].dtype
    return source is not None and int(source) == attribute(node, "to")


def _is_same_reshape(node: ir.Node) -> bool:
    source = sizes(node.inputs[0])
    return source is not None and source == reshape_target(node)


def _is_same_order(node: ir.Node) -> bool:
    perm, shape = attribute(node, "perm"), node.inputs[0].shape
    if perm is None:
        return shape is not None and shape.rank() < 2
    return list(perm) == list(range(len(perm)))


def _is_whole_slice(node: ir.Node) -> bool:
    source = sizes(node.inputs[0])
    bounds = slice_bounds(node, elements)
    if source is None or None in bounds:
        return False
    starts, ends, axes, steps = (bound or () for bound in bounds)
    axes = axes or tuple(range(len(ends)))
    if len(axes) != len(ends) or any(start != 0 for start in starts) or any(step != 1 for step in steps):
        return False
    for axis, end in zip(axes, ends, strict=True):
        if not isinstance(axis, int) or not -len(source) <= axis < len(source):
            return False
        size = source[axis]
        reaches = end == size or (
            isinstance(end, int) and end >= (size if isinstance(size, int) else 2**31 - 1)
        )
        if not reaches:
            return False
    return True


def _pads_nothing(node: ir.Node) -> bool:
    pads = constant(node.inputs[1])
    return pads is not None and not bool(np.any(pads))


def _expands_nothing(node: ir.Node) -> bool:
    source, target = sizes(node.inputs[0]), elements(node.inputs[1])
    if source is None or target is None or len(target) > len(source):
        return False
    tail = source[len(source) - len(target) :]
    return all(want in (1, have) for have, want in zip(tail, target, strict=True))


def _joins_one(node: ir.Node) -> bool:
    return len(node.inputs) == 1


def _is_neutral(neutral: float) -> Callable[[ir.Node], bool]:
    def is_noop(node: ir.Node) -> bool:
        source = _data_input(node)
        other = next((v for v in node.inputs if v is not source), None)
        array = constant(other)
        if array is None or array.dtype.kind not in "fiu" or not bool(np.all(array == neutral)):
            return False
        before = sizes(source)
        return before is not None and before == sizes(node.outputs[0])

    return is_noop


_NOOPS: dict[str, Callable[[ir.Node], bool]] = {
    "Identity": lambda node: True,
    "Dropout": _is_inference,
    "Cast": _is_same_cast,
    "Reshape": _is_same_reshape,
    "Transpose": _is_same_order,
    "Slice": _is_whole_slice,
    "Pad": _pads_nothing,
    "Expand": _expands_nothing,
    "Concat": _joins_one,
    "Max": _joins_one,
    "Min": _joins_one,
    "Sum": _joins_one,
    "Add": _is_neutral(0.0),
    "Sub": _is_neutral(0.0),
    "Mul": _is_neutral(1.0),
    "Div": _is_neutral(1.0),
    "Pow": _is_neutral(1.0),
}


def _skip(node: ir.Node, before: ir.Node) -> None:
    """Let `node` read what `before` reads; `before` is left to the removal of unused nodes."""
    node.metadata_props[SOURCES] = merged_sources([node, before])
    node.replace_input_with(0, before.inputs[0])


def _merge_transposes(node: ir.Node, before: ir.Node, names: Names) -> None:
    outer, inner = attribute(node, "perm"), attribute(before, "perm")
    if outer is not None and inner is not None:
        node.attributes["perm"] = ir.AttrInt64s("perm", [inner[axis] for axis in outer])
        _skip(node, before)


def _merge_reshapes(node: ir.Node, before: ir.Node, names: Names) -> None:
    asked = constant(node.inputs[1])
    if asked is None:
        return
    # 0 copies a dim of the reshape before; only a target without it means the same from further back
    target = reshape_target(node)
    if 0 in asked and (target is None or not all(isinstance(size, int) and size > 0 for size in target)):
        return
    if 0 in asked:
        name = names.fresh(f"{node.outputs[0].name}/shape")
        node.replace_input_with(1, add_initializer(node.graph, name, np.array(target, dtype=np.int64)))
    _skip(node, before)


def _merge_casts(node: ir.Node, before: ir.Node, names: Names) -> None:
    source, middle = before.inputs[0].dtype, ir.DataType(attribute(before, "to"))
    if source is not None and (source == middle or (source.name, middle.name) in _WIDENS):
        _skip(node, before)


def _cancel_squeeze(node: ir.Node, before: ir.Node, names: Names) -> None:
    """Unsqueeze after Squeeze, or the reverse, over the same axes."""
    if len(node.inputs) < 2 or len(before.inputs) < 2:
        return
    here, there = constant(node.inputs[1]), constant(before.inputs[1])
    if here is not None and there is not None and here.tolist() == there.tolist():
        _bypass(node, before.inputs[0])


# by the ops that follow one another
_MERGES: dict[tuple[str, str], Callable[[ir.Node, ir.Node, Names], None]] = {
    ("Transpose", "Transpose"): _merge_transposes,
    **{(before, "Reshape"): _merge_reshapes for before in ("Reshape", "Flatten", "Squeeze", "Unsqueeze")},
    ("Cast", "Cast"): _merge_casts,
    ("Unsqueeze", "Squeeze"): _cancel_squeeze,
    ("Squeeze", "Unsqueeze"): _cancel_squeeze,
}


def _merge_equal_initializers(graph: ir.Graph) -> None:
    groups: dict[tuple[object, ...], list[ir.Value]] = {}
    for value in graph.initializers.values():
        tensor = value.const_value
        if tensor is not None and tensor.dtype != ir.DataType.STRING:
            # the first elements tell most weights apart, so that few are hashed whole
            head = tensor.numpy().reshape(-1)[:16].tobytes()
            groups.setdefault((tensor.dtype, tuple(tensor.shape.numpy()), head), []).append(value)
    for values in groups.values():
        if len(values) < 2:
            continue
        first: dict[bytes, ir.Value] = {}
        for value in values:
            kept = first.setdefault(hashlib.sha256(value.const_value.tobytes()).digest(), value)
            if kept is not value and not value.is_graph_output() and not value.is_graph_input():
                value.replace_all_uses_with(kept)
