"""What an engine asks of selection and passes. The build hands it in, so the runtime imports neither."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol

from torch import Tensor

from ridgeline.base.spec import Body, TensorSpec
from ridgeline.plan.plan import Plan
from ridgeline.plan.report import Report
from ridgeline.runtime.fused_model import FusedModel
from ridgeline.runtime.inference import Inference
from ridgeline.runtime.islands import BodyExecutable
from ridgeline.runtime.padded import Cut
from ridgeline.runtime.profiles import Variant


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
