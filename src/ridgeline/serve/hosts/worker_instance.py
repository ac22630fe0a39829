"""One instance of a model in a worker, as the server's event loop sees it: one batch at a time."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from time import monotonic, perf_counter_ns

from ridgeline.serve.hosts.hosting import BatchError, BatchResult, Joined
from ridgeline.serve.hosts.worker_messages import (
    INLINE_BYTES,
    Done,
    Memory,
    Refused,
    Run,
    lay_out,
    tensors_at,
)
from ridgeline.serve.link.arena import Block
from ridgeline.serve.link.frames import ChannelError
from ridgeline.serve.link.loop_channel import LoopChannel
from ridgeline.serve.messages import keep

DoneCall = Callable[[BatchResult | BatchError], None]


@dataclass(slots=True)
class Running:
    """A batch that the worker has, or that waits for memory."""

    done: DoneCall
    inputs: Sequence[Joined]
    batch: Run
    input_ns: int = 0
    began: float = 0.0  # as the worker was sent it


class _Release:
    """Gives outputs back once, however often it is called: twice would be somebody else's memory."""

    __slots__ = ("_block", "_channel")

    def __init__(self, channel: LoopChannel, block: Block) -> None:
        self._channel = channel
        self._block: Block | None = block

    def __call__(self) -> None:
        block, self._block = self._block, None
        if block is not None:
            self._channel.release(block)


class WorkerInstance:
    """A thread of a worker, with a channel of its own. When the worker dies, this is dead for good."""

    def __init__(self, sock: socket.socket, end: Callable[[str], None], limit_bytes: int) -> None:
        """`end(why)` is called when the worker closes the channel, or nothing more can run on its device."""
        self._loop = asyncio.get_running_loop()
        self._end = end
        self._channel = LoopChannel(
            sock, (Done, Refused), on_message=self._take, on_closed=end, limit_bytes=limit_bytes
        )
        self._running: Running | None = None

    def run(self, inputs: Sequence[Joined], outputs: Sequence[str], done: DoneCall) -> None:
        if not self._channel.is_open:
            self._loop.call_soon(done, BatchError("the worker is gone", is_lost=True))
            return
        assert self._running is None, "one batch at a time"
        places, nbytes = lay_out(inputs, [joined.nbytes for joined in inputs])
        memory = bytearray(nbytes if nbytes <= INLINE_BYTES else 0)
        self._running = Running(done, inputs, Run(memory, places, list(outputs)))
        if nbytes <= INLINE_BYTES:
            self._send(memory, memoryview(memory))
            return
        try:
            self._channel.allocate(nbytes, lambda block: self._send(block, self._channel.view(block)))
        except (ValueError, OSError) as error:
            self._fail_soon(BatchError(f"no room for the inputs: {error}", is_memory=True))

    @property
    def began(self) -> float:
        """When the batch that runs was sent; 0 while none runs."""
        return 0.0 if self._running is None else self._running.began

    def lose(self, why: str) -> None:
        """What runs is lost, unless its answer is here already."""
        self._channel.read_rest()
        running, self._running = self._running, None
        if running is not None:
            running.done(BatchError(f"the worker ended while this ran: {why}", is_lost=True))

    def _send(self, memory: Memory, target: memoryview) -> None:
        running = self._running
        assert running is not None, "the memory was asked for"
        began = perf_counter_ns()
        running.batch.memory = memory
        try:
            for joined, place in zip(running.inputs, running.batch.inputs, strict=True):
                joined.write_into(target[place.offset : place.offset + place.nbytes])
        except ValueError as error:  # parts that do not make up the shape
            self._free(memory)
            self._fail_soon(BatchError(f"the inputs cannot be joined: {error}"))
            return
        running.input_ns, running.began = perf_counter_ns() - began, monotonic()
        self._channel.send(running.batch)

    def _fail_soon(self, error: BatchError) -> None:
        """A batch that never reached the worker. `run` has to return first."""
        running, self._running = self._running, None
        assert running is not None, "it was to be sent"
        self._loop.call_soon(running.done, error)

    def _free(self, memory: Memory) -> None:
        if isinstance(memory, Block):
            self._channel.free(memory)

    def _take(self, message: Done | Refused) -> None:
        running = self._running
        if running is None:
            raise ChannelError("the worker answered a batch that nobody asked for")
        if type(message) is Done:
            self._done(running, message)
        else:
            assert isinstance(message, Refused), "nothing else is accepted"
            self._refused(running, message)

    def _done(self, running: Running, message: Done) -> None:
        memory, release = message.memory, keep
        if isinstance(memory, Block):
            view, release = self._channel.peer_view(memory), _Release(self._channel, memory)
        else:
            view = memoryview(memory)
        outputs = tensors_at(message.outputs, view)
        if [tensor.name for tensor in outputs] != running.batch.outputs:
            raise ChannelError("a batch came back with other outputs")
        # until here a batch whose answer is no good was lost
        self._running = None
        self._free(running.batch.memory)
        input_ns = running.input_ns + message.input_ns
        running.done(BatchResult(outputs, input_ns, message.infer_ns, message.output_ns, release))

    def _refused(self, running: Running, message: Refused) -> None:
        self._running = None
        self._free(running.batch.memory)
        error = BatchError(
            message.text,
            is_input=message.is_input,
            is_memory=message.is_memory,
            is_fatal=message.is_fatal,
        )
        running.done(error)
        if message.is_fatal:
            self._end(f"nothing more can run there: {message.text}")
