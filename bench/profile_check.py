"""Profiles on the CPU, checked: steps against the whole run, the hottest against ONNX Runtime's profiler.

    python -m bench.profile_check [--cases ppocr6_rec,minilm_18] [--rounds 50] [--level 3] [--threads N]

Each model is built twice, with and without ONNX Runtime as a tactic. `coverage` is the sum of the steps'
medians over the median of the whole run, both from the same interleaved rounds. The second opinion is
PyTorch's profiler, with a range around every step and a clock of its own; where the engine is one session of
ONNX Runtime, that library's profile of the original file, and the nodes inside are compared. Layers of a
network are often equal: the three hottest agree if each of ours takes there at least `TIE` of the third
hottest there. `--clock processor` counts the time of one thread on the processor, for a machine that others
use too; the second opinion on steps is then Python's own profiler. Exit 3 if a check fails.
"""

from __future__ import annotations

import argparse
import cProfile
import json
import os
import pstats
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, TypeAlias

import numpy as np
import onnx
import torch

import ridgeline
from bench.cases import CASES, Case
from bench.models_cpu import GATE_FAILED, RESULTS, surroundings
from ridgeline.analyze.profile_report import CrossRow
from ridgeline.analyze.torch_profiler import cross_check
from ridgeline.base import timing
from ridgeline.frontend.other_runtimes import open_session, session_options
from ridgeline.plan.trace import StepTime, Trace
from ridgeline.tactics.cpu.ort_profile import time_nodes

LARGEST_ERROR = 0.10
HOTTEST = 3
Parts: TypeAlias = dict[str, float]  # µs by the name of a step, or of a node inside one
TIE = 0.80


def by_torch(engine: ridgeline.Engine, trace: Trace, feeds: Mapping[str, np.ndarray], rounds: int) -> Parts:
    """By PyTorch's profiler: ranges around the same steps, timed with its own clock."""
    return {_step_name(row): row.range_us or 0.0 for row in cross_check(engine, feeds, trace, rounds)}


def by_python(engine: ridgeline.Engine, trace: Trace, feeds: Mapping[str, np.ndarray], rounds: int) -> Parts:
    """By Python's own profiler, to which every step is a function of its own, on the processor's clock."""
    instance = engine.context(wait=True).instance(feeds)
    profiler = cProfile.Profile(time.process_time)
    with torch.inference_mode():
        pairs = zip(instance.call_steps, instance.calls, strict=True)
        steps = [_named(f"step_{index + 1}", call) for index, call in pairs]
        profiler.enable()
        for _ in range(rounds):
            for step in steps:
                step()
        profiler.disable()
    taken = {key[2]: stats[3] for key, stats in pstats.Stats(profiler).stats.items()}  # type: ignore[attr-defined]
    return {_step_name(step): taken[f"step_{step.index}"] / rounds * 1e6 for step in trace.steps}


def _named(name: str, call: Callable[[], object]) -> Callable[[], object]:
    def step() -> object:
        return call()

    step.__code__ = step.__code__.replace(co_name=name, co_qualname=name)
    return step


def by_ort(case: Case, trace: Trace, feeds: Mapping[str, np.ndarray], threads: int, rounds: int) -> Parts:
    """By ONNX Runtime's profiler on the original file: the time of the nodes that each part stands for.

    A node that its optimiser made is found by the value that it makes, whose name it keeps or adds to.
    """
    nodes = onnx.load(case.path()).graph.node
    makers = {name: node.name for node in nodes for name in (*node.output, node.name) if name}
    with TemporaryDirectory() as folder:
        options = session_options(threads=threads)
        options.enable_profiling, options.profile_file_prefix = True, f"{folder}/original"
        options.optimized_model_filepath = f"{folder}/optimised.onnx"
        session = open_session(str(case.path()), options)
        outputs = {
            n.name: " ".join((n.name, *n.output)) for n in onnx.load(f"{folder}/optimised.onnx").graph.node
        }
        times = time_nodes(session, [port.name for port in session.get_outputs()], feeds, rounds)
    found: Counter[str] = Counter()
    for node in times:
        said = outputs.get(node.name, node.name)
        inside = [name for name in makers if name in said]
        found[makers[max(inside, key=len)] if inside else node.name] += node.us  # type: ignore[assignment]
    parts = parts_of(trace)
    owners = Counter(source for _, _, sources in parts for source in sources)
    return {name: sum(found[s] / owners[s] for s in sources) for name, _, sources in parts}


def is_of_one_library(trace: Trace) -> bool:
    """Whether ONNX Runtime runs most of it: then the nodes inside are what is compared."""
    return sum(step.median_us for step in trace.steps if step.inside) > 0.5 * trace.steps_us


def parts_of(trace: Trace) -> list[tuple[str, float, tuple[str, ...]]]:
    """What is compared: the steps; of a step that ONNX Runtime runs as a whole, the nodes inside."""
    made: list[tuple[str, float, tuple[str, ...]]] = []
    for step in trace.steps:
        if step.inside and step.op_class == "library span":
            scale = step.median_us / sum(node.us for node in step.inside)
            made += [(f"{n.op_type} {n.name}", n.us * scale, n.sources) for n in step.inside]
        else:
            made.append((_step_name(step), step.median_us, step.sources))
    return made


def _step_name(step: StepTime | CrossRow) -> str:
    return f"{step.index} {step.name}"


def hottest(trace: Trace, seen: Parts, tie: float = TIE) -> dict[str, Any]:
    """The three that take longest here, what the second opinion has for them, and its own three."""
    ours = sorted(parts_of(trace), key=lambda part: -part[1])[:HOTTEST]
    theirs = sorted(seen.items(), key=lambda pair: -pair[1])[:HOTTEST]
    rows = [{"part": name, "us": round(us, 1), "there_us": round(seen[name], 1)} for name, us, _ in ours]
    return {
        "ours": rows,
        "theirs": [{"part": name, "there_us": round(us, 1)} for name, us in theirs],
        "same": len({name for name, _, _ in ours} & {name for name, _ in theirs}),
        "agree": all(seen[name] >= tie * theirs[-1][1] for name, _, _ in ours),
    }


def engine_of(
    case: Case, args: argparse.Namespace, cache: Path, without: tuple[str, ...]
) -> ridgeline.Engine:
    """Built, or read from the folder of engines, so that a quiet moment is spent on timing alone."""
    file = args.engines / f"{'-'.join((case.name, *without))}-{args.threads}.ridge" if args.engines else None
    if file is not None and file.exists():
        return ridgeline.load(file)
    engine = ridgeline.build(
        case.path(), profiles=case.profiles, level=args.level, threads=args.threads, without=without,
        timing_cache=cache,
    )  # fmt: skip
    if file is not None:
        engine.save(file)
    return engine


def check(case: Case, args: argparse.Namespace, cache: Path) -> Iterator[dict[str, Any]]:
    feeds = case.draw()
    for without in ((), ("ort",)):
        engine = engine_of(case, args, cache, without)
        trace = engine.profile(feeds, rounds=args.rounds)
        is_span = is_of_one_library(trace)
        if is_span:
            who, seen = "ONNX Runtime", by_ort(case, trace, feeds, args.threads, args.rounds)
        elif args.clock == "processor":
            who, seen = "cProfile", by_python(engine, trace, feeds, args.rounds)
        else:
            who, seen = "PyTorch", by_torch(engine, trace, feeds, args.rounds)
        yield {
            "model": case.name,
            "without": list(without),
            "verified": engine.report.verified,
            "total_us": round(trace.total_us, 1),
            "total_p10_us": round(trace.total_p10_us, 1),
            "total_p90_us": round(trace.total_p90_us, 1),
            "steps_us": round(trace.steps_us, 1),
            "coverage": round(trace.coverage, 4),
            "steps": len(trace.steps),
            "inside": sum(len(step.inside) for step in trace.steps),
            "timer_us": round(trace.timer_us, 4),
            "sum_agrees": abs(trace.coverage - 1) <= LARGEST_ERROR,
            "second_opinion": who,
            "hottest": hottest(trace, seen),
            "notes": list(trace.notes),
        }


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--cases", default="ppocr6_rec,minilm_18")
    parser.add_argument("--rounds", type=int, default=50)
    parser.add_argument("--level", type=int, default=3)
    parser.add_argument("--threads", type=int, default=os.cpu_count() or 1)
    parser.add_argument("--clock", choices=("wall", "processor"), default="wall")
    parser.add_argument("--cache", type=Path)
    parser.add_argument("--engines", type=Path, help="folder of engines: read if there, else written")
    parser.add_argument(
        "--out", type=Path, default=RESULTS / f"profile-cpu-{datetime.now(UTC):%Y-%m-%d}.json"
    )
    args = parser.parse_args(arguments)
    if args.clock == "processor":
        # the time of this thread alone, which a busy machine does not stretch; other threads would not count
        args.threads, timing.perf_counter_ns = 1, time.process_time_ns
    rows: list[dict[str, Any]] = []
    around = surroundings(threads=args.threads, duration_s=0.0)
    around |= {"clock": args.clock, "rounds": args.rounds, "level": args.level}
    with TemporaryDirectory() as folder:
        for name in args.cases.split(","):
            for row in check(CASES[name], args, args.cache or Path(folder) / "times.toml"):
                rows.append(row)
                sums = f"{row['steps_us']:.0f} of {row['total_us']:.0f} µs, {row['coverage']:.1%}"
                print(
                    row["model"], row["without"], sums, "hottest agree:", row["hottest"]["agree"], flush=True
                )
                args.out.write_text(json.dumps({**around, "rows": rows}, indent=1) + "\n")
    if not all(row["sum_agrees"] and row["hottest"]["agree"] for row in rows):
        sys.exit(GATE_FAILED)


if __name__ == "__main__":
    main()
