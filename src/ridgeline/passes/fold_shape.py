"""What is known of shape arithmetic: the elements of small integer tensors, as numbers or as named sizes.

Two equal elements are equal in every run. Only reads the graph; `fold.py` and the rules act on what it says.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import TypeAlias, TypeVar

import numpy as np
import onnx_ir as ir

from ridgeline.ir.moves import cut_places
from ridgeline.ir.op_given import MisfitError, NotKnownError
from ridgeline.passes.match import attribute, constant

# a number, or a name that stands for one unknown number
Size: TypeAlias = int | str

T = TypeVar("T")
_MAX_ELEMENTS = 64
_MAX_DEPTH = 64
_SAME_ELEMENTS = frozenset({"Identity", "Cast", "Squeeze", "Unsqueeze", "Reshape", "Flatten"})
_ARITHMETIC = frozenset({"Add", "Sub", "Mul", "Div"})


def sizes(value: ir.Value) -> tuple[Size, ...] | None:
    """The dims of a value, None when its rank is unknown."""
    if value.shape is None:
        return None
    return tuple(
        dim if isinstance(dim, int) else _symbol(dim.value, value, axis)
        for axis, dim in enumerate(value.shape)
    )


def _symbol(name: str | None, value: ir.Value, axis: int) -> str:
    # exporters write "?" and "-1" for sizes that have nothing to do with one another
    if name and name != "None" and (name[0].isalpha() or name[0] in "_("):
        return name
    return f"{value.name}#{axis}"


def is_named(size: Size) -> bool:
    """Whether an open size has a name of the model's, neither ours nor one that ONNX's inference made up."""
    return isinstance(size, str) and "#" not in size and not size.startswith("unk__")


def elements(value: ir.Value | None, depth: int = 0) -> tuple[Size, ...] | None:
    """The elements of an integer tensor in order, None when not even their number is known."""
    if value is None or depth > _MAX_DEPTH:
        return None
    array = constant(value)
    if array is not None:
        is_small = array.size <= _MAX_ELEMENTS and array.dtype.kind in "iu"
        return tuple(array.reshape(-1).tolist()) if is_small else None
    node = value.producer()
    known = _computed(node, depth) if node is not None and not node.domain else None
    if known is not None and _fit(known, value):
        return known
    dims = sizes(value)
    if dims is None or len(dims) > 1 or value.dtype not in (ir.DataType.INT64, ir.DataType.INT32):
        return None
    length = dims[0] if dims else 1
    if not isinstance(length, int) or length > _MAX_ELEMENTS:
        return None
    return tuple(f"{value.name}[{i}]" for i in range(length))


def _fit(known: tuple[Size, ...], value: ir.Value) -> bool:
    """Whether no number is past the ends of its type, where a model would wrap around."""
    end = 2**31 if value.dtype == ir.DataType.INT32 else 2**63
    return all(not isinstance(size, int) or -end <= size < end for size in known)


def _computed(node: ir.Node, depth: int) -> tuple[Size, ...] | None:
    op, inputs = node.op_type, node.inputs
    if op == "Shape":
        dims = sizes(inputs[0])
        return None if dims is None else dims[attribute(node, "start") or 0 : attribute(node, "end")]
    if op == "Size":
        dims = sizes(inputs[0])
        return (_combine("Mul", dims),) if dims is not None else None
    if op in _SAME_ELEMENTS:
        is_integer = node.outputs[0].dtype in (ir.DataType.INT64, ir.DataType.INT32)
        return elements(inputs[0], depth + 1) if is_integer else None
    if op == "Concat":
        parts = [elements(part, depth + 1) for part in inputs]
        return None if None in parts else tuple(e for part in parts for e in part or ())
    if op == "Gather":
        data, index = elements(inputs[0], depth + 1), constant(inputs[1])
        if data is None or index is None or not _is_flat(inputs[0]) or index.ndim > 1:
            return None
        places = index.reshape(-1).tolist()
        is_inside = all(-len(data) <= place < len(data) for place in places)
        return tuple(data[place] for place in places) if is_inside else None
    if op == "Slice":
        return _sliced(node, depth)
    if op in _ARITHMETIC:
        left, right = elements(inputs[0], depth + 1), elements(inputs[1], depth + 1)
        if left is None or right is None or len(left) != len(right):
            return None
        return tuple(_combine(op, pair) for pair in zip(left, right, strict=True))
    return None


def _sliced(node: ir.Node, depth: int) -> tuple[Size, ...] | None:
    data = elements(node.inputs[0], depth + 1)
    taken = node_cuts(node, [len(data)]) if data is not None and _is_flat(node.inputs[0]) else None
    places = None if taken is None else taken.get(0)
    return None if data is None or places is None else tuple(data[place] for place in places)


def slice_bounds(node: ir.Node, read: Callable[[ir.Value], T]) -> list[T | tuple[()]]:
    """What is read of the starts, ends, axes and steps of a Slice; () for those it has not."""
    return [() if value is None else read(value) for value in (*node.inputs[1:], None, None)[:4]]


def named_axes(node: ir.Node, rank: int) -> list[int] | None:
    """The axes that a Slice, Squeeze or Unsqueeze of so many axes names, those of an Unsqueeze as they are in
    its result; None if they are not known."""
    place = 3 if node.op_type == "Slice" else 1
    axes = constant(node.inputs[place]) if len(node.inputs) > place else None
    if axes is None:
        return None
    rank += axes.size if node.op_type == "Unsqueeze" else 0
    return [int(axis) % rank for axis in axes.reshape(-1)]


def node_cuts(node: ir.Node, dims: Sequence[Size | None]) -> dict[int, range] | None:
    """The places that a Slice takes along each axis of an input of these sizes; None if not known."""
    bounds = [np.reshape(array, -1).tolist() for array in slice_bounds(node, constant) if array is not None]
    numbers = [dim if isinstance(dim, int) else None for dim in dims]
    try:
        return cut_places(numbers, *bounds) if len(bounds) == 4 else None
    except (MisfitError, NotKnownError):
        return None


def part_of(value: ir.Value, dims: Sequence[Size | None]) -> tuple[int, range] | None:
    """Axis and places, if the value is what a Slice, a Split or a Gather of one place takes along one
    axis of its input; None if it is not, or they are not known. `dims`: the sizes of that input."""
    node = value.producer()
    if node.op_type == "Slice":
        taken = node_cuts(node, dims)
        return next(iter(taken.items())) if taken is not None and len(taken) == 1 else None
    axis = attribute(node, "axis") % len(dims)
    if node.op_type == "Gather":
        index, size = constant(node.inputs[1]), dims[axis]
        if index is None or index.size != 1 or not isinstance(size, int) or not -size <= index.item() < size:
            return None
        return axis, range(size)[int(index.item()) :][:1]
    # an output may be declared with another rank than it has
    shapes = [sizes(out) or () for out in node.outputs]
    lengths = [shape[axis] if len(shape) > axis else None for shape in shapes]
    place = node.outputs.index(value)
    numbers = [length for length in lengths[: place + 1] if isinstance(length, int)]
    return (axis, range(sum(numbers[:-1]), sum(numbers))) if len(numbers) == place + 1 else None


def _is_flat(value: ir.Value) -> bool:
    return value.shape is not None and value.shape.rank() == 1


def _combine(op: str, operands: tuple[Size, ...]) -> Size:
    if op == "Mul" and all(isinstance(o, int) for o in operands):
        return math.prod(int(operand) for operand in operands)
    if len(operands) == 2 and all(isinstance(o, int) for o in operands):
        a, b = int(operands[0]), int(operands[1])
        if op == "Add":
            return a + b
        if op == "Sub":
            return a - b
        # ONNX divides integers towards zero; shapes are not negative, anything else stays unknown
        if op == "Div" and a >= 0 and b > 0:
            return a // b
    if op in ("Mul", "Div") and len(operands) == 2 and operands[1] == 1:
        return operands[0]
    ordered = sorted(map(str, operands)) if op in ("Add", "Mul") else list(map(str, operands))
    return f"{op}({','.join(ordered)})"


def reshape_target(node: ir.Node) -> tuple[Size, ...] | None:
    """The sizes a Reshape gives its output: what its shape input says, else what inference found."""
    source, asked = sizes(node.inputs[0]), elements(node.inputs[1])
    found = sizes(node.outputs[0])
    if asked is None:
        return found
    target = list(asked)
    if not attribute(node, "allowzero") and 0 in target:
        if source is None or any(size == 0 and axis >= len(source) for axis, size in enumerate(target)):
            return found
        target = [source[axis] if size == 0 else size for axis, size in enumerate(target)]
    if -1 in target:
        axis = target.index(-1)
        inferred = _inferred(source, (*target[:axis], *target[axis + 1 :]))
        if inferred is None:
            # a shape written in the file may be stale and have another rank: its names mean other axes
            fits = found is not None and len(found) == len(target)
            inferred = found[axis] if found is not None and fits else f"{node.outputs[0].name}#new{axis}"
        target[axis] = inferred
    return tuple(target)


def written_shape(source: Sequence[Size | None], target: Sequence[Size | None]) -> list[int]:
    """A target as a Reshape has it: numbers, 0 for a dim that stays where it is, -1 for one unknown."""
    return [
        size if isinstance(size, int) else 0 if size is not None and size in source[i : i + 1] else -1
        for i, size in enumerate(target)
    ]


def range_end(node: ir.Node) -> Size | None:
    """Where a Range ends that counts from 0 by one; None for any other, and where that is not known."""
    begin, ends, step = constant(node.inputs[0]), elements(node.inputs[1]), constant(node.inputs[2])
    given = [array.reshape(-1).tolist() for array in (begin, step) if array is not None]
    return ends[0] if given == [[0], [1]] and ends is not None and len(ends) == 1 else None


def _inferred(source: tuple[Size, ...] | None, rest: tuple[Size, ...]) -> Size | None:
    """The size that -1 stands for when all but one of the source's dims reappear in the target."""
    if source is None:
        return None
    left = list(source)
    factor = 1
    for size in rest:
        if size in left:
            left.remove(size)
        elif isinstance(size, int):
            factor *= size
        else:
            return None
    names = [size for size in left if not isinstance(size, int)]
    numbers = _combine("Mul", tuple(size for size in left if isinstance(size, int)))
    assert isinstance(numbers, int), "a product of numbers is a number"
    if factor == 0 or numbers % factor:
        return None
    if not names:
        return numbers // factor
    return names[0] if len(names) == 1 and numbers == factor else None
