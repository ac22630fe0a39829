"""What serving leaves of an engine's throughput on a GPU, over HTTP and gRPC on the loopback address.

    PYTHONPATH=src[:WHEELS] python -m bench.serving_gpu [--models bert_classify,resnet50,bert_hidden]
                            [--level 1] [--seconds 4] [--http-workers 1,4] [--clients 1,4,16,32,64]
                            [--target cuda]

The engine alone comes first, with arrays of the host in and out, batch by batch: its best rate is what
serving is held against. Then `ridge serve` with dynamic batching, asked by clients that send four rows each.
The processor time of the server and of the generator, and the bytes of requests, say which of them is the
limit. Answers are compared with the engine's before anything is timed, and every size that a batch may have
has been run. One client on a quiet server tells what serving adds to a run. Results go to a JSON file in
$OUT, or in bench/results, each as soon as it is there; what fails leaves its error in its row.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
import traceback
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import date
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

import ridgeline
from bench.gpu_cases import Bert, half, randomise
from bench.serving_rig import Served, cpu_s, descendants, load_test, served
from ridgeline.runtime.device import current_device
from ridgeline.serve.datatypes import BY_ENGINE
from ridgeline.tactics.cache import cpu_name

RESULTS = Path(__file__).parent / "results"
CLIENT_ROWS = 4
BATCHES = (4, 8, 16, 32, 64)
CLIENTS = "1,4,16,32,64"
WARMUP_S = 2.0
INSTANCES = 2  # while one copies, the other computes
GRPC_PROCESSES, GRPC_CALLS = 4, 8
Keep = Callable[[], None]


class BertClassifier(nn.Module):
    """The first token's class: an answer of a few bytes."""

    def __init__(self) -> None:
        super().__init__()
        self.body, self.head = Bert(), nn.Linear(768, 2)

    def forward(self, input_ids: Tensor, attention_mask: Tensor) -> Tensor:
        made: Tensor = self.head(self.body(input_ids, attention_mask)[:, 0])
        return made


def _resnet50() -> nn.Module:
    import torchvision

    model: nn.Module = torchvision.models.resnet50(weights=None)
    return model


def _perceptron() -> nn.Module:
    return nn.Sequential(nn.Linear(64, 256), nn.ReLU(), nn.Linear(256, 10))


def _words(rows: int) -> dict[str, Tensor]:
    ids = torch.randint(0, 30522, (rows, 128))
    return {"input_ids": ids, "attention_mask": torch.ones_like(ids)}


@dataclass(frozen=True)
class Subject:
    make: Callable[[], nn.Module]
    inputs: Callable[[int], dict[str, Tensor]]


SUBJECTS = {
    "bert_classify": Subject(BertClassifier, _words),
    "bert_hidden": Subject(Bert, _words),
    "resnet50": Subject(_resnet50, lambda rows: {"x": torch.randn(rows, 3, 224, 224)}),
    "perceptron": Subject(_perceptron, lambda rows: {"x": torch.randn(rows, 64)}),
}


def built(subject: Subject, folder: Path, args: argparse.Namespace) -> ridgeline.Engine:
    """An engine for one row to the largest batch in its place of a repository; in half precision on a GPU."""
    torch.manual_seed(0)
    inputs = subject.inputs(2)
    model = randomise(subject.make().eval())
    if args.target.startswith("cuda"):
        model, inputs = model.half(), half(inputs)
    (folder / "1").mkdir(parents=True)
    path = folder.parent.parent / f"{folder.name}.onnx"
    with torch.no_grad():
        torch.onnx.export(
            model, tuple(inputs.values()), str(path), input_names=list(inputs), output_names=["y"],
            dynamic_shapes=tuple({0: "batch"} for _ in inputs), opset_version=20, dynamo=True,
            external_data=True, verbose=False,
        )  # fmt: skip
    engine = ridgeline.build(
        str(path), target=args.target, level=args.level, verify="fast",
        profiles=[{"batch": str(CLIENT_ROWS)}, {"batch": f"1..{args.tuned}..{BATCHES[-1]}"}],
    )  # fmt: skip
    engine.save(folder / "1" / "model.ridge")
    (folder / "config.pbtxt").write_text(
        f"max_batch_size: {BATCHES[-1]}\ninstance_group [{{ count: {INSTANCES} }}]\n{_warm_ups(engine)}"
    )
    return engine


def _warm_ups(engine: ridgeline.Engine) -> str:
    """Every batch that clients of four rows can make: on a GPU the first one of a size captures a graph."""
    inputs = "".join(
        f' inputs {{ key: "{port.name}" value {{ data_type: TYPE_{BY_ENGINE[port.dtype].name}'
        f" dims: {list(port.dims[1:])} random_data: true }} }}"
        for port in engine.inputs
        if port.dims is not None
    )
    sizes = range(CLIENT_ROWS, BATCHES[-1] + 1, CLIENT_ROWS)
    return "".join(f'model_warmup {{ name: "{n}" batch_size: {n} count: 2{inputs} }}\n' for n in sizes)


def arrays(subject: Subject, rows: int, engine: ridgeline.Engine) -> dict[str, np.ndarray]:
    torch.manual_seed(rows)
    types = {port.name: port.dtype for port in engine.inputs}
    made = subject.inputs(rows)
    return {
        name: value.numpy().astype(np.float16 if types[name] == "float16" else value.numpy().dtype)
        for name, value in made.items()
    }


def engine_rows(subject: Subject, engine: ridgeline.Engine, seconds: float) -> list[dict[str, Any]]:
    """The engine by itself, one batch after the other in one context."""
    rows = []
    for batch in BATCHES:
        x = arrays(subject, batch, engine)
        run = engine.context().run
        times = _timed(lambda run=run, x=x: run(x), seconds)
        median = statistics.median(times)
        rows.append({"batch": batch, "run_us": median * 1e6, "rows_per_s": batch / median})
    return rows


def _timed(call: Callable[[], Any], seconds: float) -> list[float]:
    for _ in range(20):
        call()
    times, end = [], time.perf_counter() + seconds
    while time.perf_counter() < end or len(times) < 20:
        began = time.perf_counter()
        call()
        times.append(time.perf_counter() - began)
    return times


def check(subject: Subject, engine: ridgeline.Engine, server: Served, model: str) -> None:
    """Bit for bit at one shape."""
    x = arrays(subject, CLIENT_ROWS, engine)
    with server.client() as client:
        got = client.infer(model, x)
    for name, want in engine.run(x).items():
        assert np.array_equal(got[name], want), f"{name} of {model} is not the engine's"


@contextmanager
def spending(server: Served, busy_s: float) -> Iterator[dict[str, float]]:
    """Shares of a core that the server's processes had: of workers, of the server, of its front ends.

    Of the time in which they are asked, since clients take seconds to start.
    """
    workers, told = server.pids(), {}
    others = [pid for pid in descendants(server.process.pid) if pid not in workers.values()]
    pids = {name: [pid] for name, pid in workers.items()} | {"front ends": others}
    before = {name: sum(map(cpu_s, mine)) for name, mine in pids.items()}
    yield told
    told |= {name: (sum(map(cpu_s, mine)) - before[name]) / busy_s for name, mine in pids.items()}


def over_http(server: Served, model: str, clients: int, seconds: float) -> dict[str, Any]:
    words = ["--concurrency", str(clients), "--batch", str(CLIENT_ROWS), "--warmup", f"{WARMUP_S:g}"]
    with spending(server, WARMUP_S + seconds) as cores:
        report = load_test(server, model, *words, "--duration", str(seconds))
    row = report["rows"][0]
    return {
        "wire": "http", "clients": clients, "rows_per_s": row["rows_per_s"],
        "request_bytes": report["request_bytes"],
        "in_gb_s": report["request_bytes"] * row["throughput_rps"] / 1e9,
        "p50_us": row["percentiles_us"]["50"], "p99_us": row["percentiles_us"]["99"],
        "server": row["server"], "errors": row["errors"], "cores": cores,
        "generator_share": row["generator_share"], "warnings": row["warnings"],
    }  # fmt: skip


def over_grpc(server: Served, model: str, seconds: float) -> dict[str, Any]:
    """Processes that each keep some calls under way, since one in Python is not enough."""
    port = str(server.grpc_port)
    command = [sys.executable, "-m", "bench.serving_gpu", "--grpc-client", port, "--models", model]
    with spending(server, seconds) as cores:
        processes = [
            subprocess.Popen([*command, "--seconds", str(seconds)], stdout=subprocess.PIPE, text=True)
            for _ in range(GRPC_PROCESSES)
        ]
        rates = [float(process.communicate()[0]) for process in processes]
    return {"wire": "grpc", "clients": GRPC_PROCESSES * GRPC_CALLS, "rows_per_s": sum(rates) * CLIENT_ROWS,
            "cores": cores}  # fmt: skip


def grpc_client(port: int, model: str, seconds: float) -> None:
    """Tells its calls per second."""
    import asyncio

    import grpc

    from ridgeline.serve.clients.over_grpc import UNLIMITED, GrpcClient
    from ridgeline.serve.protocol import messages

    address = f"127.0.0.1:{port}"
    with GrpcClient(address) as client:
        told = {port.name: port.datatype for port in client.metadata(model).inputs}
    request = messages.ModelInferRequest(model_name=model)
    for name, value in SUBJECTS[model].inputs(CLIENT_ROWS).items():
        array = value.numpy().astype(np.float16) if told[name] == "FP16" else value.numpy()
        request.inputs.add(name=name, datatype=told[name], shape=array.shape)
        request.raw_input_contents.append(array.tobytes())
    body = request.SerializeToString()

    async def keep_asking() -> float:
        async with grpc.aio.insecure_channel(address, options=UNLIMITED) as channel:
            call = channel.unary_unary(f"/{messages.SERVICE}/ModelInfer")
            await call(body)
            count, began = 0, time.monotonic()

            async def ask() -> None:
                nonlocal count
                while time.monotonic() < began + seconds:
                    await call(body)
                    count += 1

            await asyncio.gather(*(ask() for _ in range(GRPC_CALLS)))
            return count / (time.monotonic() - began)

    print(asyncio.run(keep_asking()))


def added(server: Served, model: str, run_us: float, seconds: float) -> dict[str, Any]:
    """One client: from a body read to its answer written, over the engine's own run of as many rows."""
    words = ["--concurrency", "1", "--batch", str(CLIENT_ROWS), "--warmup", "1", "--duration", str(seconds)]
    seen = len(server.log.read_text().splitlines())
    report = load_test(server, model, *words)
    lines = [line for line in server.log.read_text().splitlines()[seen:] if "/infer" in line]
    times = [1000 * json.loads(line)["duration_ms"] for line in lines]
    median = statistics.median(times[len(times) // 3 :])
    return {"engine_us": run_us, "server_p50_us": median, "added_p50_us": median - run_us,
            "client_p50_us": report["rows"][0]["percentiles_us"]["50"]}  # fmt: skip


def measure(name: str, root: Path, args: argparse.Namespace, row: dict[str, Any], keep: Keep) -> None:
    """Fills the row; `keep` writes what there is."""
    subject = SUBJECTS[name]
    repository = root / "served" / name
    began = time.monotonic()
    engine = built(subject, repository / name, args)
    row["build_s"] = round(time.monotonic() - began, 1)
    row["engine"] = engine_rows(subject, engine, args.seconds / 4)
    best = max(each["rows_per_s"] for each in row["engine"])
    row["engine_best_rows_per_s"] = best
    keep()
    with served(repository, "--target", args.target, "--access-log", "--log-json", core=None) as server:
        check(subject, engine, server, name)
        row["one_client"] = added(server, name, row["engine"][0]["run_us"], args.seconds)
    keep()
    row["served"] = []
    for workers in _numbers(args.http_workers):
        words = ["--target", args.target, "--http-workers", str(workers)]
        with served(repository, *words, core=None, grpc=workers == 1) as server:
            check(subject, engine, server, name)
            calls = [partial(over_http, server, name, clients, args.seconds)
                     for clients in _numbers(args.clients)]  # fmt: skip
            if server.grpc_port:
                calls.append(partial(over_grpc, server, name, args.seconds))
            for call in calls:
                found = _found(call)
                if "rows_per_s" in found:
                    found["share"] = found["rows_per_s"] / best
                row["served"].append({"http_workers": workers, **found})
                print(name, row["served"][-1], flush=True)
                keep()
    shares = [each["share"] for each in row["served"] if each.get("wire") == "http"]
    row["best_share"] = max(shares, default=None)
    keep()


def _found(call: Callable[[], dict[str, Any]]) -> dict[str, Any]:
    """A measurement that fails must not lose the others."""
    try:
        return call()
    except Exception as error:
        return {"error": f"{type(error).__name__}: {error}"[-2000:]}


def _numbers(text: str) -> Sequence[int]:
    return [int(each) for each in text.split(",")]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--models", default="bert_classify,resnet50,bert_hidden")
    parser.add_argument("--target", default="cuda")
    parser.add_argument("--level", type=int, default=1)
    parser.add_argument("--tuned", type=int, default=32, help="the batch that tactics are chosen at")
    parser.add_argument("--seconds", type=float, default=4.0)
    parser.add_argument("--http-workers", default="1,4")
    parser.add_argument("--clients", default=CLIENTS)
    parser.add_argument("--grpc-client", type=int, help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.grpc_client:
        grpc_client(args.grpc_client, args.models, args.seconds)
        return
    about = {
        "date": str(date.today()), "cpu": cpu_name(), "cores": os.cpu_count(), "target": args.target,
        "device": str(current_device()) if args.target.startswith("cuda") else "",
        "torch": torch.__version__, "client_rows": CLIENT_ROWS, "instances": INSTANCES,
    }  # fmt: skip
    rows: list[dict[str, Any]] = []
    out = Path(os.environ.get("OUT") or RESULTS) / f"serving-share-{args.target}-{date.today()}.json"

    def keep() -> None:
        out.write_text(json.dumps({**about, "rows": rows}, indent=1) + "\n")

    with tempfile.TemporaryDirectory() as folder:
        for name in args.models.split(","):
            rows.append({"model": name})
            try:
                measure(name, Path(folder), args, rows[-1], keep)
            except Exception as error:
                traceback.print_exc()
                rows[-1]["error"] = f"{type(error).__name__}: {error}"[-2000:]
                keep()
            print(name, {key: value for key, value in rows[-1].items() if not isinstance(value, list)})


if __name__ == "__main__":
    main()
