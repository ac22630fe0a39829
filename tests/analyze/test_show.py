from __future__ import annotations

import math
from dataclasses import replace

import pytest

from ridgeline.analyze.show import fraction_of_tolerance, short_ops, summarise
from ridgeline.plan.plan import Plan
from ridgeline.plan.report import Check, Report


def test_steps_carry_their_share_of_the_time(plan: Plan, report: Report) -> None:
    summary = summarise(plan, report)
    assert summary.steps_us == 160.0
    assert [row.share for row in summary.steps] == [0.75, 0.25]
    assert summary.nodes == 9


def test_one_untimed_step_leaves_no_total(plan: Plan, report: Report) -> None:
    steps = (plan.steps[0], replace(plan.steps[1], median_us=None))
    summary = summarise(replace(plan, steps=steps), report)
    assert summary.steps_us is None
    assert all(row.share is None for row in summary.steps)


def test_ports_say_symbol_planned_size_and_range(plan: Plan, report: Report) -> None:
    (row,) = summarise(plan, report).inputs
    assert (row.dims, row.planned) == (("batch", 3, 32, 32), (4, 3, 32, 32))
    assert row.ranges == ((1, 4, 8), (3, 3, 3), (32, 32, 32), (32, 32, 32))
    assert row.moves


def test_a_fixed_profile_is_no_range(plan: Plan, report: Report) -> None:
    fixed = replace(plan, profile={"x": plan.profile["x"][1:]})
    assert not summarise(fixed, report).inputs[0].moves


def test_tactics_are_ordered_by_time(plan: Plan, report: Report) -> None:
    assert [row.tactic for row in summarise(plan, report).tactics] == ["onednn.conv", "ort"]


def test_memory_says_who_owns_it(plan: Plan, report: Report) -> None:
    rows = {row.kind: row for row in summarise(plan, report).memory}
    assert [*rows][:2] == ["arena", "inputs"], "outputs lie in the arena"
    assert rows["arena"].per_context
    assert rows["arena"].note == "75% less than unshared"
    assert not rows["weights"].per_context


def test_the_verdict_names_the_check_nearest_its_tolerance(plan: Plan, report: Report) -> None:
    verdict = summarise(plan, report).verdict
    assert verdict.verified
    assert verdict.worst is not None
    assert verdict.worst.name == "batch 1 against 4"
    assert verdict.worst_fraction == pytest.approx(0.5)


def test_no_checks_is_not_verified(plan: Plan) -> None:
    verdict = summarise(plan, Report()).verdict
    assert not verdict.verified
    assert verdict.worst is None


@pytest.mark.parametrize(
    ("error", "tolerance", "fraction"),
    [(0.0, 0.0, 0.0), (1.0, 0.0, math.inf), (math.nan, 1.0, math.inf), (1.0, 4.0, 0.25)],
)
def test_fraction_of_tolerance(error: float, tolerance: float, fraction: float) -> None:
    assert fraction_of_tolerance(Check("c", "y", "", error, tolerance, passed=True)) == fraction


def test_short_ops_counts_what_a_long_region_has_most_of() -> None:
    assert short_ops(("Conv", "Relu")) == "Conv Relu"
    assert short_ops(("Conv", "Relu") * 3) == "Conv×3 Relu×3"
    assert short_ops(("A", "B", "C", "D", "E", "F", "A")) == "A×2 B C D +2 kinds"
