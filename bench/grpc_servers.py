"""What a ModelInfer costs the server's process, by kind of gRPC server: threads or the event loop itself.

    python bench/grpc_servers.py [--rounds 5] [--output bench/results/grpc-servers-2026-11-18.json]

A small identity model answers on the next turn of its event loop. The client is a process of its own, on the
other core; the figure is CPU time of the server's process, all threads, per call. A round runs every case
once; other jobs share the machine, so the least of the rounds is the figure to compare.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import platform
import resource
import subprocess
import sys
import threading
from collections.abc import Callable
from concurrent import futures
from dataclasses import dataclass
from datetime import datetime
from itertools import product
from pathlib import Path
from statistics import median
from time import perf_counter
from typing import Any

import grpc
import uvloop

from ridgeline.serve.allocator import keep_freed_memory
from ridgeline.serve.grpc.codec import decode_request, encode_response
from ridgeline.serve.grpc.server import GrpcServer
from ridgeline.serve.messages import InferRequest, InferResponse
from ridgeline.serve.protocol import messages
from ridgeline.serve.settings import HttpLimits, Settings

LOOPS: dict[str, Callable[[], asyncio.AbstractEventLoop]] = {
    "asyncio": asyncio.new_event_loop,
    "uvloop": uvloop.new_event_loop,
}
UNLIMITED = [("grpc.max_receive_message_length", -1), ("grpc.max_send_message_length", -1)]
METHOD = f"/{messages.SERVICE}/ModelInfer"
LIMITS = HttpLimits()
THREADS = 64
CALLS = {64: 3000, 602_112: 300}  # bytes of the tensor: calls of a round
SERVER_CORE, CLIENT_CORE = 0, 1


class Identity:
    async def infer(self, request: InferRequest) -> InferResponse:
        # a batcher answers later, and by a future
        loop = asyncio.get_running_loop()
        answered = loop.create_future()
        loop.call_soon(answered.set_result, None)
        await answered
        return InferResponse(request.model, "1", request.id, request.inputs)

    async def ask(self, verb: str, **arguments: Any) -> Any:
        raise NotImplementedError


SERVICE = Identity()


class Handed:
    """One call handed from a thread to the event loop and back, with a lock as the only primitive."""

    def __init__(self, body: bytes) -> None:
        self._request = decode_request(body, LIMITS)
        self._done = threading.Lock()
        self._done.acquire()
        self._task: asyncio.Task[InferResponse] | None = None

    def run(self, loop: asyncio.AbstractEventLoop) -> bytes:
        loop.call_soon_threadsafe(self._start, loop)
        self._done.acquire()
        assert self._task is not None
        return encode_response(self._task.result())

    def cancel(self) -> None:
        if self._task is not None:
            self._task.cancel()

    def _start(self, loop: asyncio.AbstractEventLoop) -> None:
        self._task = loop.create_task(SERVICE.infer(self._request))
        self._task.add_done_callback(lambda _: self._done.release())


def serve_handed(loop: asyncio.AbstractEventLoop) -> int:
    def infer(body: bytes, context: Any) -> bytes:
        call = Handed(body)
        context.add_callback(lambda: loop.call_soon_threadsafe(call.cancel))
        return call.run(loop)

    return serve_with_threads(infer)


def serve_coroutines(loop: asyncio.AbstractEventLoop) -> int:
    async def answer(body: bytes) -> bytes:
        return encode_response(await SERVICE.infer(decode_request(body, LIMITS)))

    def infer(body: bytes, context: Any) -> bytes:
        call = asyncio.run_coroutine_threadsafe(answer(body), loop)
        context.add_callback(call.cancel)
        return call.result()

    return serve_with_threads(infer)


def serve_with_threads(infer: Callable[[bytes, Any], bytes]) -> int:
    handler = grpc.method_handlers_generic_handler(
        messages.SERVICE, {"ModelInfer": grpc.unary_unary_rpc_method_handler(infer)}
    )
    server = grpc.server(futures.ThreadPoolExecutor(THREADS), handlers=[handler], options=UNLIMITED)
    KEPT.append(server)
    port = server.add_insecure_port("127.0.0.1:0")
    server.start()
    return int(port)


def serve_on_loop(loop: asyncio.AbstractEventLoop) -> int:
    """The package's own."""
    server = GrpcServer(SERVICE, Settings((), grpc_port=0))
    KEPT.append(server)
    return asyncio.run_coroutine_threadsafe(server.start(), loop).result()


KEPT: list[Any] = []  # servers end with the process
SERVERS = {
    "threads, run_coroutine_threadsafe": serve_coroutines,
    "threads, own hand-off": serve_handed,
    "grpc.aio": serve_on_loop,
}


@dataclass(frozen=True)
class Case:
    server: str
    loop: str
    allocator: str  # "default", or "kept": memory that was freed is kept (serve/allocator.py)
    tensor_bytes: int
    concurrency: int


def run_server(case: Case) -> None:
    """Tells its port, then its CPU seconds for every line it reads."""
    if case.allocator == "kept":
        assert keep_freed_memory(), "not glibc"
    loop = LOOPS[case.loop]()
    threading.Thread(target=loop.run_forever, daemon=True).start()
    print(SERVERS[case.server](loop), flush=True)
    for _ in sys.stdin:
        used = resource.getrusage(resource.RUSAGE_SELF)
        print(used.ru_utime + used.ru_stime, flush=True)
    os._exit(0)


def run_client(port: int, case: Case, calls: int) -> None:
    """Tells calls per second."""
    request = messages.ModelInferRequest(model_name="identity")
    request.inputs.add(name="x", datatype="FP32", shape=[case.tensor_bytes // 4])
    raw = os.urandom(case.tensor_bytes)
    request.raw_input_contents.append(raw)
    body = request.SerializeToString()
    options = [*UNLIMITED, ("grpc.use_local_subchannel_pool", 1)]
    channels = [
        grpc.insecure_channel(f"127.0.0.1:{port}", options=options) for _ in range(min(case.concurrency, 4))
    ]

    def infer(at: int) -> None:
        call = channels[at % len(channels)].unary_unary(METHOD)
        answer = b""
        for _ in range(calls // case.concurrency):
            answer = call(body)
        got = messages.ModelInferResponse.FromString(answer)
        assert got.raw_output_contents[0] == raw, "the answer is not the input"

    with futures.ThreadPoolExecutor(case.concurrency) as threads:
        began = perf_counter()
        list(threads.map(infer, range(case.concurrency)))
        print(calls / (perf_counter() - began))


def measure(case: Case) -> tuple[float, float]:
    """CPU µs of the server per call, and calls per second."""
    as_text = json.dumps(vars(case))
    command = [sys.executable, __file__]

    def client(calls: int) -> float:
        arguments = ["--client", str(server_port), "--case", as_text, "--calls", str(calls)]
        on_core = ["taskset", "-c", str(CLIENT_CORE), *command, *arguments]
        return float(subprocess.run(on_core, check=True, capture_output=True, text=True).stdout)

    def cpu_seconds() -> float:
        assert server.stdin is not None
        assert server.stdout is not None
        server.stdin.write("\n")
        server.stdin.flush()
        return float(server.stdout.readline())

    with subprocess.Popen(
        ["taskset", "-c", str(SERVER_CORE), *command, "--server", "--case", as_text],
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
    ) as server:  # fmt: skip
        assert server.stdout is not None
        server_port = int(server.stdout.readline())
        calls = CALLS[case.tensor_bytes]
        client(calls // 10)
        before = cpu_seconds()
        rate = client(calls)
        return (cpu_seconds() - before) / calls * 1e6, rate


def run_all(rounds: int, output: Path | None) -> None:
    cases = [
        Case(*each) for each in product(SERVERS, LOOPS, ("default", "kept"), CALLS, (1, 16))
        if each[2] == "kept" or each[3] > 64
    ]  # fmt: skip
    seen: dict[Case, list[tuple[float, float]]] = {case: [] for case in cases}
    for at in range(rounds):
        # the order turns, so that a busy minute of the machine does not meet the same case
        for case in cases[at:] + cases[:at]:
            seen[case].append(measure(case))
    rows = []
    for case in sorted(cases, key=lambda case: (case.tensor_bytes, case.concurrency, min(seen[case]))):
        cpu = [each[0] for each in seen[case]]
        rows.append(
            vars(case)
            | {
                "cpu_us_least": round(min(cpu)),
                "cpu_us_median": round(median(cpu)),
                "calls_per_s_most": round(max(each[1] for each in seen[case])),
                "gate": "answer equals input",
            }
        )
        print(*rows[-1].values(), sep="  ")
    if output is not None:
        about = {
            "date": datetime.now().astimezone().isoformat(timespec="seconds"), "cpu": cpu_model(),
            "cores": os.cpu_count(), "load_average": list(os.getloadavg()), "rounds": rounds,
            "threads": THREADS, "python": platform.python_version(), "grpcio": grpc.__version__,
        }  # fmt: skip
        output.write_text(json.dumps({**about, "rows": rows}, indent=1) + "\n")


def cpu_model() -> str:
    lines = Path("/proc/cpuinfo").read_text().splitlines()
    return next(line.split(":", 1)[1].strip() for line in lines if line.startswith("model name"))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--output", type=Path)
    parser.add_argument("--server", action="store_true", help=argparse.SUPPRESS)
    parser.add_argument("--client", type=int, help=argparse.SUPPRESS)
    parser.add_argument("--case", help=argparse.SUPPRESS)
    parser.add_argument("--calls", type=int, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.server:
        run_server(Case(**json.loads(arguments.case)))
    elif arguments.client:
        run_client(arguments.client, Case(**json.loads(arguments.case)), arguments.calls)
    else:
        run_all(arguments.rounds, arguments.output)


if __name__ == "__main__":
    main()
