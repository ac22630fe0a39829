"""Reports of engines that run on a GPU: times and kernels of its profile, resources of its own kernels."""

from __future__ import annotations

from pathlib import Path

import ridgeline
from ridgeline.analyze.report_files import report_of


def test_the_report_of_a_profiled_engine(engine: ridgeline.Engine, tmp_path: Path) -> None:
    trace = engine.profile(rounds=5)
    report = report_of(engine, trace=trace)
    assert report.times == "profiled"
    assert report.latency_us == trace.total_us
    own = {digest for step in engine.plan.steps for digest in step.kernels}
    assert {row.digest for row in report.kernels} == own
    assert all(row.registers > 0 and 0 < row.occupancy <= 1 for row in report.kernels)
    launched = {step.index: len(step.kernels) for step in trace.steps}
    assert {step.index: len(step.launches) for step in report.steps if step.index in launched} == launched
    assert report.roof is not None
    assert report.roof.bytes_per_us > 1e5
    assert {step.limiter for step in report.steps if step.us} - {""}
    assert not report.not_looked_for
    page = ridgeline.write_report(engine, tmp_path / "report.html", trace=trace)
    assert page.stat().st_size < 6_000_000
