"""Whether findings are true: each change is made, and what it gains is put beside what was predicted.

    PYTHONPATH=src:. python -m bench.findings [--part plan cpu clean] [--networks FOLDER]

`plan`: the ten planted faults for an H200, mended one by one; gains by plans made anew. `cpu`: the faults
that a processor has too, in float32, measured on this machine: both engines in turns, one thread, medians of
the process's own time, so that a busy machine counts less. `cuda`: all of them, measured on the GPU of this
machine. `clean`: networks that nobody planted a fault in, in half precision for an H200; every finding is
mended in the file where that leaves no choice, and planned anew. Rows go to bench/results/findings-DATE.json,
or to $OUT.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import statistics
import time
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import onnx

import ridgeline
from bench.findings_mends import mended
from bench.half_model import in_half
from bench.planted_faults import FAULTS, OTHERS, Branch, half, network, planted
from bench.zoo import ZOO, fetch
from ridgeline.analyze.findings.finding import Finding
from ridgeline.analyze.findings.in_graph import find_all, find_in_graph
from ridgeline.analyze.findings.in_plan import ranked
from ridgeline.analyze.findings.subject import Subject
from ridgeline.base.timing import interleave

RESULTS = Path(__file__).parent / "results"
PLAN: Mapping[str, Any] = {"target": "null:sm_90", "level": 0, "verify": "off"}
# of tensor cores, half types and launches: a processor has none
GPU_ONLY = ("alignment", "channels", "precision_island", "tiny_kernels")
WARM, ROUNDS = 10, 100
TRAINED = ("ppocr6_rec", "ppocr6_cls", "ppocr4_rec", "wake_hey_mycroft", "wake_embedding")


# steps that others are compared with
BESIDE = Branch(
    "float16[256,256] bes_x", "float16[256,256] bes_y",
    """bes_a = Exp (bes_x) bes_b = Softmax <axis = -1> (bes_a) bes_c = MatMul (bes_b, bes_w)
    bes_d = Transpose <perm = [1, 0]> (bes_c) bes_y = Sigmoid (bes_d)""",
    {"bes_w": half(256, 256)},
)  # fmt: skip


@dataclass(frozen=True)
class Row:
    """One finding, and what its change gained."""

    part: str
    model: str
    kind: str
    severity: str
    what: str
    predicted_us: float | None
    predicted_share: float | None  # of the run, which compares with gained_share also where clocks differ
    before_us: float | None
    after_us: float | None
    note: str = ""

    @property
    def gained_us(self) -> float | None:
        if self.after_us is None or self.before_us is None:
            return None
        return round(self.before_us - self.after_us, 2)

    @property
    def gained_share(self) -> float | None:
        return round(self.gained_us / self.before_us, 4) if self.gained_us and self.before_us else None


def in_float32(branch: Branch) -> Branch:
    weights = {n: a.astype(np.float32) if a.dtype == np.float16 else a for n, a in branch.weights.items()}
    ports = [text.replace("float16[", "float[") for text in (branch.inputs, branch.outputs)]
    return replace(branch, inputs=ports[0], outputs=ports[1], weights=weights)


def by_plan() -> Iterator[Row]:
    """The ten faults at once, one of them mended at a time."""
    whole = Subject(ridgeline.build(planted(), **PLAN))
    for finding in find_in_graph(whole):
        after = Subject(ridgeline.build(planted([finding.kind]), **PLAN))
        yield row("plan", "planted", finding, whole.total_us, after.total_us)


def measured(target: str, **options: Any) -> Iterator[Row]:
    """Each fault beside a few steps without one: two engines, run in turns."""
    for fault in (*FAULTS, *OTHERS):
        if target == "cpu" and fault.kind in GPU_ONLY:
            continue
        pair = (fault.planted, fault.mended)
        models = [network([in_float32(b) if target == "cpu" else b for b in (each, BESIDE)]) for each in pair]
        with TemporaryDirectory() as folder:  # equal steps of both engines get equal tactics
            shared = {"timing_cache": Path(folder) / "timings.toml", **options}
            before, after = (ridgeline.build(model, target=target, **shared) for model in models)
        found = next((f for f in find_all(before, min_gain=0.0) if f.kind == fault.kind), None)
        times = run_in_turns(before, after)
        if found is None:
            missing = Finding(
                fault.kind, (fault.node,), "not found: no gain is predicted on this machine", ""
            )
            yield row(target, fault.kind, missing, *times)
        else:
            yield row(target, fault.kind, found, *times)


def run_in_turns(before: ridgeline.Engine, after: ridgeline.Engine) -> tuple[float, float]:
    feeds = [(engine, engine.example_inputs(0)) for engine in (before, after)]
    calls = [partial(engine.run, given) for engine, given in feeds]
    if before.plan.target.traits.is_gpu:
        first, second = interleave(calls, budget_s=2.0)
        return first.median_us, second.median_us
    samples: list[list[float]] = [[] for _ in calls]
    for _ in range(WARM + ROUNDS):
        for call, kept in zip(calls, samples, strict=True):
            start = time.process_time_ns()
            call()
            kept.append((time.process_time_ns() - start) / 1e3)
    return statistics.median(samples[0][WARM:]), statistics.median(samples[1][WARM:])


def clean(networks: Path | None) -> Iterator[Row]:
    """Every finding in networks as they are; a model without one has a row that says so."""
    entries = {entry.name: entry for entry in ZOO}
    models: dict[str, tuple[onnx.ModelProto, Any]] = {}
    for name in TRAINED:
        shapes = {n: "x".join(map(str, feed.shape)) for n, feed in entries[name].feeds.items()}
        models[name] = (in_half(onnx.load(fetch(entries[name]))), shapes)
    for path in sorted(networks.glob("*.onnx")) if networks is not None else ():
        models[path.stem] = (in_half(onnx.load(path)), None)
    for name, (model, shapes) in models.items():
        options = {**PLAN, **({"profiles": shapes} if shapes else {})}
        whole = Subject(ridgeline.build(model, **options))
        found = ranked(find_in_graph(whole))
        if not found:
            nothing = Finding("none", (), f"no findings in {len(whole.places)} regions", "")
            yield row("clean", name, nothing, whole.total_us, None)
        for finding in found:
            changed = mended(model, finding)
            after = None if changed is None else Subject(ridgeline.build(changed, **options)).total_us
            note = "" if changed is not None else "the change is a person's: not made here"
            yield row("clean", name, finding, whole.total_us, after, note)


def row(
    part: str, model: str, finding: Finding, before_us: float | None, after_us: float | None, note: str = ""
) -> Row:
    return Row(
        part, model, finding.kind, finding.severity, finding.what, finding.gain_us,
        finding.share and round(finding.share, 4),
        before_us and round(before_us, 2), after_us and round(after_us, 2), note,
    )  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument(
        "--part", nargs="+", default=["plan", "cpu", "clean"], choices=["plan", "cpu", "cuda", "clean"]
    )
    parser.add_argument("--networks", type=Path, help="further ONNX files for `clean`")
    given = parser.parse_args()
    parts = {
        "plan": by_plan,
        "cpu": lambda: measured("cpu", level=1, without=("ort",), threads=1),
        "cuda": lambda: measured("cuda", level=1),
        "clean": lambda: clean(given.networks),
    }
    rows = []
    for part in given.part:
        for each in parts[part]():
            rows.append(each)
            figures = f"predicted {each.predicted_share}, gained {each.gained_share} of {each.before_us} µs"
            print(
                f"{each.part:6} {each.model:24} {each.kind:20} {each.severity:8} {figures} {each.note}",
                flush=True,
            )
    told = {
        "date": time.strftime("%Y-%m-%d"), "processor": platform.processor() or platform.machine(),
        "versions": {"onnx": onnx.__version__, "ridgeline": ridgeline.__version__},
        "rows": [
            {**asdict(each), "gained_us": each.gained_us, "gained_share": each.gained_share} for each in rows
        ],
    }  # fmt: skip
    folder = Path(os.environ.get("OUT", RESULTS))
    (folder / f"findings-{told['date']}.json").write_text(json.dumps(told, indent=1) + "\n")


if __name__ == "__main__":
    main()
