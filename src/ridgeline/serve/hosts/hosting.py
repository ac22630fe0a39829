"""Where engines live: threads of this process, or a worker process. A model runs its batches on instances.

`thread_host.ThreadHost` and `worker_host.WorkerHost` are the two kinds. All methods are called from the
owner's event loop, and never block it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal, Protocol

import numpy as np

from ridgeline.serve.datatypes import DATATYPES, nbytes_of
from ridgeline.serve.messages import Buffer, Tensor, keep

Dims = tuple[int | str, ...]  # a name is a size that may differ from call to call


@dataclass(frozen=True)
class PortInfo:
    """An input or output of a hosted model, whole: with its batch dim."""

    name: str
    datatype: str
    dims: Dims
    planned: tuple[int, ...] = ()  # the shape that an engine was planned for, of an input


@dataclass(frozen=True)
class HostedModel:
    """What a host is asked to load."""

    key: str  # unique for the life of a host: name, version and generation
    kind: Literal["engine", "python"]
    path: Path  # a .ridge file, or the .py file of a step
    instances: int = 1
    threads: int | None = None  # wanted of each instance, on a CPU; an engine keeps those of its plan
    trust: bool = False  # compiled kernels of the file may run
    inputs: tuple[PortInfo, ...] = ()  # of a Python step, which cannot say them itself
    outputs: tuple[PortInfo, ...] = ()


@dataclass
class Joined:
    """One input of a batch: the requests' parts, which `write_into` lays behind one another.

    A part may be smaller than its place in some dims that are not the first: those are padded with `pad`.
    """

    name: str
    datatype: str
    shape: tuple[int, ...]  # whole
    parts: Sequence[Buffer]
    part_shapes: Sequence[tuple[int, ...]] | None = None  # only where parts have to be padded
    pad: float = 0

    @property
    def nbytes(self) -> int:
        if self.part_shapes is None:
            return sum(map(len, map(memoryview_bytes, self.parts)))
        nbytes = nbytes_of(DATATYPES[self.datatype], self.shape)
        assert nbytes is not None, "BYTES tensors are never padded"
        return nbytes

    def write_into(self, target: memoryview) -> None:
        """`target` is `nbytes` long, and as bytes."""
        if self.part_shapes is None:
            at = 0
            for part in self.parts:
                view = memoryview_bytes(part)
                target[at : at + len(view)] = view
                at += len(view)
            return
        element = DATATYPES[self.datatype].numpy
        whole = np.frombuffer(target, element).reshape(self.shape)
        whole[...] = self.pad
        row = 0
        for part, shape in zip(self.parts, self.part_shapes, strict=True):
            place = (slice(row, row + shape[0]), *(slice(0, size) for size in shape[1:]))
            whole[place] = np.frombuffer(part, element).reshape(shape)
            row += shape[0]


def memoryview_bytes(data: Buffer) -> memoryview:
    view = memoryview(data)
    return view if view.format == "B" and view.ndim == 1 else view.cast("B")


@dataclass
class BatchResult:
    """Outputs of a batch, whole. `release` gives their memory back: `data` may not be read after it."""

    outputs: list[Tensor]
    input_ns: int = 0  # from the owner's memory to where the engine reads
    infer_ns: int = 0
    output_ns: int = 0
    release: Callable[[], None] = keep


class BatchError(Exception):
    """A batch that could not be run. With `is_lost` nobody knows how far it came: the worker died."""

    def __init__(
        self,
        message: str,
        *,
        is_input: bool = False,
        is_lost: bool = False,
        is_memory: bool = False,
        is_fatal: bool = False,
    ) -> None:
        self.is_input = is_input  # the values are at fault, not the engine
        self.is_lost = is_lost
        self.is_memory = is_memory  # there was too little for so large a batch: parts of it may still run
        self.is_fatal = is_fatal  # nothing more runs on this host before its worker has been restarted
        super().__init__(message)


class Instance(Protocol):
    """Runs one batch at a time."""

    def run(
        self,
        inputs: Sequence[Joined],
        outputs: Sequence[str],
        done: Callable[[BatchResult | BatchError], None],
    ) -> None:
        """`done` is called on the owner's event loop, exactly once, and never before `run` returns."""
        ...


@dataclass(frozen=True)
class Hosted:
    """A model that is loaded. After a crash its instances are dead, and `Host.watch` tells of new ones."""

    key: str
    inputs: tuple[PortInfo, ...]
    outputs: tuple[PortInfo, ...]
    instances: tuple[Instance, ...]
    notes: Mapping[str, str] = field(default_factory=dict)  # what is worth showing: tactic counts, target, …


class LoadError(Exception):
    """A model that a host could not load; the text is for the operator's log and the repository index."""


class WorkerLostError(LoadError):
    """The worker ended meanwhile, be it because of this model or of another."""


class Host(Protocol):
    device: str  # "cpu", "cuda:0", …
    restarts: int  # of its worker

    async def start(self) -> None: ...

    async def load(self, model: HostedModel) -> Hosted:
        """`LoadError` for a file that is no model for this device, or when the worker dies of it."""
        ...

    async def unload(self, key: str) -> None:
        """No batch of it is running any more; its memory is given back."""
        ...

    @property
    def is_healthy(self) -> bool:
        """False while a worker is being restarted, or after an error that a device does not recover from."""
        ...

    def watch(self, on_lost: Callable[[str], None], on_back: Callable[[Sequence[Hosted]], None]) -> None:
        """`on_lost(why)`: every instance is gone, and batches that ran on them have failed as lost.

        `on_back(hosted)`: these are loaded again; what was loaded and is not among them is gone for good.
        """
        ...

    async def stop(self) -> None: ...
