"""A service whose models give their inputs back, wait, are full or fail: front ends are tested with it."""

from __future__ import annotations

import asyncio
from typing import Any

from ridgeline.serve.classify import classify
from ridgeline.serve.errors import invalid, not_found, unavailable
from ridgeline.serve.messages import InferRequest, InferResponse, Tensor
from ridgeline.serve.service import Verb

MODELS = ("echo", "gate", "full", "broken", "raw", "text", "fixed")
LABELS = ("cat", "dog")
INPUTS = {
    "raw": {"name": "x", "data_type": "TYPE_FP32", "dims": [-1, 2]},
    "text": {"name": "x", "data_type": "TYPE_STRING", "dims": [1]},
    "fixed": {"name": "x", "data_type": "TYPE_INT32", "dims": [2]},
}


class EchoService:
    def __init__(self) -> None:
        self.gate = asyncio.Event()  # opens the model "gate"
        self.waiting = self.cancelled = self.released = 0
        self.requests: list[InferRequest] = []
        self.asked: list[tuple[str, dict[str, Any]]] = []
        self.is_ready = True
        self.status: dict[str, Any] = {}

    async def infer(self, request: InferRequest) -> InferResponse:
        if request.model not in MODELS:
            raise not_found(f"model {request.model!r} is not there")
        self.requests = [*self.requests[-99:], request]
        if request.model == "full":
            raise unavailable("Exceeds maximum queue size")
        if request.model == "broken":
            raise KeyError("/a/path/of/the/server")
        if request.model == "gate":
            self.waiting += 1
            try:
                await self.gate.wait()
            except asyncio.CancelledError:
                self.cancelled += 1
                raise
            finally:
                self.waiting -= 1
        outputs = {tensor.name: tensor for tensor in request.inputs}
        if request.outputs is not None:
            wanted = request.outputs
            if any(each.name not in outputs for each in wanted):
                raise invalid("there is no such output")
            outputs = {each.name: _shaped(outputs[each.name], each.classes) for each in wanted}
        parameters = {name: value for name, value in request.parameters.items() if name.startswith("back_")}
        return InferResponse(
            request.model,
            request.version or "1",
            request.id,
            list(outputs.values()),
            parameters,
            self._release,
        )

    def _release(self) -> None:
        self.released += 1

    async def ask(self, verb: Verb, **arguments: Any) -> Any:
        self.asked.append((verb, arguments))
        name = arguments.get("name")
        if name and name not in MODELS:
            raise not_found(f"model {name!r} is not there")
        match verb:
            case "live":
                return True
            case "ready" | "model_ready":
                return self.is_ready
            case "server_metadata":
                return {"name": "echo", "version": "1", "extensions": []}
            case "model_metadata":
                return {"name": name, "versions": ["1"], "platform": "echo", "inputs": [], "outputs": []}
            case "model_config":
                batch = 8 if name != "fixed" else 0
                return {
                    "name": name,
                    "max_batch_size": batch,
                    "input": [INPUTS[name]] if name in INPUTS else [],
                }
            case "statistics":
                return {"model_stats": []}
            case "index":
                return [{"name": each, "version": "1", "state": "READY"} for each in MODELS]
            case "metrics":
                return "nv_inference_count 1\n"
            case "status":
                return self.status
            case "log_settings":
                return {"log_verbose_level": 0, **arguments["settings"]}
        return None


def _shaped(tensor: Tensor, classes: int) -> Tensor:
    return classify(tensor, classes, LABELS, has_batch=True) if classes else tensor
