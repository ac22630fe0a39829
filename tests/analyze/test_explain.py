from __future__ import annotations

from dataclasses import replace

import pytest

from ridgeline.analyze.explain import explain_plan
from ridgeline.base.choices import Refusal
from ridgeline.errors import OptionError
from ridgeline.plan.plan import Plan


def test_losers_come_fastest_first_and_say_how_far_behind(plan: Plan) -> None:
    stem = explain_plan(plan).steps[0].contest
    assert [loser.tactic for loser in stem.losers] == ["onednn.conv", "ort", "aten"]
    assert [round(loser.behind or 0, 2) for loser in stem.losers] == [0.01, 0.1, 1.5]


def test_the_runner_up_is_of_another_tactic(plan: Plan) -> None:
    runner_up = explain_plan(plan).steps[0].contest.runner_up
    assert runner_up is not None
    assert runner_up.tactic == "ort"


def test_refusals_are_grouped_by_reason_costliest_first(plan: Plan) -> None:
    first, second = explain_plan(plan).unfused
    assert (first.rule, first.count, first.bytes_lost) == ("epilogue", 2, 1500)
    assert (second.rule, second.bytes_lost) == ("horizontal", None)


def test_a_tactic_that_refused_twice_is_one_row(plan: Plan) -> None:
    (row,) = explain_plan(plan).unwilling
    assert (row.tactic, row.regions, row.reasons) == ("cpp", 3, ("a convolution is not pointwise",))


def test_reasons_that_differ_only_in_names_and_shapes_are_one_row(plan: Plan) -> None:
    refusals = [
        Refusal("epilogue", f"'{name}' has 2 readers and float32[{n},3] is not [1]", f"/{name}", 100)
        for n, name in enumerate(("a", "b"))
    ]
    (row,) = explain_plan(replace(plan, refusals=tuple(refusals))).unfused
    assert (row.reason, row.count) == ("'…' has 2 readers and float32[…] is not […]", 2)


def test_regions_of_the_same_ops_are_one_kind(plan: Plan) -> None:
    head, stem = explain_plan(plan).kinds
    assert (head.regions, head.winners, head.total_us) == (2, {"ort": 2}, 40.0)
    assert (stem.regions, stem.winners) == (1, {"onednn.conv": 1})


def test_equal_regions_share_a_story(plan: Plan) -> None:
    stem, head = explain_plan(plan).regions
    assert (stem.names, stem.steps) == (("region_stem",), (1,))
    assert (head.names, head.steps) == (("region_head", "region_head_again"), (2,))
    assert head.contest is not None
    assert head.contest.runner_up is None


def test_a_node_of_an_equal_region_finds_its_own(plan: Plan) -> None:
    (region,) = explain_plan(plan, node="/head/Gemm_0_again").regions
    assert region.names == ("region_head_again",)


def test_alternatives_compare_with_the_chosen_total(plan: Plan) -> None:
    chosen, slower, refused = explain_plan(plan).alternatives
    assert chosen.is_chosen
    assert slower.behind == pytest.approx(0.25)
    assert (refused.total_us, refused.behind, refused.refused) == (None, None, "one region only")


def test_an_untimed_plan_compares_nothing(plan: Plan) -> None:
    steps = tuple(replace(step, median_us=None) for step in plan.steps)
    story = explain_plan(replace(plan, steps=steps))
    assert story.steps_us is None
    assert story.steps[0].contest.losers[0].behind is None


@pytest.mark.parametrize("name", ["/stem/MaxPool_4", "region_stem", "stem"])
def test_a_node_a_region_or_a_step_can_be_asked_for(plan: Plan, name: str) -> None:
    story = explain_plan(plan, node=name)
    assert [step.name for step in story.steps] == ["stem"]
    assert len(story.unfused) == (name == "/stem/MaxPool_4")
    assert story.host_values == ()


def test_a_host_value_can_be_asked_for(plan: Plan) -> None:
    story = explain_plan(plan, node="/Shape_0")
    assert (story.steps, story.host_values) == ((), ("/Shape_0",))


def test_an_unknown_node_offers_near_ones(plan: Plan) -> None:
    with pytest.raises(OptionError, match="near: /stem/MaxPool_4"):
        explain_plan(plan, node="maxpool")
    with pytest.raises(OptionError, match="near: /stem/Conv_0"):
        explain_plan(plan, node="/stem/Conv_9")
