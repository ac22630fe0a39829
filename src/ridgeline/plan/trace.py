"""One measured run of an engine, step by step: times, work and memory, as `engine.profile()` returns it.

Frozen, saved as JSON and checked when it is read. It holds what was measured and what was counted; what
follows from that (rates, limits, advice) is made by `analyze`.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, fields, is_dataclass
from statistics import median
from typing import Any, Literal, TypeAlias

from ridgeline.base.notebook import Notebook, Table, View
from ridgeline.base.spec import Config
from ridgeline.base.typed_json import Misfit, parse_json, read_as
from ridgeline.base.units import duration, percent
from ridgeline.errors import OptionError, first_line
from ridgeline.plan.plan import LEFT_OUT

FORMAT = "ridgeline/trace/1"
MAKE_ANOTHER = "ridge profile ENGINE --save profile.json makes a trace"
LISTED = 5
WALL_CLOCK: Literal["wall clock, step by step"] = "wall clock, step by step"
EVENTS: Literal["CUDA events"] = "CUDA events"
CUPTI: Literal["CUPTI over graph replays"] = "CUPTI over graph replays"
How: TypeAlias = Literal["wall clock, step by step", "CUDA events", "CUPTI over graph replays"]
# what a step mostly is, for people and for the question what limits it
OpClass: TypeAlias = Literal[
    "product", "convolution", "attention", "norm/reduction", "pointwise", "movement", "control", "recurrent",
    "library span", "other",
]  # fmt: skip


@dataclass(frozen=True)
class KernelTime:
    """One kernel of a step on the device; times are medians over the replays."""

    name: str
    start_us: float  # from the start of the run
    us: float
    blocks: int | None = None  # thread blocks of its grid


@dataclass(frozen=True)
class NodeTime:
    """A node inside a step that a library runs as a whole, timed by the library's own profiler."""

    name: str  # as the library names it, after its own fusions
    op_type: str
    us: float
    sources: tuple[str, ...] = ()  # nodes of the original model, as far as names tell


@dataclass(frozen=True)
class NodeWork:
    """One op of a step's body: its part of the bytes and flops of the step.

    An input of the step counts for the first op that reads it, an output for the op that makes it; what
    stays inside the step moves no bytes. The parts of a step add up to the step.
    """

    name: str
    op_type: str
    flops: int
    bytes: int


@dataclass(frozen=True)
class StepTime:
    """One step that takes time. Steps that are only views take none and have no row.

    `median_us` is the time in which the step's own work runs: a wall-clock interval on a CPU, the time in
    which at least one of its kernels runs on a GPU.
    """

    index: int  # counted from 1, as in `ridge show`
    name: str
    op_types: tuple[str, ...]
    sources: tuple[str, ...]  # nodes of the original model
    tactic: str
    config: Config
    precision: str  # type that it computes in: float32, tf32, bfloat16, int8, …
    op_class: OpClass
    calls: int  # in one run
    median_us: float
    p10_us: float
    p90_us: float
    start_us: float  # from the start of the run, median
    bytes: int
    flops: int
    samples_us: tuple[float, ...]  # one for each round, in order
    gap_us: float | None = None  # time before its kernels in which nothing ran; None: no time-stamps
    overlap_us: float | None = None  # time in which it ran beside the step before it (dependent launch)
    eager_us: float | None = None  # on a GPU also: between CUDA events, steps queued one by one
    kernels: tuple[KernelTime, ...] = ()  # where they are known
    inside: tuple[NodeTime, ...] = ()  # of a library's span
    work: tuple[NodeWork, ...] = ()
    stream: int = field(default=0, metadata=LEFT_OUT)  # of the captured run; 0 is the main one

    @property
    def net_us(self) -> float:
        """What it adds to the run: its own work and the pause before it, without what ran beside others."""
        return self.median_us + (self.gap_us or 0.0) - (self.overlap_us or 0.0)


@dataclass(frozen=True)
class HostTime:
    """What the host spends around the steps, in µs; None where it was not measured."""

    enqueue_us: float | None  # to queue one run on a GPU
    run_us: float | None  # `engine.run` as a caller sees it
    call_overhead_us: float | None  # of that, everything but the steps: checks, copies, transfers


@dataclass(frozen=True)
class MemoryUse:
    """Bytes of values that steps make, at the shapes of this run."""

    live_bytes: tuple[int, ...]  # while each step of `Trace.steps` runs
    peak_bytes: int
    peak_step: int  # index of the step at the peak; 0 if there is none
    arena_bytes: int
    io_bytes: int
    weight_bytes: int


@dataclass(frozen=True)
class Trace(Notebook):
    """One engine at one set of input shapes: `rounds` runs, every step timed in each."""

    model: str
    target: str
    device: str  # name of the machine's processor or GPU
    threads: int
    precision: str  # of the plan
    shapes: dict[str, str]  # of inputs: ``float32[1,3,48,320]``
    versions: dict[str, str]
    how: How
    rounds: int
    total_us: float  # the whole run without transfers: all steps on a CPU, one replay of the graph on a GPU
    total_p10_us: float
    total_p90_us: float
    total_samples_us: tuple[float, ...]
    steps: tuple[StepTime, ...]
    memory: MemoryUse
    host: HostTime
    timer_us: float = 0.0  # cost of one time-stamp, already taken off every step
    notes: tuple[str, ...] = ()  # why a better way to measure was not used, what did not go as planned
    format: str = FORMAT
    layers: dict[str, str] = field(default_factory=dict)  # of source nodes, where their names do not say it

    @property
    def steps_us(self) -> float:
        return math.fsum(step.median_us for step in self.steps)

    @property
    def gaps_us(self) -> float | None:
        return _sum([step.gap_us for step in self.steps])

    @property
    def overlap_us(self) -> float | None:
        return _sum([step.overlap_us for step in self.steps])

    @property
    def covered_us(self) -> float:
        """Steps and gaps, with what ran side by side counted once: to be compared with `total_us`."""
        return self.steps_us + (self.gaps_us or 0.0) - (self.overlap_us or 0.0)

    @property
    def coverage(self) -> float:
        """`covered_us` as a share of `total_us`: 1 where the steps explain the whole run."""
        return self.covered_us / self.total_us if self.total_us else 0.0

    def hottest(self, count: int) -> tuple[StepTime, ...]:
        return tuple(sorted(self.steps, key=lambda step: -step.median_us)[:count])

    def _view(self) -> View:
        rows = [
            {
                "index": step.index, "step": step.name, "kind": step.op_class, "tactic": step.tactic,
                "precision": step.precision, "median_us": step.median_us, "p10_us": step.p10_us,
                "p90_us": step.p90_us, "share": step.median_us / self.steps_us if self.steps_us else None,
                "start_us": step.start_us, "gap_us": step.gap_us, "bytes": step.bytes, "flops": step.flops,
            }
            for step in self.steps
        ]  # fmt: skip
        covered = f"steps make up {percent(self.coverage)} of it"
        about = (
            f"{duration(self.total_us)} a run on {self.device}; {covered}; {self.how}, {self.rounds} rounds"
        )
        return View(f"{self.model or 'engine'}: {about}", (Table("", tuple(rows)),), self.notes)

    def to_json(self) -> str:
        return json.dumps(_plain(self), indent=1, sort_keys=True) + "\n"

    @staticmethod
    def from_json(text: str | bytes, *, name: str = "this text") -> Trace:
        """A trace that was saved. `name` is the file's, for errors."""
        try:
            raw = parse_json(text)
        except (ValueError, RecursionError) as error:
            raise _unreadable(name, f"no whole JSON text: {first_line(error)}") from error
        found = raw.get("format") if isinstance(raw, dict) else None
        if found != FORMAT:
            raise _unreadable(name, f"format {found!r}" if found else _what(raw))
        try:
            trace = read_as(Trace, raw)
        except Misfit as error:
            raise _unreadable(name, str(error)) from error
        wrong = list(_contradictions(trace))
        if wrong:
            raise OptionError(f"{name} contradicts itself", rows=wrong, help=MAKE_ANOTHER)
        return trace


def _unreadable(name: str, got: str) -> OptionError:
    return OptionError(f"{name} is not a trace", got=got, want=f"format {FORMAT!r}", help=MAKE_ANOTHER)


def _what(raw: Any) -> str:
    """What a foreign file seems to be."""
    if not isinstance(raw, dict):
        return f"a JSON {type(raw).__name__}"
    if "traceEvents" in raw:
        return "a file for Perfetto, as --trace writes it"
    return f"schema {raw['schema']!r}" if "schema" in raw else "a JSON object without a format"


def _contradictions(trace: Trace) -> Iterator[str]:
    """What no measurement can have found."""
    yield from _not_numbers(trace, "")
    indices = [step.index for step in trace.steps]
    if indices != sorted(set(indices)) or any(index < 1 for index in indices):
        yield f"steps are numbered {indices[:LISTED]}, want ascending numbers from 1"
    if len(trace.memory.live_bytes) != len(trace.steps):
        yield f"memory of {len(trace.memory.live_bytes)} steps, want that of {len(trace.steps)}"
    if trace.rounds < 1 or len(trace.total_samples_us) != trace.rounds:
        yield f"{len(trace.total_samples_us)} samples of the whole run, want {trace.rounds}, one a round"
    elif not _is_median(trace.total_us, trace.total_samples_us):
        yield f"total_us is {trace.total_us}, and its samples have {median(trace.total_samples_us)}"
    for step in trace.steps:
        if step.samples_us and not _is_median(step.median_us, step.samples_us):
            found = median(step.samples_us)
            yield f"step {step.index}: median {step.median_us}, and its samples have {found}"
        if len(step.samples_us) != trace.rounds:
            yield f"step {step.index}: {len(step.samples_us)} samples, want {trace.rounds}, one a round"
        if not step.p10_us <= step.median_us <= step.p90_us:
            yield f"step {step.index}: median {step.median_us} is not between p10 and p90"


def _is_median(us: float, samples_us: Sequence[float]) -> bool:
    return math.isclose(us, median(samples_us), rel_tol=1e-6, abs_tol=1e-9)


def _not_numbers(value: Any, where: str) -> Iterator[str]:
    """Infinities, NaNs and negative amounts: Python's JSON reads the first two."""
    if isinstance(value, float) and not math.isfinite(value):
        yield f"{where} is {value}"
    elif isinstance(value, (int, float)) and value < 0:
        yield f"{where} is {value}, want 0 or more"
    elif is_dataclass(value):
        for field in fields(value):
            if field.name != "config":
                yield from _not_numbers(getattr(value, field.name), f"{where}.{field.name}".lstrip("."))
    elif isinstance(value, tuple):
        for i, item in enumerate(value):
            yield from _not_numbers(item, f"{where}[{i}]")


def _sum(parts: Sequence[float | None]) -> float | None:
    """None if any part is unknown."""
    known = [part for part in parts if part is not None]
    return math.fsum(known) if parts and len(known) == len(parts) else None


def _plain(value: Any) -> Any:
    if is_dataclass(value):
        given = ((f, getattr(value, f.name)) for f in fields(value))
        return {f.name: _plain(each) for f, each in given if not f.metadata or each != f.default}
    if isinstance(value, (tuple, list)):
        return [_plain(item) for item in value]
    return {k: _plain(v) for k, v in value.items()} if isinstance(value, dict) else value
