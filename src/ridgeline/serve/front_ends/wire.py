"""What a front-end process and the server process say to each other. Tensors lie in shared memory."""

from __future__ import annotations

from typing import Any

import msgspec

from ridgeline.serve.link.arena import Block
from ridgeline.serve.messages import Parameter, Tensor


class TensorRef(msgspec.Struct, array_like=True, gc=False):
    """A tensor in the block that its message names."""

    name: str
    datatype: str
    shape: tuple[int, ...]
    offset: int
    nbytes: int


class Infer(msgspec.Struct, tag="infer", array_like=True):
    ticket: int
    model: str
    version: str
    id: str
    block: Block | None  # of all inputs; None if they have no bytes
    inputs: list[TensorRef]
    outputs: list[tuple[str, int]] | None  # name, classes
    parameters: dict[str, Parameter]
    priority: int
    timeout_us: int
    trace: str


class Cancel(msgspec.Struct, tag="cancel", array_like=True):
    ticket: int


class Ask(msgspec.Struct, tag="ask", array_like=True):
    ticket: int
    verb: str
    arguments: dict[str, Any]


class Started(msgspec.Struct, tag="started", array_like=True):
    """The front end listens."""


class Closed(msgspec.Struct, tag="closed", array_like=True):
    """It takes no connections any more."""


class Answer(msgspec.Struct, tag="answer", array_like=True):
    ticket: int
    model: str
    version: str
    block: Block | None
    outputs: list[TensorRef]


class Told(msgspec.Struct, tag="told", array_like=True):
    ticket: int
    value: Any


class Refused(msgspec.Struct, tag="refused", array_like=True):
    ticket: int
    kind: str
    message: str
    reason: str


class Serving(msgspec.Struct, tag="serving", array_like=True):
    is_serving: bool


class Close(msgspec.Struct, tag="close", array_like=True):
    """Take no new connections."""


class Stop(msgspec.Struct, tag="stop", array_like=True):
    """End; what is under way is cancelled."""


TO_SERVER = (Infer, Cancel, Ask, Started, Closed)
TO_FRONT_END = (Answer, Told, Refused, Serving, Close, Stop)


def total_bytes(tensors: list[Tensor]) -> int:
    return sum(memoryview(tensor.data).nbytes for tensor in tensors)


def lay_out(tensors: list[Tensor], into: memoryview | None) -> list[TensorRef]:
    """The tensors one behind the other; without memory if they have no bytes."""
    refs, at = [], 0
    for tensor in tensors:
        view = memoryview(tensor.data).cast("B") if tensor.data else memoryview(b"")
        if into is not None:
            into[at : at + view.nbytes] = view
        refs.append(TensorRef(tensor.name, tensor.datatype, tensor.shape, at, view.nbytes))
        at += view.nbytes
    return refs


def pick_up(refs: list[TensorRef], whole: memoryview | None) -> list[Tensor]:
    """The tensors where they lie; `ValueError` for one that is not inside the block."""
    tensors = []
    for ref in refs:
        size = 0 if whole is None else whole.nbytes
        if not 0 <= ref.offset <= ref.offset + ref.nbytes <= size:
            raise ValueError(f"tensor {ref.name!r} is not inside its block")
        data = whole[ref.offset : ref.offset + ref.nbytes] if whole is not None else memoryview(b"")
        tensors.append(Tensor(ref.name, ref.datatype, ref.shape, data))
    return tensors
