"""Engines of many cases at once: each configuration, at planned sizes, and at new ones at first and later."""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np
from semantics_case import Case, feeds_of, make_model
from semantics_judge import Opinions, opinions

import ridgeline
from ridgeline.errors import RidgelineError
from ridgeline.runtime.pending_shape import PendingShape
from ridgeline.tactics.registry import TacticOptions, cpu_tactics

TACTICS = tuple(sorted({tactic.name for tactic in cpu_tactics(TacticOptions({"": 21}))} - {"aten"}))
# tactics left out in each
CONFIGURATIONS: dict[str, tuple[str, ...]] = {
    "default": (), "without ort": ("ort",), "floor only": TACTICS,
    # ONNX Runtime takes no value without elements, so these engines have at least one row
    "ort first": tuple(name for name in TACTICS if name != "ort"),
}  # fmt: skip
GROUP = 40
MOST_ROWS = 10_000


@dataclass(frozen=True)
class Subject:
    """A case with what others make of it, at the sizes it can run with."""

    here: Opinions
    more: Opinions | None  # one row more
    none: Opinions | None  # no rows

    @property
    def case(self) -> Case:
        return self.here.case


@dataclass(frozen=True)
class Result:
    """What one configuration made of a case in one call: who it agrees with, or what is wrong."""

    case: Case
    configuration: str
    call: str
    verdict: str  # "" when it is nobody's
    problem: str = ""

    @property
    def name(self) -> str:
        return self.case.name + (", no rows" if self.call.startswith("none") else "")


def subject_of(case: Case) -> Subject | None:
    """None where nobody else runs the case."""
    here = opinions(case)
    if not here.made:
        return None
    if not case.moving:
        return Subject(here, None, None)
    variants = [opinions(case.with_rows(rows)) for rows in ("more", "none")]
    more, none = (v if v.made and v.kinds == here.kinds else None for v in variants)
    return Subject(here, more, none)


def groups_of(subjects: Sequence[Subject], size: int = GROUP) -> Iterator[list[Subject]]:
    """Cases of one opset that run at the same sizes, some at a time."""
    alike: dict[Any, list[Subject]] = {}
    for subject in subjects:
        key = (subject.case.opset, subject.more is not None, subject.none is not None)
        alike.setdefault(key, []).append(subject)
    for members in alike.values():
        for first in range(0, len(members), size):
            yield members[first : first + size]


def run_group(group: Sequence[Subject], configuration: str, *, level: int = 0) -> Iterator[Result]:
    """Every case of a group in one engine; one that breaks it is found by halving, and reported alone."""
    try:
        yield from _run_together(group, configuration, level)
    except Exception as error:
        if len(group) == 1:
            kind = "refused" if isinstance(error, RidgelineError) else "crashed"
            text = error.text() if isinstance(error, RidgelineError) else f"{type(error).__name__}: {error}"
            yield Result(group[0].case, configuration, "any", "", f"{kind}: {text[:300]}")
            return
        middle = len(group) // 2
        yield from run_group(group[:middle], configuration, level=level)
        yield from run_group(group[middle:], configuration, level=level)


def _run_together(group: Sequence[Subject], configuration: str, level: int) -> list[Result]:
    cases = [subject.case for subject in group]
    model = make_model(cases, [subject.here.kinds for subject in group])
    sizes = {f"N{number}": case.rows for number, case in enumerate(cases) if case.moving}
    least = 1 if configuration == "ort first" else 0
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        engine = ridgeline.build(
            model, level=level, verify="off", threads=1, new_shapes="serve",
            without=CONFIGURATIONS[configuration],
            profiles={name: f"{min(least, size)}..{size}..{MOST_ROWS}" for name, size in sizes.items()},
        )  # fmt: skip
        results = _judged(
            group, [s.here for s in group], engine.run(feeds_of(cases)), configuration, "planned"
        )
        for rows in ("more",) if least else ("more", "none"):
            wanted = [getattr(subject, rows) for subject in group]
            if None in wanted:
                continue
            feeds = feeds_of([w.case for w in wanted])
            with _first_call_must_serve():
                first = engine.run(feeds)
            results += _judged(group, wanted, first, configuration, f"{rows} rows, first call")
            engine.wait()
            results += _judged(group, wanted, engine.run(feeds), configuration, f"{rows} rows, later")
    return results


def _judged(
    group: Sequence[Subject], wanted: Sequence[Opinions], made: Any, configuration: str, call: str
) -> list[Result]:
    results = []
    for number, (subject, others) in enumerate(zip(group, wanted, strict=True)):
        got = [np.asarray(made[f"y{number}_{place}"]) for place in range(len(others.kinds))]
        verdict = others.judge(got)
        problem = "" if verdict else others.first_difference(got)
        results.append(Result(subject.case, configuration, call, verdict, problem))
    return results


@contextmanager
def _first_call_must_serve() -> Iterator[None]:
    """An engine hides that a first call failed by waiting for its plan; here it is to be seen."""
    plain = PendingShape.run

    def run_uncompiled(self: PendingShape, feeds: Any) -> Any:
        made = self.uncompiled.run(feeds)
        self.begin()
        return made

    PendingShape.run = run_uncompiled  # type: ignore[method-assign]
    try:
        yield
    finally:
        PendingShape.run = plain  # type: ignore[method-assign]
