"""Equal copies of weights are held once, by launches of any plan; unequal ones stay apart."""

from __future__ import annotations

import gc

import pytest
import torch

from ridgeline.tactics import shared_copies
from ridgeline.tactics.base import Launch
from ridgeline.tactics.shared_copies import held_bytes, shared_copy


def test_a_copy_with_the_same_bits_is_held_once() -> None:
    weight = torch.randn(16, 24)
    first = shared_copy(weight.t().contiguous(), weight)
    assert shared_copy(weight.t().contiguous(), weight) is first
    assert shared_copy(weight.t().contiguous().t(), weight) is not first  # as it lies in memory
    assert shared_copy(weight, weight) is weight
    other = weight.t().contiguous()
    other[3, 5] += 1
    assert shared_copy(other, weight) is other


def test_bits_are_compared_and_not_numbers() -> None:
    zeros = torch.zeros(32)
    assert shared_copy(zeros) is zeros
    negative = -zeros
    assert shared_copy(negative) is negative
    swapped = torch.tensor([1.0, 2.0] * 16)
    assert shared_copy(swapped) is swapped
    same_sum = torch.tensor([2.0, 1.0] * 16)
    assert shared_copy(same_sum) is same_sum
    nans = torch.full((32,), float("nan"))
    assert shared_copy(nans) is nans
    assert shared_copy(nans.clone()) is nans


def test_what_nobody_holds_is_forgotten() -> None:
    gc.collect()  # engines of other tests
    before = len(shared_copies._alive)
    made = shared_copy(torch.arange(64) + 12345)
    assert len(shared_copies._alive) == before + 1
    del made
    gc.collect()
    assert len(shared_copies._alive) == before


@pytest.mark.parametrize("dtype", [torch.float16, torch.float8_e4m3fn, torch.int8, torch.bool, torch.float64])
def test_every_width_is_compared(dtype: torch.dtype) -> None:
    made = (torch.arange(64) % 5).to(dtype)
    assert shared_copy(made) is made
    assert shared_copy(made.clone()) is made


def test_shared_copies_count_once() -> None:
    copy, own = torch.ones(16), torch.ones(4)

    def call(inputs: object, outputs: object) -> None:
        return None

    a = Launch(call, packed_bytes=copy.nbytes + own.nbytes, shared=(copy,))
    b = Launch(call, packed_bytes=copy.nbytes, shared=(copy,))
    assert held_bytes([a, b, a]) == copy.nbytes + own.nbytes
