"""Compiles kernels to machine code, for any architecture and without a GPU, in several processes at a time.

Kernels compile in other processes: compiling takes seconds, a kernel that takes too long can be stopped, and
if the compiler crashes, one tactic is refused and the build continues.
"""

from __future__ import annotations

import atexit
import json
import os
import selectors
import struct
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from functools import cache
from pathlib import Path
from typing import IO

from ridgeline.base.files import prune, whole_file, why_not_private
from ridgeline.base.typed_json import parse_json, read_as
from ridgeline.errors import RidgelineError
from ridgeline.kernels.triton.source import Kernel, triton_version
from ridgeline.options import available_cores

CACHE_DIR = Path("~/.cache/ridgeline/cubin")
KEPT_KERNELS = 10_000  # per architecture; the least recently used are deleted first
COMPILE_LIMIT_S = 60.0
FORMAT = 1
# a worker finds the same modules as this process; Triton's interpreter would compile nothing
START = """
import os, sys
sys.path[:0] = {paths!r}
os.environ.pop("TRITON_INTERPRET", None)
from ridgeline.kernels.triton.worker import main
main()
"""


class CompileError(RidgelineError):
    """A kernel does not compile. The tactic is refused with this message."""


class KernelLeftOutError(CompileError):
    """A kernel that was not compiled, since the time for it was over."""

    def __init__(self, kernel: Kernel) -> None:
        super().__init__(f"{kernel.function} is not compiled: the time was over")
        self.digest = kernel.digest


@dataclass(frozen=True)
class Compiled:
    """Machine code of one kernel, and the facts that a launch and a report need."""

    name: str  # entry point
    arch: str  # such as sm_90
    cubin: bytes = field(repr=False)
    shared: int  # bytes of dynamic shared memory per block
    num_warps: int
    pdl: bool
    parameters: int  # of the entry point; those after the kernel's own are scratch pointers
    types: tuple[str, ...]  # of the kernel's own arguments
    registers: int
    spills: int  # bytes of local memory per thread
    seconds: float
    triton: str

    def to_bytes(self) -> bytes:
        """One line of facts, then the code."""
        facts = {k: v for k, v in asdict(self).items() if k != "cubin"}
        return json.dumps({"format": FORMAT, **facts}).encode() + b"\n" + self.cubin

    @staticmethod
    def from_bytes(data: bytes) -> Compiled:
        head, _, cubin = data.partition(b"\n")
        facts = parse_json(head)
        if facts.pop("format") != FORMAT:
            raise ValueError("written by another version")
        return read_as(Compiled, {**facts, "cubin": cubin})


@dataclass(frozen=True)
class KernelStore:
    """Where an engine's compiled kernels come from: its own file if that is trusted, else the cache on disk.

    Each engine has its own. Kernels from a file are not used by other engines or by builds, nor cached.
    """

    embedded: Mapping[str, Compiled] = field(default_factory=dict)  # by digest; they need no Triton to run
    are_foreign: bool = False  # the kernels from the file were compiled elsewhere or by another user
    cache_dir: Path = CACHE_DIR

    def find(self, kernel: Kernel, arch: str) -> Compiled | None:
        own = self.embedded.get(kernel.digest)
        return own if own is not None and own.arch == arch else _read(_path(kernel, arch, self.cache_dir))

    def why_none(self, arch: str) -> str | None:
        """Why there can be no kernels for the architecture; None if there can be."""
        if triton_version() is not None or any(made.arch == arch for made in self.embedded.values()):
            return None
        return f"Triton is not installed, and no kernels for {arch} are embedded"


COMPILED_HERE = KernelStore()


def compile_kernels(
    kernels: Sequence[Kernel],
    arch: str,
    *,
    store: KernelStore = COMPILED_HERE,
    jobs: int | None = None,
    on_done: Callable[[int, int], None] | None = None,
    is_over: Callable[[], bool] = lambda: False,
) -> list[Compiled | CompileError]:
    """Machine code for each kernel, or the error; equal kernels are compiled once.

    What is not begun when `is_over` is a `KernelLeftOutError`.
    """
    found: dict[str, Compiled | CompileError] = {}
    todo: dict[str, Kernel] = {}
    for kernel in kernels:
        if kernel.digest not in found and kernel.digest not in todo:
            known = store.find(kernel, arch)
            if known is not None:
                found[kernel.digest] = known
            else:
                todo[kernel.digest] = kernel
    if todo and triton_version() is None:
        for digest, kernel in todo.items():
            what = f"{kernel.function} is not embedded, and Triton is not installed to compile it"
            found[digest] = CompileError(what, help="pip install 'ridgeline[gpu]'")
    elif todo:
        fresh = _pool().run(list(todo.values()), arch, jobs or available_cores(), on_done, is_over)
        for kernel, made in zip(todo.values(), fresh, strict=True):
            found[kernel.digest] = made
            if isinstance(made, Compiled):
                _write(_path(kernel, arch, store.cache_dir), made)
    return [found[kernel.digest] for kernel in kernels]


def compile_kernel(kernel: Kernel, arch: str, *, store: KernelStore = COMPILED_HERE) -> Compiled:
    """Machine code for one kernel, from the cache or newly compiled."""
    (made,) = compile_kernels([kernel], arch, store=store)
    if isinstance(made, CompileError):
        raise made
    return made


def _path(kernel: Kernel, arch: str, cache_dir: Path) -> Path:
    folder = cache_dir.expanduser() / f"{arch}-triton{triton_version()}"
    return folder / f"{kernel.digest}.kernel"


def _read(path: Path) -> Compiled | None:
    if why_not_private(path.parent) or why_not_private(path):
        return None
    try:
        made = Compiled.from_bytes(path.read_bytes())
        os.utime(path)  # kernels in use are pruned last
    except (OSError, ValueError, KeyError, TypeError, AttributeError):  # damaged: compiled again
        return None
    return made


def _write(path: Path, made: Compiled) -> None:
    """Writes to the cache, unless others can write to its folder: it would not be read from there."""
    with suppress(OSError):
        path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        if why_not_private(path.parent) is None:
            with whole_file(path, mode=0o600) as file:
                file.write(made.to_bytes())
            prune(path.parent, "*.kernel", kept=KEPT_KERNELS)


@cache
def _pool() -> _Pool:
    pool = _Pool()
    atexit.register(pool.close)
    return pool


@dataclass
class _Worker:
    process: subprocess.Popen[bytes]
    paths: frozenset[str]  # folders in which it finds modules
    job: int = -1
    since: float = 0.0


class _Pool:
    """Worker processes, which compile one kernel at a time, for any architecture.

    They are kept, since a start takes seconds.
    """

    def __init__(self) -> None:
        self.arch = ""  # of the kernels at hand
        self.selector = selectors.DefaultSelector()
        self.lock = threading.Lock()

    @property
    def workers(self) -> list[_Worker]:
        return [key.data for key in self.selector.get_map().values()]

    def run(
        self,
        kernels: Sequence[Kernel],
        arch: str,
        jobs: int,
        on_done: Callable[[int, int], None] | None = None,
        is_over: Callable[[], bool] = lambda: False,
    ) -> list[Compiled | CompileError]:
        waiting = list(enumerate(kernels))[::-1]
        made: dict[int, Compiled | CompileError] = {}
        with self.lock:
            self.arch = arch
            if any(kernel.module and not kernel.module.startswith("ridgeline.") for kernel in kernels):
                # a plugin's module may be in a folder that earlier workers do not search
                for worker in [w for w in self.workers if not w.paths.issuperset(sys.path)]:
                    self._replace(worker)
            while len(self.workers) < min(jobs, len(kernels)):
                self._start()
            try:
                self._compile(kernels, made, waiting, on_done, is_over)
            except BaseException:
                # what a worker still answers would be taken for the next kernel that it is given
                for worker in [w for w in self.workers if w.job >= 0]:
                    self._drop(worker)
                raise
        return [made[i] for i in range(len(kernels))]

    def _compile(
        self,
        kernels: Sequence[Kernel],
        made: dict[int, Compiled | CompileError],
        waiting: list[tuple[int, Kernel]],
        on_done: Callable[[int, int], None] | None,
        is_over: Callable[[], bool],
    ) -> None:
        for worker in self.workers:
            self._give(worker, waiting)
        while len(made) < len(kernels):
            if waiting and is_over():
                made.update((index, KernelLeftOutError(kernel)) for index, kernel in waiting)
                waiting.clear()
                continue
            for key, _ in self.selector.select(timeout=1.0):
                worker = key.data
                made[worker.job] = self._take(worker)
                if worker.process.poll() is not None:
                    worker = self._replace(worker)
                self._give(worker, waiting)
                if on_done is not None:
                    on_done(len(made), len(kernels))
            for worker in self.workers:
                if worker.job >= 0 and time.monotonic() - worker.since > COMPILE_LIMIT_S:
                    made[worker.job] = CompileError(
                        f"{kernels[worker.job].function} took over {COMPILE_LIMIT_S:.0f} s to compile"
                    )
                    self._give(self._replace(worker), waiting)

    def close(self) -> None:
        for worker in self.workers:
            _end(worker.process)
        self.selector.close()

    def _start(self) -> _Worker:
        start = START.format(paths=[p for p in sys.path if p])
        process = subprocess.Popen(
            [sys.executable, "-c", start],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL,
        )  # fmt: skip
        worker = _Worker(process, frozenset(sys.path))
        assert process.stdout is not None, "opened as a pipe"
        self.selector.register(process.stdout, selectors.EVENT_READ, worker)
        return worker

    def _replace(self, worker: _Worker) -> _Worker:
        self._drop(worker)
        return self._start()

    def _drop(self, worker: _Worker) -> None:
        assert worker.process.stdout is not None, "opened as a pipe"
        self.selector.unregister(worker.process.stdout)
        _end(worker.process)

    def _give(self, worker: _Worker, waiting: list[tuple[int, Kernel]]) -> None:
        worker.job = -1
        if waiting:
            worker.job, kernel = waiting.pop()
            worker.since = time.monotonic()
            assert worker.process.stdin is not None, "opened as a pipe"
            send(worker.process.stdin, f"{self.arch}\n{kernel.to_json()}".encode())

    def _take(self, worker: _Worker) -> Compiled | CompileError:
        assert worker.process.stdout is not None, "opened as a pipe"
        try:
            answer = receive(worker.process.stdout)
        except EOFError:
            worker.process.wait()
            return CompileError(f"the compiler ended with code {worker.process.returncode}")
        if answer[:1] == b"{":
            return Compiled.from_bytes(answer)
        # Triton quotes the source first; the last line says what is wrong
        return CompileError(answer.decode().strip().splitlines()[-1][:300])


def _end(process: subprocess.Popen[bytes]) -> None:
    process.kill()
    for pipe in (process.stdin, process.stdout):
        if pipe is not None:
            pipe.close()
    process.wait()


def send(pipe: IO[bytes], data: bytes) -> None:
    pipe.write(struct.pack("<Q", len(data)) + data)
    pipe.flush()


def receive(pipe: IO[bytes]) -> bytes:
    """The next message from a pipe; `EOFError` if the other process has ended."""
    head = pipe.read(8)
    if len(head) == 8:
        (size,) = struct.unpack("<Q", head)
        data = pipe.read(size)
        if len(data) == size:
            return data
    raise EOFError
