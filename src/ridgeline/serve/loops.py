"""The event loop of a server process: uvloop's where it is installed."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any

from ridgeline.serve.allocator import keep_freed_memory

try:
    from uvloop import new_event_loop
except ImportError:
    from asyncio import new_event_loop  # type: ignore[assignment]  # the same, slower


def run_loop(work: Coroutine[Any, Any, int]) -> int:
    keep_freed_memory()
    with asyncio.Runner(loop_factory=new_event_loop) as runner:
        return runner.run(work)
