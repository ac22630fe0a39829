"""What a kind of finding is: a name, a line for the catalogue, and the function that looks for it."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Generic, TypeVar

from ridgeline.analyze.findings.finding import Finding
from ridgeline.plan.plan import Plan
from ridgeline.plan.report import Report

Where = TypeVar("Where")


@dataclass(frozen=True)
class Planned:
    """What an engine file says as text: enough for kinds that need no graph."""

    plan: Plan
    report: Report


@dataclass(frozen=True)
class Kind(Generic[Where]):
    """One kind, looked for in what an engine file says (`Planned`) or in its graph (`Subject`)."""

    name: str
    title: str
    find: Callable[[Where], Iterable[Finding]]
