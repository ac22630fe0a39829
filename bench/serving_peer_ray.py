"""Ray Serve with ONNX Runtime, for `serving_peers.py`: arrays as the bytes of the body, `@serve.batch`."""

from __future__ import annotations

import signal
import threading
from typing import Any

import numpy as np
import ray
from ray import serve
from starlette.requests import Request
from starlette.responses import Response

from bench.serving_peer_session import Session, read_setup

OBJECT_STORE_BYTES = 100 * 2**20


def application(setup: dict[str, Any]) -> Any:
    @serve.deployment(
        num_replicas=1, max_ongoing_requests=1000, ray_actor_options={"num_cpus": 0.1},
        logging_config={"enable_access_log": False},
    )  # fmt: skip
    class Model:
        def __init__(self) -> None:
            self._session = Session(setup)

        @serve.batch(max_batch_size=setup["batch"], batch_wait_timeout_s=setup["wait_s"])
        async def run(self, bodies: list[bytes]) -> list[bytes]:
            rows = []
            for body in bodies:
                arrays, at = {}, 0
                for name, (kind, shape) in self._session.inputs.items():
                    arrays[name] = np.frombuffer(body, kind, int(np.prod(shape)), at).reshape(1, *shape)
                    at += arrays[name].nbytes
                rows.append(arrays)
            return [output.tobytes() for output in self._session.run_rows(rows)]

        async def __call__(self, request: Request) -> Response:
            return Response(await self.run(await request.body()))

    return Model.bind()


def main() -> None:
    setup = read_setup()
    ray.init(
        num_cpus=1, include_dashboard=False, object_store_memory=OBJECT_STORE_BYTES,
        _temp_dir=setup["scratch"], logging_level="warning",
    )  # fmt: skip
    serve.start(
        http_options={"host": "127.0.0.1", "port": setup["port"]}, logging_config={"enable_access_log": False}
    )
    serve.run(application(setup), route_prefix="/")
    ended = threading.Event()
    signal.signal(signal.SIGTERM, lambda *_: ended.set())
    ended.wait()
    serve.shutdown()
    ray.shutdown()
