"""A client of the protocol over HTTP: one connection, the standard library and numpy.

Applications use tritonclient; this is what our own commands and benches speak with.
"""

from __future__ import annotations

import json
import ssl
from collections.abc import Mapping, Sequence
from contextlib import suppress
from http.client import HTTPConnection, HTTPException, HTTPResponse, HTTPSConnection
from pathlib import Path
from types import TracebackType
from typing import Any

import numpy as np

from ridgeline.errors import OptionError, RidgelineError
from ridgeline.serve.clients.address import Address, parse_address
from ridgeline.serve.clients.tensors import ModelInfo, model_info, to_array, to_tensor
from ridgeline.serve.clients.wire import HEADER_LENGTH, infer_body, model_path, parse_json, read_answer
from ridgeline.serve.messages import Parameter

TIMEOUT_S = 60.0
LONGEST_ERROR = 500


class ServerError(RidgelineError):
    """A server that refused a request, or cannot be talked to. `status` is 0 where there was no answer."""

    def __init__(self, what: str, *, status: int = 0, **parts: str) -> None:
        self.status = status
        super().__init__(what, **parts)


class Client:
    """Not to be shared by threads. Errors of the server are `ServerError` with the server's own message."""

    def __init__(
        self,
        address: str | Address,
        *,
        headers: Mapping[str, str] | None = None,
        ca: Path | None = None,
        timeout: float = TIMEOUT_S,
    ) -> None:
        self.address = parse_address(address) if isinstance(address, str) else address
        self._headers = dict(headers or {})
        self._known: dict[tuple[str, str], ModelInfo] = {}
        host, port = self.address.host, self.address.port
        if self.address.tls:
            trusted = trusted_by(ca)
            self._connection: HTTPConnection = HTTPSConnection(host, port, timeout=timeout, context=trusted)
        else:
            self._connection = HTTPConnection(host, port, timeout=timeout)

    def __enter__(self) -> Client:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        self._connection.close()

    def is_live(self) -> bool:
        return self._is_ok("/v2/health/live")

    def is_ready(self, model: str = "", version: str = "") -> bool:
        """The whole server, or one model."""
        return self._is_ok(model_path(model, version, "ready") if model else "/v2/health/ready")

    def server_metadata(self) -> dict[str, Any]:
        return self.ask("GET", "/v2")  # type: ignore[no-any-return]

    def metadata(self, model: str, version: str = "") -> ModelInfo:
        """Asked for once; a reload may change it."""
        key = model, version
        if key not in self._known:
            told = self.ask("GET", model_path(model, version))
            try:
                self._known[key] = model_info(told)
            except ValueError as error:
                raise self._unreadable(error) from error
        return self._known[key]

    def statistics(self, model: str, version: str = "") -> dict[str, Any]:
        """Counters of one model, or of its versions together."""
        return self.ask("GET", model_path(model, version, "stats"))  # type: ignore[no-any-return]

    def infer(
        self,
        model: str,
        inputs: Mapping[str, np.ndarray],
        *,
        version: str = "",
        outputs: Sequence[str] | None = None,
        parameters: Mapping[str, Parameter] | None = None,
    ) -> dict[str, np.ndarray]:
        """Outputs by name. Arrays travel as bytes in both directions."""
        ports = {port.name: port for port in self.metadata(model, version).inputs}
        tensors = [to_tensor(ports[name], array) for name, array in inputs.items()]
        length, body = infer_body(tensors, outputs=outputs, parameters=parameters)
        headers = {HEADER_LENGTH: str(length), "Content-Type": "application/octet-stream"}
        answer, told = self._exchange("POST", model_path(model, version, "infer"), body, headers)
        try:
            found = read_answer(answer, None if told is None else int(told))
            return {tensor.name: to_array(tensor) for tensor in found.outputs}
        except ValueError as error:
            raise self._unreadable(error) from error

    def ask(self, method: str, path: str, content: Any = None) -> Any:
        """Any other call of the protocol, as JSON; None where the answer is empty."""
        body = b"" if content is None else json.dumps(content).encode("utf-8")
        answer, _ = self._exchange(method, path, body, {"Content-Type": "application/json"})
        try:
            return parse_json(answer) if answer.strip() else None
        except ValueError as error:
            raise ServerError(
                f"the answer of {self.address} is no JSON", got=_text(answer), help="is another server there?"
            ) from error

    def _unreadable(self, error: ValueError) -> ServerError:
        return ServerError(
            f"the answer of {self.address} does not read", got=str(error), help="is another server there?"
        )

    def _is_ok(self, path: str) -> bool:
        try:
            self._exchange("GET", path, b"", {})
        except ServerError:
            return False
        return True

    def _exchange(
        self, method: str, path: str, body: bytes, headers: Mapping[str, str]
    ) -> tuple[bytes, str | None]:
        """The body, and the length of the JSON before its tensors if it has any."""
        try:
            response = self._response(method, path, body, {**headers, **self._headers})
            content = response.read()
        # a host that is no name, a length that no memory has: http.client has no errors of its own for them
        except (OSError, HTTPException, UnicodeError, OverflowError, MemoryError) as error:
            self.close()
            got = getattr(error, "strerror", None) or str(error) or type(error).__name__
            raise unreachable(self.address, got) from error
        if response.status >= 300:
            raise ServerError(error_text(content, response.status), status=response.status)
        return content, response.headers.get(HEADER_LENGTH)

    def _response(self, method: str, path: str, body: bytes, headers: Mapping[str, str]) -> HTTPResponse:
        """Servers close connections that were idle for some seconds. A GET is then sent once more."""
        was_open = self._connection.sock is not None
        try:
            return self._sent(method, path, body, headers)
        except (ConnectionError, ssl.SSLEOFError):
            if method != "GET" or not was_open:
                raise
            self.close()
            return self._sent(method, path, body, headers)

    def _sent(self, method: str, path: str, body: bytes, headers: Mapping[str, str]) -> HTTPResponse:
        self._connection.request(method, path, body, headers)
        return self._connection.getresponse()


def trusted_by(ca: Path | None) -> ssl.SSLContext:
    """Trusts these certificates, or those of the system."""
    try:
        return ssl.create_default_context(cafile=None if ca is None else str(ca))
    except (OSError, ssl.SSLError) as error:
        raise OptionError(f"{ca} holds no certificates", got=str(error), want="a file in PEM form") from error


def error_text(body: bytes, status: int) -> str:
    """The server's message; what it sent, where that is no message."""
    with suppress(ValueError):
        told = parse_json(body)
        if isinstance(told, dict) and isinstance(told.get("error"), str):
            return str(told["error"])
    return f"the server answered with status {status}: {_text(body)}".removesuffix(": ")


def _text(body: bytes) -> str:
    return body.decode("utf-8", "replace").strip()[:LONGEST_ERROR]


def unreachable(address: Address, got: str) -> ServerError:
    return ServerError(
        f"no answer from {address}",
        got=got,
        help="is a server running there? ridge serve REPOSITORY starts one",
    )
