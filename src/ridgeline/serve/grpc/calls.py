"""Calls of the inference service as bytes in and bytes out. `grpc.server` carries them."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Iterable, Mapping
from typing import TypeVar

from ridgeline.serve.access import Asked
from ridgeline.serve.codec.body import LARGEST_QUESTION_BYTES, BodyBudget, most_inflated, too_large
from ridgeline.serve.errors import Kind, RequestError
from ridgeline.serve.grpc.codec import decode, encode_response, encode_stream_error, encode_stream_response
from ridgeline.serve.grpc.questions import Question
from ridgeline.serve.grpc.wire import cut, inflated, is_compressed, parse
from ridgeline.serve.messages import InferRequest, InferResponse
from ridgeline.serve.service import Service
from ridgeline.serve.settings import Settings
from ridgeline.serve.telemetry.tracing import known_traceparent

Metadata = Iterable[tuple[str, str | bytes]]
Access = Callable[[Mapping[str, str], Asked], None]
Answer = TypeVar("Answer")
TRACE = "traceparent"

_log = logging.getLogger(__name__)


class Calls:
    """What goes wrong is a `RequestError`; a front end meets no other."""

    def __init__(self, service: Service, settings: Settings, access: Access | None) -> None:
        self._service, self._limits, self._access = service, settings.limits, access
        self.budget = BodyBudget(settings.queue_bytes)

    def admit(self, metadata: Metadata, verb: Asked) -> None:
        """`RequestError` unless the key of the metadata allows it."""
        if self._access is None:
            return
        try:
            self._access({name: value for name, value in metadata if isinstance(value, str)}, verb)
        except RequestError:
            raise
        except Exception:
            raise _internal(f"the check of a key for {verb}") from None

    async def ask(self, question: Question, body: bytes, metadata: Metadata) -> bytes:
        self.admit(metadata, question.verb)
        return await _answered(question.name, self._ask(question, body))

    async def infer(self, body: bytes, metadata: Metadata) -> bytes:
        self.admit(metadata, "infer")
        return await _answered("ModelInfer", self._infer(body, metadata))

    async def infer_in_stream(self, body: bytes, metadata: Metadata) -> bytes:
        """Errors are messages too. The caller has admitted the stream."""
        known = ""
        try:
            with _Held(self.budget) as held:
                request = await _answered("ModelStreamInfer", self._request(body, metadata, held))
                known = request.id
                return await _answered("ModelStreamInfer", self._run(request, encode_stream_response))
        except RequestError as error:
            return encode_stream_error(error.message, known)

    async def _ask(self, question: Question, body: bytes) -> bytes:
        with _Held(self.budget) as held:
            most = min(LARGEST_QUESTION_BYTES, self._limits.body_bytes)
            body = await self._whole(body, held, most)
            if len(body) > most:
                raise too_large(most)
            arguments = question.arguments(parse(question.request, body))
        return question.answer(await self._service.ask(question.verb, **arguments))

    async def _infer(self, body: bytes, metadata: Metadata) -> bytes:
        with _Held(self.budget) as held:
            return await self._run(await self._request(body, metadata, held), encode_response)

    async def _run(self, request: InferRequest, encode: Callable[[InferResponse], bytes]) -> bytes:
        response = await self._service.infer(request)
        try:
            return encode(response)
        finally:
            response.release()

    async def _request(self, body: bytes, metadata: Metadata, held: _Held) -> InferRequest:
        given = cut(await self._whole(body, held, self._limits.body_bytes), self._limits)
        if given.is_slow:
            request = await asyncio.to_thread(decode, given, self._limits)
        else:
            request = decode(given, self._limits)
        for name, value in metadata:
            if name == TRACE and isinstance(value, str):
                request.trace = known_traceparent(value)
        return request

    async def _whole(self, body: bytes, held: _Held, most: int) -> bytes:
        held.take(len(body))
        if is_compressed(body):
            largest = most_inflated(len(body), most)
            held.take(largest)
            body = await asyncio.to_thread(inflated, body, most)
            held.take(len(body) - largest)
        return body


class _Held:
    """Bytes of one call, which count until its end."""

    __slots__ = ("_budget", "_nbytes")

    def __init__(self, budget: BodyBudget) -> None:
        self._budget, self._nbytes = budget, 0

    def take(self, nbytes: int) -> None:
        self._budget.take(nbytes)
        self._nbytes += nbytes

    def __enter__(self) -> _Held:
        return self

    def __exit__(self, *_: object) -> None:
        self._budget.held -= self._nbytes


async def _answered(call: str, work: Awaitable[Answer]) -> Answer:
    try:
        return await work
    except RequestError:
        raise
    except asyncio.CancelledError:
        task = asyncio.current_task()
        if task is not None and task.cancelling():
            raise
        # what the call waited for was cancelled. gRPC's server sends nothing at all after a CancelledError
        raise RequestError(Kind.CANCELLED, "the request was cancelled") from None
    except Exception:
        raise _internal(call) from None


def _internal(what: str) -> RequestError:
    """Called while an exception is handled: its traceback is for the log, not for the client."""
    _log.exception("%s failed", what)
    return RequestError(Kind.INTERNAL, "internal error")
