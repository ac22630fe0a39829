"""Pinned host memory, and how to let it be after a CUDA error that ends all work.

PyTorch asks the device before it takes pinned memory back; after such an error the answer is an exception in
a destructor, which ends the process. So that a program can still say what happened and exit, such memory is
then never given back.
"""

from __future__ import annotations

import ctypes
import weakref

import torch
from torch import Tensor

_alive: weakref.WeakValueDictionary[int, Tensor] = weakref.WeakValueDictionary()


def new_pinned(like: Tensor) -> Tensor:
    """Host memory of this shape and type that the device can copy from and to."""
    made = torch.empty(like.shape, dtype=like.dtype, pin_memory=True)
    _alive[id(made)] = made
    return made


def never_free_pinned() -> None:
    # a list at once: other threads go on taking such memory
    for reference in _alive.valuerefs():
        if (tensor := reference()) is not None:
            ctypes.pythonapi.Py_IncRef(ctypes.py_object(tensor))
