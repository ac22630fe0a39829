"""Whole models on the CPU in two checkouts of Ridgeline, timed in turn: has a change made engines slower?

    python bench/two_checkouts.py BEFORE AFTER [--only NAME|FILE ...] [--seconds S] [--out FILE]

Each checkout has a process of its own, which builds the model with an empty timing cache and an empty cache
of compiled kernels, one after the other. Then the two engines run in turn, a fifth of a second each; a row's
ratio is the median of time before / time after. Builds have their wall time, their stages, and the processor
time of all their processes, which other work on the machine distorts less. ONNX files, such as those of
`bench/strangers.py` in `.models/`, are built without being told a shape.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import subprocess
import sys
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory
from typing import IO, Any

TURN_S = 0.2
# runs inside a checkout: builds one case, then times it whenever it is asked to
WORKER = """
import json, resource, sys, time
from pathlib import Path
from statistics import median
import ridgeline
from bench.cases import CASES

name, threads, scratch = sys.argv[1], int(sys.argv[2]), Path(sys.argv[3])
case = CASES.get(name)

def cpu_s():
    used = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return sum(each.ru_utime + each.ru_stime for each in used)

model = Path(name) if case is None else case.path()
begun, start = cpu_s(), time.perf_counter()
engine = ridgeline.build(
    model, profiles=None if case is None else case.profiles, threads=threads,
    timing_cache=scratch / "timings.toml", progress=False,
)
print(json.dumps({
    "build_s": round(time.perf_counter() - start, 2), "cpu_s": round(cpu_s() - begun, 2),
    "stages": engine.report.stage_seconds, "sites": engine.report.sites_timed,
    "tactics": sorted({step.tactic for step in engine.plan.steps}), "plan": engine.plan.why,
    "warnings": engine.report.warnings,
}), flush=True)
feeds = engine.example_inputs(11) if case is None else case.draw()
for line in sys.stdin:
    end, samples = time.perf_counter() + float(line), []
    while not samples or time.perf_counter() < end:
        begin = time.perf_counter()
        engine.run(feeds)
        samples.append(time.perf_counter() - begin)
    print(json.dumps(median(samples) * 1e6), flush=True)
"""


@dataclass(frozen=True)
class Row:
    """One model. Above 1 the engine of the later checkout is faster."""

    model: str
    before_us: float
    after_us: float
    ratio: float
    before_build_s: float
    after_build_s: float
    before: dict[str, Any]  # of the build: processor seconds, stages, tactics, warnings
    after: dict[str, Any]


class Engine:
    """An engine in a process of its own."""

    def __init__(self, checkout: Path, name: str, *, threads: int, scratch: str) -> None:
        paths = os.pathsep.join(map(str, (checkout / "src", checkout)))
        cache = {"HOME": scratch}  # compiled kernels of its own: a cold build is cold
        self._process = subprocess.Popen(
            [sys.executable, "-c", WORKER, name, str(threads), scratch],
            cwd=checkout, env=os.environ | {"PYTHONPATH": paths} | cache, text=True,
            stdin=subprocess.PIPE, stdout=subprocess.PIPE,
        )  # fmt: skip
        self.built = self._answer()

    def _answer(self) -> Any:
        out: IO[str] | None = self._process.stdout
        line = out.readline() if out is not None else ""
        if not line:
            raise RuntimeError("the process ended; its error stands above")
        return json.loads(line)

    def time_us(self) -> float:
        assert self._process.stdin is not None, "it was opened with a pipe"
        self._process.stdin.write(f"{TURN_S}\n")
        self._process.stdin.flush()
        return float(self._answer())

    def __enter__(self) -> Engine:
        return self

    def __exit__(self, *_: object) -> None:
        self._process.kill()
        self._process.wait()


def measure(checkouts: tuple[Path, Path], name: str, *, threads: int, seconds: float) -> Row:
    with (
        TemporaryDirectory() as first,
        TemporaryDirectory() as second,
        Engine(checkouts[0], name, threads=threads, scratch=first) as before,
        Engine(checkouts[1], name, threads=threads, scratch=second) as after,
    ):
        turns = [(before.time_us(), after.time_us()) for _ in range(max(3, round(seconds / TURN_S / 2)))]
        return Row(
            model=name if "/" not in name else Path(name).name,
            before_us=median(b for b, _ in turns),
            after_us=median(a for _, a in turns),
            ratio=median(b / a for b, a in turns),
            before_build_s=before.built["build_s"],
            after_build_s=after.built["build_s"],
            before=before.built,
            after=after.built,
        )


def names(checkout: Path) -> list[str]:
    script = "from bench.cases import CASES; print(*CASES)"
    paths = os.pathsep.join(map(str, (checkout / "src", checkout)))
    asked = [sys.executable, "-c", script]
    done = subprocess.run(asked, env=os.environ | {"PYTHONPATH": paths}, capture_output=True, text=True)
    return done.stdout.split()


def main() -> None:
    parser = argparse.ArgumentParser(description="whole models in two checkouts, in turn")
    parser.add_argument("before", type=Path)
    parser.add_argument("after", type=Path)
    parser.add_argument("--only", metavar="NAME", nargs="*", default=[])
    parser.add_argument("--seconds", type=float, default=6.0, help="timing of one model, both engines")
    parser.add_argument("--threads", type=int, default=len(os.sched_getaffinity(0)))
    parser.add_argument("--out", type=Path)
    given = parser.parse_args()
    checkouts = (given.before.resolve(), given.after.resolve())
    rows: list[Row] = []
    for name in given.only or names(checkouts[1]):
        try:
            row = measure(checkouts, name, threads=given.threads, seconds=given.seconds)
        except RuntimeError as error:
            print(f"{name:26} does not count: {error}", flush=True)
            continue
        rows.append(row)
        print(
            f"{name:26} {row.before_us:12.1f} {row.after_us:12.1f} µs {row.ratio:6.3f}   "
            f"build {row.before_build_s:6.1f} {row.after_build_s:6.1f} s, "
            f"processor {row.before['cpu_s']:6.1f} {row.after['cpu_s']:6.1f} s",
            flush=True,
        )
        if given.out is not None:
            given.out.write_text(json.dumps([asdict(row) for row in rows], indent=1) + "\n")
    ratios = [math.log(row.ratio) for row in rows]
    built = [math.log(row.before_build_s / row.after_build_s) for row in rows]
    print(f"geomean of {len(rows)}: {math.exp(sum(ratios) / len(ratios)):.3f}, "
          f"of builds {math.exp(sum(built) / len(built)):.3f}")  # fmt: skip


if __name__ == "__main__":
    main()
