"""Special values: a part of the cases of `walk.py`, in every configuration, and the judge itself.

`python tests/semantics/walk.py` runs them all, in a few minutes.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from semantics_engines import CONFIGURATIONS, Result, Subject, groups_of, run_group, subject_of
from semantics_judge import opinions
from semantics_table import all_cases, changing, choices, read_table

# the floor needs no compiler; a generated kernel takes a fifth of a second
EVERY = {"floor only": 4, "without ort": 60, "default": 60, "ort first": 20}


def subjects(every: int, first: int) -> list[Subject]:
    return [s for s in map(subject_of, all_cases()[first::every]) if s is not None]


def require_one_answer(results: list[Result]) -> None:
    bad = [f"{r.name} | {r.configuration} | {r.call} | {r.problem}" for r in results if not r.verdict]
    assert not bad, "\n".join(bad)
    assert not changing(results)


def require_somebodys(results: list[Result]) -> None:
    require_one_answer(results)
    table = read_table()
    other = [
        f"{n}: {who}, the table has {table.get(n)}"
        for n, who in choices(results).items()
        if who != {table.get(n)}
    ]
    assert not other, "\n".join(other)


@pytest.mark.parametrize("first", range(2))
def test_the_floor(first: int) -> None:
    chosen = subjects(EVERY["floor only"] * 2, first * EVERY["floor only"])
    require_somebodys([r for group in groups_of(chosen) for r in run_group(group, "floor only")])


@pytest.mark.parametrize("configuration", ["default", "without ort"])
def test_generated_kernels(configuration: str) -> None:
    chosen = subjects(EVERY[configuration], list(CONFIGURATIONS).index(configuration))
    require_somebodys([r for group in groups_of(chosen) for r in run_group(group, configuration)])


def test_onnx_runtime_answers_from_the_first_call_on() -> None:
    chosen = subjects(EVERY["ort first"], 3)
    require_one_answer([r for group in groups_of(chosen, 1) for r in run_group(group, "ort first")])


def test_there_are_cases_of_every_family() -> None:
    cases = all_cases()
    names = [case.name for case in cases]
    assert len(names) == len(set(names)) > 1000
    families = {case.family for case in cases}
    assert families >= {
        "pointwise", "reduction", "movement", "pooling", "normalisation", "attention", "resize", "integer",
        "cast",
    }  # fmt: skip


@pytest.mark.parametrize("change", ["nan", "inf", "number", "integer", "shape", "type"])
def test_a_wrong_result_is_nobodys(change: str) -> None:
    """The judge itself."""
    name = "Floor float32 values" if change != "integer" else "Add int64 pairs"
    case = next(c for c in all_cases() if c.name == name)
    others = opinions(case)
    right = np.array(others.made["ort"][0])
    assert others.judge([right]) == "both"
    wrong = right.copy()
    if change in ("nan", "inf", "number"):
        wrong[3] = {"nan": np.nan, "inf": -np.inf, "number": right[3] + 1}[change]
    elif change == "integer":
        wrong[5] += 1
    wrong = wrong[None] if change == "shape" else wrong.astype(np.float64) if change == "type" else wrong
    assert others.judge([wrong]) == ""


def test_a_party_is_named_where_they_differ() -> None:
    """Above one bound only, ONNX Runtime's Clip makes the largest number of an infinity."""
    others = opinions(next(c for c in all_cases() if c.name == "Clip float32 low"))
    ours, theirs = others.made["reference"], others.made["ort"]
    assert (others.judge(ours), others.judge(theirs)) == ("reference", "ort")
    mixed = np.where(np.arange(len(ours[0])) % 2, ours[0], theirs[0])
    assert others.judge([mixed]) in ("either", "ort", "reference")
    assert replace(others, made={"ort": theirs}).judge(theirs) == "ort alone"
