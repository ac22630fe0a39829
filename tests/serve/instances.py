"""Instances for tests of models: they run a numpy function when they are told to, on the test's own loop."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence

import numpy as np

from ridgeline.serve.datatypes import DATATYPES
from ridgeline.serve.hosts.hosting import BatchError, BatchResult, Hosted, Joined, PortInfo
from ridgeline.serve.messages import Tensor

Done = Callable[[BatchResult | BatchError], None]


class HeldInstance:
    """Keeps each batch until `finish`; with `is_free`, answers in the next turn of the loop."""

    def __init__(self, compute: Callable[[np.ndarray], np.ndarray], *, is_free: bool = False) -> None:
        self.compute, self.is_free = compute, is_free
        self.batches: list[tuple[int, ...]] = []  # shapes that came, in order
        self.released = 0
        self._held: list[tuple[np.ndarray, Done]] = []

    def run(self, inputs: Sequence[Joined], outputs: Sequence[str], done: Done) -> None:
        memory = bytearray(inputs[0].nbytes)
        inputs[0].write_into(memoryview(memory))
        element = DATATYPES[inputs[0].datatype].numpy
        assert element is not None
        array = np.frombuffer(memory, element).reshape(inputs[0].shape)
        self.batches.append(array.shape)
        self._held.append((array, done))
        if self.is_free:
            asyncio.get_running_loop().call_soon(self.finish)

    @property
    def is_busy(self) -> bool:
        return bool(self._held)

    def finish(self) -> None:
        array, done = self._held.pop(0)
        try:
            made = self.compute(array)
        except BatchError as error:
            done(error)
            return
        data = memoryview(bytearray(made.tobytes()))
        done(BatchResult([Tensor("y", "FP32", made.shape, data)], 1, 2, 3, self._release))

    def fail(self, error: BatchError) -> None:
        self._held.pop(0)[1](error)

    def _release(self) -> None:
        self.released += 1


def hosted(*instances: HeldInstance, key: str = "m:1:1") -> Hosted:
    port = ("FP32", ("batch", 2))
    return Hosted(key, (PortInfo("x", *port),), (PortInfo("y", *port),), instances)
