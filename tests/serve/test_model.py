"""A model's queue and its instances: who runs with whom, who gets which answer, and what a failure costs."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from instances import HeldInstance, hosted

from ridgeline.serve.errors import Kind, RequestError, unavailable
from ridgeline.serve.hosts.hosting import BatchError
from ridgeline.serve.messages import InferRequest, InferResponse, Tensor
from ridgeline.serve.models.model import Model
from ridgeline.serve.spec import BatchPolicy, ModelSpec, QueuePolicy, TensorSpec
from ridgeline.serve.telemetry.statistics import ModelStatistics

SPEC = ModelSpec(
    "m",
    max_batch_size=4,
    inputs=(TensorSpec("x", "FP32", (-1,)),),
    outputs=(TensorSpec("y", "FP32", (-1,)),),
    batching=BatchPolicy(max_batch=4),
)


def twice(array: np.ndarray) -> np.ndarray:
    return array * 2


def asked(*rows: float, width: int = 2, **more: Any) -> InferRequest:
    array = np.repeat(np.array(rows, np.float32)[:, None], width, axis=1)
    return InferRequest("m", inputs=[Tensor("x", "FP32", array.shape, array.tobytes())], **more)


def values(response: InferResponse) -> list[float]:
    (output,) = response.outputs
    array = np.frombuffer(output.data, np.float32).reshape(output.shape)[:, 0].tolist()
    response.release()
    return array


def model_of(*instances: HeldInstance, spec: ModelSpec = SPEC) -> Model:
    return Model(spec, "1", [hosted(*instances)], ModelStatistics("m", "1"))


async def settle() -> None:
    for _ in range(5):
        await asyncio.sleep(0)


def run(work: Coroutine[Any, Any, None]) -> None:
    asyncio.run(asyncio.wait_for(work, 5))


def test_what_gathers_while_an_instance_runs_goes_together() -> None:
    async def work() -> None:
        instance = HeldInstance(twice)
        model = model_of(instance)
        first = asyncio.ensure_future(model.infer(asked(1)))
        await settle()
        rest = [asyncio.ensure_future(model.infer(asked(*rows))) for rows in ((2, 3), (4,), (5,), (6,))]
        await settle()
        assert (instance.batches, len(model)) == ([(1, 2)], 4)
        instance.finish()
        await settle()
        assert instance.batches[1] == (4, 2)
        instance.finish()
        await settle()
        instance.finish()
        assert values(await first) == [2]
        assert [values(await each) for each in rest] == [[4, 6], [8], [10], [12]]
        await model.drain()
        assert instance.released == 3
        stats = model.statistics.json()
        assert (stats["inference_count"], stats["execution_count"]) == (6, 3)

    run(work())


def test_requests_of_one_turn_of_the_loop_share_a_batch() -> None:
    async def work() -> None:
        instance = HeldInstance(twice, is_free=True)
        model = model_of(instance)
        answers = await asyncio.gather(*(model.infer(asked(i)) for i in range(8)))
        assert [values(each) for each in answers] == [[2.0 * i] for i in range(8)]
        assert instance.batches == [(4, 2), (4, 2)]

    run(work())


def test_shapes_that_differ_run_apart_but_sort_into_batches() -> None:
    async def work() -> None:
        instance = HeldInstance(twice, is_free=True)
        model = model_of(instance)
        await asyncio.gather(*(model.infer(asked(i, width=2 + i % 2)) for i in range(8)))
        assert instance.batches == [(4, 2), (4, 3)]

    run(work())


def test_bad_values_are_their_own_requests_alone() -> None:
    def refuse_seven(array: np.ndarray) -> np.ndarray:
        if 7 in array:
            raise BatchError("an index outside its table", is_input=True)
        return twice(array)

    async def work() -> None:
        instance = HeldInstance(refuse_seven, is_free=True)
        model = model_of(instance)
        answers = await asyncio.gather(*(model.infer(asked(i)) for i in (1, 7, 3)), return_exceptions=True)
        assert isinstance(answers[1], RequestError)
        assert (answers[1].kind, answers[1].reason) == (Kind.INVALID, "BACKEND")
        assert [values(each) for each in answers if isinstance(each, InferResponse)] == [[2], [6]]
        assert instance.batches == [(3, 2), (1, 2), (1, 2), (1, 2)]
        await model.drain()

    run(work())


@pytest.mark.parametrize("is_idempotent", [False, True])
def test_a_worker_that_dies_costs_what_it_was_running(is_idempotent: bool) -> None:
    async def work() -> None:
        lost, back = HeldInstance(twice), HeldInstance(twice, is_free=True)
        model = model_of(lost, spec=replace(SPEC, idempotent=is_idempotent))
        running = asyncio.ensure_future(model.infer(asked(1)))
        await settle()
        waiting = asyncio.ensure_future(model.infer(asked(2)))
        await settle()
        model.lose(model.hosted[0])
        lost.fail(BatchError("the worker died", is_lost=True))
        await settle()
        assert (model.is_ready, waiting.done()) == (False, False)
        assert len(model) == 1 + is_idempotent
        model.gain(hosted(back))
        assert values(await waiting) == [4]
        if is_idempotent:
            assert values(await running) == [2]
        else:
            with pytest.raises(RequestError, match="the worker died") as caught:
                await running
            assert caught.value.kind is Kind.INTERNAL
        await model.drain()

    run(work())


def test_what_kills_a_worker_is_not_tried_a_third_time() -> None:
    async def work() -> None:
        instances = [HeldInstance(twice), HeldInstance(twice)]
        model = model_of(instances[0], spec=replace(SPEC, idempotent=True))
        answer = asyncio.ensure_future(model.infer(asked(1)))
        await settle()
        for instance in instances:
            model.lose(model.hosted[0])
            instance.fail(BatchError("the worker died", is_lost=True))
            await settle()
            model.gain(hosted(instances[1]))
            await settle()
        with pytest.raises(RequestError, match="the worker died"):
            await answer

    run(work())


@pytest.mark.parametrize("is_idempotent", [False, True])
@pytest.mark.parametrize("size", [1, 2])
def test_an_error_that_a_device_does_not_recover_from_is_as_a_death(size: int, is_idempotent: bool) -> None:
    async def work() -> None:
        instance = HeldInstance(twice)
        model = model_of(instance, spec=replace(SPEC, idempotent=is_idempotent))
        answers = [asyncio.ensure_future(model.infer(asked(i))) for i in range(size)]
        await settle()
        instance.fail(BatchError("an illegal access", is_fatal=True))
        await settle()
        assert all(answer.done() != is_idempotent for answer in answers)
        for answer in answers:
            answer.cancel()
        await asyncio.gather(*answers, return_exceptions=True)

    run(work())


def test_a_client_that_goes_away_leaves_the_queue_and_its_memory() -> None:
    async def work() -> None:
        instance = HeldInstance(twice)
        model = model_of(instance)
        running, waiting, other = (asyncio.ensure_future(model.infer(asked(i))) for i in range(3))
        await settle()
        assert instance.batches == [(3, 2)]
        late = asyncio.ensure_future(model.infer(asked(9)))
        await settle()
        late.cancel()
        running.cancel()
        await settle()
        assert len(model) == 0
        instance.finish()
        assert values(await other) == [4]
        (await waiting).release()
        await model.drain()
        assert instance.released == 1
        told = model.statistics.json()
        # each counts once; the batch was of three
        assert (told["inference_stats"]["fail"]["count"], told["inference_stats"]["success"]["count"]) == (
            2,
            2,
        )
        assert [row["batch_size"] for row in told["batch_stats"]] == [3]

    run(work())


def test_answers_keep_the_order_of_requests_if_asked_to() -> None:
    async def work() -> None:
        instances = [HeldInstance(twice), HeldInstance(twice)]
        policy = BatchPolicy(max_batch=4, preserve_ordering=True)
        model = model_of(*instances, spec=replace(SPEC, batching=policy))
        order: list[int] = []

        async def ask(number: int, width: int) -> None:
            (await model.infer(asked(number, width=width))).release()
            order.append(number)

        tasks = []
        for number, width in enumerate((2, 3, 2)):
            tasks.append(asyncio.ensure_future(ask(number, width)))
            await settle()
        tasks[2].cancel()
        first, second = instances if instances[0].batches == [(1, 2)] else instances[::-1]
        second.finish()
        await settle()
        assert order == []
        first.finish()
        await asyncio.gather(*tasks, return_exceptions=True)
        assert order == [0, 1]
        tasks = [asyncio.ensure_future(ask(3, 2))]  # nobody waits for the one that was cancelled
        await settle()
        (first if first.is_busy else second).finish()
        await asyncio.gather(*tasks)

    run(work())


def test_a_full_queue_and_a_time_that_is_over_refuse_with_503() -> None:
    async def work() -> None:
        instance = HeldInstance(twice)
        queue = QueuePolicy(max_queue_size=1, timeout_s=0.02)
        model = model_of(instance, spec=replace(SPEC, batching=BatchPolicy(max_batch=1, queue=queue)))
        running = asyncio.ensure_future(model.infer(asked(1)))
        await settle()
        waiting = asyncio.ensure_future(model.infer(asked(2)))
        await settle()
        with pytest.raises(RequestError) as caught:
            await model.infer(asked(3))
        assert (caught.value.kind, caught.value.reason) == (Kind.UNAVAILABLE, "REJECTED")
        with pytest.raises(RequestError, match="Request timeout expired"):
            await waiting
        instance.finish()
        assert values(await running) == [2]

    run(work())


def test_stopping_refuses_what_waits_and_lets_run_what_runs() -> None:
    async def work() -> None:
        instance = HeldInstance(twice)
        model = model_of(instance)
        running = asyncio.ensure_future(model.infer(asked(1)))
        await settle()
        waiting = asyncio.ensure_future(model.infer(asked(2)))
        await settle()
        model.refuse_waiting(unavailable("the server is stopping"))
        with pytest.raises(RequestError, match="stopping"):
            await waiting
        instance.finish()
        assert values(await running) == [2]
        await model.drain()

    run(work())


def test_priorities_of_another_model_are_refused() -> None:
    async def work() -> None:
        with pytest.raises(RequestError, match="priority 3 is not one of"):
            await model_of(HeldInstance(twice)).infer(asked(1, priority=3))

    run(work())
