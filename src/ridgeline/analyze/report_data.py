"""All that `ridge report` says of an engine, as frozen rows. `report_engine.py` makes them."""

from __future__ import annotations

from dataclasses import dataclass

from ridgeline.analyze.explain import (
    AlternativeRow,
    Contest,
    UnfusedRow,
    UnwillingRow,
)
from ridgeline.analyze.findings.finding import Finding
from ridgeline.analyze.kernel_report import KernelRow
from ridgeline.analyze.profile_report import HotSpot
from ridgeline.analyze.report_graph import RegionBody
from ridgeline.analyze.show import Summary
from ridgeline.base.notebook import Notebook, Table, View
from ridgeline.base.spec import Config
from ridgeline.base.units import duration, percent
from ridgeline.plan.plan import Memory
from ridgeline.plan.report import Check, Island
from ridgeline.plan.trace import HostTime, KernelTime, NodeTime, NodeWork


@dataclass(frozen=True)
class ReportStep:
    """One step: what it is, how long it takes and how near to the machine's ceilings, and why it is so."""

    index: int
    name: str
    op_class: str
    precision: str  # type that it computes in
    ops: tuple[str, ...]
    ops_text: str
    nodes: tuple[str, ...]  # of the original model
    regions: tuple[str, ...]
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    tactic: str
    config: Config
    us: float | None
    share: float | None  # of the time of all steps
    flops: int
    bytes: int
    contest: Contest
    why: str
    notes: tuple[str, ...]
    kernels: tuple[str, ...]  # digests of our own GPU kernels
    # the least time that the machine's ceilings allow, by memory or arithmetic; null where it is not known
    bound_us: float | None = None
    bound_by: str = ""
    limiter: str = ""  # as `ridge profile` judges it; empty without ceilings or times
    evidence: str = ""
    p10_us: float | None = None  # of a trace, as all that follows
    p90_us: float | None = None
    start_us: float | None = None  # from the start of the run
    gap_us: float | None = None  # idle time before it
    launches: tuple[KernelTime, ...] = ()  # where kernels were seen
    inside: tuple[NodeTime, ...] = ()  # nodes of a step that a library runs as a whole
    work: tuple[NodeWork, ...] = ()  # of the ops in its body

    @property
    def intensity(self) -> float | None:
        """Flops for each byte."""
        return self.flops / self.bytes if self.bytes and self.flops else None

    @property
    def bytes_per_us(self) -> float | None:
        return self.bytes / self.us if self.us else None

    @property
    def flops_per_us(self) -> float | None:
        return self.flops / self.us if self.us else None

    @property
    def roofline(self) -> float | None:
        """Its least time as a share of its time: 1 is as fast as the machine can be."""
        return self.bound_us / self.us if self.us and self.bound_us is not None else None


@dataclass(frozen=True)
class ReportRegion:
    """A node of the fused graph. `step` counts from 1; 0 is what is known before work starts."""

    name: str
    step: int
    function: str  # the name of its body
    ops: tuple[str, ...]
    nodes: tuple[str, ...]
    op_class: str
    contest: Contest | None  # of the region alone; null if it was not considered alone
    inputs: tuple[str, ...] = ()  # without weights; of the graph, as all that follows
    outputs: tuple[str, ...] = ()
    weights: tuple[str, ...] = ()  # name and type


@dataclass(frozen=True)
class Roof:
    """The machine's ceilings, in units per µs."""

    name: str
    source: str
    is_measured: bool
    bytes_per_us: float  # of memory: what the largest copies reach
    cache_bytes_per_us: float | None  # what smaller copies reach, if that is clearly more
    flops_per_us: dict[str, float]  # of the types that steps compute in
    launch_us: float | None


@dataclass(frozen=True)
class Measured:
    """The run that times come from: the whole of it, and what it was."""

    how: str
    device: str
    rounds: int
    shapes: dict[str, str]
    total_us: float
    total_p10_us: float
    total_p90_us: float
    steps_us: float
    gaps_us: float | None
    overlap_us: float | None
    coverage: float  # steps and gaps as a share of the whole run
    bound: str  # host | device: what sets the pace
    bound_evidence: str
    host: HostTime
    live_bytes: tuple[int, ...]
    notes: tuple[str, ...]


@dataclass(frozen=True)
class EngineReport(Notebook):
    """An engine, all of it."""

    summary: Summary
    times: str  # where the times of steps come from
    latency_us: float | None  # one run, by the best measurement there is
    latency_of: str  # what was measured
    roofline: float | None  # least time of all steps as a share of their time
    steps: tuple[ReportStep, ...]
    regions: tuple[ReportRegion, ...]
    bodies: tuple[RegionBody, ...]
    graph_inputs: tuple[str, ...]
    graph_outputs: tuple[str, ...]
    memory: Memory
    roof: Roof | None
    measured: Measured | None
    hot_spots: tuple[HotSpot, ...]  # of a trace: what takes longest, and what to do about it
    findings: tuple[Finding, ...]  # what to change in the model, the largest gain first
    not_looked_for: tuple[str, ...]  # kinds of findings that need the engine itself, which was not loaded
    why: str
    alternatives: tuple[AlternativeRow, ...]
    unfused: tuple[UnfusedRow, ...]
    unwilling: tuple[UnwillingRow, ...]
    host_values: tuple[str, ...]
    islands: tuple[Island, ...]
    checks: tuple[Check, ...]
    kernels: tuple[KernelRow, ...]

    def _view(self) -> View:
        rows = tuple(
            {
                "index": step.index, "step": step.name, "kind": step.op_class, "precision": step.precision,
                "ops": step.ops_text, "tactic": step.tactic, "time_us": step.us, "share": step.share,
                "roofline": step.roofline, "bound_by": step.bound_by, "bytes": step.bytes,
                "flops": step.flops,
            }
            for step in self.steps
        )  # fmt: skip
        about = f"{duration(self.latency_us)} ({self.latency_of}), {percent(self.roofline)} of the roofline"
        return View(f"{self.summary.model or 'engine'}: {about}", (Table("", rows),))
