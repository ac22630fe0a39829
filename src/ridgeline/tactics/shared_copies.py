"""Copies of weights in other layouts: launches that need equal ones hold the same memory.

The plans of an engine's profiles bind a launch each for the same region and the same weight. They share a
copy if they pack it alike, whatever they were tuned for.
"""

from __future__ import annotations

import threading
import weakref
from collections.abc import Hashable, Iterable
from typing import TYPE_CHECKING

import torch
from torch import Tensor

if TYPE_CHECKING:
    from ridgeline.tactics.base import Launch

ALIGNED_BYTES = 64  # what a launch may count on in memory that was allocated for it
# integers as wide as an element: equal numbers need not be equal bits, and a NaN equals nothing
_BITS = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}
_alive: weakref.WeakValueDictionary[Hashable, Tensor] = weakref.WeakValueDictionary()
_lock = threading.Lock()


def shared_copy(made: Tensor, *stored: Tensor) -> Tensor:
    """A copy made of these weights, or one with the same bits that some launch holds already.

    Copies are only read. One that nobody holds any more is forgotten.
    """
    can_be_shared = made.layout == torch.strided and made.numel() > 0 and made.data_ptr() % ALIGNED_BYTES == 0
    if not can_be_shared or any(made.data_ptr() == weight.data_ptr() for weight in stored):
        return made
    bits = made.detach().view(_BITS[made.element_size()])
    key = (made.device, made.dtype, made.shape, made.stride(), int(bits.sum(dtype=torch.int64)))
    with _lock:
        found = _alive.get(key)
        if found is not None and torch.equal(found.detach().view(bits.dtype), bits):
            return found
        _alive[key] = made
        return made


def held_bytes(launches: Iterable[Launch]) -> int:
    """What these launches hold in copies of weights, shared ones counted once."""
    found = {id(launch): launch for launch in launches}
    copies = [copy for launch in found.values() for copy in launch.shared]
    once = {copy.data_ptr(): copy.nbytes for copy in copies}
    repeated = sum(copy.nbytes for copy in copies) - sum(once.values())
    return sum(launch.packed_bytes for launch in found.values()) - repeated
