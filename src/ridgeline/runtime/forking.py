"""After a fork: the child has none of the parent's threads, and whoever waits for one waits forever.

OpenMP and ONNX Runtime cannot start theirs again in the child. So an engine of one thread goes on there, with
locks and a planner of its own; engines of several threads, and those on a GPU, say so instead of hanging.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import Protocol
from weakref import WeakSet

import torch

from ridgeline.errors import ProcessError
from ridgeline.spec import Target


class Forkable(Protocol):
    """What holds locks or threads, and can replace them."""

    def after_fork(self) -> None: ...


@dataclass
class Process:
    """What this process has started, and whether it is a child that has lost it."""

    forks: int = 0  # from the first process down to this one, as far as engines were there
    uses_threads: bool = False  # some engine was made for several threads
    uses_gpu: bool = False
    has_lost_threads: bool = False
    has_lost_gpu: bool = False


process = Process()
_alive: WeakSet[Forkable] = WeakSet()


def register(engine: Forkable, target: Target) -> None:
    """Note an engine, so that a child of this process knows what it lost."""
    require_process(target)
    _alive.add(engine)
    process.uses_gpu |= target.kind == "cuda"
    process.uses_threads |= target.kind == "cpu" and target.threads > 1


def require_process(target: Target) -> None:
    """Raise in a child that would wait for threads, or for a GPU, that only its parent has."""
    is_lost = (
        process.has_lost_gpu if target.kind == "cuda" else process.has_lost_threads and target.threads > 1
    )
    if is_lost:
        raise ProcessError(
            "an engine for the GPU cannot be used in a forked process"
            if target.kind == "cuda"
            else f"an engine of {target.threads} threads cannot be used in a forked process",
            got=f"process {os.getpid()}, forked after an engine was made, without its threads",
            help="start workers with multiprocessing's 'spawn' or 'forkserver', fork before the first engine "
            "is made, or build with threads=1",
        )


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
