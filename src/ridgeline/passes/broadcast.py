"""Which values are constants that are only spread over sizes nobody knows yet: masks and positions, mostly.

Such a value equals a known array that broadcasts to it, whatever the batch. Only reads the graph.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TypeAlias

import numpy as np
import onnx_ir as ir

from ridgeline.ir.host_ops import ARITHMETIC
from ridgeline.ir.moves import as_slice
from ridgeline.passes.fold_shape import Size, node_cuts, sizes
from ridgeline.passes.match import attribute, constant

# a mask of 2048 queries by 2048 keys still counts; more is data
MAX_NUMEL = 1 << 22

Cores: TypeAlias = dict[ir.Value, np.ndarray]

_ELEMENTWISE: Mapping[str, Callable[..., np.ndarray]] = {
    **ARITHMETIC, "And": np.logical_and, "Or": np.logical_or, "Xor": np.logical_xor, "Not": np.logical_not,
    "Neg": np.negative, "Abs": np.abs, "LessOrEqual": np.less_equal, "GreaterOrEqual": np.greater_equal,
    "Where": np.where,
}  # fmt: skip


def broadcast_values(graph: ir.Graph) -> Cores:
    """For each value that qualifies, an array of the value's own rank that broadcasts to it in every run."""
    cores: Cores = {}
    for node in graph:
        if node.domain or len(node.outputs) != 1:
            continue
        out = node.outputs[0]
        core = None if out.shape is None else _core(node, cores)
        if core is not None and core.size <= MAX_NUMEL and core.ndim <= len(_dims(out)):
            cores[out] = core.reshape((1,) * (len(_dims(out)) - core.ndim) + core.shape)
    return cores


def known(value: ir.Value | None, cores: Cores) -> np.ndarray | None:
    """The array behind a value: its own when it is a constant, else the one it spreads."""
    array = constant(value)
    if array is not None or value is None:
        return array
    return cores.get(value)


def _core(node: ir.Node, cores: Cores) -> np.ndarray | None:
    made = _MAKERS.get(node.op_type)
    if made is None and node.op_type not in _ELEMENTWISE:
        return None
    first = known(node.inputs[0], cores) if node.inputs else None
    if first is None:
        return None
    if made is not None:
        return made(node, first, cores)
    operands = [known(value, cores) for value in node.inputs]
    if any(operand is None for operand in operands):
        return None
    # broadcasting the operands and computing commute, so the arrays stand for the whole values
    with np.errstate(all="ignore"):
        return np.asarray(_ELEMENTWISE[node.op_type](*operands))


def _dims(value: ir.Value) -> tuple[Size, ...]:
    return sizes(value) or ()


def _is_whole(array: np.ndarray, dims: Sequence[Size], axis: int) -> bool:
    return bool(array.shape[axis] == dims[axis])


def _cast(node: ir.Node, source: np.ndarray, cores: Cores) -> np.ndarray | None:
    kind = ir.DataType(attribute(node, "to"))
    # floats to integers saturates or wraps by runtime; nothing that masks are made of does it
    is_plain = source.dtype.kind in "biu" or kind.is_floating_point() or kind == ir.DataType.BOOL
    return source.astype(kind.numpy()) if is_plain and kind != ir.DataType.STRING else None


def _unsqueeze(node: ir.Node, source: np.ndarray, cores: Cores) -> np.ndarray | None:
    axes = constant(node.inputs[1])
    return None if axes is None else np.expand_dims(source, tuple(axes.reshape(-1).tolist()))


def _slice(node: ir.Node, source: np.ndarray, cores: Cores) -> np.ndarray | None:
    """Along an axis that is spread every slice is spread; along the others it must be whole."""
    taken = node_cuts(node, source.shape)
    if taken is None:
        return None
    window, dims = [slice(None)] * source.ndim, _dims(node.inputs[0])
    for axis, places in taken.items():
        if places.step < 1 or (source.shape[axis] != 1 and not _is_whole(source, dims, axis)):
            return None
        if _is_whole(source, dims, axis):
            window[axis] = as_slice(places)
    return source[tuple(window)]


def _concat(node: ir.Node, source: np.ndarray, cores: Cores) -> np.ndarray | None:
    """Parts are written out along the joined axis, and along the others only as far as one of them is."""
    parts = [known(value, cores) for value in node.inputs]
    if any(part is None for part in parts):
        return None
    arrays = [part for part in parts if part is not None]
    axis = attribute(node, "axis") % arrays[0].ndim
    lengths = [_dims(value)[axis] for value in node.inputs]
    frames = [(*a.shape[:axis], 1, *a.shape[axis + 1 :]) for a in arrays]
    frame = np.broadcast_shapes(*frames)
    whole = []
    for array, length in zip(arrays, lengths, strict=True):
        if not isinstance(length, int):
            return None
        whole.append(np.broadcast_to(array, (*frame[:axis], length, *frame[axis + 1 :])))
    return np.concatenate(whole, axis=axis)


def _cumsum(node: ir.Node, source: np.ndarray, cores: Cores) -> np.ndarray | None:
    axes = constant(node.inputs[1])
    if axes is None or attribute(node, "exclusive") or attribute(node, "reverse"):
        return None
    axis = int(axes.reshape(())) % source.ndim
    length = _dims(node.inputs[0])[axis]
    if not isinstance(length, int) or source.dtype.kind not in "iu":
        return None
    shape = (*source.shape[:axis], length, *source.shape[axis + 1 :])
    return np.cumsum(np.broadcast_to(source, shape), axis=axis, dtype=source.dtype)


def _gather(node: ir.Node, source: np.ndarray, cores: Cores) -> np.ndarray | None:
    data, indices = constant(node.inputs[0]), known(node.inputs[1], cores)
    if data is None or indices is None:
        return None
    axis = attribute(node, "axis") % data.ndim
    if indices.size * (data.size // max(data.shape[axis], 1)) > MAX_NUMEL:
        return None
    is_inside = indices.size and -data.shape[axis] <= indices.min() and indices.max() < data.shape[axis]
    return np.take(data, indices, axis=axis) if is_inside else None


def _gather_elements(node: ir.Node, source: np.ndarray, cores: Cores) -> np.ndarray | None:
    data, indices = constant(node.inputs[0]), constant(node.inputs[1])
    if data is None or indices is None or not indices.size:
        return None
    axis = attribute(node, "axis") % data.ndim
    inner = tuple(slice(None) if i == axis else slice(n) for i, n in enumerate(indices.shape))
    is_inside = -data.shape[axis] <= indices.min() and indices.max() < data.shape[axis]
    return np.take_along_axis(data[inner], indices, axis) if is_inside else None


# from a node and the array behind its first input
_MAKERS: Mapping[str, Callable[[ir.Node, np.ndarray, Cores], np.ndarray | None]] = {
    "Cast": _cast,
    "Expand": lambda node, source, cores: source,
    "Unsqueeze": _unsqueeze,
    "Transpose": lambda node, source, cores: np.transpose(source, attribute(node, "perm")),
    "Slice": _slice,
    "Concat": _concat,
    "CumSum": _cumsum,
    "Gather": _gather,
    "GatherElements": _gather_elements,
}
