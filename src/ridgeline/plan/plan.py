"""The plan: frozen steps, memory, signature, provenance, losers and refusals. Readable as JSON, decided once.

Nothing here runs. Same model, options and timings give the same text, so no clock and no path is in it.
"""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from dataclasses import dataclass, field, fields, is_dataclass, replace
from typing import Any

from ridgeline.base.choices import Candidate, Refusal
from ridgeline.base.guards import Term, read_guards
from ridgeline.base.spec import Config, Port, Target, TensorSpec
from ridgeline.base.typed_json import parse_json, read_as
from ridgeline.options import DimRange, ValueRange

FORMAT = 1
LEFT_OUT = {"left out": True}  # of a field that is not written where it has its default


@dataclass(frozen=True)
class Work:
    """What a step must do at the least, by `ir/work.py`."""

    flops: int
    bytes: int


@dataclass(frozen=True)
class Step:
    """One launch: a region, or a span of neighbouring regions taken by one tactic."""

    name: str
    regions: tuple[str, ...]
    op_types: tuple[str, ...]  # ONNX ops it computes, in order
    sources: tuple[str, ...]  # nodes of the original model
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    tactic: str
    config: Config
    site: str
    work: Work
    median_us: float | None = None  # None: chosen without timing
    losers: tuple[Candidate, ...] = ()
    why: str = ""  # one sentence: what made this choice
    notes: tuple[str, ...] = ()
    predicted_us: float | None = None
    kernels: tuple[str, ...] = ()  # digests of our own GPU kernels that it launches
    # of a captured run (`plan/streams.py`): 0 is the main stream. Steps are counted from 0
    stream: int = field(default=0, metadata=LEFT_OUT)
    waits: tuple[int, ...] = field(default=(), metadata=LEFT_OUT)  # steps of other streams that end before it


@dataclass(frozen=True)
class RegionNote:
    """A fused region and who would run it, whichever step has it in the end."""

    name: str
    function: str
    op_types: tuple[str, ...]
    sources: tuple[str, ...]
    site: str
    work: Work
    candidates: tuple[Candidate, ...] = ()  # the best first, then the slower ones, then those that refused


@dataclass(frozen=True)
class Block:
    """A value's place in memory at the planned shapes, alive from step `first` to step `last`."""

    value: str
    spec: str
    nbytes: int
    kind: str  # arena | view | library | input | output
    offset: int = 0
    of: str = ""  # for a view: the value whose memory it shares
    first: int = 0
    last: int = 0


@dataclass(frozen=True)
class Memory:
    """Memory at the planned shapes. `arena` and `io` belong to a context, the rest to the engine."""

    arena_bytes: int
    unshared_bytes: int  # what the arena would need if no two values shared memory
    io_bytes: int
    weight_bytes: int
    packed_bytes: int
    library_bytes: int  # the most that libraries hold in outputs they allocate themselves
    live_bytes: tuple[int, ...] = ()  # per step
    blocks: tuple[Block, ...] = ()


@dataclass(frozen=True)
class Guess:
    """The planned shapes were guessed. What choosing again may spend when the first real ones come."""

    level: int
    workspace_bytes: int | None = None
    time_limit: float | None = None


@dataclass(frozen=True)
class Plan:
    """Everything an engine needs besides its weights and its graph."""

    model: str
    target: Target
    precision: str
    inputs: tuple[Port, ...]
    outputs: tuple[Port, ...]
    profile: dict[str, tuple[DimRange, ...]]
    planned_shapes: dict[str, TensorSpec]  # the inputs that steps were chosen and memory was planned for
    steps: tuple[Step, ...]
    memory: Memory
    regions: tuple[RegionNote, ...] = ()
    host_values: tuple[str, ...] = ()  # shape arithmetic, settled before work starts
    refusals: tuple[Refusal, ...] = ()
    alternatives: tuple[Candidate, ...] = ()  # whole plans compared by their total time
    why: str = ""
    format: int = FORMAT
    slow_ops: tuple[str, ...] = ()
    value_profile: dict[str, tuple[ValueRange, ...]] = field(default_factory=dict)  # of shape tensors
    others: tuple[Plan, ...] = ()  # the same graph planned for the further profiles
    # of a profile that is tuned at several points: the sizes that this plan takes; empty: all
    part: dict[str, tuple[DimRange, ...]] = field(default_factory=dict)
    parts: tuple[Plan, ...] = ()  # the same profile planned for its further points
    # new shapes are planned before they first run, so that the same input gives the same bits
    waits: bool = False
    pads: bool = False  # inputs that fit no profile are padded to the nearest larger one
    bodies: dict[str, Plan] = field(default_factory=dict)  # of subgraphs, by `step.attribute`
    guards: tuple[Term, ...] = ()  # what the model takes for granted about the sizes of its inputs
    layers: dict[str, str] = field(default_factory=dict)  # of source nodes, where their names do not say it
    guess: Guess | None = None  # None: the shapes were given, or nothing would be chosen otherwise at others

    @property
    def every_plan(self) -> tuple[Plan, ...]:
        """This one and those inside it: for each profile its own, then those of its further points."""
        return tuple(each for profile in (self, *self.others) for each in (profile, *profile.parts))

    @property
    def is_predicted(self) -> bool:
        """Some choice was made without the machine, and may be settled there."""
        return any(step.predicted_us is not None for step in self.steps)

    def to_json(self) -> str:
        return json.dumps(_plain(self), indent=1, sort_keys=True) + "\n"

    @staticmethod
    def from_json(text: str | bytes | memoryview) -> Plan:
        return _with_guards(read_as(Plan, parse_json(text)))


def total_us(steps: Sequence[Step]) -> float | None:
    """The sum of all times; None if a step was chosen without timing."""
    times = [step.median_us for step in steps if step.median_us is not None]
    return math.fsum(times) if times and len(times) == len(steps) else None


def _plain(value: Any) -> Any:
    """As `asdict`, which copies every leaf: a plan has tens of thousands."""
    if is_dataclass(value):
        given = ((f, getattr(value, f.name)) for f in fields(value))
        return {f.name: _plain(each) for f, each in given if not f.metadata or each != f.default}
    if isinstance(value, (tuple, list)):
        return [_plain(item) for item in value]
    return {k: _plain(v) for k, v in value.items()} if isinstance(value, dict) else value


def _with_guards(plan: Plan) -> Plan:
    """Guards are trees over the inputs' sizes, and have a reader of their own."""
    ranks = {port.name: None if port.dims is None else len(port.dims) for port in plan.inputs}
    return replace(
        plan,
        guards=read_guards(list(plan.guards), ranks),
        others=tuple(map(_with_guards, plan.others)),
        parts=tuple(map(_with_guards, plan.parts)),
        bodies={key: _with_guards(body) for key, body in plan.bodies.items()},
    )
