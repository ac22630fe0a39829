"""Trained models, right or not, at other shapes than the planned one: every engine against ONNX Runtime.

    python -m bench.right [--only NAME ...] [--level N] [--out FILE]

Batch 1 and 2 where the batch is open, and two other sizes where those are. One engine per model serves all
its shapes. Rows go to `bench/results/` as JSON and to the terminal as a table. Exit 3 if one is wrong.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from datetime import datetime
from fnmatch import fnmatchcase
from pathlib import Path
from time import perf_counter
from typing import Any

import ridgeline
from bench.cases import CASES, Case
from bench.compare import distance, open_reference, open_session, tolerances_at
from bench.feeds import Feed, draw
from bench.models_cpu import GATE_FAILED, RESULTS, surroundings
from ridgeline.errors import OptionError, RidgelineError, did_you_mean

Shape = tuple[int, ...]
Shapes = Mapping[str, Shape]


def _images(name: str, *sizes: Shape) -> list[Shapes]:
    return [{name: (batch, 3, height, width)} for batch, height, width in sizes]


def _speech(samples: int, batch: int, **memory: int) -> Shapes:
    """Audio and the states beside it, whose second axis is the batch."""
    return {"input": (batch, samples)} | {name: (2, batch, width) for name, width in memory.items()}


def _words(batch: int, length: int) -> Shapes:
    return {"input_ids": (batch, length), "attention_mask": (batch, length)}


# by model, the planned shapes first; models without a row have one fixed shape
VARIANTS: dict[str, list[Shapes]] = {
    "ppocr?_det": _images("x", (1, 320, 320), (2, 320, 320), (1, 256, 352), (1, 192, 480)),
    "ppocr?_rec": _images("x", (1, 48, 320), (2, 48, 320), (1, 48, 160), (1, 48, 480)),
    "ppocr?_cls": _images("x", (1, 48, 192), (2, 48, 192), (1, 48, 96), (1, 64, 256)),
    "nudenet": _images("images", (1, 320, 320), (2, 320, 320), (1, 256, 320), (1, 416, 256)),
    "silero_vad_v4": [_speech(512, 1, h=64, c=64), _speech(512, 2, h=64, c=64), _speech(1024, 1, h=64, c=64)],
    "silero_vad_16k_sequence": [{"input": (n, 576)} for n in (32, 8, 50)],
    "silero_vad_openvino_16k": [{}],
    "silero_vad*": [_speech(samples, n, state=128) for samples, n in ((576, 1), (576, 2), (512, 3))],
    "wake_melspectrogram": [{"input": shape} for shape in ((1, 16000), (2, 16000), (1, 12800), (1, 24000))],
    "wake_embedding": [{"input_1": (n, 76, 32, 1)} for n in (1, 2, 5)],
    "wake_hey_mycroft": [{"input_1": (n, 16, 96)} for n in (1, 2, 5)],
    "minilm_*": [_words(1, 128), _words(2, 128), _words(1, 37), _words(3, 64)],
}  # fmt: skip


@dataclass(frozen=True)
class Row:
    """One model at one set of shapes. `gate` is "pass", what is wrong, or that the original refuses."""

    model: str
    shapes: dict[str, str]
    gate: str
    far: float | None = None  # from ONNX Runtime, of the largest allowed distance
    is_planned: bool = False


def variants(case: Case) -> list[Shapes]:
    for pattern, found in VARIANTS.items():
        if fnmatchcase(case.name, pattern):
            return found
    return [{}]


def feeds_at(case: Case, shapes: Shapes) -> dict[str, Feed]:
    return {
        name: replace(feed, shape=shapes.get(name, feed.shape), padded=min(feed.padded, 8))
        for name, feed in case.feeds.items()
    }


def profile(case: Case) -> dict[str, list[str]]:
    """Every dim from its smallest to its largest size, planned at the first."""
    made = [{n: f.shape for n, f in feeds_at(case, shapes).items()} for shapes in variants(case)]
    return {
        name: [
            f"{min(sizes)}..{sizes[0]}..{max(sizes)}" if len(set(sizes)) > 1 else str(sizes[0])
            for sizes in zip(*(shapes[name] for shapes in made), strict=True)
        ]
        for name in case.feeds
    }


def check(case: Case, *, level: int, threads: int = 2) -> Iterator[Row]:
    """One engine, all shapes."""
    path = case.path()
    engine = ridgeline.build(path, profiles=profile(case), level=level, threads=threads)
    session, reference = open_session(path), open_reference(path, threads)
    for place, shapes in enumerate(variants(case)):
        wanted = feeds_at(case, shapes)
        row = Row(case.name, {n: str(f) for n, f in wanted.items()}, "pass", is_planned=place == 0)
        given = draw(wanted, seed=place)
        yield _compared(row, engine, session, reference, given)


def _compared(row: Row, engine: Any, session: Any, reference: Any, given: Mapping[str, Any]) -> Row:
    names = [port.name for port in engine.plan.outputs]
    try:
        want = dict(zip(names, session.run(names, dict(given)), strict=True))
    except Exception as error:  # a size the original was not made for
        return replace(row, gate=f"original refuses: {str(error).split('Status Message:')[-1].strip()[:120]}")
    far = distance(engine.run(given), want, tolerances_at(reference, given, want))
    gate = "pass" if engine.report.verified else "not verified"
    return replace(row, gate=gate if far <= 1 else f"{far:.3g} tolerances away", far=far)


def check_all(cases: Sequence[Case], out: Path, *, level: int) -> list[Row]:
    rows: list[Row] = []
    around = surroundings(threads=2, duration_s=0.0) | {"level": level}
    for number, case in enumerate(cases, start=1):
        start = perf_counter()
        try:
            rows += check(case, level=level)
        except Exception as error:  # one model that breaks must not cost the other rows
            rows.append(Row(case.name, case.shapes, f"{type(error).__name__}: {str(error).splitlines()[0]}"))
        told = f"[{number}/{len(cases)}] {case.name} {perf_counter() - start:.0f} s"
        print(told, file=sys.stderr, flush=True)
        out.parent.mkdir(parents=True, exist_ok=True)
        out.write_text(json.dumps({**around, "rows": [asdict(row) for row in rows]}, indent=1) + "\n")
    return rows


def is_wrong(row: Row) -> bool:
    return row.gate != "pass" and not row.gate.startswith("original refuses")


def table(rows: Sequence[Row]) -> str:
    lines = [f"{'model':26} {'shapes':44} {'far':>6}  gate"]
    for row in rows:
        shapes = " ".join(text.split("[", 1)[1].rstrip("]").replace(",", "x") for text in row.shapes.values())
        lines.append(f"{row.model:26} {shapes:44} {row.far or 0:6.2f}  {row.gate}")
    good = sum(row.gate == "pass" for row in rows)
    tried = sum(not row.gate.startswith("original refuses") for row in rows)
    return "\n".join([*lines, f"{good} of {tried} right; distances in units of the tolerance"])


def pick(patterns: Sequence[str]) -> list[Case]:
    trained = {name: case for name, case in CASES.items() if case.is_trained}
    for pattern in patterns:
        if not any(fnmatchcase(name, pattern) for name in trained):
            raise OptionError(f"no model is called {pattern!r}", help=did_you_mean(pattern, list(trained)))
    return [c for c in trained.values() if not patterns or any(fnmatchcase(c.name, p) for p in patterns)]


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="bench.right", description="trained models at other shapes")
    parser.add_argument("--only", metavar="NAME", action="append", default=[], help="only these; * matches")
    parser.add_argument("--level", type=int, default=1, help="of the build (default 1)")
    parser.add_argument("--out", type=Path, help="JSON file (default: bench/results/right-DATE.json)")
    given = parser.parse_args(arguments)
    try:
        cases = pick(given.only)
    except RidgelineError as error:
        parser.error(str(error))
    suffix = "-part" if given.only else ""
    out = given.out or RESULTS / f"right-{datetime.now().date().isoformat()}{suffix}.json"
    rows = check_all(cases, out, level=given.level)
    print(table(rows))
    print(f"written to {out}", file=sys.stderr)
    return GATE_FAILED if any(map(is_wrong, rows)) else 0


if __name__ == "__main__":
    sys.exit(main())
