"""Compiles the kernels of a calibration's graphs in a process beside it, ahead of what is being measured.

Half of a calibration is compiling, which needs no GPU. It is a process, not a thread: a thread would hold up
the one that launches what is timed.
"""

from __future__ import annotations

import os
import selectors
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import suppress

import onnx

from ridgeline.analyze.calibration_sets import dtype_of, sets_of
from ridgeline.analyze.predict import computed_sites, fused_for
from ridgeline.base.spec import Target
from ridgeline.options import make_options
from ridgeline.tactics.base import Offer
from ridgeline.tactics.offer import Job, precompile, read_offer

# it finds the same modules as this process
START = """
import sys
sys.path[:0] = {paths!r}
from ridgeline.analyze.calibration_ahead import compile_all
compile_all({kind!r}, {arch!r})
"""
CHUNK = 4096  # of what it tells
LONGEST_S = 3600.0  # to wait for one graph: the system's waits take no endless ones
COURTESY = 5  # added to the niceness: whoever launches and times goes first


class Ahead:
    """The process, which ends with `close`. What it did not compile, the build of the graph does."""

    def __init__(self, target: Target) -> None:
        self._process: subprocess.Popen[bytes] | None = None
        self._told = b""
        # on a processor compilers would take the cores that are measured
        if target.traits.is_gpu:
            code = START.format(paths=[path for path in sys.path if path], kind=target.kind, arch=target.arch)
            # a group of its own: its compilers end with it
            self._process = subprocess.Popen(
                [sys.executable, "-c", code], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL,
                process_group=0,
            )  # fmt: skip

    def wait_for(self, name: str, seconds: float) -> bool:
        """Until the kernels of this graph are compiled; False if that takes longer, or the process ended
        before, or never began."""
        if self._process is None or self._process.stdout is None:
            return False
        until = time.monotonic() + min(seconds, LONGEST_S)
        with selectors.DefaultSelector() as selector:
            selector.register(self._process.stdout, selectors.EVENT_READ)
            while f"{name}\n".encode() not in self._told.splitlines(keepends=True):
                if not selector.select(max(until - time.monotonic(), 0.0)):
                    return False
                more = os.read(self._process.stdout.fileno(), CHUNK)
                if not more:
                    return False
                self._told += more
        return True

    def close(self) -> None:
        if self._process is not None:
            with suppress(ProcessLookupError):
                os.killpg(self._process.pid, signal.SIGKILL)
            self._process.communicate()
            self._process = None


def compile_all(kind: str, arch: str) -> None:
    """The process: each graph's kernels, and then its name."""
    os.nice(COURTESY)
    target = Target(kind, arch)
    for each in sets_of(target):
        precompile(jobs_of(each.model(dtype_of(target)), target))
        sys.stdout.write(f"{each.name}\n")
        sys.stdout.flush()


def jobs_of(model: onnx.ModelProto, target: Target) -> Iterator[Job]:
    """All that a build of the model will time, each region once."""
    _, fused, shapes = fused_for(model, target, make_options({}))
    sites = {site.key: site for _, site in computed_sites(fused, shapes, target)}
    for tactic in fused.tactics.values():
        for site in sites.values():
            offer = read_offer(tactic, site)
            if isinstance(offer, Offer):
                yield from ((tactic, site, offer, config) for config in offer.configs)
