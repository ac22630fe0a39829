"""What a server and its worker tell one another, on a socket for the worker and one for each instance."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Annotated, Literal

import msgspec

from ridgeline.serve.datatypes import DATATYPES, nbytes_of
from ridgeline.serve.hosts.hosting import HostedModel, Joined, PortInfo
from ridgeline.serve.link.arena import ALIGNMENT, Block
from ridgeline.serve.link.frames import ChannelError
from ridgeline.serve.messages import Tensor

Size = Annotated[int, msgspec.Meta(ge=0)]
Memory = bytearray | Block  # of all tensors of a batch: in the message itself, or in the area
# so much travels in the message: two copies more, and no memory to allocate and to give back
INLINE_BYTES = 1 << 13
MOST_DIMS = 64


class Message(msgspec.Struct, array_like=True, gc=False, tag=True):
    """Of fixed fields, in order."""


class Place(Message):
    """A tensor inside the memory of its batch."""

    name: str
    datatype: str
    shape: tuple[Size, ...]
    offset: Size
    nbytes: Size


class Load(Message):
    key: str
    kind: Literal["engine", "python"]
    path: str
    instances: int
    threads: int | None
    trust: bool
    inputs: tuple[PortInfo, ...]
    outputs: tuple[PortInfo, ...]

    @staticmethod
    def of(model: HostedModel) -> Load:
        return Load(
            model.key, model.kind, str(model.path), model.instances, model.threads, model.trust,
            model.inputs, model.outputs,
        )  # fmt: skip

    def model(self) -> HostedModel:
        return HostedModel(
            self.key, self.kind, Path(self.path), self.instances, self.threads, self.trust,
            self.inputs, self.outputs,
        )  # fmt: skip


class Unload(Message):
    key: str


class InstanceSocket(Message):
    """The worker's end of a channel for one instance of a model comes with it, before `Load` does."""

    key: str


class Run(Message):
    memory: Memory
    inputs: list[Place]
    outputs: list[str]


class Ping(Message):
    pass


class Stop(Message):
    pass


class Loaded(Message):
    key: str
    inputs: tuple[PortInfo, ...]
    outputs: tuple[PortInfo, ...]
    notes: dict[str, str]


class Failed(Message):
    """A model that could not be loaded."""

    key: str
    text: str


class Unloaded(Message):
    key: str


class Done(Message):
    """A batch that ran. Its inputs are not read any more; its block is the receiver's to release."""

    memory: Memory
    outputs: list[Place]
    input_ns: int
    infer_ns: int
    output_ns: int


class Refused(Message):
    """A batch that did not run. Its inputs are not read any more."""

    text: str
    is_input: bool
    is_memory: bool
    is_fatal: bool


class Pong(Message):
    pass


TO_WORKER = (InstanceSocket, Load, Unload, Ping, Stop)  # and to an instance of it only Run
TO_SERVER = (Loaded, Failed, Unloaded, Pong)  # and from an instance Done or Refused


def lay_out(tensors: Iterable[Tensor | Joined], sizes: Iterable[int]) -> tuple[list[Place], int]:
    """Where tensors of these sizes lie behind one another, and how long that is."""
    places, at = [], 0
    for tensor, nbytes in zip(tensors, sizes, strict=True):
        places.append(Place(tensor.name, tensor.datatype, tensor.shape, at, nbytes))
        at += nbytes + -nbytes % ALIGNMENT
    return places, at


def tensors_at(places: list[Place], memory: memoryview) -> list[Tensor]:
    """Tensors over the memory of a batch; `ChannelError` for what does not fit it or contradicts itself."""
    tensors = []
    for place in places:
        datatype = DATATYPES.get(place.datatype)
        end = place.offset + place.nbytes
        if datatype is None or len(place.shape) > MOST_DIMS or end > len(memory):
            raise ChannelError(f"no tensor: {place.name!r} {place.datatype} at {place.offset} to {end}")
        if nbytes_of(datatype, place.shape) not in (None, place.nbytes):
            raise ChannelError(f"{place.name!r} has {place.nbytes} bytes for shape {place.shape}")
        tensors.append(Tensor(place.name, place.datatype, place.shape, memory[place.offset : end]))
    return tensors
