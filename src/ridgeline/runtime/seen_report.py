"""The report of an engine with what its runs on this machine have shown: which steps are in which graph."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from ridgeline.plan.report import Report, RunPart


class SeenReport:
    """An attribute of an engine: the report of its build, or of the file, brought up to date when read."""

    def __get__(self, engine: Any, owner: type) -> Report:
        report: Report = vars(engine)["report"]
        return with_parts(report, engine.fused.run_parts)

    def __set__(self, engine: Any, report: Report) -> None:
        vars(engine)["report"] = report


def with_parts(report: Report, seen: Mapping[str, tuple[RunPart, ...]]) -> Report:
    """The report with these parts in place of those it has of the same graphs."""
    if not seen:
        return report
    own = [row for row in report.run_parts if row.graph not in seen]
    # a model that is one graph needs no row: that is the rule
    made = [
        row for name, rows in seen.items() for row in rows if name or len(rows) > 1 or not row.is_captured
    ]
    rows = sorted((*own, *made), key=lambda row: row.graph)
    return report if list(report.run_parts) == rows else replace(report, run_parts=tuple(rows))
