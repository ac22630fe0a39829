"""Records of what was considered: tactics that competed for a step, rewrites that did not happen."""

from __future__ import annotations

from dataclasses import dataclass

from ridgeline.base.spec import Config


@dataclass(frozen=True)
class Candidate:
    """A tactic that was considered for a step: timed or predicted, or refused with its reason."""

    tactic: str
    config: Config
    median_us: float | None = None
    refused: str | None = None
    predicted_us: float | None = None  # where nothing could be timed: by the model in `tactics/predict.py`
    untimed: str | None = None  # why a willing one was not tried, where others were


@dataclass(frozen=True)
class Refusal:
    """A rewrite that fitted the graph and still did not happen: why, at which node, at what cost."""

    rule: str
    reason: str
    at: str
    bytes_lost: int | None = None


class RefusedError(Exception):
    """Raised while a region is read or generated: why it cannot run this way. The text reaches the plan."""
