"""Profiles an engine: its trace, and the report of it against what is known of the machine."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from ridgeline.analyze.profile_report import CrossRow, ProfileReport, report_profile
from ridgeline.analyze.torch_profiler import cross_check
from ridgeline.base.ceilings import Ceilings
from ridgeline.base.spec import Target
from ridgeline.errors import OptionError, TargetError
from ridgeline.plan.trace import Trace
from ridgeline.runtime.engine import Engine
from ridgeline.runtime.signature import Feeds
from ridgeline.targets.ceilings import find_ceilings

ROUNDS = 30
# enough for a median, and quick under a profiler
CROSS_ROUNDS = 10


@dataclass(frozen=True)
class Profiled:
    """A measurement and what it says."""

    trace: Trace
    report: ProfileReport


def profile_engine(
    engine: Engine,
    feeds: Feeds | None = None,
    *,
    rounds: int = ROUNDS,
    by: str = "",
    torch_profiler: bool = False,
) -> Profiled:
    """Measure and report; with `torch_profiler` beside what PyTorch's profiler sees of the same steps."""
    given = engine.example_inputs() if feeds is None else feeds
    trace = engine.profile(given, rounds)
    cross: tuple[CrossRow, ...] = ()
    if torch_profiler:
        cross = cross_check(engine, given, trace, min(rounds, CROSS_ROUNDS))
    ceilings, reason = ceilings_or_reason(engine.plan.target)
    return Profiled(trace, report_profile(trace, ceilings, why_no_ceilings=reason, by=by, cross=cross))


def ceilings_or_reason(target: Target) -> tuple[Ceilings | None, str]:
    """What is known of the machine, or in one line why nothing is."""
    try:
        return find_ceilings(target), ""
    except TargetError as error:
        return None, f"{error.what} ({error.got}); {error.help}" if error.got else error.what


def run_with_ranges(engine: Engine, feeds: Feeds, runs: int = 3) -> None:
    """Run the steps one by one, each in an NVTX range of its name: for nsys, which wraps the process."""
    if not engine.fused.is_gpu:
        raise OptionError(
            "NVTX ranges are for engines on a GPU",
            got=f"an engine for {engine.plan.target}",
            help="ridge profile ENGINE --trace trace.json shows the steps of a CPU engine on a timeline",
        )
    instance = engine.context(wait=True).instance(feeds)
    steps = engine.plan.steps
    names = [f"{index + 1} {steps[index].name}" for index in instance.call_steps]
    with torch.inference_mode():
        for _ in range(runs):
            with torch.cuda.nvtx.range("ridgeline run"):
                for name, call in zip(names, instance.calls, strict=True):
                    with torch.cuda.nvtx.range(name):
                        call()
            torch.cuda.synchronize()
