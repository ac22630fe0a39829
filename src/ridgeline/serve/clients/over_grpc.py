"""The same calls as `client.Client` over gRPC."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any

import grpc
import numpy as np

from ridgeline.errors import visible
from ridgeline.serve.clients.address import GRPC_PORT, Address, parse_address
from ridgeline.serve.clients.client import TIMEOUT_S, ServerError, unreachable
from ridgeline.serve.clients.tensors import ANY, ModelInfo, TensorInfo, tensor_info, to_array, to_tensor
from ridgeline.serve.messages import Tensor
from ridgeline.serve.protocol import messages

UNLIMITED = [("grpc.max_receive_message_length", -1), ("grpc.max_send_message_length", -1)]


class GrpcClient:
    """Errors of the server are `ServerError` with the server's own message."""

    def __init__(
        self,
        address: str | Address,
        *,
        headers: Mapping[str, str] | None = None,
        ca: Path | None = None,
        timeout: float = TIMEOUT_S,
    ) -> None:
        self.address = parse_address(address, port=GRPC_PORT) if isinstance(address, str) else address
        self._metadata = [(name.lower(), value) for name, value in (headers or {}).items()]
        self._timeout = timeout
        self._known: dict[tuple[str, str], ModelInfo] = {}
        if self.address.tls:
            trusted = grpc.ssl_channel_credentials(None if ca is None else ca.read_bytes())
            self._channel = grpc.secure_channel(str(self.address), trusted, options=UNLIMITED)
        else:
            self._channel = grpc.insecure_channel(str(self.address), options=UNLIMITED)

    def __enter__(self) -> GrpcClient:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        self._channel.close()

    def is_ready(self, model: str = "", version: str = "") -> bool:
        """The whole server, or one model."""
        try:
            if model:
                return bool(self._call("ModelReady", name=model, version=version).ready)
            return bool(self._call("ServerReady").ready)
        except ServerError:
            return False

    def metadata(self, model: str, version: str = "") -> ModelInfo:
        """Asked for once; a reload may change it."""
        key = model, version
        if key not in self._known:
            told = self._call("ModelMetadata", name=model, version=version)
            try:
                inputs, outputs = _ports(told.inputs), _ports(told.outputs)
            except ValueError as error:
                raise self._unreadable(error) from error
            self._known[key] = ModelInfo(told.name, tuple(told.versions), told.platform, inputs, outputs)
        return self._known[key]

    def infer(
        self,
        model: str,
        inputs: Mapping[str, np.ndarray],
        *,
        version: str = "",
        outputs: Sequence[str] | None = None,
    ) -> dict[str, np.ndarray]:
        """Outputs by name. Arrays travel as bytes in both directions."""
        ports = {port.name: port for port in self.metadata(model, version).inputs}
        tensors = [to_tensor(ports[name], array) for name, array in inputs.items()]
        answer = self._call(
            "ModelInfer",
            model_name=model,
            model_version=version,
            inputs=[{"name": t.name, "datatype": t.datatype, "shape": t.shape} for t in tensors],
            outputs=[{"name": name} for name in outputs or ()],
            raw_input_contents=[bytes(tensor.data) for tensor in tensors],
        )
        try:
            pairs = zip(answer.outputs, answer.raw_output_contents, strict=True)
            return {told.name: _array(told, raw) for told, raw in pairs}
        except ValueError as error:
            raise self._unreadable(error) from error

    def _unreadable(self, error: ValueError) -> ServerError:
        return ServerError(
            f"the answer of {self.address} does not read", got=str(error), help="is another server there?"
        )

    def _call(self, name: str, /, **fields: Any) -> Any:
        request = getattr(messages, f"{name}Request")(**fields)
        call = self._channel.unary_unary(
            f"/{messages.SERVICE}/{name}",
            request_serializer=type(request).SerializeToString,
            response_deserializer=getattr(messages, f"{name}Response").FromString,
        )
        try:
            return call(request, timeout=self._timeout, metadata=self._metadata)
        except grpc.RpcError as error:
            raise self._told(error) from error

    def _told(self, error: Any) -> ServerError:
        status, details = error.code(), visible(error.details() or "")
        if status is grpc.StatusCode.UNAVAILABLE and "connect" in details:
            return unreachable(self.address, details)
        return ServerError(details or f"the server answered with {status.name}", status=status.value[0])


def _ports(told: Sequence[Any]) -> tuple[TensorInfo, ...]:
    return tuple(tensor_info(each.name, each.datatype, tuple(each.shape), least=ANY) for each in told)


def _array(told: Any, raw: bytes) -> np.ndarray:
    info = tensor_info(told.name, told.datatype, tuple(told.shape))
    return to_array(Tensor(info.name, info.datatype, info.shape, raw))
