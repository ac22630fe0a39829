"""Level 0 times nothing, and compiles and tries no more than it needs."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest

import ridgeline
from offers import change_launches
from ridgeline.base.spec import Config, Site
from ridgeline.runtime import launches
from ridgeline.select import loop
from ridgeline.tactics.base import Bind, Launch, Tactic
from ridgeline.tactics.cpu.cpp import GeneratedCpp


def test_level_0_compiles_only_what_it_takes(tiny_model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    jobs: set[tuple[str, str]] = set()

    def note(todo: Iterable[tuple[Tactic, Site, Any, Config]], **_: Any) -> list[Exception]:
        jobs.update((site.key, tactic.name) for tactic, site, _, _ in todo if tactic.name.startswith("cpp."))
        return []

    for module in (loop, launches):
        monkeypatch.setattr(module, "precompile", note)
    whole = ridgeline.build(tiny_model, level=0, verify="off")
    assert [step.tactic for step in whole.plan.steps] == ["ort"]
    assert not jobs, "the library runs the whole graph: no kernel is needed"
    assert all(region.candidates for region in whole.plan.regions), "who would be willing is still said"
    parts = ridgeline.build(tiny_model, level=0, verify="off", without=("ort",))
    taken = {(region.site, region.candidates[0].tactic) for region in parts.plan.regions}
    assert jobs == {(site, tactic) for site, tactic in taken if tactic.startswith("cpp.")}


def test_level_0_takes_the_next_where_the_first_breaks(
    tiny_model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(bind: Bind) -> Bind:
        def fail(*_: Any) -> Launch:
            raise RuntimeError("broken on purpose")

        return fail

    for tactic in (GeneratedCpp, *GeneratedCpp.__subclasses__()):
        change_launches(monkeypatch, tactic, broken)
    engine = ridgeline.build(tiny_model, level=0, without=("ort",))
    assert not any(step.tactic.startswith("cpp.") for step in engine.plan.steps)
    refused = [c.refused or "" for region in engine.plan.regions for c in region.candidates]
    assert any("broken on purpose" in reason for reason in refused)
    assert engine.report.verified
