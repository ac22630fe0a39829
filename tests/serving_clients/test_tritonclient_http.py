"""tritonclient.http and tritonclient.http.aio against the server: all calls, the bits of all answers."""

from __future__ import annotations

import asyncio
from functools import partial

import numpy as np
import pytest
import tritonclient.http as http
import tritonclient.http.aio as aio
from served import Case, Server
from tritonclient.utils import InferenceServerException, np_to_triton_dtype


@pytest.fixture
def client(server: Server):
    made = http.InferenceServerClient(server.http, concurrency=4)
    yield made
    made.close()


def inputs_of(case: Case, *, binary: bool = True) -> list[http.InferInput]:
    made = []
    for name, array in case.inputs.items():
        kind = np_to_triton_dtype(array.dtype)
        given = http.InferInput(name, array.shape, kind)
        given.set_data_from_numpy(array, binary_data=binary)
        made.append(given)
    return made


def outputs_of(case: Case, *, binary: bool) -> list[http.InferRequestedOutput]:
    return [http.InferRequestedOutput(name, binary_data=binary) for name in case.outputs]


def require_same(result: http.InferResult, case: Case) -> None:
    for name, want in case.outputs.items():
        got = result.as_numpy(name)
        assert got.dtype == want.dtype, name
        np.testing.assert_array_equal(got, want, err_msg=f"{case.model} {name}")


def test_binary_answers_have_the_bits_of_the_engine(
    client: http.InferenceServerClient, server: Server
) -> None:
    for case in server.cases:
        require_same(client.infer(case.model, inputs_of(case)), case)
        require_same(client.infer(case.model, inputs_of(case), outputs=outputs_of(case, binary=True)), case)


def test_json_answers_have_the_bits_of_the_engine(client: http.InferenceServerClient, server: Server) -> None:
    for case in server.cases:
        if case.model == "half":  # half types have no form in JSON
            continue
        asked = outputs_of(case, binary=False)
        require_same(client.infer(case.model, inputs_of(case, binary=False), outputs=asked), case)
        require_same(client.infer(case.model, inputs_of(case, binary=True), outputs=asked), case)


@pytest.mark.parametrize("algorithm", ["gzip", "deflate"])
def test_compressed_bodies_are_read(
    client: http.InferenceServerClient, server: Server, algorithm: str
) -> None:
    case = server.case("mlp", 7)
    compressed = {"request_compression_algorithm": algorithm, "response_compression_algorithm": algorithm}
    require_same(client.infer("mlp", inputs_of(case), **compressed), case)


def test_async_infer_answers_each_its_own(client: http.InferenceServerClient, server: Server) -> None:
    cases = [case for case in server.cases if case.model == "affine"] * 20
    pending = [
        client.async_infer("affine", inputs_of(case), request_id=str(i)) for i, case in enumerate(cases)
    ]
    for i, (case, each) in enumerate(zip(cases, pending, strict=True)):
        result = each.get_result()
        require_same(result, case)
        assert result.get_response()["id"] == str(i)


def test_health_and_metadata(client: http.InferenceServerClient) -> None:
    assert client.is_server_live()
    assert client.is_server_ready()
    assert client.is_model_ready("mlp")
    assert client.is_model_ready("affine", "2")
    assert not client.is_model_ready("nobody")
    assert not client.is_model_ready("affine", "9")
    told = client.get_server_metadata()
    assert {"statistics", "binary_tensor_data", "model_repository"} <= set(told["extensions"])
    told = client.get_model_metadata("mlp")
    assert told["inputs"] == [{"name": "x", "datatype": "FP32", "shape": [-1, 16]}]
    assert told["outputs"] == [{"name": "y", "datatype": "FP32", "shape": [-1, 10]}]


def test_config_is_triton_s(client: http.InferenceServerClient) -> None:
    told = client.get_model_config("affine")
    assert told["name"] == "affine"
    assert told["max_batch_size"] == 8
    assert told["dynamic_batching"]["max_queue_delay_microseconds"] == 100
    assert told["input"][0] | {} == told["input"][0]
    assert (told["input"][0]["name"], told["input"][0]["data_type"]) == ("x", "TYPE_FP32")
    assert [int(size) for size in told["input"][0]["dims"]] == [4]


def test_statistics_count_requests_and_rows(client: http.InferenceServerClient, server: Server) -> None:
    case = server.case("types", 7)
    (before,) = client.get_inference_statistics("types")["model_stats"]
    for _ in range(3):
        client.infer("types", inputs_of(case))
    (after,) = client.get_inference_statistics("types")["model_stats"]
    assert after["inference_count"] - before["inference_count"] == 21
    assert after["execution_count"] - before["execution_count"] == 3
    counts = after["inference_stats"]
    assert counts["success"]["count"] - before["inference_stats"]["success"]["count"] == 3
    assert (
        counts["compute_input"]["count"]
        == counts["compute_infer"]["count"]
        == counts["compute_output"]["count"]
    )
    assert len(client.get_inference_statistics()["model_stats"]) >= 6


def test_classes_of_an_output(client: http.InferenceServerClient, server: Server) -> None:
    case = server.case("mlp", 2)
    asked = [http.InferRequestedOutput("y", class_count=3)]
    got = client.infer("mlp", inputs_of(case), outputs=asked).as_numpy("y")
    assert got.shape == (2, 3)
    for row, texts in zip(case.outputs["y"], got, strict=True):
        best = int(np.argmax(row))
        value, index, label = texts[0].decode().split(":")
        assert (int(index), label) == (best, f"class {best}")
        assert float(value) == pytest.approx(float(row[best]), rel=1e-4)


def test_ensembles_run_their_steps(client: http.InferenceServerClient, server: Server) -> None:
    case = server.case("affine", 2)
    given = http.InferInput("IN", case.inputs["x"].shape, "FP32")
    given.set_data_from_numpy(case.inputs["x"])
    want = np.maximum(case.outputs["y"] * np.float32(2.5), 0)
    np.testing.assert_array_equal(client.infer("pair", [given]).as_numpy("OUT"), want)


def test_models_are_listed_unloaded_and_loaded(client: http.InferenceServerClient, server: Server) -> None:
    def states() -> dict[str, str]:
        return {row["name"]: row.get("state", "") for row in client.get_model_repository_index()}

    assert states()["fixed"] == "READY"
    client.unload_model("fixed")
    assert not client.is_model_ready("fixed")
    assert states()["fixed"] != "READY"
    case = server.case("fixed", 2)
    with pytest.raises(InferenceServerException, match="fixed"):
        client.infer("fixed", inputs_of(case))
    client.load_model("fixed")
    require_same(client.infer("fixed", inputs_of(case)), case)


def test_load_takes_a_configuration(client: http.InferenceServerClient) -> None:
    client.load_model("types", config='{"name": "types", "max_batch_size": 4}')
    try:
        assert client.get_model_config("types")["max_batch_size"] == 4
    finally:
        client.load_model("types")
    assert client.get_model_config("types")["max_batch_size"] == 8


def test_refusals_have_a_status_and_a_message(client: http.InferenceServerClient, server: Server) -> None:
    case = server.case("affine", 1)
    good = partial(client.infer, "affine", inputs_of(case))
    wide = http.InferInput("x", [1, 5], "FP32")
    wide.set_data_from_numpy(np.zeros((1, 5), np.float32))
    other = http.InferInput("x", [1, 4], "INT32")
    other.set_data_from_numpy(np.zeros((1, 4), np.int32))
    many = http.InferInput("x", [9, 4], "FP32")
    many.set_data_from_numpy(np.zeros((9, 4), np.float32))
    for status, call in (
        ("404", lambda: client.infer("nobody", inputs_of(case))),
        ("404", lambda: client.get_model_metadata("nobody")),
        ("404", lambda: client.infer("affine", inputs_of(case), model_version="9")),
        ("400", lambda: client.infer("affine", [wide])),
        ("400", lambda: client.infer("affine", [other])),
        ("400", lambda: client.infer("affine", [many])),
        ("400", lambda: good(outputs=[http.InferRequestedOutput("nothing")])),
        ("400", lambda: client.infer("affine", inputs_of(server.case("mlp", 1)))),
        ("404", lambda: client.load_model("nobody")),
    ):
        with pytest.raises(InferenceServerException) as caught:
            call()
        assert caught.value.status() == status, caught.value
        assert len(caught.value.message()) > 10
        assert "decoding" not in caught.value.message()
        assert client.is_server_live()
    require_same(good(), case)


def test_aio_makes_the_same_calls(server: Server) -> None:
    async def calls() -> None:
        async with aio.InferenceServerClient(server.http) as client:
            assert await client.is_server_live()
            assert await client.is_server_ready()
            assert await client.is_model_ready("mlp")
            assert (await client.get_model_metadata("mlp"))["name"] == "mlp"
            assert (await client.get_model_config("mlp"))["max_batch_size"] == 8
            assert (await client.get_inference_statistics("mlp"))["model_stats"]
            assert {row["name"] for row in await client.get_model_repository_index()} >= {"mlp", "pair"}
            for case in server.cases:
                require_same(await client.infer(case.model, inputs_of(case)), case)
            cases = [case for case in server.cases if case.model == "affine"] * 10
            results = await asyncio.gather(*(client.infer("affine", inputs_of(case)) for case in cases))
            for case, result in zip(cases, results, strict=True):
                require_same(result, case)
            await client.unload_model("fixed")
            assert not await client.is_model_ready("fixed")
            await client.load_model("fixed")
            with pytest.raises(InferenceServerException, match="nobody"):
                await client.infer("nobody", inputs_of(cases[0]))

    asyncio.run(calls())
