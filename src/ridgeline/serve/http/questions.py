"""Everything but inference: what a path asks the service, and the form the protocol gives the answer."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from typing import Any, TypeVar

import msgspec

from ridgeline.serve.codec.body import check_depth
from ridgeline.serve.errors import invalid, unsupported
from ridgeline.serve.http.routes import Found
from ridgeline.serve.service import Service, Verb
from ridgeline.serve.settings import HttpLimits

JSON, METRICS_TEXT = b"application/json", b"text/plain; version=0.0.4; charset=utf-8"
T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Answer:
    body: bytes
    status: int = 200
    content_type: bytes = JSON


@dataclass(frozen=True, slots=True)
class Question:
    """`body` is empty unless the method is POST."""

    service: Service
    verb: Verb
    found: Found
    body: bytes
    limits: HttpLimits

    def read(self, kind: type[T], default: T) -> T:
        """The body as JSON; clients send none where they have nothing to say."""
        if not self.body:
            return default
        check_depth(self.body, self.limits.json_depth)
        try:
            return msgspec.json.decode(self.body, type=kind)
        except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
            raise invalid(f"the request is not as the protocol has it: {error}") from None


class _Index(msgspec.Struct):
    ready: bool = False


class _LoadParameters(msgspec.Struct, forbid_unknown_fields=True):
    config: str = ""


class _Load(msgspec.Struct):
    parameters: dict[str, Any] = {}


class _UnloadParameters(msgspec.Struct, forbid_unknown_fields=True):
    unload_dependents: bool = False


class _Unload(msgspec.Struct):
    parameters: _UnloadParameters = msgspec.field(default_factory=_UnloadParameters)


async def _health(question: Question) -> Answer:
    verb = question.verb
    is_well = bool(await question.service.ask(verb))
    return Answer(msgspec.json.encode({verb: is_well}), 200 if is_well else 400)


async def _model_ready(question: Question) -> Answer:
    found = question.found
    is_ready = bool(await question.service.ask("model_ready", name=found.name, version=found.version))
    return Answer(msgspec.json.encode({"name": found.name, "ready": is_ready}), 200 if is_ready else 400)


async def _index(question: Question) -> Answer:
    asked = question.read(_Index, _Index())
    return Answer(msgspec.json.encode(await question.service.ask("index", ready=asked.ready)))


async def _load(question: Question) -> Answer:
    parameters = question.read(_Load, _Load()).parameters
    files = [name for name in parameters if name.startswith("file:")]
    if files:
        raise unsupported("files of a model are not taken from a request: put them into the repository")
    try:
        config = msgspec.convert(parameters, _LoadParameters).config
    except msgspec.ValidationError as error:
        raise invalid(f"the request is not as the protocol has it: {error}") from None
    await question.service.ask("load", name=question.found.name, config=config)
    return Answer(b"{}")


async def _unload(question: Question) -> Answer:
    asked = question.read(_Unload, _Unload())
    dependents = asked.parameters.unload_dependents
    await question.service.ask("unload", name=question.found.name, dependents=dependents)
    return Answer(b"{}")


async def _log_settings(question: Question) -> Answer:
    settings = question.read(dict[str, Any], {})
    return Answer(msgspec.json.encode(await question.service.ask("log_settings", settings=settings)))


async def _metrics(question: Question) -> Answer:
    text: str = await question.service.ask("metrics")
    return Answer(text.encode(), content_type=METRICS_TEXT)


OWN_FORM: Mapping[Verb, Callable[[Question], Awaitable[Answer]]] = {
    "live": _health, "ready": _health, "model_ready": _model_ready, "index": _index, "load": _load,
    "unload": _unload, "log_settings": _log_settings, "metrics": _metrics,
}  # fmt: skip
OF_SERVER: frozenset[Verb] = frozenset({"server_metadata", "status"})


async def answer_to(question: Question) -> Answer:
    verb, found = question.verb, question.found
    own = OWN_FORM.get(verb)
    if own is not None:
        return await own(question)
    about = {} if verb in OF_SERVER else {"name": found.name, "version": found.version}
    return Answer(msgspec.json.encode(await question.service.ask(verb, **about)))
