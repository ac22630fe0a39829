"""What `ridge infer` shows of an answer."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from ridgeline.serve.clients.tensors import ModelInfo

HEAD = 6  # elements shown


@dataclass(frozen=True)
class ServedOutput:
    """One output, with its first elements."""

    name: str
    datatype: str
    shape: tuple[int, ...]
    head: tuple[Any, ...]
    file: str = ""


@dataclass(frozen=True)
class Inference:
    """One request to a server, and its answer."""

    url: str
    model: str
    version: str  # as it was asked for; empty: the newest
    round_trip_us: float  # with a connection that was open already
    rows: tuple[ServedOutput, ...]


def output_rows(
    info: ModelInfo, outputs: Mapping[str, np.ndarray], files: Mapping[str, str]
) -> tuple[ServedOutput, ...]:
    types = {port.name: port.datatype for port in info.outputs}
    return tuple(
        ServedOutput(name, types.get(name, str(array.dtype)), array.shape, _head(array), files.get(name, ""))
        for name, array in outputs.items()
    )


def _head(array: np.ndarray) -> tuple[Any, ...]:
    values = array.ravel()[:HEAD].tolist()
    return tuple(each.decode("utf-8", "replace") if isinstance(each, bytes) else each for each in values)
