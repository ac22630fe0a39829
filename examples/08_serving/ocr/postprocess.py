"""After the engine: the best character of every column, to text (CTC)."""

from __future__ import annotations

from pathlib import Path

import numpy as np

ENGINE_OUTPUT = "fetch_name_0"
_characters: list[str] = []


def load() -> None:
    """Once, when the model is loaded."""
    listed = Path(__file__).with_name("characters.txt").read_text(encoding="utf-8").split("\n")
    _characters[:] = ["", *listed, " "]


def run(inputs: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    """Text and confidence of each image of a request."""
    probabilities = inputs[ENGINE_OUTPUT]  # [images, columns, classes]
    best, sure = probabilities.argmax(-1), probabilities.max(-1)
    # a class that goes on over several columns is one character, and class 0 is none
    begins = best != 0
    begins[:, 1:] &= best[:, 1:] != best[:, :-1]
    text = np.empty(len(best), object)
    text[:] = [_text(row[begin]) for row, begin in zip(best, begins, strict=True)]
    confidence = np.where(begins, sure, 0).sum(1) / np.maximum(begins.sum(1), 1)
    return {"TEXT": text, "CONFIDENCE": confidence.astype(np.float32)}


def _text(classes: np.ndarray) -> bytes:
    return "".join(_characters[each] for each in classes).encode()
