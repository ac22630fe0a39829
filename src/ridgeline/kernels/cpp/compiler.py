"""Turns generated C++ into loaded shared objects, through a cache keyed by source, compiler and flags.

The cache needs no lock: a library is written under a private name and moved into place whole. Both the folder
and the libraries in it must belong to this user alone. The folder is pruned, and libraries are unloaded.
"""

from __future__ import annotations

import ctypes
import hashlib
import os
import platform
import re
import shutil
import subprocess
import tempfile
import threading
import time
import weakref
from _ctypes import dlclose, dlopen, dlsym
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from functools import cache
from pathlib import Path
from typing import Any

from ridgeline.base.files import private_folder, prune, why_not_private
from ridgeline.errors import RidgelineError
from ridgeline.kernels.cpp.prelude import PRELUDE

CACHE_DIR = Path("~/.cache/ridgeline/cpp")
TIMEOUT_S = 120.0
# one for each kernel at each shape: dozens of nets, about 60 MB; those used longest ago go first
KEPT_LIBRARIES = 4000
# kernels that one process compiles: starting it takes as long as a small kernel
MOST_TOGETHER = 8
# how a kernel begins
ENTRY = 'extern "C" void run('
# -fwrapv: integers wrap in ONNX, and signed overflow would otherwise be undefined
_FLAGS = (
    "-std=c++17", "-O3", "-march=native", "-fno-math-errno", "-fno-trapping-math", "-ffp-contract=fast",
    "-fopenmp", "-fwrapv", "-shared", "-fPIC", "-Wall", "-Werror",
)  # fmt: skip
# compilers default to 256 bits on AVX-512 machines; erf and exp loops run nearly twice as fast at 512
_X86_FLAGS = ("-mprefer-vector-width=512",)
# what generated kernels call: to search all that a C++ program may need takes a fifth of a compilation
_LIBRARIES = ("-nostdlib", "-lgomp", "-lm", "-lgcc")

_Function = ctypes.CFUNCTYPE(None)


class CompileError(RidgelineError):
    """Generated C++ that the system compiler would not take."""


class LeftOutError(CompileError):
    """Generated C++ that was not compiled, since the time for it was over."""

    def __init__(self, source: str) -> None:
        super().__init__("not compiled: the time was over")
        self.source = source


@cache
def find_compiler() -> str | None:
    """The first of g++, clang++, c++ on the path."""
    return next(filter(None, map(shutil.which, ("g++", "clang++", "c++"))), None)


def cpu_lanes(compiler: str) -> int:
    """Float32 lanes of this machine's widest vectors, as the compiler sees them."""
    macros = _macros(compiler)
    return 16 if "__AVX512F__" in macros else 8 if "__AVX2__" in macros else 4


def cpu_has(compiler: str, features: Sequence[str]) -> bool:
    """Whether this machine has one of these, as the compiler names them."""
    return any(feature in _macros(compiler) for feature in features)


class Library:
    """A loaded shared object. It is unloaded when neither it nor a function of it is referred to any more.

    `ctypes.CDLL` never unloads, and its functions refer to themselves: a process that meets many shapes would
    map a library for each.
    """

    def __init__(self, path: Path) -> None:
        self._key = path.stem
        self._handle = dlopen(str(path), os.RTLD_NOW)
        # not at the end of the process: a thread may still be inside, and all is unmapped anyway
        weakref.finalize(self, dlclose, self._handle).atexit = False

    def __getitem__(self, name: str) -> Any:
        try:  # it may hold other kernels too
            place = dlsym(self._handle, f"{name}_{self._key}")
        except OSError:
            place = dlsym(self._handle, name)
        function = _Function(place)
        function.library = self  # type: ignore[attr-defined]  # held for as long as the function
        return function


def compile_cpp(source: str, *, cache_dir: Path) -> Library:
    """Compile unless cached, and load. Callers have imported torch, whose OpenMP pool is then shared."""
    folder = private_folder(*_folders(cache_dir))
    path = _compile([source], folder)
    try:
        return Library(path)
    except OSError:  # another process has pruned it since, or it is damaged
        path.unlink(missing_ok=True)
        return Library(_compile([source], folder))


def compile_many(
    sources: Sequence[str],
    *,
    cache_dir: Path,
    is_over: Callable[[], bool] = lambda: False,
    on_done: Callable[[int, int], None] | None = None,
) -> list[CompileError]:
    """Fill the cache, one compiler process per core at a time; what failed comes back, it does not raise.

    Processes take several kernels at a time while many wait. Those that nobody has begun when `is_over` come
    back as `LeftOutError`.
    """
    folder = private_folder(*_folders(cache_dir))
    new = [source for source in dict.fromkeys(sources) if not _is_cached(source, folder)]
    queue = _Queue(new, folder, is_over, on_done)
    workers = min(os.cpu_count() or 1, len(new))
    if workers < 2:  # a thread would only be waited for
        queue.work()
    else:
        with ThreadPoolExecutor(workers) as pool:
            for made in [pool.submit(queue.work) for _ in range(workers)]:
                made.result()
    return queue.failed


class _Queue:
    """Sources that wait for a compiler, taken by several threads from its front."""

    def __init__(
        self,
        sources: Sequence[str],
        folder: Path,
        is_over: Callable[[], bool],
        on_done: Callable[[int, int], None] | None,
    ) -> None:
        self.failed: list[CompileError] = []
        self._waiting, self._total, self._done = deque(sources), len(sources), 0
        self._folder, self._is_over, self._on_done = folder, is_over, on_done
        self._lock = threading.Lock()

    def work(self) -> None:
        try:
            while group := self._next():
                failed = _compile_group(group, self._folder)
                with self._lock:
                    self.failed += failed
                    self._done += len(group)
                    if self._on_done is not None:
                        self._on_done(self._done, self._total)
        except BaseException:  # who listens has had enough, or Ctrl-C: the other threads end too
            self._waiting.clear()
            raise

    def _next(self) -> list[str]:
        """What one process compiles next: a share of what waits, so that all end at about the same time."""
        with self._lock:
            if self._is_over():
                self.failed += [LeftOutError(source) for source in self._waiting]
                self._waiting.clear()
            turns = 3 * (os.cpu_count() or 1)
            count = min(max(len(self._waiting) // turns, 1), MOST_TOGETHER, len(self._waiting))
            return [self._waiting.popleft() for _ in range(count)]


def _compile_group(sources: Sequence[str], folder: Path) -> list[CompileError]:
    """Those of the sources that do not compile. They are compiled together if all of them may be."""
    together = [source for source in sources if _may_share(source)]
    if len(together) > 1:
        try:
            _compile(together, folder)
        except CompileError:  # by whichever of them: each is tried alone
            together = []
    failed = []
    for source in (source for source in sources if len(together) < 2 or source not in together):
        try:
            _compile([source], folder)
        except CompileError as error:
            failed.append(error)
    return failed


def _folders(cache_dir: Path) -> tuple[Path, Path]:
    """Where libraries may lie. Code is loaded from there, so that nobody else may write to it."""
    return cache_dir.expanduser(), Path(tempfile.gettempdir()) / f"ridgeline-cpp-{os.getuid()}"


def _library(source: str, compiler: str, folder: Path) -> Path:
    """Where the library of this source lies, or will."""
    text = "\0".join((source, _macros(compiler), *_flags(), *_libraries(source, compiler)))
    key = hashlib.sha256(text.encode()).hexdigest()[:40]
    return folder / f"{key}.so"


def _is_cached(source: str, folder: Path) -> bool:
    """Asked before a source is compiled, which is where a compiler that does not start is reported."""
    compiler = find_compiler()
    with suppress(CompileError):
        return compiler is not None and _is_made(_library(source, compiler, folder))
    return False


def _is_made(library: Path) -> bool:
    if why_not_private(library) is not None:
        return False
    os.utime(library)  # so that what is in use is pruned last
    return True


def _flags() -> tuple[str, ...]:
    return _FLAGS + (_X86_FLAGS if platform.machine() == "x86_64" else ())


def _libraries(source: str, compiler: str) -> tuple[str, ...]:
    """For the linker: a plugin's source may use all of C++, and other compilers have another OpenMP."""
    is_gcc = "#define __clang__" not in _macros(compiler)
    return _LIBRARIES if is_gcc and source.startswith(PRELUDE.strip()) else ()


def _compile(sources: Sequence[str], folder: Path) -> Path:
    """The library of these sources, under the name of each; that of the first is returned."""
    compiler = find_compiler()
    if compiler is None:
        raise CompileError("no C++ compiler found", help="install g++ or clang++")
    libraries = [_library(source, compiler, folder) for source in sources]
    if all(map(_is_made, libraries)):
        return libraries[0]
    text = sources[0] if len(sources) == 1 else _joined(sources, [library.stem for library in libraries])
    with tempfile.TemporaryDirectory(dir=folder) as scratch:
        made = Path(scratch) / "kernel.so"
        command = [compiler, *_flags(), "-x", "c++", "-", *_libraries(text, compiler), "-o", str(made)]
        limit_s = TIMEOUT_S * len(sources)
        try:
            done = subprocess.run(
                command, input=text, capture_output=True, text=True, timeout=limit_s, check=False
            )
        except subprocess.TimeoutExpired as error:
            raise CompileError(f"{compiler} took longer than {limit_s:g} s on a kernel") from error
        except OSError as error:
            raise CompileError(f"{compiler} could not be started", got=str(error)) from error
        if done.returncode:
            lines = done.stderr.splitlines() or [f"exit {done.returncode}"]
            first = next((line for line in lines if "error" in line), lines[0])
            raise CompileError(f"{compiler} refused a kernel", got=first)
        made.chmod(0o600)
        for library in libraries[1:]:
            _place_beside(made, library)
        os.replace(made, libraries[0])
    prune(folder, "*.so", kept=KEPT_LIBRARIES)
    _sweep_scratch(folder)
    return libraries[0]


def _place_beside(made: Path, library: Path) -> None:
    """One more name for a library; moved into place, so that nobody meets half of it."""
    link = made.with_name(library.name)
    try:
        os.link(made, link)
    except OSError:  # a file system without them
        shutil.copy2(made, link)
    os.replace(link, library)


def _may_share(source: str) -> bool:
    """Whether other kernels may stand in one text with this one: ours may, that bring no headers."""
    return source.startswith(PRELUDE.strip()) and ENTRY in source and "#include" not in source


def _joined(sources: Sequence[str], keys: Sequence[str]) -> str:
    """Kernels in one text, each in a namespace of its own and with an entry point of its own."""
    parts = [PRELUDE.strip()]
    for number, (source, key) in enumerate(zip(sources, keys, strict=True)):
        own = source.removeprefix(PRELUDE.strip()).replace(ENTRY, ENTRY.replace("run(", f"run_{key}("))
        macros = dict.fromkeys(re.findall(r"^#define (\w+)", own, re.MULTILINE))
        parts += [f"namespace k{number} {{", own, "}", *(f"#undef {name}" for name in macros)]
    return "\n".join([*parts, ""])


def _sweep_scratch(folder: Path) -> None:
    """Folders that a killed process left: no compiler runs for so long."""
    for name in os.listdir(folder):  # after every kernel, among thousands: `glob` takes twice as long
        if not name.startswith("tmp"):
            continue
        scratch = folder / name
        with suppress(OSError):
            if time.time() - scratch.lstat().st_mtime > 10 * TIMEOUT_S:
                shutil.rmtree(scratch)


@cache
def _macros(compiler: str) -> str:
    """Version and instruction set in one text: a cache folder may be shared by unlike machines."""
    command = [compiler, "-march=native", "-dM", "-E", "-x", "c++", os.devnull]
    try:
        return subprocess.run(command, capture_output=True, text=True, timeout=TIMEOUT_S, check=False).stdout
    except (OSError, subprocess.TimeoutExpired) as error:
        raise CompileError(f"{compiler} could not be started", got=str(error)) from error
