"""Calls besides inference: what each asks the service, and its answer as a message."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import Any

import grpc
import pytest
from grpc import StatusCode
from grpc_echo import Running, refused, running

from ridgeline.serve.errors import not_found
from ridgeline.serve.protocol import messages

MODEL = {"name": "m", "version": "2"}
CONFIG = {
    "name": "m", "max_batch_size": 8, "input": [{"name": "x", "data_type": "TYPE_FP32", "dims": [-1]}],
    "dynamic_batching": {"max_queue_delay_microseconds": 100},
    "version_policy": {"latest": {"num_versions": 1}},
}  # fmt: skip
DURATION = {"count": 3, "ns": 2**40}


@pytest.fixture(scope="module")
def server() -> Iterator[Running]:
    with running() as server:
        yield server


def asked(server: Running, call: str, verb: str, answer: Any, /, **fields: Any) -> tuple[dict[str, Any], Any]:
    """The arguments that the service saw, and the message that came back."""
    server.echo.answers[verb] = answer
    got = server.ask(call, getattr(messages, f"{call}Request")(**fields))
    seen, arguments = server.echo.asked[-1]
    assert seen == verb
    return arguments, got


def test_health_of_server_and_model(server: Running) -> None:
    for value in (True, False):
        assert asked(server, "ServerLive", "live", value)[1].live is value
        assert asked(server, "ServerReady", "ready", value)[1].ready is value
        arguments, got = asked(server, "ModelReady", "model_ready", value, **MODEL)
        assert (arguments, got.ready) == (MODEL, value)


def test_metadata_of_server_and_model(server: Running) -> None:
    about = {"name": "ridgeline", "version": "1", "extensions": ["statistics"]}
    _, got = asked(server, "ServerMetadata", "server_metadata", about)
    assert (got.name, got.version, list(got.extensions)) == ("ridgeline", "1", ["statistics"])
    ports = [{"name": "x", "datatype": "FP32", "shape": [-1, 3]}]
    about = {"name": "m", "versions": ["1", "2"], "platform": "p", "inputs": ports, "outputs": ports}
    arguments, got = asked(server, "ModelMetadata", "model_metadata", about, **MODEL)
    assert arguments == MODEL
    assert (got.name, list(got.versions), got.platform) == ("m", ["1", "2"], "p")
    assert [(each.name, each.datatype, list(each.shape)) for each in got.inputs] == [("x", "FP32", [-1, 3])]
    assert got.outputs == got.inputs


def test_config_of_a_model(server: Running) -> None:
    arguments, got = asked(server, "ModelConfig", "model_config", CONFIG, **MODEL)
    assert arguments == MODEL
    assert got.config.max_batch_size == 8
    assert got.config.dynamic_batching.max_queue_delay_microseconds == 100
    assert messages.DataType.values_by_number[got.config.input[0].data_type].name == "TYPE_FP32"


def test_statistics_are_told_and_what_is_beside_them_is_left_out(server: Running) -> None:
    row = {
        "name": "m", "version": "1", "last_inference": 2**41, "inference_count": 8, "execution_count": 2,
        "inference_stats": {"success": DURATION, "queue": DURATION}, "histogram": {"1": 2},
        "batch_stats": [{"batch_size": 4, "compute_infer": DURATION}],
    }  # fmt: skip
    arguments, got = asked(server, "ModelStatistics", "statistics", {"model_stats": [row]}, **MODEL)
    assert arguments == MODEL
    (told,) = got.model_stats
    assert (told.last_inference, told.inference_count, told.execution_count) == (2**41, 8, 2)
    assert (told.inference_stats.queue.count, told.inference_stats.queue.ns) == (3, 2**40)
    assert told.batch_stats[0].batch_size == 4


def test_the_index_of_the_repository(server: Running) -> None:
    rows = [{"name": "m", "version": "1", "state": "READY", "reason": ""}]
    arguments, got = asked(server, "RepositoryIndex", "index", rows, ready=True)
    assert arguments == {"ready": True}
    assert [(each.name, each.state) for each in got.models] == [("m", "READY")]


KINDS = {bool: "bool_param", str: "string_param", bytes: "bytes_param", int: "int64_param"}


def load(server: Running, call: str, parameters: Mapping[str, Any]) -> Any:
    made = getattr(messages, f"{call}Request")(model_name="m")
    for name, value in parameters.items():
        setattr(made.parameters[name], KINDS[type(value)], value)
    return server.ask(call, made)


def test_models_are_loaded_and_unloaded(server: Running) -> None:
    server.echo.answers |= {"load": None, "unload": None}
    config = json.dumps(CONFIG)
    load(server, "RepositoryModelLoad", {})
    load(server, "RepositoryModelLoad", {"config": config})
    load(server, "RepositoryModelUnload", {})
    load(server, "RepositoryModelUnload", {"unload_dependents": True})
    assert server.echo.asked[-4:] == [
        ("load", {"name": "m", "config": ""}),
        ("load", {"name": "m", "config": config}),
        ("unload", {"name": "m", "dependents": False}),
        ("unload", {"name": "m", "dependents": True}),
    ]


@pytest.mark.parametrize(
    ("call", "parameters", "status"),
    [
        ("RepositoryModelLoad", {"config": True}, StatusCode.INVALID_ARGUMENT),
        ("RepositoryModelLoad", {"file:1/model.onnx": b"x"}, StatusCode.UNIMPLEMENTED),
        ("RepositoryModelLoad", {"other": "x"}, StatusCode.INVALID_ARGUMENT),
        ("RepositoryModelUnload", {"unload_dependents": 1}, StatusCode.INVALID_ARGUMENT),
        ("RepositoryModelUnload", {"other": "x"}, StatusCode.INVALID_ARGUMENT),
    ],
)
def test_parameters_that_mean_nothing_are_refused(
    server: Running, call: str, parameters: dict[str, Any], status: StatusCode
) -> None:
    before = len(server.echo.asked)
    assert refused(lambda: load(server, call, parameters))[0] is status
    assert len(server.echo.asked) == before


@pytest.mark.parametrize("name", ["RepositoryIndex", "RepositoryModelLoad", "RepositoryModelUnload"])
def test_repositories_have_no_names(server: Running, name: str) -> None:
    made = getattr(messages, f"{name}Request")(repository_name="other")
    assert refused(lambda: server.ask(name, made))[0] is StatusCode.UNIMPLEMENTED


def test_log_settings_are_told_and_changed(server: Running) -> None:
    settings = {"log_info": True, "log_verbose_level": 2, "log_file": ""}
    made = messages.LogSettingsRequest()
    made.settings["log_info"].bool_param = False
    made.settings["log_verbose_level"].uint32_param = 3
    made.settings["log_format"].string_param = "default"
    server.echo.answers["log_settings"] = settings
    got = server.ask("LogSettings", made)
    assert server.echo.asked[-1] == (
        "log_settings",
        {"settings": {"log_info": False, "log_verbose_level": 3, "log_format": "default"}},
    )
    assert got.settings["log_info"].bool_param is True
    assert got.settings["log_verbose_level"].uint32_param == 2
    assert got.settings["log_file"].WhichOneof("parameter_choice") == "string_param"
    empty = messages.LogSettingsRequest()
    empty.settings["log_info"].SetInParent()
    assert refused(lambda: server.ask("LogSettings", empty))[0] is StatusCode.INVALID_ARGUMENT


def test_refusals_and_failures_of_questions(server: Running) -> None:
    server.echo.answers["model_config"] = not_found("model 'm' is not there")
    assert refused(lambda: server.ask("ModelConfig")) == (StatusCode.NOT_FOUND, "model 'm' is not there")
    server.echo.answers["model_config"] = ZeroDivisionError("a secret path")
    assert refused(lambda: server.ask("ModelConfig")) == (StatusCode.INTERNAL, "internal error")
    for body in (b"\xff", b"\x0a\x05m"):
        call = server.method("ModelConfig")
        assert refused(lambda call=call, body=body: call(body))[0] is StatusCode.INVALID_ARGUMENT
    large = messages.ModelConfigRequest(name="m" * (2**20 + 1))
    assert refused(lambda: server.ask("ModelConfig", large))[0] is StatusCode.RESOURCE_EXHAUSTED


def test_a_question_may_be_compressed(server: Running) -> None:
    server.echo.answers["model_config"] = CONFIG
    made = messages.ModelConfigRequest(name="m" * 1000, version="2")
    server.ask("ModelConfig", made, compression=grpc.Compression.Gzip)
    assert server.echo.asked[-1][1] == {"name": "m" * 1000, "version": "2"}
