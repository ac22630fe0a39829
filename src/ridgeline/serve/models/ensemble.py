"""A model made of models: each step runs as soon as its tensors are there, through its own model's queue."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, replace
from time import perf_counter_ns
from typing import Protocol

from ridgeline.serve.batching.admission import Admission
from ridgeline.serve.classify import classify
from ridgeline.serve.errors import Kind, RequestError
from ridgeline.serve.messages import InferRequest, InferResponse, Tensor, Wanted
from ridgeline.serve.spec import ModelSpec
from ridgeline.serve.telemetry.statistics import ModelStatistics, Times


class Runnable(Protocol):
    """A model of any kind, as requests meet it."""

    spec: ModelSpec
    version: str
    statistics: ModelStatistics

    async def infer(self, request: InferRequest) -> InferResponse: ...

    @property
    def is_ready(self) -> bool: ...

    async def drain(self) -> None: ...

    def refuse_waiting(self, error: RequestError) -> None: ...

    def __len__(self) -> int: ...


@dataclass(frozen=True)
class Stage:
    """One step. `find` is asked for every request, so that a reloaded model is met at once."""

    name: str
    find: Callable[[], Runnable]
    inputs: Mapping[str, str]  # the step's tensor → the ensemble's
    outputs: Mapping[str, str]


class Ensemble:
    def __init__(
        self,
        spec: ModelSpec,
        version: str,
        stages: Sequence[Stage],
        statistics: ModelStatistics,
        *,
        most_at_once: int = 0,
        runs_batches: bool = False,
    ) -> None:
        """`runs_batches`: one of the stages counts its batches for the whole."""
        self.spec, self.version, self.statistics = spec, version, statistics
        self.stages = tuple(stages)
        self._admission = Admission(spec)
        self._turn = asyncio.Semaphore(most_at_once) if most_at_once else nullcontext()
        self._runs_batches = runs_batches
        self._running = 0
        self._is_empty = asyncio.Event()
        self._is_empty.set()

    async def infer(self, request: InferRequest) -> InferResponse:
        came_ns = perf_counter_ns()
        self._running += 1
        self._is_empty.clear()
        try:
            async with self._turn:
                began_ns = perf_counter_ns()
                response = await self._infer(request)
        except RequestError as error:
            self.statistics.failed(error.reason, perf_counter_ns() - came_ns)
            raise
        except asyncio.CancelledError:
            self.statistics.failed("CANCELED", perf_counter_ns() - came_ns)
            raise
        finally:
            self._running -= 1
            if not self._running:
                self._is_empty.set()
        ended_ns = perf_counter_ns()
        size = request.inputs[0].shape[0] if self.spec.has_batch and request.inputs else 1
        times = Times(infer_ns=ended_ns - began_ns)
        self.statistics.answered(
            times, sizes=[size], queue_ns=[began_ns - came_ns], total_ns=[ended_ns - came_ns]
        )
        if not self._runs_batches:
            self.statistics.ran(size, times)
        return response

    async def _infer(self, request: InferRequest) -> InferResponse:
        admitted = self._admission.admit(request)
        absent = {port.name for port in self.spec.inputs} - {tensor.name for tensor in request.inputs}
        run = _Run(self.stages, request, absent)
        try:
            values = await run.values({tensor.name: tensor for tensor in request.inputs})
            outputs = [self._output(wanted, values) for wanted in admitted.wanted]
        except BaseException:
            run.release()
            raise
        return InferResponse(self.spec.name, self.version, request.id, outputs, release=run.release)

    def _output(self, wanted: Wanted, values: Mapping[str, Tensor]) -> Tensor:
        port = self.spec.output(wanted.name)
        assert port is not None, "only outputs of the ensemble were asked for"
        if wanted.name not in values:
            raise RequestError(Kind.INTERNAL, f"no step of {self.spec.name!r} made output {wanted.name!r}")
        output = replace(values[wanted.name], name=wanted.name)
        if output.datatype != port.datatype:
            raise RequestError(
                Kind.INTERNAL,
                f"output {wanted.name!r} of {self.spec.name!r} has type {output.datatype}, its configuration"
                f" says {port.datatype}",
            )
        if not wanted.classes:
            return output
        return classify(output, wanted.classes, port.labels, has_batch=self.spec.has_batch)

    @property
    def is_ready(self) -> bool:
        try:
            return all(stage.find().is_ready for stage in self.stages)
        except RequestError:
            return False

    async def drain(self) -> None:
        await self._is_empty.wait()

    def refuse_waiting(self, error: RequestError) -> None:
        """What waits does so in the models of the steps, which refuse it."""

    def __len__(self) -> int:
        return 0


class _Run:
    """One request on its way through the steps."""

    def __init__(self, stages: Sequence[Stage], request: InferRequest, absent: Collection[str]) -> None:
        """`absent`: inputs of the whole that may be left out, and were."""
        self._left = list(stages)
        self._absent = absent
        self._request = request
        self._answers: list[InferResponse] = []

    async def values(self, values: dict[str, Tensor]) -> dict[str, Tensor]:
        """Every tensor by its name in the ensemble."""
        tasks: dict[asyncio.Task[InferResponse], Stage] = {}
        try:
            while self._left or tasks:
                for stage in [each for each in self._left if self._can_run(each, values)]:
                    self._left.remove(stage)
                    tasks[asyncio.ensure_future(self._step(stage, values))] = stage
                if not tasks:
                    names = ", ".join(stage.name for stage in self._left)
                    raise RequestError(Kind.INTERNAL, f"inputs of these steps are never made: {names}")
                done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
                for task in done:
                    stage = tasks.pop(task)
                    for tensor in task.result().outputs:
                        values[stage.outputs[tensor.name]] = tensor
        finally:
            for task in tasks:
                task.cancel()
            if tasks:
                await asyncio.wait(tasks)
        return values

    def _can_run(self, stage: Stage, values: Mapping[str, Tensor]) -> bool:
        return all(name in values or name in self._absent for name in stage.inputs.values())

    async def _step(self, stage: Stage, values: Mapping[str, Tensor]) -> InferResponse:
        given = [replace(values[of], name=own) for own, of in stage.inputs.items() if of in values]
        asked = [Wanted(name) for name in stage.outputs]
        model = stage.find()
        # priorities are those of the ensemble, and mean nothing to a model that has fewer
        known = self._request.priority <= model.spec.batching.priority_levels
        request = replace(
            self._request, model=model.spec.name, version="", inputs=given, outputs=asked,
            priority=self._request.priority if known else 0,
        )  # fmt: skip
        response = await model.infer(request)
        self._answers.append(response)
        return response

    def release(self) -> None:
        while self._answers:
            self._answers.pop().release()
