"""After a fork: the child has none of the parent's threads, and whoever waits for one waits forever.

OpenMP and ONNX Runtime cannot start theirs again in the child. So an engine of one thread goes on there, with
locks and a planning thread of its own; engines of several threads, and those on a GPU, raise an error instead
of hanging.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any, TypeVar
from weakref import WeakSet

import torch

from ridgeline.base.spec import Target
from ridgeline.errors import ProcessError

T = TypeVar("T")


@dataclass
class Process:
    """What this process has started, and whether it is a child that has lost it."""

    forks: int = 0  # from the first process down to this one, as far as engines were there
    uses_threads: bool = False  # some engine was made for several threads
    uses_gpu: bool = False
    has_lost_threads: bool = False
    has_lost_gpu: bool = False


process = Process()
_alive: WeakSet[PerProcess] = WeakSet()


class PerProcess:
    """Locks, contexts and the planning thread of one engine. A child of this process gets its own."""

    def __init__(self, target: Target) -> None:
        require_process(target)
        process.uses_gpu |= target.traits.is_gpu
        process.uses_threads |= target.threads > 1
        self.after_fork()
        _alive.add(self)

    def after_fork(self) -> None:
        """Leave to the parent what its threads hold."""
        self.lock = threading.RLock()
        self.local = threading.local()  # a context for every thread that runs the engine
        self.planner: ThreadPoolExecutor | None = None

    def submit(self, work: Callable[..., T], *arguments: Any) -> Future[T]:
        """Work for the planning thread, one after the other."""
        with self.lock:
            if self.planner is None:
                self.planner = ThreadPoolExecutor(1, thread_name_prefix="ridgeline-plan")
        return self.planner.submit(work, *arguments)

    def wait(self) -> None:
        """Return when all of it is done."""
        if self.planner is not None:
            self.planner.submit(int).result()


def require_process(target: Target) -> Target:
    """The target again; raise in a child that would wait for threads or a GPU of its parent."""
    is_gpu = target.traits.is_gpu
    if process.has_lost_gpu if is_gpu else process.has_lost_threads and target.threads > 1:
        raise ProcessError(
            "an engine for the GPU cannot be used in a forked process"
            if is_gpu
            else f"an engine of {target.threads} threads cannot be used in a forked process",
            got=f"process {os.getpid()}, forked after an engine was made, without its threads",
            help="start workers with multiprocessing's 'spawn' or 'forkserver', fork before the first engine "
            "is made, or build with threads=1",
        )
    return target


def _after_fork_in_child() -> None:
    engines = list(_alive)
    if not engines and not process.uses_threads and not process.uses_gpu:
        return
    process.forks += 1
    process.has_lost_threads |= process.uses_threads
    process.has_lost_gpu |= process.uses_gpu
    if torch.get_num_threads() > 1:
        torch.set_num_threads(1)  # its pool is the parent's too
    for engine in engines:
        engine.after_fork()


os.register_at_fork(after_in_child=_after_fork_in_child)
