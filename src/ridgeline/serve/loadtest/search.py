"""The highest rate of an open loop that keeps a bound on its latency."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from ridgeline.serve.loadtest.levels import MAX_LEVEL
from ridgeline.serve.loadtest.rows import LevelRow
from ridgeline.serve.loadtest.run import LoadTest

CLIENTS = 32  # of the closed loop that says where to begin
BEGIN, UP, DOWN = 0.8, 2.0, 0.5
CLOSE = 0.03
STEPS = 12  # after the first rate that failed
DOUBLINGS = 20  # before it
LEAST_RATE = 0.5
NONE_FAILED = "no rate failed: the highest one may be above this"
OnLevel = Callable[[int, int, str], None]


def search(
    test: LoadTest, bound_us: float, *, close: float = CLOSE, on_level: OnLevel = lambda *_: None
) -> tuple[list[LevelRow], float | None]:
    """Bisects between a rate that keeps the bound and one that does not. The rows by rate, and the best one.

    Rates double until one fails. A rate that fails is run once more, since one pause of the machine is enough
    to fail. The best rate has to pass once more at the end, or one a little lower. Rates nearer than `close`
    to each other are the same. The best row has a warning if no rate failed at all.
    """
    patience_s = max(4 * bound_us / 1e6, 0.25)
    rows: list[LevelRow] = []

    def keeps(rate: float) -> bool:
        for _ in range(2):
            on_level(len(rows), 0, f"{rate:.4g} requests/s")
            rows.append(test.open(rate, patience_s=patience_s))
            if rows[-1].keeps(bound_us):
                return True
        return False

    on_level(0, 0, f"{CLIENTS} clients")
    low, high = 0.0, 0.0
    rate = _rounded(BEGIN * test.closed(CLIENTS).throughput_rps)
    steps = doublings = 0
    while steps < STEPS and doublings < DOUBLINGS and LEAST_RATE <= rate <= MAX_LEVEL:
        if high and high - low < close * high:
            break
        low, high = (rate, high) if keeps(rate) else (low, rate)
        if high:
            steps += 1
        else:
            doublings += 1
        rate = _rounded((low + high) / 2 if low and high else rate * (DOWN if high else UP))
    while low >= LEAST_RATE and not keeps(low):
        high = low
        low = _rounded(low * (1 - close))
    rows.sort(key=lambda row: row.level)
    if low >= LEAST_RATE and not high:
        rows[-1] = replace(rows[-1], warnings=(*rows[-1].warnings, NONE_FAILED))
    return rows, low if low >= LEAST_RATE else None


def _rounded(rate: float) -> float:
    """Three digits: finer differences mean nothing."""
    return float(f"{rate:.3g}")
