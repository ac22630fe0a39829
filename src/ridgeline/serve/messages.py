"""An inference request and its answer, as front ends and models see them. No transport, no engine."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from ridgeline.serve.datatypes import DATATYPES, Datatype

Buffer = bytes | bytearray | memoryview
Parameter = str | int | float | bool


def keep() -> None:
    """There is nothing to give back."""


@dataclass(slots=True)
class Tensor:
    """Elements lie packed, row-major and little-endian in `data`; BYTES as length, bytes, length, bytes, …"""

    name: str
    datatype: str
    shape: tuple[int, ...]
    data: Buffer

    @property
    def type(self) -> Datatype:
        return DATATYPES[self.datatype]


@dataclass(slots=True)
class Wanted:
    """An output that was asked for. With `classes` it is the best so many of its elements, as BYTES."""

    name: str
    classes: int = 0


@dataclass(slots=True)
class InferRequest:
    """Checked by its front end as far as that goes without the model: types, bytes, no name twice."""

    model: str
    version: str = ""  # the newest one
    id: str = ""
    inputs: list[Tensor] = field(default_factory=list)
    outputs: list[Wanted] | None = None  # all of them
    parameters: Mapping[str, Parameter] = field(default_factory=dict)  # of the client's own
    priority: int = 0  # the model's default
    timeout_us: int = 0  # the model's default
    trace: str = ""  # W3C traceparent, or nothing


@dataclass(slots=True)
class InferResponse:
    """Outputs in the order they were asked for. Call `release` when `data` has been copied or sent."""

    model: str
    version: str
    id: str
    outputs: list[Tensor]
    parameters: Mapping[str, Parameter] = field(default_factory=dict)
    release: Callable[[], None] = keep
    queue_ns: int = 0  # it waited
    run_ns: int = 0  # its batch ran
