"""Calls as bytes in and bytes out: cancellation, and what is decoded on which thread."""

from __future__ import annotations

import asyncio
import gzip
import threading
from typing import Any

import pytest
from grpc_echo import Echo, request

from ridgeline.serve.errors import Kind, RequestError
from ridgeline.serve.grpc import calls as grpc_calls
from ridgeline.serve.grpc.calls import Calls
from ridgeline.serve.grpc.codec import decode
from ridgeline.serve.protocol import messages
from ridgeline.serve.settings import HttpLimits, Settings


def test_a_call_that_is_cancelled_ends_cancelled() -> None:
    """It would be an answer to nobody, and the place in the queue would stay taken."""

    async def cancel() -> None:
        echo = Echo()
        body = request("hold").SerializeToString()
        calls = Calls(echo, Settings(()), None)
        for work in (calls.infer(body, ()), calls.infer_in_stream(body, ())):
            task = asyncio.ensure_future(work)
            await asyncio.sleep(0)
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
        assert (echo.cancelled, echo.running) == (2, 0)

    asyncio.run(cancel())


def test_slow_requests_are_decoded_beside_the_event_loop(monkeypatch: pytest.MonkeyPatch) -> None:
    threads: list[threading.Thread] = []

    def noted(*arguments: Any) -> Any:
        threads.append(threading.current_thread())
        return decode(*arguments)

    monkeypatch.setattr(grpc_calls, "decode", noted)
    texts = messages.ModelInferRequest(model_name="echo", raw_input_contents=[bytes(2**18)])
    texts.inputs.add(name="x", datatype="BYTES", shape=[2**16])
    floats = messages.ModelInferRequest(model_name="echo", raw_input_contents=[bytes(2**18)])
    floats.inputs.add(name="x", datatype="FP32", shape=[2**16])
    calls = Calls(Echo(), Settings(()), None)
    for made in (texts, floats, request()):
        asyncio.run(calls.infer(made.SerializeToString(), ()))
    assert [each is threading.main_thread() for each in threads] == [False, True, True]


def test_bodies_of_all_calls_together_are_bounded() -> None:
    made = messages.ModelInferRequest(model_name="echo", raw_input_contents=[bytes(2**19)])
    made.inputs.add(name="x", datatype="UINT8", shape=[2**19])
    plain = made.SerializeToString()
    packed = gzip.compress(plain)
    calls = Calls(Echo(), Settings((), limits=HttpLimits(body_bytes=2**20), queue_bytes=2**22), None)

    async def infer(body: bytes, count: int) -> list[Any]:
        answers = await asyncio.gather(*(calls.infer(body, ()) for _ in range(count)), return_exceptions=True)
        assert calls.budget.held == 0
        return answers

    answers = asyncio.run(infer(packed, 20))
    refused = [each for each in answers if isinstance(each, RequestError)]
    assert 0 < len(refused) < 20
    assert {each.kind for each in refused} == {Kind.UNAVAILABLE}
    assert all(isinstance(each, bytes) for each in answers if each not in refused)
    for damaged in (packed[:-6], b"\xff" * 1000):
        (error,) = asyncio.run(infer(damaged, 1))
        assert error.kind is Kind.INVALID
    calls.budget.most = len(plain) - 1
    (error,) = asyncio.run(infer(plain, 1))
    assert error.kind is Kind.UNAVAILABLE
    assert b"as many bytes" in asyncio.run(calls.infer_in_stream(plain, ()))
    assert calls.budget.held == 0
