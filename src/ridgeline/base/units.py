"""Numbers as text people like to read, with their units: durations, sizes, shares, counts."""

from __future__ import annotations

import math

DASH = "–"


def duration(us: float | None) -> str:
    """Three significant digits and a unit that fits: 9.87 µs, 1.23 ms, 4.56 s."""
    if us is None or math.isnan(us):
        return DASH
    if us < 1e3:
        return f"{_three(us)} µs"
    return f"{_three(us / 1e3)} ms" if us < 1e6 else f"{_three(us / 1e6)} s"


def size(nbytes: float | None) -> str:
    """``640 B``, ``1.25 MiB``."""
    if nbytes is None:
        return DASH
    if nbytes < 1024:
        return f"{nbytes:.0f} B"
    for unit in ("KiB", "MiB", "GiB"):
        nbytes /= 1024
        if nbytes < 1000 or unit == "GiB":
            break
    return f"{_three(nbytes)} {unit}"


def percent(part: float | None) -> str:
    if part is None or math.isnan(part):
        return DASH
    return f"{part * 100:.0f} %" if abs(part) >= 0.1 or part == 0 else f"{part * 100:.1f} %"


def number(value: float | None) -> str:
    """Four significant digits."""
    if value is None or math.isnan(value):
        return DASH
    if math.isfinite(value) and value == int(value) and abs(value) < 1e6:
        return f"{int(value)}"
    return f"{value:.4g}"


def count_text(value: float | None, unit: str) -> str:
    """``1.24 GFLOP``, ``512 FLOP``: thousands, with the prefix before the unit."""
    if value is None:
        return DASH
    for prefix in ("", "k", "M", "G", "T"):
        if value < 1000 or prefix == "T":
            break
        value /= 1000
    return f"{value:.0f} {unit}" if not prefix else f"{_three(value)} {prefix}{unit}"


def error_size(value: float) -> str:
    """``2.4e-7``"""
    mantissa, _, exponent = f"{value:.1e}".partition("e")
    return "0" if value == 0 else f"{mantissa}e{int(exponent)}" if exponent else mantissa


def plural(count: int, word: str) -> str:
    return f"{count:,} {word}" + ("" if count == 1 else "s")


def _three(value: float) -> str:
    return f"{value:.2f}" if value < 10 else f"{value:.1f}" if value < 100 else f"{value:.0f}"
