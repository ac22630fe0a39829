"""Runs over the same memory come one after the other, whatever streams they are on."""

from __future__ import annotations

import torch

from ridgeline.base.gpu_graph import raw_stream


class Turns:
    """Runs that share memory: one on another stream than the last comes after it."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._busy: torch.cuda.Stream | None = None  # where the latest run may still be under way

    def begin(self) -> None:
        busy = self._busy
        if busy is not None and busy.cuda_stream == raw_stream(self._device.index):
            return
        stream = torch.cuda.current_stream(self._device)
        if busy is not None:
            stream.wait_stream(busy)
        self._busy = stream

    def end(self) -> None:
        """Nothing is under way any more."""
        self._busy = None

    def wait(self) -> None:
        """Return when the latest run is over."""
        if self._busy is not None:
            self._busy.synchronize()
