"""How a bench run is made: the options of `ridge bench` that decide what is measured, checked."""

from __future__ import annotations

import math
from dataclasses import dataclass

from ridgeline.base.spec import Target
from ridgeline.errors import OptionError

PERCENTILES = (90.0, 95.0, 99.0)
MAX_CONCURRENCY = 64
MAX_QUERIES = 1_000_000  # of all contexts together: the times of each are kept, about half a kilobyte


@dataclass(frozen=True)
class BenchSettings:
    """Each context runs for `duration_s` and at least `iterations` queries, after `warmup_ms`."""

    duration_s: float = 3.0
    warmup_ms: float = 200.0
    iterations: int = 10
    concurrency: int = 1  # contexts side by side, each in a thread of its own
    avg_runs: int = 0  # queries in a row that are averaged in the list of averages; 0: no such list
    percentiles: tuple[float, ...] = PERCENTILES
    transfers: bool = True  # inputs come from the host, outputs go there
    graph: bool = True  # on a GPU: steps are captured in a CUDA graph

    def __post_init__(self) -> None:
        for flag, value in (("--duration", self.duration_s), ("--warmup", self.warmup_ms)):
            if not (math.isfinite(value) and value >= 0):
                raise OptionError(f"{flag} is no length of time", got=str(value), want="0 or more")
        if self.iterations < 1:
            raise OptionError("--iterations is too small", got=str(self.iterations), want="1 or more")
        if self.avg_runs < 0:
            raise OptionError("--avg-runs is negative", got=str(self.avg_runs), want="1 or more")
        if not 1 <= self.concurrency <= MAX_CONCURRENCY:
            raise OptionError(
                "--concurrency is out of range",
                got=str(self.concurrency),
                want=f"1 to {MAX_CONCURRENCY} contexts, each with memory and a thread of its own",
            )
        if self.iterations * self.concurrency > MAX_QUERIES:
            raise OptionError(
                "--iterations is too large",
                got=f"{self.iterations:,} queries in each of {self.concurrency} contexts",
                want=f"at most {MAX_QUERIES:,} in all: the times of each are kept",
            )
        for percentile in self.percentiles:
            if not 0 <= percentile <= 100:
                raise OptionError("--percentile is out of range", got=f"{percentile:g}", want="0 to 100")


def require_possible(settings: BenchSettings, target: Target) -> None:
    """Raise for a setting that this target has nothing to do with."""
    if not settings.graph and not target.traits.is_gpu:
        raise OptionError(
            "--no-graph is for engines on a GPU",
            got=f"an engine for {target}",
            want="an engine whose steps are captured in a CUDA graph",
            help="leave it out: on a CPU the steps are called one by one in any case",
        )


def require_alone(settings: BenchSettings) -> None:
    """Raise for settings that the interleaved run with peers does not have."""
    plain = BenchSettings()
    asked = {
        "--concurrency": settings.concurrency != plain.concurrency,
        "--iterations": settings.iterations != plain.iterations,
        "--avg-runs": settings.avg_runs != plain.avg_runs,
        "--no-transfers": not settings.transfers,
        "--no-graph": not settings.graph,
    }
    flags = [flag for flag, is_given in asked.items() if is_given]
    if flags:
        raise OptionError(
            f"{', '.join(flags)} cannot be used beside --peers",
            want="peers alone: they take turns with the engine, one context each, arrays in and out",
            help="run ridge bench twice, once with --peers",
        )
