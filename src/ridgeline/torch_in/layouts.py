"""How results of a piece lie in memory: code after a graph break may ask for strides, or write to a view.

Engines make results in one block, in order. PyTorch knows from its trace how the piece's own would lie.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, fx
from torch.utils import _pytree as pytree

# an int, or an expression of the trace's symbols
Number = Any


@dataclass(frozen=True)
class Layout:
    """Of one result. A view of an argument is made from that argument, so that writes to one show in both."""

    strides: tuple[Number, ...]
    argument: int | None  # which it is a view of, if any
    offset: Number  # from the argument's first element

    def restored(self, made: Tensor, values: Sequence[Any], sizes: Mapping[Number, int]) -> Tensor:
        """The result as the piece itself would have left it."""
        strides = [_number(stride, sizes) for stride in self.strides]
        if self.argument is not None:
            base: Tensor = values[self.argument]
            return base.as_strided(made.shape, strides, base.storage_offset() + _number(self.offset, sizes))
        core = made
        for axis, stride in enumerate(strides):
            if stride == 0 and made.shape[axis] > 1:
                core = core.narrow(axis, 0, 1)  # a broadcast value
        home = torch.empty_strided(core.shape, strides, dtype=made.dtype, device=made.device)
        return home.copy_(core).expand(made.shape)


class Layouts:
    """Of all results of a graph from Dynamo; None for those that lie as engines make them."""

    def __init__(self, graph: fx.GraphModule) -> None:
        nodes = [node for node in graph.graph.nodes if node.op == "placeholder"]
        self._examples = [node.meta.get("example_value") for node in nodes]
        (output,) = (node for node in graph.graph.nodes if node.op == "output")
        self._layouts = [self._read(leaf) for leaf in pytree.tree_leaves(output.args[0])]
        self._are_usual = all(layout is None for layout in self._layouts)

    def restored(self, results: Any, values: Sequence[Any], is_made: Sequence[bool]) -> Any:
        """A piece's results, those that the engine made laid out as PyTorch would have."""
        if self._are_usual:
            return results
        sizes = self._sizes(values)
        return tuple(
            result if layout is None or not fresh else layout.restored(result, values, sizes)
            for result, layout, fresh in zip(results, self._layouts, is_made, strict=True)
        )

    def _read(self, leaf: Any) -> Layout | None:
        example = leaf.meta.get("example_value") if isinstance(leaf, fx.Node) else None
        if not isinstance(example, Tensor) or example.layout is not torch.strided:
            return None
        strides = tuple(map(_expression, example.stride()))
        for i, base in enumerate(self._examples):
            if isinstance(base, Tensor) and _is_view(example, base):
                return Layout(strides, i, _expression(example.storage_offset() - base.storage_offset()))
        return None if strides == _in_order(example) else Layout(strides, None, 0)

    def _sizes(self, values: Sequence[Any]) -> dict[Number, int]:
        """The sizes of the trace's symbols in this call."""
        known: dict[Number, int] = {}
        for example, value in zip(self._examples, values, strict=True):
            pairs = [(example, value)]
            if isinstance(example, Tensor):
                pairs = [*zip(example.shape, value.shape), *zip(example.stride(), value.stride())]  # noqa: B905
            known.update({_expression(e): v for e, v in pairs if isinstance(e, torch.SymInt)})
        return known


def _is_view(example: Tensor, base: Tensor) -> bool:
    """Whether the result is the same memory with other strides."""
    return (
        base.layout is torch.strided
        and example.untyped_storage()._cdata == base.untyped_storage()._cdata
        and (example.dtype, example.is_neg(), example.is_conj())
        == (base.dtype, base.is_neg(), base.is_conj())
    )


def _in_order(example: Tensor) -> tuple[Number, ...]:
    """Strides of a tensor in one block; a dim of size 1 may have any."""
    strides: list[Number] = []
    step: Number = 1
    for size, stride in zip(reversed(example.shape), reversed(example.stride()), strict=True):
        is_one = isinstance(size, int) and size == 1
        strides.append(_expression(stride) if is_one else step)
        step = step * _expression(size)
    return tuple(reversed(strides))


def _expression(size: int | torch.SymInt) -> Number:
    return size.node.expr if isinstance(size, torch.SymInt) else int(size)


def _number(number: Number, sizes: Mapping[Number, int]) -> int:
    return int(number if isinstance(number, int) else number.xreplace(sizes))
