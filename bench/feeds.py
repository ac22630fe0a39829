"""What a benchmark feeds a model: type, shape and range of each input, and the arrays drawn from that."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np


@dataclass(frozen=True)
class Feed:
    """One input: uniform in [low, high]; integers include both ends."""

    dtype: str
    shape: tuple[int, ...]
    low: float = -1.0
    high: float = 1.0
    padded: int = 0  # this many entries at the end of the last axis are zero, as in an attention mask

    def __str__(self) -> str:
        return f"{self.dtype}[{','.join(map(str, self.shape))}]"


def draw(feeds: Mapping[str, Feed], seed: int) -> dict[str, np.ndarray[Any, Any]]:
    """Arrays for one run; an input's values depend on its name and the seed, not on its neighbours."""
    return {name: _array(feed, name, seed) for name, feed in feeds.items()}


def _array(feed: Feed, name: str, seed: int) -> np.ndarray[Any, Any]:
    rng = np.random.default_rng([seed, int.from_bytes(hashlib.sha256(name.encode()).digest()[:4], "little")])
    dtype = np.dtype(feed.dtype)
    values: object
    if dtype.kind in "iu":
        values = rng.integers(int(feed.low), int(feed.high), size=feed.shape, endpoint=True)
    else:
        values = rng.uniform(feed.low, feed.high, size=feed.shape)
    # a scalar draw is a Python number, and sessions want a 0-d array
    array = np.asarray(values, dtype=dtype)
    if feed.padded:
        array[..., -feed.padded :] = 0
    return array
