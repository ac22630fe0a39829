"""Whatever a worker may answer that has gone mad: its batches are lost, and the server goes on."""

from __future__ import annotations

import asyncio
import logging
import random
import socket
import struct
from collections.abc import Callable

import msgspec
import numpy as np
import pytest
from hosted import OnLoop, begin, engine_model, joined, rows, run, step_model, worker

from ridgeline.serve.hosts.hosting import BatchError, BatchResult
from ridgeline.serve.hosts.spawning import Spawner
from ridgeline.serve.hosts.worker_instance import WorkerInstance
from ridgeline.serve.hosts.worker_messages import (
    INLINE_BYTES,
    Done,
    Load,
    Loaded,
    Place,
    Refused,
    Run,
    Unloaded,
    lay_out,
)
from ridgeline.serve.link.arena import Block
from ridgeline.serve.link.channel import Channel, Release, socket_pair

HUGE = 2**62
GOOD = Place("y", "FP32", (1, 8), 0, 32)


def done(*places: Place, memory: bytearray | Block | None = None) -> Done:
    return Done(bytearray(32) if memory is None else memory, list(places), 1, 2, 3)


ANSWERS = {
    "outside the message": done(Place("y", "FP32", (1, 8), 1, 32)),
    "far outside": done(Place("y", "FP32", (1, 8), HUGE, 32)),
    "a negative offset": done(Place("y", "FP32", (1, 8), -8, 32)),
    "a negative size": done(Place("y", "FP32", (1, 8), 8, -32)),
    "a negative shape": done(Place("y", "FP32", (-1, -8), 0, 32)),
    "bytes that are not the shape's": done(Place("y", "FP32", (1, 8), 0, 16)),
    "a shape that is too large": done(Place("y", "FP32", (HUGE, HUGE), 0, 32)),
    "a type that does not exist": done(Place("y", "FP8", (32,), 0, 32)),
    "too many dims": done(Place("y", "FP32", (1,) * 64 + (8,), 0, 32)),
    "another output": done(Place("z", "FP32", (1, 8), 0, 32)),
    "an output twice": done(GOOD, GOOD),
    "no output": done(),
    "memory that is not there": done(GOOD, memory=Block(0, 0, 32)),
    "a segment that is not there": done(GOOD, memory=Block(HUGE, 0, 32)),
    "memory that nobody took": Release([Block(0, 0, 64)]),
    "a message for somebody else": Unloaded("m"),
}


async def answered(
    send: Callable[[Channel, socket.socket], None], big: bool = False
) -> tuple[list[str], Exception]:
    """Why the instance's worker was ended, and how its batch ended."""
    ours, theirs = socket_pair()
    ends: list[str] = []

    def end(why: str) -> None:
        ends.append(why)
        instance.lose(why)

    instance = WorkerInstance(ours, end, 1 << 20)
    with theirs:
        x = np.zeros((INLINE_BYTES, 8), np.float32) if big else rows(1)
        running = await begin(instance, [joined("x", "FP32", x)])
        channel = Channel(theirs, (Run,))
        assert isinstance(next(channel.receive()), Run)
        send(channel, theirs)
        with pytest.raises(BatchError) as failed:
            await asyncio.wait_for(running, 10)
        instance.lose("the test is over")
    return ends, failed.value


@pytest.mark.parametrize("case", ANSWERS)
@pytest.mark.parametrize("big", [False, True], ids=["inline", "shared"])
def test_an_answer_that_does_not_fit_ends_the_worker(do: OnLoop, case: str, big: bool) -> None:
    ends, error = do(answered(lambda channel, _: channel.send(ANSWERS[case]), big))
    assert len(ends) == 1
    assert isinstance(error, BatchError)
    assert error.is_lost


@pytest.mark.parametrize("seed", range(40))
def test_random_bytes_end_the_worker(do: OnLoop, seed: int) -> None:
    """Half of them as the body of a frame, some with parts of a sound answer."""
    dice = random.Random(seed)
    body = bytearray(msgspec.msgpack.encode(done(GOOD)) if dice.random() < 0.5 else dice.randbytes(60))
    for _ in range(dice.randrange(1, 6)):
        body[dice.randrange(len(body))] = dice.randrange(256)
    frame = struct.pack("<I", len(body)) + body if dice.random() < 0.8 else bytes(body)

    def send(_: Channel, theirs: socket.socket) -> None:
        theirs.sendall(frame)
        theirs.shutdown(socket.SHUT_WR)

    async def body_of_test() -> None:
        ours, theirs = socket_pair()
        results: list[BatchResult | BatchError] = []
        ends: list[str] = []
        instance = WorkerInstance(ours, ends.append, 1 << 20)
        with theirs:
            instance.run([joined("x", "FP32", rows(1))], ["y"], results.append)
            send(Channel(theirs, (Run,)), theirs)
            async with asyncio.timeout(10):
                while not ends:
                    await asyncio.sleep(0)
            instance.lose("over")
        # a change may leave it sound: then its bytes are read, and nothing else
        (result,) = results
        if isinstance(result, BatchResult):
            assert len(result.outputs[0].data) == 32

    do(body_of_test())


def test_answers_that_nobody_asked_for_end_the_worker(do: OnLoop) -> None:
    async def body() -> None:
        for message in (done(GOOD), Refused("no", True, False, False)):
            ours, theirs = socket_pair()
            ends: list[str] = []
            instance = WorkerInstance(ours, ends.append, 1 << 20)
            with theirs:
                Channel(theirs, ()).send(message)
                async with asyncio.timeout(10):
                    while not ends:
                        await asyncio.sleep(0)
                assert "nobody asked for" in ends[0]
                instance.lose("over")

    do(body())


NOISE = """
import os, random
def run(inputs):
    dice = random.Random(3)
    for descriptor in os.listdir("/proc/self/fd"):
        try:
            if "socket" in os.readlink(f"/proc/self/fd/{descriptor}"):
                os.write(int(descriptor), FRAME)
        except OSError:
            pass
    return {"y": inputs["x"]}
"""
FRAMES = {
    "random bytes": "dice.randbytes(4096)",
    "a length of 4 GiB": "b'\\xff' * 64",
    "a model that nobody asked for": repr(
        struct.pack("<I", len(told := msgspec.msgpack.encode(Loaded("q", (), (), {})))) + told
    ),
}


@pytest.mark.parametrize("case", FRAMES)
def test_a_real_worker_that_writes_nonsense_is_replaced(
    do: OnLoop, spawner: Spawner, case: str, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.CRITICAL, "ridgeline")

    async def body() -> None:
        async with worker(spawner) as host:
            back = asyncio.get_running_loop().create_future()
            lost: list[str] = []
            host.watch(lost.append, back.set_result)
            quick = await host.load(engine_model("float32"))
            noisy = await host.load(step_model(NOISE.replace("FRAME", FRAMES[case]), "noisy"))
            await run(quick.instances[0], [joined("x", "FP32", rows(1))])
            with pytest.raises(BatchError) as failed:
                await run(noisy.instances[0], [joined("x", "FP32", rows(1))])
            assert failed.value.is_lost
            hosted = {each.key: each for each in await asyncio.wait_for(back, 10)}
            await run(hosted["float32"].instances[0], [joined("x", "FP32", rows(1))])
            assert len(lost) == 1

    do(body())


def test_messages_that_the_server_sends_are_read_back_as_they_were() -> None:
    model = engine_model("float32", "key", instances=3, threads=2)
    decoded = msgspec.msgpack.decode(msgspec.msgpack.encode(Load.of(model)), type=Load)
    assert decoded.model() == model


def test_tensors_are_laid_out_on_their_own_cache_lines() -> None:
    tensors = [joined("a", "UINT8", np.zeros(n, np.uint8)) for n in (1, 0, 64, 65)]
    places, nbytes = lay_out(tensors, [tensor.nbytes for tensor in tensors])
    assert [place.offset for place in places] == [0, 64, 64, 128]
    assert nbytes == 256
