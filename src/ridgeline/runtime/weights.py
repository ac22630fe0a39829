"""Weights as tensors; on a GPU uploaded when somebody wants them, and gone when nobody holds them any more.

A tactic that keeps a packed copy lets go of the original, so an engine holds each weight once.
"""

from __future__ import annotations

import threading
import warnings
import weakref
from collections.abc import Iterator, Mapping

import numpy as np
import onnx_ir as ir
import torch
from torch import Tensor

from ridgeline.kernels.elements import as_numpy, is_plain, on_device, to_torch


class DeviceWeights(Mapping[str, Tensor]):
    """A view of host weights whose items lie on the device."""

    def __init__(self, host: Mapping[str, Tensor], device: str = "cuda") -> None:
        self.host, self.device = host, device
        self._there: weakref.WeakValueDictionary[str, Tensor] = weakref.WeakValueDictionary()
        self._lock = threading.Lock()  # two threads that bind at once share one copy

    def __getitem__(self, name: str) -> Tensor:
        with self._lock:
            found = self._there.get(name)
            if found is None:
                with torch.inference_mode(False):
                    found = self._there[name] = on_device(self.host[name], self.device)
            return found

    def __iter__(self) -> Iterator[str]:
        return iter(self.host)

    def __len__(self) -> int:
        return len(self.host)

    def held(self) -> list[Tensor]:
        """What lies on the device now."""
        return list(self._there.values())


def shared_tensor(array: np.ndarray) -> Tensor:
    """A tensor over numpy's memory. Weights are only read, so read-only memory is fine."""
    if not is_plain(array.dtype) or not array.flags.c_contiguous:
        return to_torch(array)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)  # torch warns that numpy's memory is read-only
        return torch.from_numpy(array)


# a weight that no step reads: what an input is when a call leaves it out
DEFAULT = "ridgeline.default/"


def default_weights(defaults: Mapping[str, np.ndarray]) -> dict[str, Tensor]:
    """The values of inputs that may be left out, under the names that an engine keeps them by."""
    return {f"{DEFAULT}{name}": shared_tensor(array) for name, array in defaults.items()}


def default_of(weights: Mapping[str, Tensor], name: str) -> np.ndarray | None:
    """What an input is when a call leaves it out; None: it must be given."""
    tensor = weights.get(f"{DEFAULT}{name}")
    return None if tensor is None else as_numpy(tensor)


def weights_of(model: ir.Model) -> dict[str, Tensor]:
    """Initializers as tensors, without copying where numpy can share."""
    return {
        str(name): shared_tensor(value.const_value.numpy())
        for name, value in model.graph.initializers.items()
        if value.const_value is not None
    }
