"""What a finding is: where, what it costs, how that was computed, and which change of the model gains it.

The severity follows from the predicted gain alone, as a share of the whole run; no kind has one of its own.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TypeAlias

Evidence: TypeAlias = Mapping[str, int | float | str]

# shares of the whole run from which a finding is so severe; below the last, and without a gain, it is a note
SEVERITIES = {"high": 0.02, "medium": 0.007, "low": 0.002}
NOTE = "note"


@dataclass(frozen=True)
class Finding:
    """Something about the model that costs time, and what to change."""

    kind: str
    nodes: tuple[str, ...]  # of the original model
    what: str  # one sentence
    change: str  # what to do to the model, the export or the build
    evidence: Evidence = field(default_factory=dict)
    gain_us: float | None = None  # None: nothing here can tell
    share: float | None = None  # the gain's part of the whole run
    how: str = ""  # how the gain was computed
    step: str = ""  # of the plan; empty: of several, or none

    @property
    def severity(self) -> str:
        """``high``, ``medium``, ``low`` or ``note``."""
        return severity_of(self.share)


def severity_of(share: float | None) -> str:
    """By the part of the whole run that would be gained."""
    return next((name for name, least in SEVERITIES.items() if share is not None and share >= least), NOTE)
