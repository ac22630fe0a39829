"""Which launches are dependent: all but the first behind a wait for another stream. No driver is asked."""

from __future__ import annotations

import ctypes
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from ridgeline.base import gpu_graph
from ridgeline.kernels.triton import driver
from ridgeline.kernels.triton.compiler import Compiled


def compiled(*, pdl: bool) -> Compiled:
    return Compiled("k", "sm_90", b"", 0, 4, pdl, 0, (), 32, 0, 0.0, "3.7")


@pytest.fixture
def launched(monkeypatch: pytest.MonkeyPatch) -> list[tuple[int, int]]:
    """The stream and the number of attributes of every launch."""
    seen: list[tuple[int, int]] = []

    def launch(config: Any, *_: object) -> int:
        given = ctypes.cast(config, ctypes.POINTER(driver._LaunchConfig)).contents
        seen.append((given.stream, given.count))
        return 0

    streams = iter([7, 7, 9, 7, 7, 9, 9])
    monkeypatch.setattr(driver, "_cuda", lambda: SimpleNamespace(cuLaunchKernelEx=launch))
    monkeypatch.setattr(driver, "_function", lambda _: ctypes.c_void_p(1))
    monkeypatch.setattr(driver, "raw_stream", lambda _: next(streams))
    monkeypatch.setattr(torch.cuda, "current_device", lambda: 0)
    gpu_graph.joined_streams.clear()
    return seen


def wait(stream: int) -> None:
    gpu_graph.wait_for(SimpleNamespace(cuda_stream=stream, wait_event=lambda _: None), None)  # type: ignore[arg-type]


def test_the_first_launch_behind_a_wait_is_a_plain_one(launched: list[tuple[int, int]]) -> None:
    call = driver.Launcher(compiled(pdl=True)).freeze((1,), [])
    call()
    wait(7)
    call()
    call()  # on a stream that has not waited
    call()
    wait(7)
    wait(9)
    for _ in range(3):
        call()
    assert launched == [(7, 1), (7, 0), (9, 1), (7, 1), (7, 0), (9, 0), (9, 1)]
    assert not gpu_graph.joined_streams


def test_a_kernel_without_dependent_launch_has_none(launched: list[tuple[int, int]]) -> None:
    call = driver.Launcher(compiled(pdl=False)).freeze((1,), [])
    call()
    wait(7)
    call()
    call()
    assert [count for _, count in launched] == [0, 0, 0]
