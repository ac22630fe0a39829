"""How an engine takes over what a process of its own planned for the first real shapes."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Protocol

from ridgeline.base.spec import TensorSpec
from ridgeline.errors import RidgelineError, first_line
from ridgeline.plan.check import check_ports
from ridgeline.plan.plan import Plan
from ridgeline.plan.report import GUESSED, Report
from ridgeline.runtime.fused_model import FusedModel
from ridgeline.runtime.planner import Planner
from ridgeline.runtime.profiles import Profiles, Variant, load_variant


class Planned(Protocol):
    """What of an engine is read here, and replaced."""

    fused: FusedModel
    planner: Planner
    profiles: Profiles
    report: Report

    @property
    def plan(self) -> Plan: ...

    def save(self, path: str | Path) -> Path: ...

    def run(self, feeds: Mapping[str, Any]) -> dict[str, Any]: ...

    def wait(self) -> None: ...


def plan_for(engine: Planned, feeds: Mapping[str, Any]) -> None:
    """Where shapes were guessed, have the engine planned for those of these inputs, before it is measured."""
    if engine.plan.guess is not None:
        engine.run(feeds)
        engine.wait()


def plan_again(engine: Planned, shapes: dict[str, TensorSpec]) -> bool:
    """Whether another plan runs from now on. What came of it, or what went wrong, is in the report."""
    try:
        variant = _planned_elsewhere(engine, shapes)
    except (RidgelineError, OSError, ValueError) as error:
        warning = f"not planned again at the first real shapes: {first_line(error)}"
        engine.report = replace(engine.report, warnings=(*engine.report.warnings, warning))
        return False
    is_taken = variant is not None
    old = engine.profiles.variants[0]
    engine.profiles.swap(0, variant or replace(old, plan=replace(old.plan, guess=None)))
    return is_taken


def _planned_elsewhere(engine: Planned, shapes: dict[str, TensorSpec]) -> Variant | None:
    """The new variant; None where the old one is as fast. The report says which."""
    with TemporaryDirectory(prefix="ridge-plan-") as folder:
        file = engine.save(Path(folder) / "engine.ridge")
        made = engine.planner.plan_again(file, shapes, engine.fused.program.limits)
    variant = None
    if made.plan is not None:
        check_ports(made.plan, engine.fused.program)
        variant = load_variant(made.plan, engine.fused, engine.planner.bind_body)
        # the time of a call, and what of it lay outside the steps, were those of the old plan
        engine.report = replace(engine.report, run_us=made.again.real_us, call_overhead_us=None)
    engine.report = replace(
        engine.report,
        planned_again=made.again,
        checks=(*engine.report.checks, *made.checks),
        warnings=tuple(line for line in engine.report.warnings if not line.startswith(GUESSED)),
    )
    return variant
