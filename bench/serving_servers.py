"""How `serving_peers.py` installs, starts and speaks to each server."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from base64 import b64decode, b64encode
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import numpy as np

from bench.serving_models import Subject
from ridgeline.serve.clients.address import Address
from ridgeline.serve.clients.tensors import TensorInfo, from_json, to_array, to_tensor
from ridgeline.serve.clients.wire import HEADER_LENGTH, infer_body, read_answer, request_bytes

ROOT = Path(__file__).resolve().parent.parent
MARK = "RIDGELINE_BENCH_SERVER"  # in the environment of every process of a server
TYPES = {"float32": "FP32", "int64": "INT64"}
START_S, END_S = 180.0, 20.0
Wire = Literal["binary", "json", "bytes", "lists", "base64"]


@dataclass(frozen=True)
class Variant:
    """A server with settings of its own, and the form in which it takes arrays."""

    server: str
    name: str
    wire: Wire
    settings: Mapping[str, Any] = field(default_factory=dict)
    environment: Mapping[str, str] = field(default_factory=dict)


# what is installed for each, pinned, beside ONNX Runtime and numpy of our own versions
PACKAGES = {
    "mlserver": ["mlserver==1.7.1", "uvloop<0.22"],  # its workers do not start with a newer uvloop
    "litserve": ["litserve==0.2.19"],
    "ray": ["ray[serve]==2.60.0"],
}
OURS = "ridgeline"
# of each server, the variant that does best in a short search is measured at length
VARIANTS = (
    Variant(OURS, "worker process", "binary"),
    Variant(OURS, "in process", "binary", {"words": ["--in-process"]}),
    Variant("ridgeline-json", "worker process", "json"),
    Variant("ridgeline-json", "in process", "json", {"words": ["--in-process"]}),
    Variant("mlserver", "no batching", "json", {"workers": 0, "batch": 0, "wait_s": 0}),
    Variant("mlserver", "batch 16, 1 ms", "json", {"workers": 0, "batch": 16, "wait_s": 0.001}),
    Variant("mlserver", "batch 32, 5 ms", "json", {"workers": 0, "batch": 32, "wait_s": 0.005}),
    Variant("mlserver", "worker, batch 32, 5 ms", "json", {"workers": 1, "batch": 32, "wait_s": 0.005}),
    Variant("litserve", "lists, batch 32, 0 ms", "lists",
            {"batch": 32, "wait_s": 0.0, "fast_queue": True, "base64": False}),
    Variant("litserve", "base64, batch 32, 0 ms", "base64",
            {"batch": 32, "wait_s": 0.0, "fast_queue": True, "base64": True}),
    Variant("litserve", "base64, batch 32, 5 ms", "base64",
            {"batch": 32, "wait_s": 0.005, "fast_queue": True, "base64": True}),
    Variant("litserve", "base64, batch 32, 5 ms, plain queue", "base64",
            {"batch": 32, "wait_s": 0.005, "fast_queue": False, "base64": True}),
    Variant("ray", "batch 32, 0 ms", "bytes", {"batch": 32, "wait_s": 0.0}),
    Variant("ray", "batch 32, 2 ms", "bytes", {"batch": 32, "wait_s": 0.002}),
    Variant("ray", "batch 32, 2 ms, for throughput", "bytes", {"batch": 32, "wait_s": 0.002},
            {"RAY_SERVE_THROUGHPUT_OPTIMIZED": "1"}),
    Variant("ray", "batch 32, 2 ms, HAProxy", "bytes", {"batch": 32, "wait_s": 0.002},
            {"RAY_SERVE_THROUGHPUT_OPTIMIZED": "1", "RAY_SERVE_ENABLE_HA_PROXY": "1"}),
)  # fmt: skip


# ---- what is sent, and what comes back


def request_of(variant: Variant, subject: Subject, address: Address) -> tuple[bytes, str]:
    """A whole request of HTTP, and its path."""
    path = {"binary": "/v2/models/model/infer", "json": "/v2/models/model/infer"}.get(
        variant.wire, "/predict"
    )
    tensors = [to_tensor(_info(name, array), array) for name, array in subject.row.items()]
    headers = {"Content-Type": "application/json"}
    match variant.wire:
        case "binary":
            length, body = infer_body(tensors)
            headers = {"Content-Type": "application/octet-stream", HEADER_LENGTH: str(length)}
        case "json":
            told = [
                {
                    "name": t.name,
                    "shape": t.shape,
                    "datatype": t.datatype,
                    "data": to_array(t).ravel().tolist(),
                }
                for t in tensors
            ]
            body = json.dumps({"inputs": told}).encode()
        case "bytes":
            headers = {"Content-Type": "application/octet-stream"}
            body, path = b"".join(bytes(tensor.data) for tensor in tensors), "/"
        case "lists":
            body = json.dumps({name: array.tolist() for name, array in subject.row.items()}).encode()
        case "base64":
            body = json.dumps({t.name: b64encode(bytes(t.data)).decode() for t in tensors}).encode()
    return request_bytes(address, path, body=body, headers=headers), path


def read_output(variant: Variant, subject: Subject, body: bytes, head_length: int | None) -> np.ndarray:
    shape = subject.expected.shape
    match variant.wire:
        case "binary" | "json":
            (output,) = read_answer(body, head_length).outputs
            return to_array(output)
        case "bytes":
            return np.frombuffer(body, np.float32).reshape(shape)
        case "base64":
            return np.frombuffer(b64decode(json.loads(body)["output"]), np.float32).reshape(shape)
        case _:
            return from_json(_info("output", subject.expected), json.loads(body)["output"])


def _info(name: str, array: np.ndarray) -> TensorInfo:
    return TensorInfo(name, TYPES[str(array.dtype)], array.shape)


# ---- processes


@dataclass(frozen=True)
class Started:
    """A server that may still be starting. `mark` is in the environment of all its processes."""

    mark: str
    process: subprocess.Popen[bytes]
    log: Path

    def wait_until(self, is_ready: Callable[[], bool]) -> None:
        end = time.monotonic() + START_S
        while not is_ready():
            if self.process.poll() is not None or time.monotonic() > end:
                said = self.log.read_text(errors="replace").strip().splitlines()[-1:]
                raise ServerFailed(f"no answer: {' '.join(said)}")
            time.sleep(0.2)


class ServerFailed(Exception):
    """A server that did not start, or answers something else."""


def install(server: str, environments: Path) -> Path:
    """The interpreter of the server's own environment, which is made where it is missing."""
    if server not in PACKAGES:
        return Path(sys.executable)
    folder = environments / server
    python, done = folder / "bin" / "python", folder / ".installed"
    if not done.exists():
        print(f"installing {server} into {folder}", flush=True)
        subprocess.run([sys.executable, "-m", "venv", folder], check=True)
        own = [f"{name}=={package_version(Path(sys.executable), name)}" for name in ("onnxruntime", "numpy")]
        words = [
            python,
            "-m",
            "pip",
            "install",
            "--quiet",
            "--disable-pip-version-check",
            *PACKAGES[server],
            *own,
        ]
        subprocess.run(words, check=True)
        done.touch()
    return python


def package_version(python: Path, name: str) -> str:
    code = "import importlib.metadata as m, sys; print(m.version(sys.argv[1]))"
    done = subprocess.run([python, "-c", code, name], capture_output=True, text=True, check=False)
    return done.stdout.strip()


@contextlib.contextmanager
def running(
    variant: Variant, subject: Subject, port: int, *, python: Path, folder: Path, core: int
) -> Iterator[Started]:
    """The server on one core, from before its first answer to its end."""
    mark = f"{variant.server}-{port}-{os.getpid()}"
    environment = {
        **os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": str(ROOT), "HOME": str(folder), MARK: mark,
        **variant.environment,
    }  # fmt: skip
    log = folder / f"{variant.server}.log"
    with log.open("wb") as out:
        process = subprocess.Popen(
            _command(variant, subject, port, python, folder), env=environment, cwd=folder, stdout=out,
            stderr=out, start_new_session=True, preexec_fn=lambda: os.sched_setaffinity(0, {core}),
        )  # fmt: skip
    try:
        yield Started(mark, process, log)
    finally:
        process.terminate()
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(END_S)
        for pid in marked(mark):
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        process.wait()


def _command(variant: Variant, subject: Subject, port: int, python: Path, folder: Path) -> list[Any]:
    if variant.server.startswith(OURS):
        words = ["--http", port, "--no-grpc", "--no-metrics", "--threads", 1]
        return [python, "-m", "ridgeline", "serve", folder / subject.name, *map(str, words),
                *variant.settings.get("words", [])]  # fmt: skip
    module = f"bench.serving_peer_{variant.server}"
    inputs = {name: (str(array.dtype), array.shape[1:]) for name, array in subject.row.items()}
    setup = {
        "model": str(subject.path),
        "port": port,
        "inputs": inputs,
        "scratch": str(folder),
        **variant.settings,
    }
    # not `-m`: workers that are spawned have to find the module's classes by its name
    return [python, "-c", f"import {module} as peer; peer.main()", json.dumps(setup)]


def marked(mark: str) -> list[int]:
    """The processes of a server, its own and those that they started, in whatever session they are."""
    found = []
    for place in Path("/proc").iterdir():
        if place.name.isdigit():
            with contextlib.suppress(OSError):
                if f"{MARK}={mark}".encode() in (place / "environ").read_bytes().split(b"\0"):
                    found.append(int(place.name))
    return found


def processor_seconds(mark: str) -> float:
    """Of all processes of a server, since they began."""
    ticks = 0
    for pid in marked(mark):
        with contextlib.suppress(OSError):
            fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
            ticks += int(fields[11]) + int(fields[12])
    return ticks / os.sysconf("SC_CLK_TCK")
