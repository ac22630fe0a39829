"""The path of HTTP alone: the server's front end before a service that gives inputs back.

`python -m bench.serving_echo` prints its port and serves until it is killed. `serving_checks.py cpu` asks it.
"""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

from ridgeline.serve.access import Access
from ridgeline.serve.http.app import HttpApp
from ridgeline.serve.http.server import HttpServer
from ridgeline.serve.loops import run_loop
from ridgeline.serve.messages import InferRequest, InferResponse, Tensor
from ridgeline.serve.settings import Keys, Settings

TENSOR = {"name": "x", "datatype": "FP32", "shape": [-1, 64]}
METADATA = {"name": "echo", "versions": ["1"], "platform": "echo", "inputs": [TENSOR],
            "outputs": [TENSOR | {"name": "y"}]}  # fmt: skip


class Echo:
    async def infer(self, request: InferRequest) -> InferResponse:
        outputs = [Tensor("y", each.datatype, each.shape, each.data) for each in request.inputs]
        return InferResponse(request.model, "1", request.id, outputs)

    async def ask(self, verb: str, **arguments: Any) -> Any:
        return METADATA if verb == "model_metadata" else {}


async def main() -> None:
    settings = Settings((Path(),))
    server = HttpServer(HttpApp(Echo(), settings, Access(Keys())), settings, "127.0.0.1", 0)
    print(f"http 127.0.0.1:{await server.start()}", flush=True)
    await asyncio.Event().wait()


if __name__ == "__main__":
    run_loop(main())
