"""Accuracy, size and time of every precision on real models and real data, beside ONNX Runtime's own.

python -m bench.accuracy                              # all tasks, bench/results/accuracy-DATE.json
python -m bench.accuracy --only digits --rows fp32,int8
python -m bench.accuracy --resume                     # what the file of today lacks
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from functools import partial
from itertools import product
from pathlib import Path

import numpy as np
import onnxruntime as ort
import torch

import ridgeline
from bench.accuracy_rows import ROWS, Made, Unavailable, Workspace, made
from bench.accuracy_tasks import TASKS, Feeds, Score, Task
from bench.zoo import MODELS
from ridgeline.base.timing import wall_times_in_turn
from ridgeline.verify.metrics import worst_relative_l2

RESULTS = Path(__file__).parent / "results"
BASE, PEER = "onnxruntime fp32", "onnxruntime int8 static"
ROUNDS = 30
# calls whose outputs are compared with fp32's, element by element
COMPARED = 16


@dataclass(frozen=True)
class Row:
    """One precision of one task. `agreement` is with the answers of ONNX Runtime in fp32."""

    task: str
    row: str
    metric: str
    samples: int
    calibration: int
    score: float | None = None
    agreement: float | None = None
    error: float | None = None  # worst relative L2 of an output, over the first calls
    size_bytes: int | None = None
    median_us: float | None = None
    speed: float | None = None  # time of ONNX Runtime in fp32, in turn with this, divided by ours
    speed_static: float | None = None  # the same of its own static quantisation
    note: str = ""
    why: str = ""  # why there is none


class Recorded:
    """A runner that remembers its first calls."""

    def __init__(self, row: Made) -> None:
        self._row = row
        self.calls: list[tuple[Feeds, dict[str, np.ndarray]]] = []

    def __call__(self, feeds: Feeds) -> dict[str, np.ndarray]:
        outputs = dict(self._row.run(feeds))
        if len(self.calls) < COMPARED:
            self.calls.append((feeds, {name: np.asarray(array).copy() for name, array in outputs.items()}))
        return outputs


@dataclass(frozen=True)
class Base:
    """ONNX Runtime on the task: in fp32, and with its own static quantisation where it makes one."""

    fp32: Made
    static: Made | None
    recorded: Recorded
    reference: Score

    @staticmethod
    def of(task: Task, workspace: Workspace) -> Base:
        base, static = made(BASE, workspace, task), None
        with suppress(Unavailable):
            static = made(PEER, workspace, task)
        recorded = Recorded(base)
        return Base(base, static, recorded, task.evaluate(recorded))


def measure(name: str, models: Path, rows: Sequence[str], workspace: Workspace) -> Iterator[Row]:
    """Every row of a task, compared with ONNX Runtime in fp32."""
    try:
        task = TASKS[name](models)
        base = Base.of(task, workspace)
    except Exception as error:  # its model or its data cannot be had here
        why = f"{type(error).__name__}: {str(error).splitlines()[0] if str(error) else ''}"
        yield from (Row(name, row, "", 0, 0, why=why) for row in rows)
        print(f"{name:12} –  {why[:140]}", flush=True)
        return
    for each in rows:
        start = time.perf_counter()
        row = _row(task, each, workspace, base)
        yield row
        print(f"{_line(row)}  ({time.perf_counter() - start:.0f} s)", flush=True)


def _row(task: Task, name: str, workspace: Workspace, base: Base) -> Row:
    head = (task.name, name, task.metric, task.samples, len(task.calibration))
    try:
        row = made(name, workspace, task)
        score = task.evaluate(row.run)
    except Unavailable as error:
        return Row(*head, why=str(error))
    except Exception as error:  # it was built, and does not run
        return Row(*head, why=f"{type(error).__name__}: {str(error).splitlines()[0] if str(error) else ''}")
    worst = 0.0
    for feeds, want in base.recorded.calls:
        got = {n: np.asarray(a) for n, a in row.run(feeds).items()}
        worst = max(worst, *worst_relative_l2(got, want).values())
    feeds = base.recorded.calls[0][0]
    runs = [each.run for each in (row, base.fp32, base.static) if each is not None]
    ours, theirs, *static = wall_times_in_turn([partial(run, feeds) for run in runs], ROUNDS)
    return Row(
        *head, score=score.value, agreement=task.agreement(score.answers, base.reference.answers),
        error=worst, size_bytes=row.size_bytes, median_us=ours, speed=theirs / ours,
        speed_static=static[0] / ours if static else None, note=row.note,
    )  # fmt: skip


def _line(row: Row) -> str:
    if row.score is None:
        return f"{row.task:12} {row.row:28} –  {row.why[:140]}"
    return (
        f"{row.task:12} {row.row:28} {row.score:7.4f}  agrees {row.agreement:7.4f}  rel. L2 {row.error:8.2g}"
        f"  {(row.size_bytes or 0) / 1e6:7.2f} MB  {row.median_us:9.0f} us  {row.speed:5.2f}x"
        f"  {_times(row.speed_static)}x  {row.note}"
    )


def _times(speed: float | None) -> str:
    return "–" if speed is None else f"{speed:.2f}"


def markdown(rows: Sequence[Row]) -> str:
    """The table of a page."""
    lines = ["| task | row | score | agrees with fp32 | rel. L2 | MB | ms | × ORT fp32 | × ORT int8 | |"]
    lines.append("| --- | --- | ---: | ---: | ---: | ---: | ---: | ---: | ---: | --- |")
    for row in rows:
        if row.score is None:
            lines.append(f"| {row.task} | {row.row} | – | – | – | – | – | – | – | {row.why} |")
            continue
        size, time_ms = (row.size_bytes or 0) / 1e6, (row.median_us or 0) / 1e3
        figures = [f"{row.score:.4f}", f"{row.agreement:.4f}", f"{row.error:.2g}", f"{size:.2f}"]
        figures += [f"{time_ms:.2f}", f"{row.speed:.2f}", _times(row.speed_static)]
        lines.append(f"| {row.task} | {row.row} | {' | '.join(figures)} | {row.note} |")
    return "\n".join(lines)


def cpu_flags() -> list[str]:
    """What of the processor decides about low precision."""
    wanted = (
        "avx512_vnni",
        "avx_vnni",
        "avx512_bf16",
        "avx512_fp16",
        "amx_int8",
        "amx_bf16",
        "avx512f",
        "avx2",
    )
    with suppress(OSError):
        text = Path("/proc/cpuinfo").read_text(encoding="ascii")
        return [flag for flag in wanted if f" {flag} " in text.replace("\n", " \n")]
    return []


def surroundings(arguments: argparse.Namespace) -> dict[str, object]:
    return {
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
        "target": arguments.target,
        "threads": arguments.threads,
        "level": arguments.level,
        "machine": platform.processor() or platform.machine(),
        "flags": cpu_flags(),
        "load_average": os.getloadavg()[0],
        "ridgeline": ridgeline.__version__,
        "onnxruntime": ort.__version__,
        "torch": torch.__version__,
    }


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--only", default=",".join(TASKS), help="tasks, by comma")
    parser.add_argument("--rows", default=",".join(ROWS), help="rows, by comma")
    parser.add_argument("--models", type=Path, default=MODELS)
    parser.add_argument("--work", type=Path, help="folder for files that are made (default: a temporary one)")
    parser.add_argument("--target", default="cpu")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--level", type=int, default=3)
    parser.add_argument("--resume", action="store_true", help="only rows that the output has no figures for")
    parser.add_argument("-o", "--output", type=Path)
    arguments = parser.parse_args()
    rows = [name.strip() for name in arguments.rows.split(",")]
    for name in rows:
        if name not in ROWS:
            parser.error(f"no row {name!r}: {', '.join(ROWS)}")
    tasks = [name.strip() for name in arguments.only.split(",")]
    for name in tasks:
        if name not in TASKS:
            parser.error(f"no task {name!r}: {', '.join(TASKS)}")
    torch.set_num_threads(arguments.threads)
    path = arguments.output or RESULTS / f"accuracy-{datetime.now(UTC):%Y-%m-%d}.json"
    about = surroundings(arguments)
    with tempfile.TemporaryDirectory(prefix="ridge-accuracy-") as temporary:
        folder = arguments.work or Path(temporary)
        folder.mkdir(parents=True, exist_ok=True)
        workspace = Workspace(folder, arguments.target, arguments.threads, arguments.level)
        done = {(row.task, row.row) for row in read_rows(path) if row.score is not None and arguments.resume}
        for name in tasks:
            wanted = [row for row in rows if (name, row) not in done]
            for row in measure(name, arguments.models, wanted, workspace) if wanted else ():
                keep(path, about, row)
    print(f"\n{markdown(read_rows(path))}\n\nwrote {path}")


def keep(path: Path, about: dict[str, object], row: Row) -> None:
    """Write a row beside those that the file has; an older one of the same name is replaced."""
    others = [each for each in read_rows(path) if (each.task, each.row) != (row.task, row.row)]
    report = {"about": about, "rows": [asdict(each) for each in (*others, row)]}
    path.write_text(json.dumps(report, indent=1) + "\n", encoding="utf-8")


def read_rows(path: Path) -> list[Row]:
    if not path.exists():
        return []
    found = [Row(**row) for row in json.loads(path.read_text(encoding="utf-8"))["rows"]]
    order = {(task, name): i for i, (task, name) in enumerate(product(TASKS, ROWS))}
    return sorted(found, key=lambda row: order.get((row.task, row.row), len(order)))


if __name__ == "__main__":
    main()
