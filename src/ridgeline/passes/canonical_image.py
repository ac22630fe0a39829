"""Rules for images on a target that keeps them channels last: pooling to one row, patches to one sequence."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import onnx_ir as ir

from ridgeline.ir.layout import CONVOLUTIONS
from ridgeline.ir.op_row import Trait
from ridgeline.ir.ops import has
from ridgeline.passes.match import attribute, constant
from ridgeline.passes.rule import Change, Fusion, Match

MOST_SEEN = 16  # values between an image and its convolution that are looked at


class MeanOfImage(Fusion):
    """[N, C, 1, 1] of means, flattened = mean over the image without its axes"""

    may_change = (Change.ROUNDING,)

    def pattern(self, op: Any, x: Any, axes: Any, shape: Any, gone: Any) -> Any:
        mean = op.either(op.GlobalAveragePool(x), op.ReduceMean(x, axes, keepdims=1))
        return op.either(op.Flatten(mean), op.Reshape(mean, shape), op.Squeeze(mean, gone))

    def check(self, m: Match) -> None:
        source = m.dims(m.x)
        rank = len(source)
        m.require(rank > 2, "input has no spatial axes", m.x)
        if m.axes is not None:
            axes = sorted(axis % rank for axis in m.const("axes"))
            m.require(axes == list(range(2, rank)), f"mean over axes {axes}, want all from 2", m.axes)
        if m.root.op_type == "Reshape":
            m.require(m.target(m.root) == source[:2], "does not keep batch and channels alone", m.shape)
        elif m.root.op_type == "Squeeze":
            axes = sorted(axis % rank for axis in m.const("gone"))
            m.require(axes == list(range(2, rank)), "keeps some spatial axes", m.gone)
        else:
            m.require(m.attr("Flatten", "axis") in (1, 1 - rank), "does not keep the batch alone", m.x)

    def rewrite(self, op: Any, m: Match) -> ir.Value:
        axes = op.const(np.arange(2, len(m.dims(m.x)), dtype=np.int64))
        return op.ReduceMean(m.x, axes, keepdims=0)


class PatchesToRows(Fusion):
    """[N, C, H, W] → [N, C, H·W] → [N, H·W, C] = [N, H, W, C] → [N, H·W, C]: a view of channels last"""

    may_change = ()

    def pattern(self, op: Any, x: Any, shape: Any) -> Any:
        return op.Transpose(op.Reshape(x, shape), perm=[0, 2, 1])

    def check(self, m: Match) -> None:
        source, flat = m.dims(m.x), m.target(m.node("Reshape"))
        m.require(len(source) == 4, "input is not an image", m.x)
        m.require(len(flat) == 3 and flat[:2] == source[:2], "does not flatten the image alone", m.shape)
        m.require(_is_convolved(m.x), "image does not come from a convolution", m.x)
        known = all(isinstance(size, int) for size in source[1:])
        m.require(known, f"sizes {source[1:]} of the image are not all known", m.x)

    def rewrite(self, op: Any, m: Match) -> ir.Value:
        channels, height, width = (int(size) for size in m.dims(m.x)[1:])
        rows = np.array([0, height * width, channels], dtype=np.int64)
        return op.Reshape(op.Transpose(m.x, perm=[0, 2, 3, 1]), op.const(rows))


class RowsToImage(Fusion):
    """[N, H·W, C] → [N, C, H·W] → [N, C, H, W] = [N, H, W, C] → [N, C, H, W]: a view of channels last"""

    may_change = ()

    def pattern(self, op: Any, x: Any, shape: Any) -> Any:
        return op.Reshape(op.Transpose(x, perm=[0, 2, 1]), shape)

    def check(self, m: Match) -> None:
        source, image = m.dims(m.x), m.dims(m.root.outputs[0])
        m.require(len(source) == 3 and len(image) == 4, "does not make an image of rows", m.x)
        m.require((image[0], image[1]) == (source[0], source[2]), "does not split the rows alone", m.shape)
        known = all(isinstance(size, int) for size in image[1:])
        m.require(known, f"sizes {image[1:]} of the image are not all known", m.x)
        m.require(is_to_convolve(m.root.outputs[0]), "no convolution reads the image", m.x)

    def rewrite(self, op: Any, m: Match) -> ir.Value:
        channels, height, width = (int(size) for size in m.dims(m.root.outputs[0])[1:])
        rows = np.array([0, height, width, channels], dtype=np.int64)
        return op.Transpose(op.Reshape(m.x, op.const(rows)), perm=[0, 3, 1, 2])


def _is_convolved(value: ir.Value) -> bool:
    """Whether a convolution makes it, or ops that keep the layout of one's result."""
    return _comes_from(value, lambda maker: maker.op_type in CONVOLUTIONS)


def lies_last(value: ir.Value) -> bool:
    """As `_is_convolved`, or made of rows of channels for a convolution."""
    return _comes_from(value, lambda maker: maker.op_type in CONVOLUTIONS or _is_turned(maker))


def _is_turned(maker: ir.Node) -> bool:
    is_turn = maker.op_type == "Transpose" and tuple(attribute(maker, "perm") or ()) == (0, 3, 1, 2)
    return is_turn and is_to_convolve(maker.outputs[0])


def _comes_from(value: ir.Value, is_source: Callable[[ir.Node], bool]) -> bool:
    """Whether such a node makes it, or ops that keep the layout of one's result."""
    seen, waiting = {value}, [value]
    while waiting and len(seen) < MOST_SEEN:
        maker = waiting.pop().producer()
        if maker is not None and is_source(maker):
            return True
        if maker is not None and has(maker, Trait.KEEPS_LAYOUT):
            new = {source for source in maker.inputs if source is not None} - seen
            seen |= new
            waiting += new
    return False


def is_to_convolve(value: ir.Value) -> bool:
    """Whether a convolution reads it, or what ops make of it that keep its layout."""
    return any(reader.op_type in CONVOLUTIONS and place == 0 for _, reader, place in _uses_in_layout(value))


def is_to_lie_last(value: ir.Value) -> bool:
    """As `is_to_convolve`, or it is added to an image that lies channels last."""
    return is_to_convolve(value) or any(
        has(reader, Trait.KEEPS_LAYOUT) and _has_image_beside(reader, used)
        for used, reader, _ in _uses_in_layout(value)
    )


def _has_image_beside(reader: ir.Node, value: ir.Value) -> bool:
    return any(other is not None and other is not value and lies_last(other) for other in reader.inputs)


def _uses_in_layout(value: ir.Value) -> Iterator[tuple[ir.Value, ir.Node, int]]:
    """What is read of a value and of what ops make of it that keep its layout, by whom, at which place."""
    seen, waiting = {value}, [value]
    while waiting and len(seen) < MOST_SEEN:
        used = waiting.pop()
        for reader, place in used.uses():
            yield used, reader, place
            if has(reader, Trait.KEEPS_LAYOUT) and reader.outputs[0] not in seen:
                seen.add(reader.outputs[0])
                waiting.append(reader.outputs[0])


class TokenInFront(Fusion):
    """[k; x] + c = pad(x) + c', where c' holds k + c in the rows of k: the same roundings, no join"""

    may_change = (Change.SIGNED_ZERO,)

    def pattern(self, op: Any, k: Any, x: Any, c: Any, shape: Any) -> Any:
        rows = op.either(op.Expand(op.known(k), shape), op.known(k))
        return op.Add(op.Concat(rows, x), op.known(c))

    def check(self, m: Match) -> None:
        source, joined = m.dims(m.x), m.dims(m.node("Concat").outputs[0])
        axis, rank = _joined_axis(m), len(joined)
        m.require(constant(m.x) is None, "both parts are constants", m.x)
        m.require(m.root.outputs[0].dtype == m.x.dtype, "types differ", m.x)
        m.require(m.dims(m.root.outputs[0]) == joined, "the sum is larger than what is joined", m.c)
        m.require(isinstance(source[axis], int), "rows of x are not counted", m.x)
        m.require(m.array("k").ndim == rank, "constant rows are spread over more axes", m.k)
        rows = m.array("k").shape[axis]
        m.require(joined[axis] == rows + int(source[axis]), "constant rows are repeated", m.k)
        m.require(m.array("c").ndim == rank and m.array("c").shape[axis] == joined[axis], "c repeats", m.c)

    def rewrite(self, op: Any, m: Match) -> ir.Value:
        axis, c = _joined_axis(m), m.array("c")
        k = _once(m.array("k"), axis)
        head, tail = np.split(c, [k.shape[axis]], axis=axis)
        head = k + head
        shape = (*head.shape[:axis], tail.shape[axis], *head.shape[axis + 1 :])
        table = np.concatenate(
            [head, np.broadcast_to(tail, np.broadcast_shapes(tail.shape, shape))], axis=axis
        )
        pads = np.zeros(2 * c.ndim, dtype=np.int64)
        pads[axis] = k.shape[axis]
        return op.Add(op.Pad(m.x, op.const(pads)), op.const(table))


def _joined_axis(m: Match) -> int:
    return int(m.attr("Concat", "axis") % len(m.dims(m.node("Concat").outputs[0])))


def _once(array: np.ndarray, kept: int) -> np.ndarray:
    """The array without repetitions along its other axes."""
    for axis in range(array.ndim):
        first = np.take(array, [0], axis=axis)
        if axis != kept and array.shape[axis] > 1 and bool(np.all(array == first)):
            array = first
    return array


RULES: tuple[Fusion, ...] = (MeanOfImage(), PatchesToRows(), RowsToImage(), TokenInFront())
