"""What tests of clients know of the server: where it is, requests, and what the engines answer to them."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np


@dataclass(frozen=True)
class Case:
    """One request, and what `Engine.run` answers."""

    model: str
    rows: int
    inputs: dict[str, np.ndarray]
    outputs: dict[str, np.ndarray]


@dataclass(frozen=True)
class Server:
    http: str
    grpc: str
    metrics: str
    cases: tuple[Case, ...]
    folder: Path

    def case(self, model: str, rows: int) -> Case:
        return next(each for each in self.cases if (each.model, each.rows) == (model, rows))
