"""Turns generated C++ into loaded shared objects, through a cache keyed by source, compiler and flags.

The cache needs no lock: a library is written under a private name and moved into place whole.
"""

from __future__ import annotations

import ctypes
import hashlib
import os
import platform
import shutil
import subprocess
import tempfile
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from pathlib import Path

from ridgeline.errors import RidgelineError

TIMEOUT_S = 120.0
_FLAGS = (
    "-std=c++17", "-O3", "-march=native", "-fno-math-errno", "-fno-trapping-math", "-ffp-contract=fast",
    "-fopenmp", "-shared", "-fPIC", "-Wall", "-Werror",
)  # fmt: skip
# compilers default to 256 bits on AVX-512 machines; erf and exp loops run nearly twice as fast at 512
_X86_FLAGS = ("-mprefer-vector-width=512",)


class CompileError(RidgelineError):
    """Generated C++ that the system compiler would not take."""


@cache
def find_compiler() -> str | None:
    """The first of g++, clang++, c++ on the path."""
    return next(filter(None, map(shutil.which, ("g++", "clang++", "c++"))), None)


def cpu_lanes(compiler: str) -> int:
    """Float32 lanes of this machine's widest vectors, as the compiler sees them."""
    macros = _macros(compiler)
    return 16 if "__AVX512F__" in macros else 8 if "__AVX2__" in macros else 4


def compile_cpp(source: str, *, cache_dir: Path) -> ctypes.CDLL:
    """Compile unless cached, and load. Callers have imported torch, whose OpenMP pool is then shared."""
    return ctypes.CDLL(str(_compile(source, writable(cache_dir))))


def compile_many(sources: Sequence[str], *, cache_dir: Path) -> list[CompileError]:
    """Fill the cache, one compiler process per core at a time; what failed comes back, it does not raise."""
    folder = writable(cache_dir)

    def attempt(source: str) -> CompileError | None:
        try:
            _compile(source, folder)
        except CompileError as error:
            return error
        return None

    with ThreadPoolExecutor(max_workers=os.cpu_count() or 1) as pool:
        return [error for error in pool.map(attempt, dict.fromkeys(sources)) if error is not None]


def writable(cache_dir: Path) -> Path:
    """`cache_dir` if it can be written, else a folder of this user under the temporary directory."""
    for folder in (cache_dir.expanduser(), Path(tempfile.gettempdir()) / f"ridgeline-cpp-{os.getuid()}"):
        try:
            folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        except OSError:
            continue
        # code is loaded from here: a folder that somebody else made could hold anything
        if os.access(folder, os.W_OK) and folder.stat().st_uid == os.getuid():
            return folder
    raise CompileError("no folder for compiled kernels", got=str(cache_dir), want="a writable directory")


def _compile(source: str, folder: Path) -> Path:
    compiler = find_compiler()
    if compiler is None:
        raise CompileError("no C++ compiler found", help="install g++ or clang++")
    flags = _FLAGS + (_X86_FLAGS if platform.machine() == "x86_64" else ())
    key = hashlib.sha256("\0".join((source, _macros(compiler), *flags)).encode()).hexdigest()[:40]
    library = folder / f"{key}.so"
    if library.exists():
        return library
    with tempfile.TemporaryDirectory(dir=folder) as scratch:
        made = Path(scratch) / "kernel.so"
        command = [compiler, *flags, "-x", "c++", "-", "-o", str(made)]
        try:
            done = subprocess.run(
                command, input=source, capture_output=True, text=True, timeout=TIMEOUT_S, check=False
            )
        except subprocess.TimeoutExpired as error:
            raise CompileError(f"{compiler} took longer than {TIMEOUT_S:g} s on a kernel") from error
        except OSError as error:
            raise CompileError(f"{compiler} could not be started", got=str(error)) from error
        if done.returncode:
            lines = done.stderr.splitlines() or [f"exit {done.returncode}"]
            first = next((line for line in lines if "error" in line), lines[0])
            raise CompileError(f"{compiler} refused a generated kernel", got=first)
        os.replace(made, library)
    return library


@cache
def _macros(compiler: str) -> str:
    """Version and instruction set in one text: a cache folder may be shared by unlike machines."""
    command = [compiler, "-march=native", "-dM", "-E", "-x", "c++", os.devnull]
    try:
        return subprocess.run(command, capture_output=True, text=True, timeout=TIMEOUT_S, check=False).stdout
    except (OSError, subprocess.TimeoutExpired) as error:
        raise CompileError(f"{compiler} could not be started", got=str(error)) from error
