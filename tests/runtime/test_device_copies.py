"""Copies of many tensors by one launch: which go together, and what becomes of the others."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from ridgeline.runtime.device_copies import TOGETHER_BYTES, Clones, Destinations, together


def two(dtype: torch.dtype) -> dict[str, Tensor]:
    return {name: torch.arange(first, first + 3).to(dtype) for name, first in (("a", 0), ("b", 3))}


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.int64, torch.bool, torch.complex64])
def test_small_tensors_of_a_type_go_together(dtype: torch.dtype) -> None:
    (group,) = together(two(dtype))
    assert list(group) == ["a", "b"]


@pytest.mark.parametrize("dtype", [torch.uint16, torch.uint32, torch.uint64, torch.float8_e4m3fn])
def test_types_that_one_launch_does_not_copy_go_alone(dtype: torch.dtype) -> None:
    """PyTorch's kernel for lists raises for them on a GPU: `foreach_tensor_copy` is not implemented."""
    tensors = two(dtype)
    assert together(tensors) == []
    made = Clones(tensors).make()
    destinations = {name: torch.zeros_like(tensor) for name, tensor in tensors.items()}
    Destinations(destinations).fill(list(tensors.values()))
    for name, tensor in tensors.items():
        for copy in (made[name], destinations[name]):
            assert copy.data_ptr() != tensor.data_ptr()
            assert torch.equal(copy.view(torch.uint8), tensor.view(torch.uint8))


def test_large_empty_and_scattered_tensors_go_alone() -> None:
    small = torch.zeros(4)
    others = [torch.zeros(TOGETHER_BYTES), torch.zeros(0), torch.zeros(4, 4).t()[1:]]
    for other in others:
        tensors = {"a": small, "b": other}
        assert together(tensors) == []
        assert [tensor.shape for tensor in Clones(tensors).make().values()] == [small.shape, other.shape]
