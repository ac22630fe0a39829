"""Parameters of a request that the protocol gives a meaning to: the same rules over HTTP and gRPC."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from ridgeline.serve.errors import invalid, unsupported
from ridgeline.serve.messages import Parameter

MOST_PARAMETERS, MOST_CHARACTERS = 256, 2**16  # of one request; characters of names and texts together
LEAST_INT, MOST_INT = -(2**63), 2**64 - 1
RESERVED_PREFIX, RESERVED_NAMES = "triton_", frozenset({"headers"})
SEQUENCE = frozenset({"sequence_id", "sequence_start", "sequence_end"})
SHARED_MEMORY = "shared_memory_region"


@dataclass(frozen=True, slots=True)
class RequestParameters:
    own: Mapping[str, Parameter]  # the client's, without a meaning to the protocol
    priority: int = 0
    timeout_us: int = 0
    binary_outputs: bool = False


NONE = RequestParameters({})


def read_parameters(given: Mapping[str, Parameter]) -> RequestParameters:
    if not given:
        return NONE
    if len(given) > MOST_PARAMETERS:
        raise invalid(f"a request has at most {MOST_PARAMETERS} parameters, this one has {len(given)}")
    texts = [*given, *(value for value in given.values() if isinstance(value, str))]
    characters = sum(map(len, texts))
    if characters > MOST_CHARACTERS:
        raise invalid(
            f"parameters of a request have at most {MOST_CHARACTERS} characters, these have {characters}"
        )
    own: dict[str, Parameter] = {}
    priority = timeout_us = 0
    binary_outputs = False
    for name, value in given.items():
        if name == "priority":
            priority = natural(name, value)
        elif name == "timeout":
            timeout_us = natural(name, value)
        elif name == "binary_data_output":
            binary_outputs = switch(name, value)
        elif name in SEQUENCE:
            # 0, "" and false say that the request belongs to no sequence
            if value and value != "0":
                raise unsupported("sequences of requests are not served: send requests without sequence_id")
        elif name in RESERVED_NAMES or name.startswith(RESERVED_PREFIX):
            raise invalid(f"parameter {name!r} is reserved: choose another name for a parameter of your own")
        else:
            if isinstance(value, int) and not LEAST_INT <= value <= MOST_INT:
                raise invalid(f"parameter {name!r} does not fit 64 bits")
            own[name] = value
    return RequestParameters(own, priority, timeout_us, binary_outputs)


def natural(name: str, value: Parameter, *, most: int = MOST_INT) -> int:
    """An integer from 0 on; clients send it as a text too."""
    if isinstance(value, str) and value.isascii() and value.isdecimal() and len(value) <= len(str(most)):
        value = int(value)
    if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value <= most:
        raise invalid(f"parameter {name!r} must be an integer from 0 to {most}")
    return value


def switch(name: str, value: Parameter) -> bool:
    if not isinstance(value, bool):
        raise invalid(f"parameter {name!r} must be true or false")
    return value


def refuse_shared_memory(tensor: str, given: Mapping[str, Parameter]) -> None:
    if SHARED_MEMORY in given:
        raise unsupported(
            f"{tensor!r} is in shared memory, which this server does not share with clients: send the bytes"
        )
