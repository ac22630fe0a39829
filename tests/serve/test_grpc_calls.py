"""Calls as bytes in and bytes out: cancellation, and what is decoded on which thread."""

from __future__ import annotations

import asyncio
import threading
from typing import Any

import pytest
from grpc_echo import Echo, request

from ridgeline.serve.grpc import calls as grpc_calls
from ridgeline.serve.grpc.calls import Calls
from ridgeline.serve.grpc.codec import decode
from ridgeline.serve.protocol import messages
from ridgeline.serve.settings import HttpLimits


def test_a_call_that_is_cancelled_ends_cancelled() -> None:
    """It would be an answer to nobody, and the place in the queue would stay taken."""

    async def cancel() -> None:
        echo = Echo()
        body = request("hold").SerializeToString()
        calls = Calls(echo, HttpLimits(), None)
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
    calls = Calls(Echo(), HttpLimits(), None)
    for made in (texts, floats, request()):
        asyncio.run(calls.infer(made.SerializeToString(), ()))
    assert [each is threading.main_thread() for each in threads] == [False, True, True]
