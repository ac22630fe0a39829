"""CUDA graphs: recorded one at a time, and tried first in a way that costs nothing when it fails.

A capture that fails leaves PyTorch (before 2.12) in a state where no later one succeeds, so the driver alone
records every call on trial before PyTorch does.
"""

from __future__ import annotations

import ctypes
import threading
import weakref
from collections.abc import Callable
from contextlib import suppress
from functools import cache
from typing import Any

import torch

from ridgeline.base.timing import gc_paused
from ridgeline.errors import first_line

WARM_CALLS = 2
RELAXED = 2  # CU_STREAM_CAPTURE_MODE_RELAXED: only what touches the captured stream itself is refused
NON_BLOCKING = (
    1  # CU_STREAM_NON_BLOCKING: work on the default stream does not hold it up, nor end its captures
)
_recording = threading.RLock()
_making = threading.Lock()
_made_handles: set[int] = set()
_free_streams: dict[int, list[torch.cuda.Stream]] = {}  # by device


class CaptureError(RuntimeError):
    """A call that no graph can hold, in the words of whoever refused."""


def own_stream(owner: object) -> torch.cuda.Stream:
    """A stream that nobody else captures on while its owner lives.

    Libraries keep scratch memory per stream, and a graph goes on using that of the stream it was captured
    on: graphs that may run side by side must not share one.
    """
    free = _free_streams.setdefault(torch.cuda.current_device(), [])
    try:
        stream = free.pop()
    except IndexError:
        stream = new_stream()
    weakref.finalize(owner, free.append, stream).atexit = False
    return stream


def new_stream() -> torch.cuda.Stream:
    """Another one than all that were made here before. PyTorch has 32 and hands them out in turns."""
    with _making:
        stream = torch.cuda.Stream()  # type: ignore[no-untyped-call]
        if stream.cuda_stream in _made_handles:
            torch.cuda.current_stream().synchronize()  # makes the device's context this thread's own
            handle = ctypes.c_void_p()
            code = cuda_driver().cuStreamCreate(ctypes.byref(handle), NON_BLOCKING)
            if code:
                raise RuntimeError(f"the driver makes no stream: CUDA error {code}")
            stream = torch.cuda.ExternalStream(handle.value)  # type: ignore[no-untyped-call]
        _made_handles.add(stream.cuda_stream)
        return stream


def raw_stream(device: int) -> int:
    """The driver's handle of the current stream. PyTorch takes far longer to make its object of it."""
    return torch._C._cuda_getCurrentRawStream(device)


def finish_current() -> None:
    """Return when all that was queued on this thread's current stream has run."""
    torch.cuda.current_stream().synchronize()


def warm(call: Callable[[], object], stream: torch.cuda.Stream) -> None:
    """Run a few times, so that libraries load and make their choices, and wait for the end."""
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        for _ in range(WARM_CALLS):
            call()
    stream.synchronize()


# streams whose next launch comes right behind a wait for another stream
joined_streams: set[int] = set()


def wait_for(stream: torch.cuda.Stream, event: torch.cuda.Event) -> None:
    """Let the stream wait for another one. Its next launch of ours is a plain one (`kernels/triton/driver`).

    A dependent launch lets a kernel begin before the one in front of it on its stream has ended. What it
    means for a kernel with several in front of it, and what a capture makes of it there, CUDA does not say.
    """
    stream.wait_event(event)
    joined_streams.add(stream.cuda_stream)


def record(call: Callable[[], object], stream: torch.cuda.Stream, repeats: int = 1) -> torch.cuda.CUDAGraph:
    """A graph of `repeats` calls in a row, or `CaptureError`. The call has been warmed on that stream."""
    # a device-wide wait in one thread breaks a capture in another, so there is one at a time; the collector
    # looks at everything there is, and may free another graph in a capture
    with _recording, torch.cuda.stream(stream), gc_paused():
        reason = why_not(call, stream)
        if reason is not None:
            raise CaptureError(reason)
        graph, pool = torch.cuda.CUDAGraph(), torch.cuda.graph_pool_handle()
        # other threads may allocate meanwhile
        graph.capture_begin(pool=pool, capture_error_mode="thread_local")
        failed: Exception | None = None
        try:
            for _ in range(repeats):
                call()
        except Exception as error:  # the capture must be ended whatever broke it
            failed = error
        try:
            graph.capture_end()
        except RuntimeError as error:
            failed = failed or error
            with suppress(RuntimeError):  # PyTorch 2.12 has done so itself
                torch._C._cuda_endAllocateToPool(torch.cuda.current_device(), pool)
        if failed is not None:
            raise CaptureError(first_line(failed)) from failed
        return graph


def try_alone(call: Callable[[], object], stream: torch.cuda.Stream) -> str | None:
    """Why no graph can hold this call; None for one that can. Nothing runs on the device."""
    with _recording, torch.cuda.stream(stream), gc_paused():
        return why_not(call, stream)


def why_not(call: Callable[[], object], stream: torch.cuda.Stream) -> str | None:
    """Why no graph can hold this call: recorded on trial past PyTorch's allocator, and thrown away."""
    driver, handle, graph = cuda_driver(), ctypes.c_void_p(stream.cuda_stream), ctypes.c_void_p()
    code = driver.cuStreamBeginCapture_v2(handle, RELAXED)
    if code:
        return f"the driver begins no capture: CUDA error {code}"
    reason = None
    try:
        call()
    except Exception as error:  # whoever waits for the stream or copies to the host is told here
        reason = first_line(error)
    code = driver.cuStreamEndCapture(handle, ctypes.byref(graph))
    if graph.value:
        driver.cuGraphDestroy(graph)
    return reason or (f"the driver ends the capture with CUDA error {code}" if code else None)


def release_unused() -> None:
    """Give back to the driver what PyTorch's allocator keeps. It refuses while any thread records a graph."""
    with _recording:
        torch.cuda.empty_cache()


def segments() -> list[dict[str, Any]]:
    """What PyTorch's allocator holds of the driver's memory, block by block."""
    return torch.cuda.memory_snapshot()  # type: ignore[no-untyped-call, no-any-return]


def pool_bytes(graph: torch.cuda.CUDAGraph) -> int:
    """Device memory that a graph keeps for what is allocated inside it, as reserved from the driver."""
    pool = tuple(graph.pool())
    return sum(int(s["total_size"]) for s in segments() if tuple(s["segment_pool_id"]) == pool)


def stream_bytes(stream: torch.cuda.Stream) -> int:
    """Device memory taken on a stream outside its graphs: what libraries keep for their work there."""
    here = [s for s in segments() if s["stream"] == stream.cuda_stream and not any(s["segment_pool_id"])]
    return sum(int(s["allocated_size"]) for s in here)


@cache
def cuda_driver() -> ctypes.CDLL:
    """The driver's library; `OSError` where there is none."""
    return ctypes.CDLL("libcuda.so.1")
