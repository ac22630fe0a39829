"""What a run of the load generator comes to: one row of figures per level, and the report of all of them."""

from __future__ import annotations

import csv
import io
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np

from ridgeline.base.notebook import Notebook, Table, View
from ridgeline.base.timing import Timing
from ridgeline.serve.clients.client import error_text
from ridgeline.serve.loadtest.generator import LOST, Shots

PERCENTILES = ("50", "90", "95", "99", "99.9")
BUSY = 0.9  # a generator that computes for a larger share of the time is what was measured
LATE_SHARE = 0.2  # of the median latency, that the generator's own lateness may take
PARTS = {"queue": "queue", "input": "compute_input", "infer": "compute_infer", "output": "compute_output"}
NO_ANSWER = "no answer"


@dataclass(frozen=True)
class ServerTimes:
    """What the server counted meanwhile: means per request in it, and the batches that it made."""

    requests: int
    queue_us: float
    input_us: float
    infer_us: float
    output_us: float
    rows_per_batch: float


@dataclass(frozen=True)
class LevelRow:
    """The server at one level of load. Latencies are of requests that were answered well."""

    level: float  # connections of a closed loop, requests per second of an open one
    seconds: float
    requests: int
    errors: dict[str, int]  # by status
    first_error: str
    throughput_rps: float
    rows_per_s: float
    mean_us: float | None
    percentiles_us: dict[str, float]
    max_us: float | None
    server: ServerTimes | None  # None for a server without statistics
    generator_us: float  # of the generator's processor time, per request
    generator_share: float  # of one core
    late_p99_us: float | None  # how late the generator itself was, in an open loop
    gave_up: bool
    warnings: tuple[str, ...]

    @property
    def p99_us(self) -> float:
        """Infinite if nothing was answered."""
        return self.percentiles_us.get("99", float("inf"))

    def keeps(self, bound_us: float) -> bool:
        return not self.errors and not self.gave_up and self.p99_us <= bound_us


@dataclass(frozen=True)
class LoadReport(Notebook):
    """A load test of one model, level by level."""

    url: str
    model: str
    version: str
    loop: Literal["closed", "open"]
    arrivals: str  # of an open loop: poisson or constant
    duration_s: float
    warmup_s: float
    shapes: dict[str, tuple[int, ...]]
    types: dict[str, str]
    rows_per_request: int
    request_bytes: int
    rows: tuple[LevelRow, ...]
    p99_bound_us: float | None  # of a search
    best_rps: float | None  # the highest rate that kept the bound

    def _view(self) -> View:
        tables = Table("", tuple(flat(row) for row in self.rows))
        return View(f"{self.model} at {self.url}, {self.loop} loop", (tables,), ())


def level_row(level: float, shots: Shots, *, rows_per_request: int, server: ServerTimes | None) -> LevelRow:
    due, ended = np.array(shots.due_ns, np.int64), np.array(shots.ended_ns, np.int64)
    statuses = np.array(shots.statuses, np.int64)
    good = (statuses >= 200) & (statuses < 300)
    latencies = (ended - due)[good] / 1e3
    timing = Timing(tuple(latencies.tolist()))
    window_s = max(shots.window_ns, 1) / 1e9
    rate = int((good & (ended <= shots.window_ns)).sum()) / window_s
    errors = Counter(statuses[~good].tolist())
    late = Timing(tuple(each / 1e3 for each in shots.late_ns))
    late_us = late.percentile(99) if shots.late_ns else None
    cpu_s, wall_s = shots.cpu_ns / 1e9, max(int(ended.max(initial=0)), shots.window_ns, 1) / 1e9
    percentiles = {name: timing.percentile(float(name)) for name in PERCENTILES} if len(latencies) else {}
    return LevelRow(
        level=level,
        seconds=window_s,
        requests=len(statuses),
        errors={NO_ANSWER if s == LOST else str(s): count for s, count in sorted(errors.items())},
        first_error=_first_error(shots),
        throughput_rps=rate,
        rows_per_s=rate * rows_per_request,
        mean_us=float(latencies.mean()) if len(latencies) else None,
        percentiles_us=percentiles,
        max_us=float(latencies.max()) if len(latencies) else None,
        server=server,
        generator_us=cpu_s * 1e6 / max(len(statuses), 1),
        generator_share=cpu_s / wall_s,
        late_p99_us=late_us,
        gave_up=shots.gave_up,
        warnings=_warnings(cpu_s / wall_s, late_us, percentiles, shots),
    )


def server_times(before: Any, after: Any) -> ServerTimes | None:
    """The difference of two answers of the statistics, over all versions; None if nothing was counted.

    Also None for statistics of another form: what was measured by then is worth more than those.
    """
    try:
        old, new = _totals(before), _totals(after)
        counted = {name: new[name] - old.get(name, 0) for name in new}
        requests, batches = counted.get("requests", 0), counted.get("batches", 0)
        if requests <= 0:
            return None
        means = {f"{name}_us": counted[name] / requests / 1e3 for name in PARTS}
        return ServerTimes(requests, **means, rows_per_batch=counted["rows"] / max(batches, 1))
    except (KeyError, TypeError, AttributeError, ValueError, OverflowError):
        return None


def _totals(told: Any) -> dict[str, int]:
    totals: Counter[str] = Counter()
    for model in told["model_stats"]:
        counts = model["inference_stats"]
        totals["rows"] += int(model["inference_count"])
        totals["batches"] += int(model["execution_count"])
        totals["requests"] += int(counts["success"]["count"])
        for name, field in PARTS.items():
            totals[name] += int(counts[field]["ns"])
    return dict(totals)


def _first_error(shots: Shots) -> str:
    for status, body in sorted(shots.refusals.items()):
        return error_text(body, status)
    return shots.problem


def _warnings(
    share: float, late_us: float | None, percentiles: Mapping[str, float], shots: Shots
) -> tuple[str, ...]:
    made = []
    if share > BUSY:
        made.append("the generator never rested: it was the limit, not the server")
    if late_us is not None and percentiles and late_us > LATE_SHARE * percentiles["50"] and late_us > 1000:
        made.append(
            "the generator sent requests late: it had too little of a processor, and latencies show it"
        )
    if shots.gave_up:
        made.append("answers fell far behind the schedule: ended early")
    return tuple(made)


def table_text(report: LoadReport) -> str:
    """The levels as CSV."""
    file = io.StringIO()
    rows = [flat(row) for row in report.rows]
    writer = csv.DictWriter(file, list(rows[0]) if rows else [], lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    return file.getvalue()


def flat(row: LevelRow) -> dict[str, Any]:
    """A column for each figure, as tables and CSV have them."""
    plain = ("level", "seconds", "requests", "throughput_rps", "rows_per_s", "mean_us")
    made: dict[str, Any] = {name: getattr(row, name) for name in plain}
    made |= {f"p{name}_us": row.percentiles_us.get(name) for name in PERCENTILES}
    made |= {"max_us": row.max_us, "errors": sum(row.errors.values())}
    server = vars(row.server) if row.server is not None else dict.fromkeys(ServerTimes.__annotations__)
    made |= {f"server_{name}": value for name, value in server.items()}
    more = ("generator_us", "generator_share", "late_p99_us", "gave_up")
    return made | {name: getattr(row, name) for name in more}
