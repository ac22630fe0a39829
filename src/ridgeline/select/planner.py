"""What a running engine asks of passes and selection."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from time import perf_counter

from torch import Tensor

from ridgeline.base.spec import Body, Target
from ridgeline.plan.plan import Plan
from ridgeline.plan.report import Check, Report
from ridgeline.runtime.engine import Engine
from ridgeline.runtime.executable import Executable
from ridgeline.runtime.fused_model import FusedModel
from ridgeline.runtime.profiles import Variant, load_variant
from ridgeline.select.context import Timer
from ridgeline.select.padding import padded_cuts
from ridgeline.select.replanning import plan_elsewhere
from ridgeline.select.retune import retune
from ridgeline.select.subgraphs import fuse_body

UNCHECKED = "settled on its GPU, but the file holds no outputs to check it against"


@dataclass(frozen=True)
class SelectingPlanner:
    """Implements `runtime.planner.Planner`."""

    check: Callable[[Engine], list[Check]]  # compares the first run of a retuned engine
    timer_of: Callable[[Target], Timer]
    padded_cuts = staticmethod(padded_cuts)
    plan_again = staticmethod(plan_elsewhere)

    def bind_body(self, body: Body, plan: Plan, fused: FusedModel) -> Executable:
        inner = fuse_body(plan.model, body, plan.planned_shapes, fused)
        return load_variant(plan, inner, self.bind_body).executable

    def retune(
        self, variant: Variant, report: Report, expected: Mapping[str, Tensor]
    ) -> tuple[Variant, Report]:
        start = perf_counter()
        retuned, selection = retune(variant, self.timer_of(variant.plan.target))
        rows = self.check(Engine([retuned], self, report=report, expected=expected)) if expected else []
        return retuned, replace(
            report,
            checks=(*report.checks, *rows),
            unverified="" if rows else UNCHECKED,
            limits={},
            sites_timed=selection.timed,
            stage_seconds={**report.stage_seconds, "settle": round(perf_counter() - start, 3)},
        )
