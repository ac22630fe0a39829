"""One engine for a range of batches, tuned at several points, against a fixed-shape engine at each point.

    python -m bench.moving_batch NETWORK ... [--points 1,8,32] [--target cpu|cuda] [--level N] [--out FILE]

Networks are those of `bench/networks.py`, with float16 weights on a GPU. The range goes from the first point
to the last, and its `opt` is the middle one. At each point three engines run in turn: the one tuned at every
point (`tune_at=`), the same range tuned at `opt` alone, and one built for this batch only. A ratio is the
fixed engine's time over the other's in the same run: 0.95 is 95 % of its speed. On a GPU times are those of
graph replays. Every engine is verified when it is built; a row without that gate does not count. Exit 3 if
one fails.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from datetime import datetime
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from time import perf_counter
from typing import Any

import numpy as np
import torch

import ridgeline
from bench.feeds import draw
from bench.models_cpu import GATE_FAILED, RESULTS, surroundings
from bench.networks import NETWORKS, export
from ridgeline.analyze.bench import SETTLE_S
from ridgeline.analyze.parts import part_rows
from ridgeline.base.gpu_timing import interleave_graphs
from ridgeline.base.timing import Timing, interleave, paired_ratio
from ridgeline.runtime.device import current_device

WANTED = 0.95  # of the fixed engine's speed, at every point
ROUNDS = 11
Feeds = dict[str, np.ndarray[Any, Any]]


@dataclass(frozen=True)
class Row:
    """One network at one batch."""

    network: str
    batch: int
    gate: str  # "pass", or why the figures do not count
    fixed_us: float
    tuned_us: float
    opt_only_us: float
    tuned: float  # the fixed engine's time over this one's
    opt_only: float
    fixed_tactics: dict[str, int]
    tuned_tactics: dict[str, int]


@dataclass(frozen=True)
class Engines:
    """What is built for one network."""

    tuned: ridgeline.Engine
    opt_only: ridgeline.Engine
    fixed: Mapping[int, ridgeline.Engine]
    build_s: Mapping[str, float]


def feeds_of(name: str, batch: int, *, half: bool) -> Feeds:
    """As exported: floats are float16 where the weights are."""
    made = {n: replace(feed, shape=(batch, *feed.shape[1:])) for n, feed in NETWORKS[name].feeds.items()}
    arrays = draw(made, seed=7)
    return {n: a.astype(np.float16) if half and a.dtype.kind == "f" else a for n, a in arrays.items()}


def profile_of(name: str, batch: str) -> dict[str, str]:
    """Every input with this size, or range of sizes, as its batch."""
    return {n: "x".join((batch, *map(str, feed.shape[1:]))) for n, feed in NETWORKS[name].feeds.items()}


def build_all(name: str, points: Sequence[int], model: Path, options: Mapping[str, Any]) -> Engines:
    seconds: dict[str, float] = {}

    def built(label: str, **more: Any) -> ridgeline.Engine:
        began = perf_counter()
        engine = ridgeline.build(model, progress=False, **options, **more)
        seconds[label] = round(perf_counter() - began, 1)
        return engine

    low, opt, high = points[0], points[len(points) // 2], points[-1]
    moving = profile_of(name, f"{low}..{opt}..{high}")
    shapes = [profile_of(name, str(batch)) for batch in points if batch != opt]
    return Engines(
        built("tuned", profiles=moving, tune_at=[{n: [s] for n, s in each.items()} for each in shapes]),
        built("opt_only", profiles=moving, tune_at="opt"),
        {batch: built(f"fixed_{batch}", profiles=profile_of(name, str(batch))) for batch in points},
        seconds,
    )


def times(engines: Sequence[ridgeline.Engine], feeds: Feeds, *, seconds: float) -> list[Timing]:
    """The engines on the same inputs, in turn."""
    contexts = [engine.context(wait=True) for engine in engines]
    if engines[0].fused.is_gpu:
        there = {name: torch.from_numpy(array).cuda() for name, array in feeds.items()}
        graphs = [context.bind(there).graph for context in contexts]  # type: ignore[attr-defined]
        return interleave_graphs(graphs, rounds=ROUNDS, min_sample_us=5000)
    calls = [partial(context.run, feeds) for context in contexts]
    for call in calls:
        call()
    return interleave(calls, budget_s=seconds * len(calls), settle_s=SETTLE_S)


def tactics(engine: ridgeline.Engine, feeds: Feeds) -> dict[str, int]:
    """Steps by tactic, of the plan that runs these inputs."""
    specs = engine.signature.specs(engine.signature.checked(feeds))
    names = [step.tactic for step in engine.profiles.at(specs).plan.steps]
    return {name: names.count(name) for name in dict.fromkeys(names)}


def measure(name: str, batch: int, engines: Engines, *, half: bool, seconds: float) -> Row:
    feeds, fixed = feeds_of(name, batch, half=half), engines.fixed[batch]
    every = (fixed, engines.tuned, engines.opt_only)
    timings = times(every, feeds, seconds=seconds)
    unsure = [label for label, each in zip(("fixed", "tuned", "opt only"), every, strict=True)
              if not each.report.verified]  # fmt: skip
    return Row(
        name, batch, f"not verified: {', '.join(unsure)}" if unsure else "pass",
        *(round(timing.median_us, 2) for timing in timings),
        *(round(paired_ratio(timings[0], timing), 3) for timing in timings[1:]),
        tactics(fixed, feeds), tactics(engines.tuned, feeds),
    )  # fmt: skip


def describe(engines: Engines) -> dict[str, Any]:
    """What the engines cost."""
    return {
        "build_s": dict(engines.build_s),
        "parts": [f"{row.tuned_at} for {row.takes}" for row in part_rows(engines.tuned.plan)],
        "memory": {"tuned": engines.tuned.memory(), "opt_only": engines.opt_only.memory()},
        "warnings": list(engines.tuned.report.warnings),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("networks", nargs="+", choices=sorted(NETWORKS))
    parser.add_argument("--points", default="1,8,32")
    parser.add_argument("--target", choices=("cpu", "cuda"), default="cpu")
    parser.add_argument("--level", type=int, default=3)
    parser.add_argument("--time-limit", type=float, help="of each build, in seconds")
    parser.add_argument("--threads", type=int, default=0)
    parser.add_argument("--seconds", type=float, default=3.0, help="of timing for each engine, on a CPU")
    parser.add_argument("--out", type=Path)
    given = parser.parse_args()
    points = sorted({int(point) for point in given.points.split(",")})
    half = given.target == "cuda"
    options = {"target": given.target, "level": given.level, "threads": given.threads}
    options["time_limit"] = given.time_limit
    where = asdict(current_device()) if half else {}
    out = given.out or RESULTS / f"moving-batch-{given.target}-{datetime.now():%Y-%m-%d}.json"
    made: dict[str, Any] = surroundings(threads=given.threads, duration_s=given.seconds) | {
        "wanted": WANTED, "options": options, "device": where, "engines": {}, "rows": [],
    }  # fmt: skip
    with TemporaryDirectory() as folder:
        for name in given.networks:
            model = export(name, Path(folder), half=half, any_batch=True)
            engines = build_all(name, points, model, options)
            for batch in points:
                row = measure(name, batch, engines, half=half, seconds=given.seconds)
                made["rows"].append(asdict(row))
                sys.stdout.write(
                    f"{name:16} batch {row.batch:4}  fixed {row.fixed_us:10.1f} µs  tuned {row.tuned:6.3f}  "
                    f"opt only {row.opt_only:6.3f}   {row.gate}\n"
                )
                sys.stdout.flush()
                made["engines"][name] = describe(engines)
                out.write_text(json.dumps(made, indent=1) + "\n", encoding="utf-8")
    sys.exit(GATE_FAILED if any(row["gate"] != "pass" for row in made["rows"]) else 0)


if __name__ == "__main__":
    main()
