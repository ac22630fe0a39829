"""`lint`: every problem of a model at once, the frontend's refusal included. Rules live in `lint_*.py`."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import onnx

from ridgeline.errors import ModelError, RidgelineError, failure
from ridgeline.frontend.from_onnx import load
from ridgeline.frontend.functions import count_nodes
from ridgeline.frontend.ports import ports
from ridgeline.surgery.graph import read_graph
from ridgeline.surgery.lint_structure import STRUCTURE
from ridgeline.surgery.lint_values import VALUES
from ridgeline.surgery.problem import SEVERITIES, Problem, Rule, Subject

RULES = (*STRUCTURE, *VALUES)


@dataclass(frozen=True)
class LintReport:
    """All that was found, the worst first."""

    model: str
    nodes: int
    opset: int
    problems: tuple[Problem, ...]

    @property
    def errors(self) -> int:
        return sum(problem.severity == "error" for problem in self.problems)


def lint(source: Path | onnx.ModelProto) -> LintReport:
    """Apply every rule. A file that does not parse is one problem; a rule that fails is another."""
    name = str(source) if isinstance(source, Path) else source.graph.name or "model"
    try:
        graph = read_graph(source)
    except ModelError as error:
        return LintReport(name, 0, 0, (_of_error(error),))
    subject = Subject(graph)
    found = [problem for rule in RULES for problem in _apply(rule, subject)]
    if not any(problem.severity == "error" for problem in found):
        found += _frontend(source)
    found.sort(key=lambda problem: SEVERITIES.index(problem.severity))
    opset = subject.opsets.get("", 0)
    return LintReport(name, count_nodes(graph.nodes), opset, tuple(dict.fromkeys(found)))


def _apply(rule: Rule, subject: Subject) -> Iterator[Problem]:
    """Apply one rule. A rule that fails becomes a problem of its own, and the other rules still run."""
    try:
        yield from rule(subject)
    except Exception as error:
        name = getattr(rule, "__name__", "rule")
        yield Problem(
            "error", name, "model", "the model is so broken that this rule cannot read it", failure(error)
        )


def _frontend(source: Path | onnx.ModelProto) -> Iterator[Problem]:
    """What `ridge build` would refuse when it loads the model, if no rule explains it."""
    try:
        loaded = load(source)
        ports(loaded.model.graph.inputs, what="input")
        ports(loaded.model.graph.outputs, what="output")
    except RidgelineError as error:
        yield _of_error(error)


def _of_error(error: RidgelineError) -> Problem:
    rows = "; ".join(error.rows)
    got = error.got if not rows else f"{error.got}; {rows}" if error.got else rows
    return Problem("error", "frontend", "model", error.what, got=got, want=error.want, help=error.help)
