"""What an engine asks of selection and passes. The build hands it in, so the runtime imports neither."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from torch import Tensor

from ridgeline.base.spec import Body, TensorSpec
from ridgeline.options import Limits
from ridgeline.plan.plan import Plan
from ridgeline.plan.report import Check, PlannedAgain, Report
from ridgeline.runtime.fused_model import FusedModel
from ridgeline.runtime.inference import Inference
from ridgeline.runtime.padded import Cut
from ridgeline.runtime.planned_body import BodyExecutable
from ridgeline.runtime.profiles import Variant


@dataclass(frozen=True)
class Replanned:
    """What planning at real shapes came to."""

    again: PlannedAgain
    plan: Plan | None = None  # None: the one for guessed shapes is as fast
    checks: tuple[Check, ...] = ()


class Planner(Protocol):
    """Decisions that need passes or measurements."""

    def bind_body(self, body: Body, plan: Plan, fused: FusedModel) -> BodyExecutable:
        """A body of control flow, fused again as its plan says; an error where this version differs."""

    def padded_cuts(
        self, inference: Inference, real: Mapping[str, TensorSpec], padded: Mapping[str, TensorSpec]
    ) -> dict[str, Cut | None]:
        """Where each output ends when padding is cut off; `NotPaddable` where padding changes results."""

    def retune(
        self, variant: Variant, report: Report, expected: Mapping[str, Tensor]
    ) -> tuple[Variant, Report]:
        """A plan whose choices were predicted, with them measured here and its first run checked."""

    def plan_again(self, file: Path, shapes: Mapping[str, TensorSpec], limits: Limits) -> Replanned:
        """The engine of this file planned at these shapes, by a process of its own."""
