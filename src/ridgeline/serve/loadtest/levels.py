"""Levels of load as users write them, and when the requests of an open loop are due."""

from __future__ import annotations

import re

import numpy as np

from ridgeline.errors import OptionError

MAX_LEVELS = 64
MAX_LEVEL = 1_000_000


def schedule(rate: float, seconds: float, *, arrivals: str, seed: int) -> list[int]:
    """When requests are due, in ns: evenly, or with the gaps of many users who know nothing of each other."""
    count = int(rate * seconds)
    if arrivals == "constant":
        due = np.arange(count) / rate
    else:
        gaps = np.random.default_rng(seed).exponential(1 / rate, int(count + 6 * count**0.5 + 10))
        due = np.cumsum(gaps)
        due = due[due < seconds]
    return (due * 1e9).astype(np.int64).tolist()  # type: ignore[no-any-return]


def parse_levels(text: str, *, option: str) -> tuple[int, ...]:
    """``1..64`` as 1, 2, 4, … 64, doubling from the first; ``1,2,5`` as written."""
    span = re.fullmatch(r"\s*(\d{1,7})\s*\.\.\s*(\d{1,7})\s*", text)
    if span:
        low, high = int(span[1]), int(span[2])
        found = {low, high} if 0 < low <= high else set()
        while found and low < high:
            found.add(low)
            low *= 2
    elif re.fullmatch(r"\s*\d{1,7}(\s*,\s*\d{1,7})*\s*", text):
        found = {int(each) for each in text.split(",")}
    else:
        found = set()
    if not found or min(found) < 1 or max(found) > MAX_LEVEL:
        raise OptionError(
            f"{option} does not read as levels",
            got=text[:80],
            want=f"{option} 8, {option} 1,2,5 or {option} 1..64",
        )
    if len(found) > MAX_LEVELS:
        raise OptionError(f"{option} has too many levels", got=str(len(found)), want=f"at most {MAX_LEVELS}")
    return tuple(sorted(found))
