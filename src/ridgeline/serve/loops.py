"""The event loop of a server process: uvloop's where it is installed."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any

try:
    import uvloop
except ImportError:
    uvloop = None


def run_loop(work: Coroutine[Any, Any, int]) -> int:
    with asyncio.Runner(loop_factory=None if uvloop is None else uvloop.new_event_loop) as runner:
        return runner.run(work)
