"""LitServe with ONNX Runtime, for `serving_peers.py`: arrays as lists or base64, its own batching."""

from __future__ import annotations

from base64 import b64decode, b64encode
from typing import Any

import litserve
import numpy as np

from bench.serving_peer_session import Session, read_setup


class OnnxApi(litserve.LitAPI):
    def __init__(self, setup: dict[str, Any]) -> None:
        super().__init__(max_batch_size=setup["batch"], batch_timeout=setup["wait_s"])
        self._setup = setup

    def setup(self, device: str) -> None:
        self._session = Session(self._setup)

    def decode_request(self, request):  # LitServe takes the type of `request` for that of the body
        arrays = {}
        for name, (kind, shape) in self._session.inputs.items():
            if self._setup["base64"]:
                arrays[name] = np.frombuffer(b64decode(request[name]), kind).reshape(1, *shape)
            else:
                arrays[name] = np.array(request[name], kind)
        return arrays

    def batch(self, inputs: list[dict[str, np.ndarray]]) -> list[dict[str, np.ndarray]]:
        return inputs

    def predict(self, rows: Any) -> Any:
        """A list of rows, or one row where it does not batch."""
        return self._session.run_rows(rows) if isinstance(rows, list) else self._session.run(rows)

    def unbatch(self, output: list[np.ndarray]) -> list[np.ndarray]:
        return output

    def encode_response(self, output: np.ndarray) -> dict[str, Any]:
        return {"output": b64encode(output.tobytes()).decode() if self._setup["base64"] else output.tolist()}


def main() -> None:
    setup = read_setup()
    server = litserve.LitServer(
        OnnxApi(setup), accelerator="cpu", workers_per_device=1, timeout=60, fast_queue=setup["fast_queue"]
    )
    server.run(
        host="127.0.0.1", port=setup["port"], num_api_servers=1, log_level="warning",
        generate_client_file=False, access_log=False,
    )  # fmt: skip
