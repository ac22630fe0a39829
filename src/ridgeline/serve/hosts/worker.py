"""The worker process: runs the engines of one device. It ends when the server's end of the socket does.

The main thread reads messages. Each instance has a thread, and so has each load, so that batches go on.
"""

from __future__ import annotations

import ctypes
import os
import signal
import socket
import threading
from collections.abc import Callable
from contextlib import suppress
from time import perf_counter_ns
from typing import Any

from ridgeline.serve.hosts.engine_runner import Runner, give_back_memory, load_runners
from ridgeline.serve.hosts.hosting import BatchError, HostedModel, LoadError, memoryview_bytes
from ridgeline.serve.hosts.tensor_arrays import copy_bytes
from ridgeline.serve.hosts.worker_messages import (
    INLINE_BYTES,
    TO_WORKER,
    Done,
    Failed,
    InstanceSocket,
    Load,
    Loaded,
    Memory,
    Ping,
    Pong,
    Refused,
    Run,
    Stop,
    Unload,
    Unloaded,
    lay_out,
    tensors_at,
)
from ridgeline.serve.link.arena import Block
from ridgeline.serve.link.channel import Channel
from ridgeline.serve.link.frames import ChannelError

PR_SET_PDEATHSIG, PR_SET_NAME = 1, 15
LONGEST_NAME = 15


class InstanceThread(threading.Thread):
    """Runs the batches that come over its own channel, until the server closes that."""

    def __init__(self, channel: Channel, device: str, runner: Runner) -> None:
        super().__init__(name="instance", daemon=True)
        self._channel, self._device, self._runner = channel, device, runner

    def run(self) -> None:
        self._runner.enter_thread(self._device)
        try:
            for batch in self._channel.receive():
                self._channel.send(self._reply(batch))
        except ChannelError:
            return  # the main thread ends the process
        finally:
            self._channel.close()
            del self._runner

    def _reply(self, batch: Run) -> Done | Refused:
        try:
            return self._ran(batch)
        except BatchError as error:
            return Refused(str(error), error.is_input, error.is_memory, error.is_fatal)

    def _ran(self, batch: Run) -> Done:
        given = batch.memory
        memory = self._channel.peer_view(given) if isinstance(given, Block) else memoryview(given)
        ran = self._runner.run(tensors_at(batch.inputs, memory), batch.outputs)
        began = perf_counter_ns()
        views = [memoryview_bytes(tensor.data) for tensor in ran.outputs]
        places, nbytes = lay_out(ran.outputs, map(len, views))
        made: Memory
        if nbytes <= INLINE_BYTES:
            made = bytearray(nbytes)
            memory = memoryview(made)
        else:
            made = self._allocate(nbytes)
            memory = self._channel.view(made)
        for place, view in zip(places, views, strict=True):
            copy_bytes(memory[place.offset : place.offset + place.nbytes], view)
        output_ns = ran.output_ns + perf_counter_ns() - began
        return Done(made, places, ran.input_ns, ran.infer_ns, output_ns)

    def _allocate(self, nbytes: int) -> Block:
        try:
            return self._channel.allocate(nbytes)
        except (ValueError, OSError) as error:
            raise BatchError(f"no room for the outputs: {error}", is_memory=True) from error


class Worker:
    """One device. The channel is for loads; each instance has one of its own for its batches."""

    def __init__(self, sock: socket.socket, device: str, limit_bytes: int) -> None:
        self._channel = Channel(sock, TO_WORKER)
        self._telling = threading.Lock()
        self._device, self._limit_bytes = device, limit_bytes
        self._sockets: dict[str, list[socket.socket]] = {}
        self._instances: dict[str, list[InstanceThread]] = {}

    def serve(self) -> None:
        """Return when the server is gone, or asks for it."""
        for message in self._channel.receive():
            match message:
                case InstanceSocket():
                    sock = socket.socket(fileno=self._channel.take_descriptor())
                    self._sockets.setdefault(message.key, []).append(sock)
                case Load():
                    _start(self._load, message.model(), self._sockets.pop(message.key, []))
                case Unload():
                    _start(self._unload, message.key)
                case Ping():
                    self._tell(Pong())
                case Stop():
                    return

    def _load(self, model: HostedModel, sockets: list[socket.socket]) -> None:
        reply: Loaded | Failed
        try:
            loaded, runners = load_runners(model, self._device)
            threads = [
                InstanceThread(Channel(sock, (Run,), limit_bytes=self._limit_bytes), self._device, runner)
                for sock, runner in zip(sockets, runners, strict=True)
            ]
            for thread in threads:
                thread.start()
            self._instances[model.key] = threads
            reply = Loaded(model.key, loaded.inputs, loaded.outputs, dict(loaded.notes))
        except (LoadError, RuntimeError) as error:  # no thread can be started
            for sock in sockets:
                sock.close()
            reply = Failed(model.key, str(error))
        self._tell(reply)

    def _unload(self, key: str) -> None:
        """The server has closed the channels of its instances: their threads end."""
        instances = self._instances.pop(key, [])
        while instances:
            instances.pop().join()
        give_back_memory()
        self._tell(Unloaded(key))

    def _tell(self, message: Loaded | Failed | Unloaded | Pong) -> None:
        with suppress(ChannelError), self._telling:  # `serve` returns
            self._channel.send(message)


def _start(target: Callable[..., None], *arguments: Any) -> None:
    threading.Thread(target=target, args=arguments, daemon=True).start()


def work(sock: socket.socket, device: str, limit_bytes: int, parent: int) -> None:
    """What a forked process does."""
    set_process_traits(f"ridge {device}", parent)
    Worker(sock, device, limit_bytes).serve()


def set_process_traits(name: str, parent: int) -> None:
    """A name for `ps` and `top`; and death with the parent, where the system offers it."""
    prctl = getattr(ctypes.CDLL(None), "prctl", None)
    if prctl is None:
        return
    prctl(PR_SET_NAME, name[:LONGEST_NAME].encode(), 0, 0, 0)
    prctl(PR_SET_PDEATHSIG, int(signal.SIGKILL), 0, 0, 0)
    if os.getppid() != parent:  # it had died before
        os._exit(1)
