"""Ten networks that nobody planted a fault in: each finding is confirmed by making its change."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import onnx
import pytest
from bench.planted_faults import FAULTS, OTHERS, Branch, network, planted

TESTS = Path(__file__).parents[1]
sys.path[:0] = [str(TESTS / "plans"), str(TESTS / "shapes"), str(TESTS.parent)]

from bench.findings_mends import MENDS, mended  # noqa: E402
from golden_plans import GRAPHS  # noqa: E402

import ridgeline  # noqa: E402
from ridgeline.analyze.findings.in_graph import find_in_graph  # noqa: E402
from ridgeline.analyze.findings.subject import Subject  # noqa: E402

CLEAN = ("mlp", "transformer", "convnet", "quantised", "vision", "spelled-transformer")
ON_CPU = ("branches", "detector")
TRAINED = {"ppocr6_cls": {"x": "1x3x48x192"}, "wake_hey_mycroft": None}


def subject_of(model: Any, **options: Any) -> Subject:
    return Subject(ridgeline.build(model, target="null:sm_90", level=0, verify="off", **options))


def confirm(model: Any, **options: Any) -> list[str]:
    """The kinds that were found; each change gains, in a plan made anew, what the finding said."""
    subject = subject_of(model, **options)
    found = find_in_graph(subject)
    for finding in found:
        proto = onnx.load(model) if isinstance(model, Path) else model
        changed = mended(proto, finding)
        assert changed is not None, f"{finding.kind} on a clean model, and nobody confirms it: {finding.what}"
        assert finding.gain_us is not None
        gained_us = subject.total_us - subject_of(changed, **options).total_us
        assert gained_us >= 0.95 * finding.gain_us, (finding.kind, gained_us, finding.gain_us)
    return [finding.kind for finding in found]


@pytest.mark.parametrize("name", [*(f"sm90-{name}" for name in CLEAN), *(f"cpu-{name}" for name in ON_CPU)])
def test_small_networks_have_no_findings(name: str) -> None:
    graph = GRAPHS[name]
    assert confirm(graph.make(), **graph.options) == []


def test_the_network_with_every_fault_mended_has_none() -> None:
    assert confirm(planted([fault.kind for fault in FAULTS])) == []


@pytest.mark.parametrize("name", TRAINED)
def test_findings_in_trained_models_are_confirmed(name: str, trained: Callable[[str], Path]) -> None:
    profiles = TRAINED[name]
    assert confirm(trained(name), **({"profiles": profiles} if profiles else {})) == []


def test_a_change_made_in_the_file_gains_what_the_finding_says() -> None:
    """The faults that `bench/findings.py` can mend by itself, and an input that is turned by a copy."""
    shape = "float16[4,256,128] nhw_x"
    turned = Branch(
        shape, "float16[4,128,256] nhw_y", "nhw_t = Transpose <perm = [0, 2, 1]> (nhw_x) nhw_y = Exp (nhw_t)"
    )
    kinds = [*(fault for fault in (*FAULTS, *OTHERS) if fault.kind in MENDS and fault.kind != "layout")]
    model = network([*(fault.planted for fault in kinds), turned])
    assert sorted(confirm(model)) == sorted([*(fault.kind for fault in kinds), "layout"])
    assert len(MENDS) == len(kinds) + 1
