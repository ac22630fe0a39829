"""The process that compiles ahead of a calibration: what it compiles, how long it is waited for, its end."""

from __future__ import annotations

import os
import time

import pytest

from ridgeline.analyze import calibration_ahead
from ridgeline.analyze.calibration_ahead import Ahead, jobs_of
from ridgeline.analyze.calibration_graph import HALF, Graph
from ridgeline.analyze.calibration_networks import Transformer
from ridgeline.base.spec import Target
from ridgeline.builder import build
from ridgeline.tactics.base import Offer

GPU = Target("cuda", "sm_90")
TELLS = "import sys, time; sys.stdout.write('rows\\nlarge maps\\n'); sys.stdout.flush(); time.sleep(60)"
# its child holds the pipe open, as a compiler does
HAS_A_CHILD = """
import subprocess, sys, time
child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"])
sys.stdout.write(f"{{child.pid}}\\n"); sys.stdout.flush()
time.sleep(60)
"""


def test_kernels_are_listed_ahead_of_a_build() -> None:
    """As many regions, tactics and configs as a build for that GPU would time."""
    model = Graph("g", HALF)
    Transformer(128, 256, 2, 1, 16, layers=1).add_to(model)
    jobs = list(jobs_of(model.model(), GPU))
    plan = build(model.model(), target="cuda:sm_90", level=1, verify="off").plan
    steps = {(region.site, c.tactic) for region in plan.regions for c in region.candidates if not c.refused}
    assert {(site.key, tactic.name) for tactic, site, _, _ in jobs} >= steps
    assert sum(len(offer.kernels(config)) for _, _, offer, config in jobs if isinstance(offer, Offer)) > 20


def test_a_calibration_goes_on_without_the_process_beside_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(calibration_ahead, "START", "raise SystemExit(1)")
    beside = Ahead(GPU)
    assert not beside.wait_for("short sequences", 60), "it ended, and did not compile"
    beside.close()
    beside = Ahead(Target("cpu"))
    assert not beside.wait_for("rows", 60), "compilers would take the cores that are measured"
    beside.close()


def test_it_is_waited_for_no_longer_than_there_is_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(calibration_ahead, "START", TELLS)
    beside, began = Ahead(GPU), time.monotonic()
    try:
        assert beside.wait_for("large maps", 60), "it was told, after others"
        assert beside.wait_for("rows", 0.0), "it was told before"
        assert not beside.wait_for("maps", 0.2), "it is no graph, but the end of the name of one"
        assert time.monotonic() - began < 30
    finally:
        beside.close()


def test_its_compilers_end_with_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(calibration_ahead, "START", HAS_A_CHILD)
    beside = Ahead(GPU)
    assert beside._process is not None
    assert beside._process.stdout is not None
    child, began = int(beside._process.stdout.readline()), time.monotonic()
    beside.close()
    assert time.monotonic() - began < 30
    assert _is_over(child), "it went on compiling"
    beside.close()
    assert not beside.wait_for("rows", 60), "it was closed"


def _is_over(pid: int) -> bool:
    """Gone, or waiting for its parent to notice."""
    for _ in range(100):
        try:
            with open(f"/proc/{pid}/stat") as file:
                if file.read().rsplit(")", 1)[1].split()[0] == "Z":
                    return True
        except OSError:
            return True
        time.sleep(0.05)
    os.kill(pid, 9)
    return False
