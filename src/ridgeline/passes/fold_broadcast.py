"""Puts what is spread in the place of values that only spread it, where the reader broadcasts by itself.

A mask or a table of positions that a model expands to its batch is then read as it was stored, and one that
bars nothing is gone.
"""

from __future__ import annotations

import numpy as np
import onnx_ir as ir

from ridgeline.ir.op_row import Kind
from ridgeline.ir.ops import is_a
from ridgeline.ir.quant import dequantizes, quantizes
from ridgeline.passes.broadcast import Cores, broadcast_values, known
from ridgeline.passes.fold_shape import Size, sizes
from ridgeline.passes.match import attribute, constant
from ridgeline.passes.rule import Names, add_initializer

MASK = 3  # the slot of Attention's mask


def fold_broadcast(model: ir.Model) -> None:
    """Let pointwise ops and Attention read what is behind spread values."""
    names = Names(model)
    for graph in list(model.graphs()):
        cores = broadcast_values(graph)
        made: dict[ir.Value, ir.Value] = {}
        for node in graph:
            if node.domain:
                continue
            if node.op_type == "Attention":
                _settle_mask(node, cores, names)
            elif quantizes(node) or dequantizes(node):
                continue  # their operands are not broadcast
            elif is_a(node, Kind.POINTWISE) and node.outputs[0] not in cores:
                _read_constants(node, cores, made, names)
                _read_unbroadcast(node)


def _read_constants(node: ir.Node, cores: Cores, made: dict[ir.Value, ir.Value], names: Names) -> None:
    for index, value in enumerate(node.inputs):
        if value is None or value not in cores or not _keeps_size(node, index, cores[value].shape):
            continue
        if value not in made:
            made[value] = add_initializer(node.graph, names.fresh(f"{value.name}/known"), cores[value])
        node.replace_input_with(index, made[value])


def _read_unbroadcast(node: ir.Node) -> None:
    """What is expanded for an op that broadcasts by itself is read as it was."""
    for index, value in enumerate(node.inputs):
        maker = value.producer() if value is not None else None
        if maker is None or maker.op_type != "Expand" or maker.domain:
            continue
        dims = sizes(maker.inputs[0])
        if dims is not None and _keeps_size(node, index, dims):
            node.replace_input_with(index, maker.inputs[0])


def _keeps_size(node: ir.Node, index: int, dims: tuple[Size, ...]) -> bool:
    """Whether the result stays as large when one operand has these sizes and is not spread out."""
    out = sizes(node.outputs[0])
    others = [sizes(v) for i, v in enumerate(node.inputs) if i != index and v is not None]
    if out is None or None in others:
        return False
    shapes = [dims, *(other for other in others if other is not None)]
    return all(
        any(len(shape) >= back and shape[-back] == size for shape in shapes)
        for back, size in enumerate(reversed(out), start=1)
    )


def _settle_mask(node: ir.Node, cores: Cores, names: Names) -> None:
    mask = node.inputs[MASK] if len(node.inputs) > MASK else None
    core = known(mask, cores)
    if mask is None or core is None or _keys(node) != (sizes(mask) or (None,))[-1]:
        return
    if bool(np.all(core)) if core.dtype == bool else not bool(np.any(core)):
        node.replace_input_with(MASK, None)
        while node.inputs[-1] is None:
            node.resize_inputs(len(node.inputs) - 1)
        return
    shape = (*core.shape[:-2], _length(node.inputs[0]), _keys(node))
    if constant(mask) is None and core.ndim >= 2 and all(isinstance(size, int) for size in shape):
        whole = np.broadcast_to(core, [int(size) for size in shape if size is not None])
        node.replace_input_with(MASK, add_initializer(node.graph, names.fresh(f"{mask.name}/known"), whole))


def _keys(node: ir.Node) -> Size | None:
    """How many keys; those that come from the past are not counted, so with them the answer is None."""
    has_past = any(value is not None for value in node.inputs[4:])
    return None if has_past else _length(node.inputs[1])


def _length(value: ir.Value) -> Size | None:
    """How many queries or keys an operand of Attention has, in either of its forms."""
    dims = sizes(value)
    return None if dims is None or len(dims) < 3 else dims[-2]


def is_causal_mask(node: ir.Node) -> bool:
    """Whether the constant mask of an Attention bars exactly the keys after each query."""
    mask = constant(node.inputs[MASK]) if len(node.inputs) > MASK else None
    count = _length(node.inputs[0])
    if mask is None or not isinstance(count, int) or count < 2 or mask.shape[-2:] != (count, count):
        return False
    if _keys(node) != count or attribute(node, "is_causal"):
        return False
    barred = _barred(mask)
    return barred is not None and bool(np.all(barred == np.triu(np.ones((count, count), bool), 1)))


def _barred(mask: np.ndarray) -> np.ndarray | None:
    """Where a mask bars a key; None when it only weighs some of them."""
    if mask.dtype == bool:
        return ~mask
    if mask.dtype.kind != "f":
        return None
    # the lowest number bars as well as infinity does where another key of the row is left
    barred: np.ndarray = mask <= np.finfo(mask.dtype).min
    return barred if bool(np.all(barred | (mask == 0))) else None
