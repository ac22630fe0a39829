"""Findings on a GPU rest on its own times: faults whose cost is certain are found, and mending them gains."""

from __future__ import annotations

import pytest
from bench.planted_faults import FAULTS, Fault, network

import ridgeline
from ridgeline.analyze.findings.in_graph import find_all
from ridgeline.analyze.findings.subject import Subject

# each costs a launch at least, which its change saves; bench/alignment_gpu.py measures misaligned sizes
CERTAIN = ("broadcast_residual", "precision_island", "gather_axis", "unfused_qdq", "layout", "tiny_kernels")


@pytest.mark.parametrize("fault", [f for f in FAULTS if f.kind in CERTAIN], ids=lambda fault: fault.kind)
def test_a_fault_is_found_by_measured_times_and_mending_it_is_faster(fault: Fault) -> None:
    engine = ridgeline.build(network([fault.planted]), target="cuda", level=1, verify="off")
    subject = Subject(engine)
    assert subject.total_us == pytest.approx(
        sum(step.median_us or 0.0 for step in engine.plan.steps), rel=1e-6
    )
    (finding,) = [each for each in find_all(engine) if each.kind == fault.kind]
    assert fault.node in finding.nodes
    after = Subject(ridgeline.build(network([fault.mended]), target="cuda", level=1, verify="off"))
    assert after.total_us < subject.total_us
