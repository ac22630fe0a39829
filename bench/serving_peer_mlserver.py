"""MLServer with ONNX Runtime, for `serving_peers.py`: the protocol's JSON, adaptive batching."""

from __future__ import annotations

import asyncio

import uvloop
from mlserver import MLModel, MLServer, ModelSettings, Settings
from mlserver.codecs import NumpyCodec
from mlserver.settings import ModelParameters
from mlserver.types import InferenceRequest, InferenceResponse

from bench.serving_peer_session import Session, read_setup


class OnnxModel(MLModel):
    async def load(self) -> bool:
        self._session = Session(self.settings.parameters.extra)
        return True

    async def predict(self, payload: InferenceRequest) -> InferenceResponse:
        output = self._session.run({each.name: NumpyCodec.decode_input(each) for each in payload.inputs})
        return InferenceResponse(
            model_name=self.name, id=payload.id, outputs=[NumpyCodec.encode_output("output", output)]
        )


def main() -> None:
    setup = read_setup()
    batch = setup["batch"]
    settings = Settings(
        host="127.0.0.1", http_port=setup["port"], grpc_port=setup["port"] + 1, metrics_endpoint=None,
        parallel_workers=setup["workers"], debug=False, gzip_enabled=False,
        _custom_rest_server_settings={"access_log": False, "log_level": "warning"},
    )  # fmt: skip
    model = ModelSettings(
        name="model", implementation=OnnxModel, parameters=ModelParameters(extra=setup),
        max_batch_size=batch, max_batch_time=setup["wait_s"] if batch else 0,
    )  # fmt: skip
    uvloop.install()  # as its command line does
    asyncio.run(serve(settings, model))


async def serve(settings: Settings, model: ModelSettings) -> None:
    # its workers want the loop as it is made
    await MLServer(settings).start([model])
