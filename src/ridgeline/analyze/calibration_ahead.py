"""Compiles the kernels of a calibration's graphs in a process beside it, ahead of what is being measured.

Half of a calibration is compiling, which needs no GPU. It is a process, not a thread: a thread would hold up
the one that launches what is timed.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator

import onnx

from ridgeline.analyze.calibration_sets import graphs
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
COURTESY = 5  # added to the niceness: whoever launches and times goes first


class Ahead:
    """The process, which ends with `close`. What it did not compile, the build of the graph does."""

    def __init__(self, target: Target) -> None:
        self._process: subprocess.Popen[str] | None = None
        # on a processor compilers would take the cores that are measured
        if target.traits.is_gpu:
            code = START.format(paths=[path for path in sys.path if path], kind=target.kind, arch=target.arch)
            self._process = subprocess.Popen(
                [sys.executable, "-c", code], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
            )

    def wait_for(self, name: str) -> bool:
        """Until the kernels of this graph are compiled; False if the process ended before, or never began."""
        if self._process is None or self._process.stdout is None:
            return False
        return any(line.rstrip("\n") == name for line in self._process.stdout)

    def close(self) -> None:
        if self._process is not None:
            self._process.kill()
            self._process.communicate()


def compile_all(kind: str, arch: str) -> None:
    """The process: each graph's kernels, and then its name."""
    os.nice(COURTESY)
    target = Target(kind, arch)
    for name, model in graphs(target):
        precompile(jobs_of(model, target))
        sys.stdout.write(f"{name}\n")
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
