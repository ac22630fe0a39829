"""Copies between tensors of a device with few launches: one copies all small tensors of a type."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

# what one launch copies: PyTorch's kernel has no other types, such as wide unsigned integers
TYPES = frozenset(
    (
        torch.float64, torch.float32, torch.float16, torch.bfloat16, torch.int64, torch.int32, torch.int16,
        torch.int8, torch.uint8, torch.bool, torch.complex64, torch.complex128,
    )
)  # fmt: skip
# an H200 copies this much in 3 µs, and to queue a copy takes the host longer
TOGETHER_BYTES = 1 << 22


def together(tensors: Mapping[str, Tensor]) -> list[dict[str, Tensor]]:
    """The tensors that one launch can copy, with their names; at least two each."""
    groups: dict[Any, dict[str, Tensor]] = {}
    for name, tensor in tensors.items():
        if tensor.dtype in TYPES and tensor.is_contiguous() and 0 < tensor.nbytes <= TOGETHER_BYTES:
            groups.setdefault((tensor.dtype, tensor.device), {})[name] = tensor
    return [group for group in groups.values() if len(group) > 1]


class Clones:
    """Makes copies of the same tensors again and again, each in memory of its own."""

    def __init__(self, tensors: Mapping[str, Tensor]) -> None:
        self._tensors = dict(tensors)
        self._groups = [(list(group), list(group.values())) for group in together(tensors)]

    def make(self) -> dict[str, Tensor]:
        made: dict[str, Tensor] = {}
        for names, tensors in self._groups:
            copies = [torch.empty_like(tensor) for tensor in tensors]
            torch._foreach_copy_(copies, tensors)
            made |= zip(names, copies, strict=True)
        return {n: made[n] if n in made else tensor.clone() for n, tensor in self._tensors.items()}


class Destinations:
    """Tensors that are written again and again, from others of the same shapes and types."""

    def __init__(self, tensors: Mapping[str, Tensor]) -> None:
        groups, names = together(tensors), list(tensors)
        self._groups = [([names.index(name) for name in group], list(group.values())) for group in groups]
        grouped = {name for group in groups for name in group}
        self._alone = [(i, tensors[name]) for i, name in enumerate(names) if name not in grouped]

    def fill(self, sources: Sequence[Tensor]) -> None:
        """Queue the copies; the sources come in the order of the tensors, and lie on the same device."""
        for places, tensors in self._groups:
            torch._foreach_copy_(tensors, [sources[place] for place in places])
        for place, tensor in self._alone:
            if sources[place].data_ptr() != tensor.data_ptr():
                tensor.copy_(sources[place], non_blocking=True)
