"""One generation of one version of a model: its queue, its instances, its answers. On one event loop."""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from time import monotonic, perf_counter_ns

from ridgeline.serve.batching.admission import Admission, Admitted, outward
from ridgeline.serve.batching.batcher import Batcher
from ridgeline.serve.batching.joining import cut, join, key_of, padding_of, rows_of
from ridgeline.serve.batching.order import InOrder
from ridgeline.serve.classify import classify
from ridgeline.serve.errors import Kind, RequestError, invalid, unavailable
from ridgeline.serve.hosts.hosting import BatchError, BatchResult, Hosted, Instance
from ridgeline.serve.messages import InferRequest, InferResponse, Tensor, keep
from ridgeline.serve.spec import ModelSpec
from ridgeline.serve.telemetry.statistics import ModelStatistics, Times

MICRO = 1e-6
_log = logging.getLogger(__name__)


@dataclass(slots=True)
class Pending:
    """A request that waits or runs."""

    admitted: Admitted
    answer: asyncio.Future[list[Tensor]]
    came_ns: int
    number: int = -1  # in the order of arrival
    began_ns: int = 0
    ended_ns: int = 0
    release: Callable[[], None] = keep
    was_tried: bool = False  # once more, alone: no third time


class Shared:
    """Memory of a batch's outputs: given back when the last of its requests has no more use for it."""

    __slots__ = ("_left", "_release")

    def __init__(self, release: Callable[[], None], users: int) -> None:
        self._release, self._left = release, users

    def release(self) -> None:
        self._left -= 1
        if not self._left:
            self._release()


class Model:
    """Instances take what waits as soon as they are free; the batcher says what runs together."""

    def __init__(
        self, spec: ModelSpec, version: str, hosted: Sequence[Hosted], statistics: ModelStatistics
    ) -> None:
        self.spec, self.version, self.statistics = spec, version, statistics
        self.hosted = tuple(hosted)
        self._loop = asyncio.get_running_loop()
        self._batcher: Batcher[Pending] = Batcher(spec.batching)
        self._in_order: InOrder[tuple[Pending, list[Tensor] | RequestError]] | None = (
            InOrder() if spec.batching.preserve_ordering else None
        )
        self._padding = padding_of(spec)
        self._admission = Admission(spec)
        self._outputs = {port.name: port for port in spec.outputs}
        self._names = list(self._outputs)
        self._live: set[Instance] = {i for each in hosted for i in each.instances}
        self._idle: list[Instance] = list(self._live)
        self._alone: deque[Pending] = deque()  # to run in a batch of their own, before all others
        self._running = 0
        self._is_woken = False
        self._timer: asyncio.TimerHandle | None = None
        self._is_empty = asyncio.Event()
        self._is_empty.set()

    def __len__(self) -> int:
        """Requests that wait."""
        return len(self._batcher) + len(self._alone)

    async def infer(self, request: InferRequest) -> InferResponse:
        came_ns = perf_counter_ns()
        try:
            return await self._infer(request)
        except RequestError as error:
            self.statistics.failed(error.reason, perf_counter_ns() - came_ns)
            raise
        except asyncio.CancelledError:
            self.statistics.failed("CANCELED", perf_counter_ns() - came_ns)
            raise

    async def _infer(self, request: InferRequest) -> InferResponse:
        admitted, levels = self._admission.admit(request), self.spec.batching.priority_levels
        if not 0 <= request.priority <= levels:
            raise invalid(
                f"priority {request.priority} is not one of model {self.spec.name!r}: it has {levels} levels"
            )
        pending = Pending(admitted, self._loop.create_future(), came_ns=perf_counter_ns())
        entry = self._batcher.put(
            pending,
            key=key_of(admitted.inputs, self._padding, 1 if self.spec.has_batch else 0),
            size=admitted.size,
            now=monotonic(),
            priority=request.priority,
            timeout_s=request.timeout_us * MICRO,
        )
        pending.number = entry.number
        self._is_empty.clear()
        self._wake()
        try:
            outputs = await pending.answer
        except asyncio.CancelledError:
            if self._batcher.cancel(entry):
                self._skip(pending)
                self._wake()
            elif not pending.answer.cancelled() and pending.answer.exception() is None:
                pending.release()  # it was answered in the moment in which nobody wanted it any more
            raise
        try:
            asked = [self._shaped(wanted.classes, outputs[i]) for i, wanted in enumerate(admitted.wanted)]
        except BaseException:
            pending.release()
            raise
        return InferResponse(
            self.spec.name,
            self.version,
            request.id,
            asked,
            release=pending.release,
            queue_ns=pending.began_ns - pending.came_ns,
            run_ns=pending.ended_ns - pending.began_ns,
        )

    def _shaped(self, classes: int, output: Tensor) -> Tensor:
        port = self._outputs[output.name]
        output = outward(self.spec, port, output)
        if not classes:
            return output
        return classify(output, classes, port.labels, has_batch=self.spec.has_batch)

    def _wake(self) -> None:
        """Look for work once, after every request that came in this turn of the loop is in the queue."""
        if not self._is_woken:
            self._is_woken = True
            self._loop.call_soon(self._work)

    def _work(self) -> None:
        self._is_woken = False
        batcher, now = self._batcher, monotonic()
        if self._alone:
            self._start_alone()
        # with a timer there may be some whose time was over as the last one came, or went
        if self._timer is not None or len(batcher):
            for entry in batcher.expire(now):
                self._deliver(entry.item, unavailable("Request timeout expired"))
            while self._idle and (entries := batcher.take(now)):
                self._start([entry.item for entry in entries])
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if len(batcher):
            at = batcher.wake_at(now)
            if at is not None:
                self._timer = self._loop.call_later(max(0.0, at - now), self._wake)
        elif not self._running and not self._alone:
            self._is_empty.set()

    def _start_alone(self) -> None:
        while self._idle and self._alone:
            pending = self._alone.popleft()
            if pending.answer.done():
                self._skip(pending)
            else:
                self._start([pending])

    def _start(self, batch: list[Pending]) -> None:
        instance = self._idle.pop()
        self._running += 1
        began_ns = perf_counter_ns()
        for pending in batch:
            pending.began_ns = began_ns
        joined = join([pending.admitted.inputs for pending in batch], self._padding)
        wanted = {each.name for pending in batch for each in pending.admitted.wanted}
        names = [name for name in self._names if name in wanted]
        instance.run(joined, names, partial(self._done, instance, batch))

    def _done(self, instance: Instance, batch: list[Pending], result: BatchResult | BatchError) -> None:
        self._running -= 1
        if instance in self._live and not (isinstance(result, BatchError) and result.is_lost):
            self._idle.append(instance)
        if isinstance(result, BatchError):
            self._failed(batch, result)
        else:
            self._answer(batch, result)
        if self._alone or self._timer is not None or len(self._batcher):
            self._wake()
        elif not self._running:
            self._is_empty.set()

    def _deliver(self, pending: Pending, answer: list[Tensor] | RequestError) -> None:
        """In the order of arrival, if the model keeps that."""
        if self._in_order is None:
            _finish(pending, answer)
        else:
            for each in self._in_order.put(pending.number, (pending, answer)):
                _finish(*each)

    def _skip(self, pending: Pending) -> None:
        """Whoever waits behind a request that will never run need not wait for it."""
        if self._in_order is not None:
            for each in self._in_order.skip(pending.number):
                _finish(*each)

    def _failed(self, batch: list[Pending], error: BatchError) -> None:
        """Requests of a batch that failed run once more, alone, so that each answers for itself."""
        may_try = self.spec.idempotent if error.is_lost or error.is_fatal else len(batch) > 1
        for pending in batch:
            if may_try and not pending.was_tried:
                pending.was_tried = True
                self._alone.append(pending)
            else:
                kind = Kind.INVALID if error.is_input else Kind.INTERNAL
                self._deliver(pending, RequestError(kind, str(error), reason="BACKEND"))

    def _answer(self, batch: list[Pending], result: BatchResult) -> None:
        shared = Shared(result.release, len(batch))
        counts = [pending.admitted.size for pending in batch]
        try:
            split = {output.name: rows_of(output, counts) for output in result.outputs}
            answers = [self._outputs_of(pending, i, split) for i, pending in enumerate(batch)]
        except Exception as error:
            result.release()
            internal = RequestError(Kind.INTERNAL, "internal error")
            failure = error if isinstance(error, RequestError) else internal
            _log.exception("model %s: outputs of a batch cannot be handed out", self.spec.name)
            for pending in batch:
                self._deliver(pending, failure)
            return
        ended_ns = perf_counter_ns()
        # whose client went away has been counted as a failure
        told = [pending for pending in batch if not pending.answer.done()]
        self.statistics.executed(
            Times(result.input_ns, result.infer_ns, result.output_ns),
            sizes=[pending.admitted.size for pending in told],
            queue_ns=[pending.began_ns - pending.came_ns for pending in told],
            total_ns=[ended_ns - pending.came_ns for pending in told],
            rows=sum(counts),
        )
        for pending, outputs in zip(batch, answers, strict=True):
            pending.release, pending.ended_ns = shared.release, ended_ns
            self._deliver(pending, outputs)

    def _outputs_of(self, pending: Pending, index: int, split: dict[str, list[Tensor]]) -> list[Tensor]:
        """In the order in which they were asked for."""
        outputs = [split[wanted.name][index] for wanted in pending.admitted.wanted]
        if self._padding is None:
            return outputs
        return [cut(output, self._padding, pending.admitted.inputs) for output in outputs]

    def lose(self, hosted: Hosted) -> None:
        """Its worker died: what runs there fails by itself, what waits goes on waiting."""
        gone = set(hosted.instances)
        self._live -= gone
        self._idle = [instance for instance in self._idle if instance not in gone]
        self.hosted = tuple(each for each in self.hosted if each is not hosted)

    def gain(self, hosted: Hosted) -> None:
        self.hosted = (*self.hosted, hosted)
        self._live |= set(hosted.instances)
        self._idle += hosted.instances
        self._wake()

    @property
    def is_ready(self) -> bool:
        """There is an instance that can take a request."""
        return bool(self._live)

    async def drain(self) -> None:
        """Return when nothing waits and nothing runs."""
        await self._is_empty.wait()

    def refuse_waiting(self, error: RequestError) -> None:
        """What has not begun ends now: the server stops."""
        for entry in self._batcher.clear():
            self._deliver(entry.item, error)
        while self._alone:
            self._deliver(self._alone.popleft(), error)
        self._wake()


def _finish(pending: Pending, answer: list[Tensor] | RequestError) -> None:
    if pending.answer.done():  # its client went away
        pending.release()
    elif isinstance(answer, RequestError):
        pending.answer.set_exception(answer)
    else:
        pending.answer.set_result(answer)
