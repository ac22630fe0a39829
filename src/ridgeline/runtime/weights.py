"""Weights on a GPU: uploaded when somebody wants them, and gone when nobody holds them any more.

A tactic that keeps a packed copy lets go of the original, so an engine holds each weight once.
"""

from __future__ import annotations

import threading
import weakref
from collections.abc import Iterator, Mapping

import torch
from torch import Tensor


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
                    found = self._there[name] = self.host[name].to(self.device)
            return found

    def __iter__(self) -> Iterator[str]:
        return iter(self.host)

    def __len__(self) -> int:
        return len(self.host)

    def held(self) -> list[Tensor]:
        """What lies on the device now."""
        return list(self._there.values())
