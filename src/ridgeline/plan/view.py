"""Engines as notebooks show them: a line of figures, and a row for each step."""

from __future__ import annotations

from ridgeline.base.notebook import Table, View
from ridgeline.base.units import duration, plural
from ridgeline.plan.plan import Plan, total_us
from ridgeline.plan.report import Report


def engine_view(plan: Plan, report: Report) -> View:
    """What an engine is, and its steps at the planned shapes."""
    total = total_us(plan.steps)
    rows = tuple(
        {
            "index": index,
            "step": step.name,
            "ops": " ".join(step.op_types[:6]) + (" …" if len(step.op_types) > 6 else ""),
            "tactic": step.tactic,
            "median_us": step.median_us,
            "share": step.median_us / total if step.median_us is not None and total else None,
            "bytes": step.work.bytes,
            "flops": step.work.flops,
        }
        for index, step in enumerate(plan.steps, start=1)
    )
    shapes = ", ".join(f"{name} {spec}" for name, spec in plan.planned_shapes.items())
    timed = f", {duration(report.run_us)} a run" if report.run_us is not None else ""
    verified = "verified" if report.verified else "not verified"
    about = f"{plural(len(rows), 'step')}{timed}, {plan.target}, {plan.precision}, {verified}"
    return View(f"{plan.model or 'engine'}: {about}", (Table("", rows),), (shapes,) if shapes else ())
