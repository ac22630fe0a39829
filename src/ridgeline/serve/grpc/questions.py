"""Calls of the inference service besides inference: what each asks of the server, and its answer."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from google.protobuf.json_format import ParseDict

from ridgeline.serve.errors import invalid, unsupported
from ridgeline.serve.protocol import messages
from ridgeline.serve.service import Verb

Arguments = Mapping[str, Any]


@dataclass(frozen=True)
class Question:
    verb: Verb
    name: str  # of its messages too
    arguments: Callable[[Any], Arguments]
    wrap: Callable[[Any], Any]  # the answer as the fields of a message

    @property
    def request(self) -> Any:
        return getattr(messages, f"{self.name}Request")

    def answer(self, value: Any) -> bytes:
        # what the protocol has no field for is for other front ends
        message = ParseDict(
            self.wrap(value), getattr(messages, f"{self.name}Response")(), ignore_unknown_fields=True
        )
        return bytes(message.SerializeToString())


def _nothing(_: Any) -> Arguments:
    return {}


def _model(request: Any) -> Arguments:
    return {"name": request.name, "version": request.version}


def _index(request: Any) -> Arguments:
    _check_repository(request)
    return {"ready": request.ready}


def _load(request: Any) -> Arguments:
    _check_repository(request)
    parameters = dict(request.parameters)
    config = parameters.pop("config", None)
    if config is not None and config.WhichOneof("parameter_choice") != "string_param":
        raise invalid("parameter 'config' must be the model's configuration as JSON text")
    for name in parameters:
        if name.startswith("file:"):
            raise unsupported("files of models are not taken from clients: put them in the repository")
        raise invalid(f"parameter {name!r} of a load is not known: config")
    return {"name": request.model_name, "config": "" if config is None else config.string_param}


def _unload(request: Any) -> Arguments:
    _check_repository(request)
    parameters = dict(request.parameters)
    dependents = parameters.pop("unload_dependents", None)
    if dependents is not None and dependents.WhichOneof("parameter_choice") != "bool_param":
        raise invalid("parameter 'unload_dependents' must be true or false")
    for name in parameters:
        raise invalid(f"parameter {name!r} of an unload is not known: unload_dependents")
    return {"name": request.model_name, "dependents": dependents is not None and dependents.bool_param}


def _check_repository(request: Any) -> None:
    if request.repository_name:
        raise unsupported("repositories are not told apart: leave repository_name empty")


def _settings(request: Any) -> Arguments:
    settings = {}
    for name, value in request.settings.items():
        choice = value.WhichOneof("parameter_choice")
        if choice is None:
            raise invalid(f"log setting {name!r} has no value")
        settings[name] = getattr(value, choice)
    return {"settings": settings}


def _told_settings(settings: Mapping[str, Any]) -> Any:
    kinds = {bool: "bool_param", int: "uint32_param", str: "string_param"}
    return {"settings": {name: {kinds[type(value)]: value} for name, value in settings.items()}}


def _same(value: Any) -> Any:
    return value


def _done(_: Any) -> Any:
    return {}


QUESTIONS = (
    Question("live", "ServerLive", _nothing, lambda live: {"live": live}),
    Question("ready", "ServerReady", _nothing, lambda ready: {"ready": ready}),
    Question("model_ready", "ModelReady", _model, lambda ready: {"ready": ready}),
    Question("server_metadata", "ServerMetadata", _nothing, _same),
    Question("model_metadata", "ModelMetadata", _model, _same),
    Question("model_config", "ModelConfig", _model, lambda config: {"config": config}),
    Question("statistics", "ModelStatistics", _model, _same),
    Question("index", "RepositoryIndex", _index, lambda models: {"models": models}),
    Question("load", "RepositoryModelLoad", _load, _done),
    Question("unload", "RepositoryModelUnload", _unload, _done),
    Question("log_settings", "LogSettings", _settings, _told_settings),
)
