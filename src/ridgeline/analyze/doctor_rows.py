"""A row of `ridge doctor`: a fact, the verdict on it, the reason, and the command that changes it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Verdict = Literal["fine", "note", "distorts", "problem"]
# the worst last
VERDICTS: tuple[Verdict, ...] = ("fine", "note", "distorts", "problem")


@dataclass(frozen=True)
class DoctorRow:
    """One fact. `distorts` changes what a benchmark measures; a `problem` prevents running."""

    topic: str
    name: str
    value: str
    verdict: Verdict
    reason: str
    fix: str  # a command, or what to do; "" if there is nothing to do


@dataclass(frozen=True)
class Topic:
    """Makes the rows of one topic."""

    name: str

    def fine(self, name: str, value: str, reason: str = "") -> DoctorRow:
        return DoctorRow(self.name, name, value, "fine", reason, "")

    def note(self, name: str, value: str, reason: str, fix: str = "") -> DoctorRow:
        return DoctorRow(self.name, name, value, "note", reason, fix)

    def distorts(self, name: str, value: str, reason: str, fix: str) -> DoctorRow:
        return DoctorRow(self.name, name, value, "distorts", reason, fix)

    def problem(self, name: str, value: str, reason: str, fix: str) -> DoctorRow:
        return DoctorRow(self.name, name, value, "problem", reason, fix)

    def unknown(self, name: str, why: str) -> DoctorRow:
        """Something that is not shown here: said, and not counted as a fault."""
        return DoctorRow(self.name, name, "not known", "note", why, "")


def size_text(nbytes: int) -> str:
    """``1.5 GiB``"""
    gib = nbytes / 2**30
    return f"{gib:.1f} GiB" if gib >= 1 else f"{nbytes / 2**20:.0f} MiB"
