"""The protocol over HTTP as an ASGI application: every request takes one way in, to a `Service`."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Mapping
from functools import partial
from time import perf_counter
from typing import Any, TypeVar

import msgspec

from ridgeline.serve.access import Access, is_loopback
from ridgeline.serve.codec.answer import AnswerForm, Encoded, encode_response, is_slow_to_encode
from ridgeline.serve.codec.body import (
    ACCEPTED,
    LARGEST_QUESTION_BYTES,
    BodyBudget,
    EncodingError,
    header_length,
    inflate,
    most_inflated,
)
from ridgeline.serve.codec.codec import decode_request, is_slow_to_decode
from ridgeline.serve.codec.raw import decode_raw
from ridgeline.serve.errors import Kind, RequestError, not_found, unavailable
from ridgeline.serve.http.exchange import Exchange, Gone, Headers, Receive, Send
from ridgeline.serve.http.page import HEADERS, PAGES, page_file
from ridgeline.serve.http.questions import JSON, Question, answer_to
from ridgeline.serve.http.routes import Found, Group, find
from ridgeline.serve.http.waits import Waits
from ridgeline.serve.messages import InferRequest, InferResponse
from ridgeline.serve.service import Service
from ridgeline.serve.settings import Settings
from ridgeline.serve.telemetry.tracing import known_traceparent

JSON_TYPE, BINARY_TYPE = (b"content-type", JSON), (b"content-type", b"application/octet-stream")
LENGTH_HEADER = b"inference-header-content-length"
KEY_HEADERS = (b"authorization", b"x-api-key")
RETRY_AFTER = (b"retry-after", b"1")
EXTRA_HEADERS: Mapping[Kind, tuple[bytes, bytes]] = {
    Kind.UNAVAILABLE: RETRY_AFTER,
    Kind.UNAUTHENTICATED: (b"www-authenticate", b"Bearer"),
}
T = TypeVar("T")
logger = logging.getLogger(__name__)
access_logger = logging.getLogger("ridgeline.serve.access_log")


class HttpApp:
    """Answers on one event loop. `admin`, `inference` and `metrics` say what this application is for."""

    def __init__(
        self,
        service: Service,
        settings: Settings,
        access: Access,
        *,
        admin: bool = False,
        inference: bool = True,
        metrics: bool = False,
    ) -> None:
        self.service, self.access, self.limits = service, access, settings.limits
        groups: dict[Group, bool] = {
            "health": True, "server": admin or inference, "inference": inference, "admin": admin,
            "metrics": metrics,
        }  # fmt: skip
        self._groups = frozenset(group for group, is_on in groups.items() if is_on)
        self._waits = Waits(settings.limits)
        self._budget = BodyBudget(settings.queue_bytes)
        self._question_bytes = min(LARGEST_QUESTION_BYTES, settings.limits.body_bytes)
        self._has_log = settings.access_log

    async def __call__(self, scope: Mapping[str, Any], receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await _other_than_http(scope, receive, send)
            return
        exchange = Exchange(scope, receive, send, self.limits)
        began = perf_counter() if self._has_log else 0.0
        try:
            await self._respond(exchange)
        except RequestError as error:
            await _refuse(exchange, error)
        except Gone:
            logger.debug("a client went away before its answer")
        except asyncio.CancelledError:
            # the server ends: whoever waits learns it
            await _refuse(exchange, unavailable("the server is stopping"), close=True)
        except Exception:
            logger.exception("a request over HTTP failed")
            await _refuse(exchange, RequestError(Kind.INTERNAL, "internal error"), close=True)
        finally:
            self._budget.held -= exchange.reserved
            if self._has_log:
                _log_access(exchange, scope, perf_counter() - began)

    async def _respond(self, exchange: Exchange) -> None:
        found = find(exchange.path, PAGES)
        route = found.route
        self._admit(exchange, found)
        if exchange.method not in route.methods:
            await _answer_method(exchange, route.methods)
        elif route.verb == "infer":
            await self._infer(exchange, found)
        elif route.verb == "page":
            page = page_file(found.name)
            await exchange.answer(200, page.body, [(b"content-type", page.content_type), *HEADERS])
        else:
            body = b""
            if exchange.method == "POST":
                body = await self._body(exchange, self._question_bytes)
            question = Question(self.service, route.verb, found, body, self.limits)
            answer = await self._waits.answer(exchange, answer_to(question))
            await exchange.answer(answer.status, answer.body, [(b"content-type", answer.content_type)])

    def _admit(self, exchange: Exchange, found: Found) -> None:
        """Everything that may be asked passes here, and nothing passes that is not switched on."""
        route = found.route
        if route.group not in self._groups:
            if route.group == "admin":
                raise RequestError(Kind.FORBIDDEN, "this server takes no admin calls here")
            raise not_found("Not Found")
        exchange.check_headers()
        keys = {name.decode(): exchange.text(name) for name in KEY_HEADERS} if not self.access.is_open else {}
        self.access.check(keys, route.verb)
        headers = exchange.headers
        if exchange.method == "POST" and (b"origin" in headers or b"sec-fetch-site" in headers):
            _check_site(headers)
        if route.group == "admin" and not self.access.has_admin_keys:
            _check_host(exchange.text(b"host"))

    async def _body(self, exchange: Exchange, most: int) -> bytes:
        body = await self._waits.body(exchange, self._budget, most)
        encoding = exchange.headers.get(b"content-encoding", b"identity")
        if encoding in (b"identity", b""):
            return body
        largest = most_inflated(len(body), most)
        exchange.reserve(largest, self._budget)
        body = await _off_loop(partial(inflate, body, encoding.decode("latin-1"), most))
        exchange.reserve(len(body) - largest, self._budget)
        return body

    async def _infer(self, exchange: Exchange, found: Found) -> None:
        body = await self._body(exchange, self.limits.body_bytes)
        request, form = await self._decode(exchange, found, body)
        if b"traceparent" in exchange.headers:
            request.trace = known_traceparent(exchange.text(b"traceparent"))
        response = await self._waits.answer(exchange, self.service.infer(request))
        encoded = await _encode(response, form)
        if encoded.header_length is None:
            await exchange.answer(200, encoded.body, [JSON_TYPE])
        else:
            length = (LENGTH_HEADER, b"%d" % encoded.header_length)
            await exchange.answer(200, encoded.body, [BINARY_TYPE, length])

    async def _decode(self, exchange: Exchange, found: Found, body: bytes) -> tuple[InferRequest, AnswerForm]:
        model, version = found.name, found.version
        length = None
        if LENGTH_HEADER in exchange.headers:
            length = header_length(exchange.text(LENGTH_HEADER))
            if length == 0:
                config = await self.service.ask("model_config", name=model, version=version)
                return decode_raw(body, config, model=model, version=version)
        if not is_slow_to_decode(body, length):
            return decode_request(body, length, model=model, version=version, limits=self.limits)
        work = partial(decode_request, body, length, model=model, version=version, limits=self.limits)
        return await _off_loop(work)


def _check_site(headers: Mapping[bytes, bytes]) -> None:
    """A page of another site must not send requests from the browser of whoever may."""
    site = headers.get(b"sec-fetch-site", b"none")
    is_own = site in (b"same-origin", b"none")
    if site == b"none" and b"origin" in headers:
        # browsers send no Sec-Fetch-Site where there is neither TLS nor an address of the loopback
        is_own = headers[b"origin"].partition(b"://")[2].lower() == headers.get(b"host", b"").lower()
    if not is_own:
        raise RequestError(Kind.FORBIDDEN, "requests from pages of other sites are not taken")


def _check_host(host: str) -> None:
    """Without keys it is this machine that may. A name of another site may lead to it in a browser, too."""
    name = host.rpartition(":")[0] if not host.endswith("]") and ":" in host else host
    if host and not is_loopback(name.strip("[]").lower()):
        raise RequestError(
            Kind.FORBIDDEN, "admin calls without keys are taken as localhost, 127.0.0.1 or [::1] only"
        )


async def _off_loop(work: Callable[[], T]) -> T:
    return await asyncio.get_running_loop().run_in_executor(None, work)


async def _encode(response: InferResponse, form: AnswerForm) -> Encoded:
    if not is_slow_to_encode(response, form):
        try:
            return encode_response(response, form)
        finally:
            response.release()
    work = asyncio.get_running_loop().run_in_executor(None, encode_response, response, form)
    # the thread reads the outputs until it ends, even if nobody waits for it any more
    work.add_done_callback(lambda _: response.release())
    return await asyncio.shield(work)


async def _refuse(exchange: Exchange, error: RequestError, *, close: bool = False) -> None:
    if exchange.is_started:
        return
    headers: Headers = [JSON_TYPE]
    if error.kind in EXTRA_HEADERS:
        headers.append(EXTRA_HEADERS[error.kind])
    elif isinstance(error, EncodingError):
        headers.append((b"accept-encoding", ACCEPTED.encode()))
    body = msgspec.json.encode({"error": error.message})
    await exchange.answer(error.kind.http_status, body, headers, close=close or error.kind is Kind.SLOW)


async def _answer_method(exchange: Exchange, methods: frozenset[str]) -> None:
    allow = (b"allow", ", ".join(sorted(methods | {"OPTIONS"})).encode())
    if exchange.method == "OPTIONS":
        await exchange.answer(200, b"", [allow])
    else:
        await exchange.answer(405, b'{"error":"Method Not Allowed"}', [JSON_TYPE, allow])


async def _other_than_http(scope: Mapping[str, Any], receive: Receive, send: Send) -> None:
    """Servers of others ask for a lifespan, of which there is nothing to say; there are no web sockets."""
    while scope["type"] == "lifespan":
        message = await receive()
        await send({"type": f"{message['type']}.complete"})
        if message["type"] == "lifespan.shutdown":
            return
    await send({"type": "websocket.close"})


def _log_access(exchange: Exchange, scope: Mapping[str, Any], seconds: float) -> None:
    client = scope.get("client")
    access_logger.info(
        "%s %s",
        exchange.method,
        scope["path"],
        extra={
            "client": client[0] if client else "",
            "status": exchange.status or "gone",
            "received_bytes": exchange.received,
            "sent_bytes": exchange.sent,
            "duration_ms": round(seconds * 1000, 3),
        },
    )
