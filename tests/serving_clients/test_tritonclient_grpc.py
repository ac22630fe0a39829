"""tritonclient.grpc and tritonclient.grpc.aio against the server: all calls, the bits of all answers."""

from __future__ import annotations

import asyncio
import queue
from collections.abc import AsyncIterator
from typing import Any

import numpy as np
import pytest
import tritonclient.grpc as grpc
import tritonclient.grpc.aio as aio
from served import Case, Server
from tritonclient.utils import InferenceServerException, np_to_triton_dtype

ANSWER_S = 30


@pytest.fixture
def client(server: Server):
    made = grpc.InferenceServerClient(server.grpc)
    yield made
    made.close()


def inputs_of(case: Case) -> list[grpc.InferInput]:
    made = []
    for name, array in case.inputs.items():
        kind = np_to_triton_dtype(array.dtype)
        given = grpc.InferInput(name, list(array.shape), kind)
        given.set_data_from_numpy(array)
        made.append(given)
    return made


def require_same(result: grpc.InferResult, case: Case) -> None:
    for name, want in case.outputs.items():
        got = result.as_numpy(name)
        assert got.dtype == want.dtype, name
        np.testing.assert_array_equal(got, want, err_msg=f"{case.model} {name}")


def test_answers_have_the_bits_of_the_engine(client: grpc.InferenceServerClient, server: Server) -> None:
    for case in server.cases:
        require_same(client.infer(case.model, inputs_of(case)), case)
        asked = [grpc.InferRequestedOutput(name) for name in case.outputs]
        require_same(client.infer(case.model, inputs_of(case), outputs=asked[::-1]), case)


def test_async_infer_answers_each_its_own(client: grpc.InferenceServerClient, server: Server) -> None:
    cases = [case for case in server.cases if case.model == "affine"] * 20
    answers: queue.Queue[tuple[Any, Any]] = queue.Queue()
    for i, case in enumerate(cases):
        client.async_infer(
            "affine", inputs_of(case), lambda result, error: answers.put((result, error)), request_id=str(i)
        )
    seen = set()
    for _ in cases:
        result, error = answers.get(timeout=ANSWER_S)
        assert error is None
        number = result.get_response().id
        require_same(result, cases[int(number)])
        seen.add(number)
    assert len(seen) == len(cases)


def test_a_stream_answers_each_request_once(client: grpc.InferenceServerClient, server: Server) -> None:
    answers: queue.Queue[tuple[Any, Any]] = queue.Queue()
    client.start_stream(lambda result, error: answers.put((result, error)))
    cases = [case for case in server.cases if case.model == "affine"]
    for i, case in enumerate(cases):
        client.async_stream_infer("affine", inputs_of(case), request_id=str(i))
    client.async_stream_infer("nobody", inputs_of(cases[0]), request_id="bad")
    got, errors = {}, []
    for _ in range(len(cases) + 1):
        result, error = answers.get(timeout=ANSWER_S)
        if error is not None:
            errors.append(str(error))
        else:
            got[result.get_response().id] = result
    client.stop_stream()
    assert len(errors) == 1
    assert "nobody" in errors[0]
    for i, case in enumerate(cases):
        require_same(got[str(i)], case)


def test_health_and_metadata(client: grpc.InferenceServerClient) -> None:
    assert client.is_server_live()
    assert client.is_server_ready()
    assert client.is_model_ready("mlp")
    with pytest.raises(InferenceServerException, match="nobody"):
        client.is_model_ready("nobody")
    assert "statistics" in client.get_server_metadata().extensions
    told = client.get_model_metadata("mlp", as_json=True)
    assert told["inputs"] == [{"name": "x", "datatype": "FP32", "shape": ["-1", "16"]}]
    config = client.get_model_config("affine").config
    assert (config.max_batch_size, config.dynamic_batching.max_queue_delay_microseconds) == (8, 100)
    assert [(port.name, list(port.dims)) for port in config.input] == [("x", [4])]
    assert config.input[0].data_type == 11  # TYPE_FP32


def test_statistics_count_requests_and_rows(client: grpc.InferenceServerClient, server: Server) -> None:
    case = server.case("types", 7)
    (before,) = client.get_inference_statistics("types").model_stats
    client.infer("types", inputs_of(case))
    (after,) = client.get_inference_statistics("types").model_stats
    assert after.inference_count - before.inference_count == 7
    assert after.inference_stats.success.count - before.inference_stats.success.count == 1
    counts = after.inference_stats
    assert counts.compute_input.count == counts.compute_infer.count == counts.compute_output.count


def test_classes_of_an_output(client: grpc.InferenceServerClient, server: Server) -> None:
    case = server.case("mlp", 2)
    asked = [grpc.InferRequestedOutput("y", class_count=2)]
    got = client.infer("mlp", inputs_of(case), outputs=asked).as_numpy("y")
    assert got.shape == (2, 2)
    best = int(np.argmax(case.outputs["y"][0]))
    assert got[0][0].decode().split(":")[1:] == [str(best), f"class {best}"]


def test_models_are_listed_unloaded_and_loaded(client: grpc.InferenceServerClient, server: Server) -> None:
    def states() -> dict[str, str]:
        return {row.name: row.state for row in client.get_model_repository_index().models}

    assert states()["fixed"] == "READY"
    client.unload_model("fixed")
    assert not client.is_model_ready("fixed")
    client.load_model("fixed")
    assert states()["fixed"] == "READY"
    case = server.case("fixed", 2)
    require_same(client.infer("fixed", inputs_of(case)), case)


def test_refusals_have_a_status_and_a_message(client: grpc.InferenceServerClient, server: Server) -> None:
    case = server.case("affine", 1)
    wide = grpc.InferInput("x", [1, 5], "FP32")
    wide.set_data_from_numpy(np.zeros((1, 5), np.float32))
    for status, call in (
        ("NOT_FOUND", lambda: client.infer("nobody", inputs_of(case))),
        ("NOT_FOUND", lambda: client.get_model_config("nobody")),
        ("INVALID_ARGUMENT", lambda: client.infer("affine", [wide])),
        ("INVALID_ARGUMENT", lambda: client.infer("affine", inputs_of(server.case("mlp", 1)))),
        ("UNIMPLEMENTED", lambda: client.register_system_shared_memory("a", "/a", 4)),
    ):
        with pytest.raises(InferenceServerException) as caught:
            call()
        assert caught.value.status() == f"StatusCode.{status}", caught.value
        assert len(caught.value.message()) > 5
    require_same(client.infer("affine", inputs_of(case)), case)


def test_aio_makes_the_same_calls(server: Server) -> None:
    async def requests(cases: list[Case]) -> AsyncIterator[dict[str, Any]]:
        for i, case in enumerate(cases):
            yield {"model_name": "affine", "inputs": inputs_of(case), "request_id": str(i)}

    async def calls() -> None:
        async with aio.InferenceServerClient(server.grpc) as client:
            assert await client.is_server_live()
            assert await client.is_server_ready()
            assert await client.is_model_ready("mlp")
            assert (await client.get_model_metadata("mlp")).name == "mlp"
            assert (await client.get_model_config("mlp")).config.max_batch_size == 8
            assert (await client.get_inference_statistics("mlp")).model_stats
            assert len((await client.get_model_repository_index()).models) >= 6
            for case in server.cases:
                require_same(await client.infer(case.model, inputs_of(case)), case)
            cases = [case for case in server.cases if case.model == "affine"] * 10
            results = await asyncio.gather(*(client.infer("affine", inputs_of(case)) for case in cases))
            for case, result in zip(cases, results, strict=True):
                require_same(result, case)
            streamed = 0
            async for result, error in client.stream_infer(requests(cases[:5])):
                assert error is None
                require_same(result, cases[int(result.get_response().id)])
                streamed += 1
            assert streamed == 5
            await client.unload_model("fixed")
            await client.load_model("fixed")

    asyncio.run(calls())
