"""Level 0 times nothing, and compiles and tries no more than it needs."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

import ridgeline
from ridgeline.base.spec import Config, Site
from ridgeline.tactics.base import Launch
from ridgeline.tactics.cpu.cpp import CppProduct, CppTactic


def test_level_0_compiles_only_what_it_takes(tiny_model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    jobs: set[tuple[str, str]] = set()

    def note(self: CppTactic, sites: Sequence[tuple[Site, Config]]) -> None:
        jobs.update((site.key, self.name) for site, _ in sites)

    monkeypatch.setattr(CppTactic, "precompile", note)
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
    def broken(self: CppTactic, *args: Any) -> Launch:
        raise RuntimeError("broken on purpose")

    for tactic in (CppTactic, CppProduct, *CppTactic.__subclasses__(), *CppProduct.__subclasses__()):
        monkeypatch.setattr(tactic, "bind", broken)
    engine = ridgeline.build(tiny_model, level=0, without=("ort",))
    assert not any(step.tactic.startswith("cpp.") for step in engine.plan.steps)
    refused = [c.refused or "" for region in engine.plan.regions for c in region.candidates]
    assert any("broken on purpose" in reason for reason in refused)
    assert engine.report.verified
