"""Engines on hosts of both kinds: what `Engine.run` says, bit for bit, and errors where they belong."""

from __future__ import annotations

import asyncio
import shutil
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path

import ml_dtypes
import numpy as np
import pytest
import torch
from hosted import (
    GRAPHS,
    OnLoop,
    array_from,
    begin,
    engine,
    engine_file,
    engine_model,
    inputs_of,
    joined,
    rows,
    run,
    step_model,
)

from ridgeline.serve.hosts.hosting import BatchError, Host, Hosted, HostedModel, Joined, LoadError, PortInfo

RNG = np.random.default_rng(14)
WORDS = np.array(["", "ridge", "Größe", "行", "a b"], object)


@pytest.fixture(autouse=True)
def _threads_as_planned() -> None:
    """Products of other numbers of threads have other last bits."""
    torch.set_num_threads(1)


@asynccontextmanager
async def loaded(host: Host, model: HostedModel) -> AsyncIterator[Hosted]:
    hosted = await host.load(model)
    try:
        yield hosted
    finally:
        await host.unload(model.key)


def draw(dtype: str, shape: tuple[int, ...]) -> np.ndarray:
    if dtype == "string":
        return RNG.choice(WORDS, shape)
    if dtype == "bool":
        return RNG.integers(0, 2, shape).astype(bool)
    if "int" in dtype:
        return RNG.integers(0, 100, shape).astype(dtype)
    return RNG.standard_normal(shape).astype(ml_dtypes.bfloat16 if dtype == "bfloat16" else dtype)


@pytest.mark.parametrize("name", sorted(GRAPHS.keys() - {"sequence", "gather"}))
def test_results_are_those_of_the_engine(do: OnLoop, host: Host, name: str) -> None:
    made = engine(name)

    async def body() -> None:
        async with loaded(host, engine_model(name, instances=2)) as hosted:
            assert [p.name for p in hosted.inputs] == [p.name for p in made.inputs]
            assert [p.dims for p in hosted.outputs] == [p.dims for p in made.outputs]
            assert hosted.notes["threads"] == "1"
            for n in (5, 1, 0, 700, 5):
                feeds = {
                    port.name: draw(port.dtype, tuple(n if d == "N" else d for d in port.dims or ()))
                    for port in made.inputs
                }
                want = made.run(feeds)
                for instance in hosted.instances:
                    got = await run(instance, inputs_of(made, feeds), list(want))
                    for output, array in want.items():
                        np.testing.assert_array_equal(got[output], array, strict=True)

    do(body())


def test_four_megabytes_and_more_in_one_tensor(do: OnLoop, host: Host) -> None:
    made = engine("large")

    async def body() -> None:
        async with loaded(host, engine_model("large")) as hosted:
            weights = draw("float32", (4096, 64))
            for n in (256, 1024, 256, 1):  # 4 MiB, then 16
                feeds = {"x": draw("float32", (n, 4096)), "w": weights}
                got = await run(hosted.instances[0], inputs_of(made, feeds), ("y", "z"))
                want = made.run(feeds)
                for output, array in want.items():
                    np.testing.assert_array_equal(got[output], array, strict=True)

    do(body())


def test_parts_of_several_requests_are_one_batch(do: OnLoop, host: Host) -> None:
    async def body() -> None:
        async with loaded(host, engine_model("float32")) as hosted:
            parts = [draw("float32", (n, 8)) for n in (2, 0, 1, 400)]
            got = await run(hosted.instances[0], [joined("x", "FP32", *parts)])
            want = engine("float32").run({"x": np.concatenate(parts)})["y"]
            np.testing.assert_array_equal(got["y"], want, strict=True)
            padded = Joined(
                "x", "FP32", (3, 8), [part.tobytes() for part in (rows(1)[:, :5], rows(2, 3))],
                part_shapes=[(1, 5), (2, 8)], pad=7.0,
            )  # fmt: skip
            whole = rows(1, 2, 3)
            whole[0, 5:] = 7.0
            got = await run(hosted.instances[0], [padded])
            np.testing.assert_array_equal(got["y"], engine("float32").run({"x": whole})["y"], strict=True)

    do(body())


def test_instances_run_at_the_same_time_and_outputs_are_given_back_in_any_order(
    do: OnLoop, host: Host
) -> None:
    async def body() -> None:
        async with loaded(host, engine_model("large", instances=3)) as hosted:
            weights = draw("float32", (4096, 64))
            for _ in range(3):
                feeds = [draw("float32", (n, 4096)) for n in (64, 1, 128)]
                inputs = [[joined("x", "FP32", x), joined("w", "FP32", weights)] for x in feeds]
                futures = [
                    await begin(instance, each)
                    for instance, each in zip(hosted.instances, inputs, strict=True)
                ]
                results = await asyncio.gather(*futures)
                for i in (1, 2, 0):
                    want = engine("large").run({"x": feeds[i], "w": weights})["y"]
                    np.testing.assert_array_equal(array_from(results[i].outputs[0]), want, strict=True)
                    assert results[i].infer_ns > 0
                    results[i].release()
                    results[i].release()  # a second time does no harm

    do(body())


BAD_BATCHES = {
    "another rank": ([joined("x", "FP32", np.zeros(8, np.float32))], "float32[8]"),
    "another size": ([joined("x", "FP32", np.zeros((1, 7), np.float32))], "float32[1, 7]"),
    "another type": ([joined("x", "INT32", np.zeros((1, 8), np.int32))], "int32[1, 8]"),
    "another name": ([joined("q", "FP32", rows(1))], "no input 'q'"),
}


@pytest.mark.parametrize("case", BAD_BATCHES)
def test_inputs_that_do_not_fit_are_the_inputs_fault(do: OnLoop, host: Host, case: str) -> None:
    inputs, why = BAD_BATCHES[case]

    async def body() -> None:
        async with loaded(host, engine_model("float32")) as hosted:
            with pytest.raises(BatchError) as failed:
                await run(hosted.instances[0], inputs)
            assert why in str(failed.value)
            assert failed.value.is_input
            assert not failed.value.is_lost
            assert (await run(hosted.instances[0], [joined("x", "FP32", rows(1))]))["y"].shape == (1, 8)

    do(body())


def test_values_that_do_not_fit_are_the_inputs_fault(do: OnLoop, host: Host) -> None:
    async def body() -> None:
        async with loaded(host, engine_model("gather")) as hosted:
            for index, is_there in ((1, True), (9, False), (1, True)):
                inputs = [joined("x", "FP32", rows(1, 2)), joined("i", "INT64", np.array([index]))]
                if is_there:
                    assert (await run(hosted.instances[0], inputs))["y"][0, 0] == 2
                    continue
                with pytest.raises(BatchError) as failed:
                    await run(hosted.instances[0], inputs)
                assert failed.value.is_input
        async with loaded(host, engine_model("bool")) as hosted:
            odd = Joined("x", "BOOL", (1, 8), [b"\x01\x00\x02\x00\x01\x00\x01\x00"])
            with pytest.raises(BatchError, match="neither 0 nor 1") as failed:
                await run(hosted.instances[0], [odd, replace(odd, name="z")])
            assert failed.value.is_input
        async with loaded(host, engine_model("string")) as hosted:
            odd = Joined("x", "BYTES", (1,), [b"\x02\x00\x00\x00\xff\xfe"])
            with pytest.raises(BatchError, match="UTF-8") as failed:
                await run(hosted.instances[0], [odd, replace(odd, name="z")])
            assert failed.value.is_input

    do(body())


def test_parts_that_do_not_make_up_the_shape_cost_one_batch(do: OnLoop, host: Host) -> None:
    async def body() -> None:
        hosted = await host.load(engine_model("float32"))
        short = joined("x", "FP32", rows(1), rows(2))
        short.part_shapes = [(1, 8), (1, 9)]
        with pytest.raises(BatchError, match="cannot be joined") as failed:
            await run(hosted.instances[0], [short])
        assert not failed.value.is_input
        assert (await run(hosted.instances[0], [joined("x", "FP32", rows(1))]))["y"].shape == (1, 8)
        await host.unload("float32")

    do(body())


def test_an_output_that_does_not_exist(do: OnLoop, host: Host) -> None:
    async def body() -> None:
        async with loaded(host, engine_model("float32")) as hosted:
            with pytest.raises(BatchError, match="no output 'q'"):
                await run(hosted.instances[0], [joined("x", "FP32", rows(1))], ("y", "q"))

    do(body())


def broken_files(tmp_path: Path) -> dict[str, tuple[HostedModel, str]]:
    whole = engine_file("float32")
    cut = tmp_path / "cut.ridge"
    cut.write_bytes(whole.read_bytes()[: whole.stat().st_size // 2])
    noise = tmp_path / "noise.ridge"
    noise.write_bytes(b"not an engine" * 100)
    return {
        "missing": (HostedModel("m", "engine", tmp_path / "none.ridge"), "none.ridge"),
        "cut": (HostedModel("m", "engine", cut), "cut.ridge"),
        "noise": (HostedModel("m", "engine", noise), "noise.ridge"),
        "a type that the protocol lacks": (engine_model("sequence", "m"), "sequence(float32)"),
        "a step with an error in it": (step_model("def run(:", "m1"), "SyntaxError"),
        "a step without run": (step_model("x = 1", "m2"), "no function run"),
        "a step that fails at once": (step_model("1 / 0", "m3"), "ZeroDivisionError"),
        "a step that would end us": (step_model("import sys; sys.exit(3)", "m4"), "SystemExit"),
        "a step that cannot load": (step_model("def run(i): ...\ndef load(): open('/n')", "m5"), "'/n'"),
        "a step of an unknown type": (step_model("", "m6", outputs=[PortInfo("y", "FP8", (1,))]), "FP8"),
    }


def test_what_cannot_be_loaded_says_why_and_harms_nobody(
    do: OnLoop, host: Host, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async def body() -> None:
        for model, why in broken_files(tmp_path).values():
            with pytest.raises(LoadError) as failed:
                await host.load(model)
            assert why in str(failed.value)
        async with loaded(host, engine_model("float32", "m")) as hosted:
            with pytest.raises(LoadError, match="loaded already"):
                await host.load(engine_model("float32", "m"))
            assert (await run(hosted.instances[0], [joined("x", "FP32", rows(1))]))["y"].shape == (1, 8)
        assert host.is_healthy

    do(body())


def test_an_engine_of_other_threads_says_so(do: OnLoop, host: Host) -> None:
    async def body() -> None:
        async with loaded(host, engine_model("float32", threads=4)) as hosted:
            assert hosted.notes["threads"] == "1, as it was planned; 4 were asked for"
            assert hosted.notes["target"].startswith("cpu")

    do(body())


def test_models_are_read_when_they_are_loaded_and_their_files_may_go(
    do: OnLoop, host: Host, tmp_path: Path
) -> None:
    path = Path(shutil.copyfile(engine_file("float32"), tmp_path / "m.ridge"))

    async def body() -> None:
        async with loaded(host, HostedModel("m", "engine", path)) as hosted:
            path.unlink()
            got = await run(hosted.instances[0], [joined("x", "FP32", rows(1, 2))])
            np.testing.assert_array_equal(got["y"], engine("float32").run({"x": rows(1, 2)})["y"])

    do(body())
