"""Plans for the null target are what they were: a change that moves code changes none of them."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest
from golden_plans import CPU, GOLDEN, GPU, GRAPHS, plan_text

import ridgeline
from cross_models import mlp
from ridgeline.errors import OptionError, PlanError

TRAINED = {"ppocr6-cls": "ppocr6_cls", "silero-vad": "silero_vad"}


@pytest.mark.parametrize("name", GRAPHS)
def test_the_plan_is_what_it_was(name: str, trained: Callable[[str], Path]) -> None:
    file = TRAINED.get(name.partition("-")[2])
    if file is not None:
        trained(file)
    made, kept = plan_text(name).splitlines(), (GOLDEN / f"{name}.json").read_text().splitlines()
    assert made == kept, f"if that is meant: python tests/plans/golden_plans.py {name}"


def test_every_kept_plan_is_json_and_of_a_graph() -> None:
    kept = {path.stem: json.loads(path.read_text()) for path in GOLDEN.glob("*.json")}
    assert kept.keys() == GRAPHS.keys()
    assert len(kept) >= 15
    assert all(plan["target"]["is_null"] for plan in kept.values())


def test_neither_threads_nor_timings_change_it(tmp_path: Path) -> None:
    plain = ridgeline.build(mlp(), target=CPU, verify="off").plan
    cache = tmp_path / "timings.toml"
    assert ridgeline.build(mlp(), target=CPU, verify="off", threads=1, timing_cache=cache).plan == plain
    ridgeline.build(mlp(), target="cpu", verify="off", level=1, timing_cache=cache)
    assert ridgeline.build(mlp(), target=CPU, verify="off", timing_cache=cache).plan == plain


@pytest.mark.parametrize("target", [CPU, GPU])
def test_it_runs_nowhere(target: str, tmp_path: Path) -> None:
    engine = ridgeline.build(mlp(), target=target)
    assert engine.report.unverified == "built for no machine"
    again = ridgeline.load(engine.save(tmp_path / "null.ridge"))
    assert again.plan == engine.plan
    for each in (engine, again):
        with pytest.raises(PlanError, match="runs nowhere"):
            each.run(each.example_inputs())


def test_there_are_two_of_them() -> None:
    with pytest.raises(OptionError, match="null:sm_80"):
        ridgeline.build(mlp(), target="null:sm_80")
