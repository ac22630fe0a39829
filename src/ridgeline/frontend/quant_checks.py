"""Scales and zero points that no quantised model can mean: found when a model is read, all at once."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TypeAlias

import numpy as np
import onnx_ir as ir

from ridgeline.errors import ModelError

Sizes: TypeAlias = tuple[int | None, ...]  # None where a size is open
# of ops that have them: places of levels, scale and zero point, and the axis of scales for channels; levels
# of None are the result
_LINEAR = {"QuantizeLinear": (None, 1, 2), "DequantizeLinear": (0, 1, 2)}
_PRODUCTS: Mapping[str, tuple[tuple[int | None, int, int], ...]] = {
    "QLinearMatMul": ((0, 1, 2), (3, 4, 5), (None, 6, 7)),
    "QLinearConv": ((0, 1, 2), (3, 4, 5), (None, 6, 7)),
}


def check_scales(model: ir.Model) -> None:
    """Raise one error that lists every node with such a scale or zero point."""
    rows = [
        f"{node.name or node.outputs[0].name} ({node.op_type}): {problem}"
        for node in model.graph.all_nodes()
        if node.domain in ("", "ai.onnx")
        for problem in _problems(node)
    ]
    if rows:
        raise ModelError(
            "scales or zero points of a quantised model are impossible",
            rows=rows,
            want="finite scales above zero, one for the tensor, one per channel, or one per block, and zero "
            "points of the type and number of what they belong to",
            help="calibrate the model again, or mend the nodes",
        )


def _problems(node: ir.Node) -> Iterator[str]:
    if node.op_type in _LINEAR:
        levels, scale, zero = _LINEAR[node.op_type]
        yield from _linear(node, levels, scale, zero)
    for group in _PRODUCTS.get(node.op_type, ()):
        yield from _values(node, group[1])
        yield from _types(node, *group)


def _linear(node: ir.Node, levels: int | None, scale: int, zero: int) -> Iterator[str]:
    yield from _values(node, scale)
    yield from _types(node, levels, scale, zero)
    x, scales, zeros = (_shape(_input(node, place)) for place in (0, scale, zero))
    axis, block = (_integer(node, name, default) for name, default in (("axis", 1), ("block_size", 0)))
    is_alike = scales == zeros or {scales, zeros} == {(), (1,)}
    if scales is not None and zeros is not None and not is_alike:
        yield f"the scale has shape {list(scales)}, the zero point {list(zeros)}"
    if block < 0:
        yield f"block_size is {block}"
    elif x is not None and scales is not None and any(size != 1 for size in scales):
        yield from _placed(x, scales, axis, block)


def _placed(x: Sizes, scales: Sizes, axis: int, block: int) -> Iterator[str]:
    """What is wrong with scales of several numbers beside x, of which some sizes may be open."""
    if not -len(x) <= axis < len(x):
        yield f"axis is {axis}, and x has {len(x)} axes"
        return
    size = x[axis]
    if not block:
        if len(scales) != 1 or (size is not None and scales[0] != size):
            want = "?" if size is None else size
            yield f"the scale has shape {list(scales)}, want [{want}] along axis {axis}"
        return
    blocks = [*x]
    blocks[axis] = None if size is None else -(-size // block)
    fits = len(scales) == len(x) and all(w in (None, s) for w, s in zip(blocks, scales, strict=True))
    if not fits:
        yield f"the scale has shape {list(scales)}, blocks of {block} along axis {axis} want {blocks}"


def _values(node: ir.Node, place: int) -> Iterator[str]:
    """Scales that are zero, negative or not finite."""
    array = _constant(_input(node, place))
    if array is None or not array.size:
        return
    numbers = array.astype(np.float64)
    bad = ~(np.isfinite(numbers) & (numbers > 0))
    if bad.any():
        first = int(np.flatnonzero(bad.reshape(-1))[0])
        found = f"{numbers.reshape(-1)[first]:g}"
        where = "" if numbers.size == 1 else f" at {first}; {int(bad.sum())} of {numbers.size} are like it"
        yield f"a scale is {found}{where}"


def _types(node: ir.Node, levels: int | None, scale: int, zero: int) -> Iterator[str]:
    """Zero points of another type than the levels they belong to."""
    point = _input(node, zero)
    if point is None or point.dtype is None:
        return
    asked = _integer(node, "output_dtype", 0)
    other = ir.DataType(asked) if levels is None and asked else None
    value = _input(node, levels) if levels is not None else None
    other = value.dtype if value is not None else other
    if other is not None and other != point.dtype:
        yield f"the zero point is {point.dtype.name.lower()}, the levels are {other.name.lower()}"
    array = _constant(point)
    if array is not None and point.dtype.is_floating_point() and np.any(array.astype(np.float32) != 0):
        yield f"a zero point of {point.dtype.name.lower()} is not zero"


def _input(node: ir.Node, place: int) -> ir.Value | None:
    return node.inputs[place] if place < len(node.inputs) else None


def _constant(value: ir.Value | None) -> np.ndarray | None:
    tensor = None if value is None or value.is_graph_input() else ir.convenience.get_const_tensor(value)
    return None if tensor is None or tensor.dtype == ir.DataType.STRING else tensor.numpy()


def _shape(value: ir.Value | None) -> Sizes | None:
    """Of a value with a known rank; sizes that are open are None."""
    array = _constant(value)
    if array is not None:
        return tuple(array.shape)
    if value is None or value.shape is None:
        return None
    return tuple(dim if isinstance(dim, int) else None for dim in value.shape)


def _integer(node: ir.Node, name: str, default: int) -> int:
    attr = node.attributes.get(name)
    return default if attr is None else int(attr.as_int())
