"""What is kept apart from the recording of graphs. Nothing here needs a GPU."""

from __future__ import annotations

import sys
import weakref
from concurrent.futures import ThreadPoolExecutor
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from ridgeline.base import gpu_graph
from ridgeline.runtime import pinned_memory
from ridgeline.serve.hosts import engine_runner


def test_memory_is_given_back_while_no_thread_records(monkeypatch: pytest.MonkeyPatch) -> None:
    """PyTorch's allocator raises an internal error where one does, which would end a worker's thread."""
    seen: list[bool] = []

    def is_free() -> bool:
        if gpu_graph._recording.acquire(blocking=False):
            gpu_graph._recording.release()
            return True
        return False

    def emptied() -> None:
        with ThreadPoolExecutor(1) as other:
            seen.append(other.submit(is_free).result())

    monkeypatch.setattr(torch.cuda, "is_initialized", lambda: True)
    monkeypatch.setattr(torch.cuda, "empty_cache", emptied)
    engine_runner.give_back_memory()
    assert seen == [False]
    assert is_free()


class Stream:
    """PyTorch's, which hands out two in turns."""

    made = 0

    def __init__(self) -> None:
        Stream.made += 1
        self.cuda_stream = 100 + Stream.made % 2

    def synchronize(self) -> None: ...


class Driver:
    made = 0

    def cuStreamCreate(self, handle: Any, flags: int) -> int:
        assert flags == gpu_graph.NON_BLOCKING
        self.made += 1
        handle._obj.value = 1000 + self.made
        return 0


def test_streams_of_living_owners_are_all_different(monkeypatch: pytest.MonkeyPatch) -> None:
    """Graphs that were captured on one stream share what cuBLAS keeps for it, and may run side by side."""

    class Owner: ...

    driver, device = Driver(), 0
    monkeypatch.setattr(torch.cuda, "Stream", Stream)
    monkeypatch.setattr(torch.cuda, "current_stream", Stream)
    monkeypatch.setattr(torch.cuda, "ExternalStream", lambda handle: SimpleNamespace(cuda_stream=handle))
    monkeypatch.setattr(gpu_graph, "cuda_driver", lambda: driver)
    monkeypatch.setattr(gpu_graph, "_made_handles", set())
    monkeypatch.setattr(gpu_graph, "_free_streams", {})
    monkeypatch.setattr(torch.cuda, "current_device", lambda: device)
    owners = [Owner() for _ in range(5)]
    handles = [gpu_graph.own_stream(owner).cuda_stream for owner in owners]
    assert len(set(handles)) == len(owners)
    assert driver.made == 3, "the driver makes those that PyTorch has not"
    del owners[:2]
    device = 1
    assert gpu_graph.own_stream(elsewhere := Owner()).cuda_stream not in handles, "it is of another device"
    device = 0
    again = [Owner(), Owner()]
    assert {gpu_graph.own_stream(owner).cuda_stream for owner in again} == set(handles[:2])
    assert elsewhere


def test_pinned_memory_is_kept_after_a_fatal_error(monkeypatch: pytest.MonkeyPatch) -> None:
    """To free it asks the device, which would end the process."""
    tensor = torch.zeros(3)
    alive: weakref.WeakValueDictionary[int, torch.Tensor] = weakref.WeakValueDictionary({id(tensor): tensor})
    monkeypatch.setattr(pinned_memory, "_alive", alive)
    before = sys.getrefcount(tensor)
    pinned_memory.never_free_pinned()
    assert sys.getrefcount(tensor) == before + 1
