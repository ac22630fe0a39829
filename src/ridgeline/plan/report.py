"""The build report that rides in an engine: what was verified, how long each stage took, what to know."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, field

from ridgeline.base.notebook import Notebook, Table, View
from ridgeline.base.typed_json import parse_json, read_as

# how the warning begins that is withdrawn when real shapes have come
GUESSED = "shapes were guessed"


@dataclass(frozen=True)
class Check:
    """One comparison of an output of the engine with the reference."""

    name: str  # "opt shapes", "batch 1 against 4", "fused against unfused", …
    output: str
    shapes: str
    max_error: float
    tolerance: float
    passed: bool
    note: str = ""

    def __str__(self) -> str:
        off = f"{self.output} off {self.max_error:.3g}, tolerance {self.tolerance:.3g}"
        return f"{off} at {self.shapes} {self.note}"


@dataclass(frozen=True)
class Island:
    """A step that cannot be planned, since data decides its shapes or how often it runs, and its cost."""

    step: str
    ops: tuple[str, ...]
    why: str
    body: str = ""  # how the subgraphs it runs were planned
    median_us: float | None = None  # None: inside a step that a library runs as a whole, or not timed
    share: float | None = None  # of all steps' time


@dataclass(frozen=True)
class RunPart:
    """Steps of a run on a GPU: neighbours in one CUDA graph, or one that runs between graphs."""

    graph: str  # the subgraph that is run, by `step.attribute`; empty for the model itself
    steps: tuple[str, ...]
    is_captured: bool
    why: str = ""  # why it runs between graphs


@dataclass(frozen=True)
class Kept:
    """Nodes of the model that stayed in high precision, and why."""

    node: str
    why: str


@dataclass(frozen=True)
class Precision:
    """How a model was lowered, and how far that carried its outputs on samples that were held out."""

    asked: str
    # how many of what is `counted` compute in each type; those in the high one are the nodes of `kept`,
    # unless the whole model stays in it
    nodes: dict[str, int] = field(default_factory=dict)
    # nodes of the model as it was given, without those that only move elements; or its products
    counted: str = "nodes"
    kept: tuple[Kept, ...] = ()
    helped_by: tuple[str, ...] = ()  # smoothing, compensation: what brought it inside its budget
    budget: float = 0.0
    # of the worst output of the worst sample, or the mean of the user's metric; None: not judged yet
    error: float | None = None
    emulated: float | None = None  # the same as it was foreseen, on samples of the calibration
    errors: dict[str, float] = field(default_factory=dict)  # by output, the worst sample
    samples: int = 0
    drawn: bool = False  # at random: no data was given
    held_out: bool = True  # False: too few samples, so that those of calibration had to serve
    sensitivity: dict[str, float] = field(default_factory=dict)  # by node, its error alone, if a search ran
    metric: str = ""  # the user's own, if one judged
    plain: str = ""  # the precision of the engine that was timed beside this one; empty: none was
    plain_us: float | None = None  # its time
    lowered_us: float | None = None  # of the lowered engine, whichever of the two was kept

    @property
    def is_lowered(self) -> bool:
        """Some node has a lower precision than the model: tolerances for rounding do not hold for it."""
        return bool(set(self.nodes) - {"fp32", "tf32"})


@dataclass(frozen=True)
class PlannedAgain:
    """An engine of guessed shapes was planned again at the first real ones, and both plans timed there."""

    shapes: str
    guessed_us: float  # a run by the plan for the guessed shapes
    real_us: float  # by the one made for these
    is_taken: bool  # the new plan is faster beyond noise, and runs from then on
    took_s: float

    def __str__(self) -> str:
        at = f"planned again at {self.shapes} (guessed before)"
        if self.is_taken:
            return f"{at}: {self.real_us:.4g} µs a run instead of {self.guessed_us:.4g}"
        return (
            f"{at}: the plan stays, a new one is not faster ({self.real_us:.4g} and {self.guessed_us:.4g} µs)"
        )


@dataclass(frozen=True)
class Report(Notebook):
    """Figures of one build. Unlike a plan it holds clocks, so no two are the same."""

    nodes: int = 0  # of the model as it was given; Constant nodes are not counted
    reference: str = ""  # who computed the expected outputs
    checks: tuple[Check, ...] = ()
    build_s: float | None = None  # wall time of the whole build, with every engine that it made
    # its parts, summed over those engines; `lowering` is what decided on precision
    stage_seconds: dict[str, float] = field(default_factory=dict)
    engines_built: int = 1  # more than one where precisions were compared
    call_overhead_us: float | None = None  # engine.run minus its steps
    run_us: float | None = None  # median of engine.run at the planned shapes
    sites_timed: int = 0
    sites_cached: int = 0
    library_allocations: tuple[str, ...] = ()  # steps whose outputs a library allocates at run time
    warnings: tuple[str, ...] = ()
    versions: dict[str, str] = field(default_factory=dict)
    unverified: str = ""  # why the engine itself has not run yet, where only its graph could be checked
    # by output: the distance and the share of other values that its first run is allowed
    limits: dict[str, tuple[float, float]] = field(default_factory=dict)
    islands: tuple[Island, ...] = ()
    # how runs on a GPU go that one CUDA graph cannot hold, and their subgraphs, as far as they have run
    run_parts: tuple[RunPart, ...] = ()
    precision: Precision | None = None  # None: the model was built in its own types
    # how many products of the finished graph read codes, by format; weights alone are w8, w4, …
    codes: dict[str, int] = field(default_factory=dict)
    planned_again: PlannedAgain | None = None

    @property
    def verified(self) -> bool:
        return not self.unverified and bool(self.checks) and all(check.passed for check in self.checks)

    def _view(self) -> View:
        checks = tuple({**vars(check), "passed": check.passed} for check in self.checks)
        stages = tuple({"stage": name, "took_s": seconds} for name, seconds in self.stage_seconds.items())
        verdict = "verified" if self.verified else self.unverified or "not verified"
        against = f" against {self.reference}" if self.reference else ""
        tables = (Table("Checks", checks), Table("Stages of the build", stages))
        return View(f"{verdict}{against}, {len(checks)} checks", tables, self.warnings)

    def to_json(self) -> str:
        return json.dumps(asdict(self), indent=1, sort_keys=True) + "\n"

    @staticmethod
    def from_json(text: str | bytes | memoryview) -> Report:
        raw = parse_json(text)
        if "checks" not in raw:
            raise ValueError("a report without checks")
        return read_as(Report, raw)
