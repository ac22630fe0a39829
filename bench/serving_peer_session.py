"""A session of ONNX Runtime for the servers of `serving_peers.py`, in environments of their own."""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping
from typing import Any

import numpy as np
import onnxruntime


def read_setup() -> dict[str, Any]:
    """The last word of the command line: model, port, inputs by name, and the variant's settings."""
    return dict(json.loads(sys.argv[-1]))


class Session:
    """The model with one thread, as every server of the comparison runs it."""

    def __init__(self, setup: Mapping[str, Any]) -> None:
        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = options.inter_op_num_threads = 1
        self._session = onnxruntime.InferenceSession(
            setup["model"], options, providers=["CPUExecutionProvider"]
        )
        # name: type and shape of a row
        self.inputs = {
            name: (np.dtype(kind), tuple(shape)) for name, (kind, shape) in setup["inputs"].items()
        }

    def run(self, arrays: Mapping[str, np.ndarray]) -> np.ndarray:
        (output,) = self._session.run(None, dict(arrays))
        return np.asarray(output)

    def run_rows(self, rows: list[dict[str, np.ndarray]]) -> list[np.ndarray]:
        """Requests of one row each, as one batch."""
        batch = {name: np.concatenate([row[name] for row in rows]) for name in self.inputs}
        return list(self.run(batch)[:, None])
