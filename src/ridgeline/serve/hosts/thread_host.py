"""Engines in threads of this process: the least latency, and a crash of one is the end of all."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from queue import SimpleQueue
from time import perf_counter_ns

import numpy as np

from ridgeline.serve.hosts.engine_runner import Runner, give_back_memory, load_runners
from ridgeline.serve.hosts.hosting import BatchError, BatchResult, Hosted, HostedModel, Joined, LoadError
from ridgeline.serve.messages import Tensor

DoneCall = Callable[[BatchResult | BatchError], None]


@dataclass(slots=True)
class Batch:
    inputs: Sequence[Joined]
    outputs: Sequence[str]
    done: DoneCall


class ThreadInstance:
    """A thread with a queue. Inputs of a single request are read where they lie; others are joined first."""

    def __init__(self, device: str, runner: Runner, on_fatal: Callable[[str], None]) -> None:
        self._loop = asyncio.get_running_loop()
        self._device, self._runner, self._on_fatal = device, runner, on_fatal
        self._inbox: SimpleQueue[Batch | None] = SimpleQueue()
        self._thread = threading.Thread(target=self._serve, name="instance", daemon=True)
        self._thread.start()

    def run(self, inputs: Sequence[Joined], outputs: Sequence[str], done: DoneCall) -> None:
        self._inbox.put(Batch(inputs, outputs, done))

    def end(self) -> None:
        """Return when what was asked for has run."""
        self._inbox.put(None)
        self._thread.join()

    def _serve(self) -> None:
        self._runner.enter_thread(self._device)
        try:
            while (batch := self._inbox.get()) is not None:
                self._loop.call_soon_threadsafe(self._finish, batch.done, self._result(batch))
                del batch  # while the thread waits it holds nothing
        except RuntimeError:
            return  # the loop is closed: nobody waits for an answer
        finally:
            del self._runner

    def _finish(self, done: DoneCall, result: BatchResult | BatchError) -> None:
        done(result)
        if isinstance(result, BatchError) and result.is_fatal:
            self._on_fatal(str(result))

    def _result(self, batch: Batch) -> BatchResult | BatchError:
        began = perf_counter_ns()
        try:
            inputs = [whole(joined) for joined in batch.inputs]
            joined_ns = perf_counter_ns() - began
            ran = self._runner.run(inputs, batch.outputs)
        except BatchError as error:
            return error.with_traceback(None)
        except Exception as error:
            return BatchError(f"the inputs cannot be joined: {error}")
        # outputs lie in memory of their own, which goes when the last view does
        return BatchResult(ran.outputs, joined_ns + ran.input_ns, ran.infer_ns, ran.output_ns)


def whole(joined: Joined) -> Tensor:
    """One tensor of its parts."""
    if len(joined.parts) == 1 and joined.part_shapes is None:
        return Tensor(joined.name, joined.datatype, joined.shape, joined.parts[0])
    memory = np.empty(joined.nbytes, np.uint8).data
    joined.write_into(memory)
    return Tensor(joined.name, joined.datatype, joined.shape, memory)


class ThreadHost:
    """Engines of one device in this process. After an error that the device does not recover from it is
    unhealthy for good: only a new process helps."""

    def __init__(self, device: str) -> None:
        self.device = device
        self.restarts = 0  # never
        self._is_up = False
        self._instances: dict[str, tuple[ThreadInstance, ...]] = {}
        self._watchers: list[tuple[Callable[[str], None], Callable[[Sequence[Hosted]], None]]] = []

    @property
    def is_healthy(self) -> bool:
        return self._is_up

    @property
    def pid(self) -> int | None:
        """There is no worker."""
        return None

    def watch(self, on_lost: Callable[[str], None], on_back: Callable[[Sequence[Hosted]], None]) -> None:
        self._watchers.append((on_lost, on_back))

    async def start(self) -> None:
        self._is_up = True

    async def load(self, model: HostedModel) -> Hosted:
        if model.key in self._instances:
            raise LoadError(f"{model.key!r} is loaded already")
        loop = asyncio.get_running_loop()
        loaded, runners = await loop.run_in_executor(None, load_runners, model, self.device)
        instances = tuple(ThreadInstance(self.device, runner, self._lose) for runner in runners)
        self._instances[model.key] = instances
        return Hosted(model.key, loaded.inputs, loaded.outputs, instances, loaded.notes)

    async def unload(self, key: str) -> None:
        instances = self._instances.pop(key, ())
        await asyncio.get_running_loop().run_in_executor(None, _end, instances)

    async def stop(self) -> None:
        self._is_up = False
        for key in list(self._instances):
            await self.unload(key)

    def _lose(self, why: str) -> None:
        if self._is_up:
            self._is_up = False
            for on_lost, on_back in self._watchers:
                on_lost(why)
                on_back(())  # and nothing ever comes back


def _end(instances: Sequence[ThreadInstance]) -> None:
    for instance in instances:
        instance.end()
    give_back_memory()
