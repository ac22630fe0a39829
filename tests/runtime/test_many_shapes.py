"""An engine that meets many shapes keeps launches for the last few, and unloads the libraries of the rest."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from models import model_of, quick, rand

from ridgeline.kernels.cpp.compiler import find_compiler
from ridgeline.runtime import context, launches
from ridgeline.tactics.cpu import cpp

SHAPES, KEPT = 10, 2


def mapped(folder: Path) -> int:
    lines = Path("/proc/self/maps").read_text().splitlines()
    return len({line.split()[5] for line in lines if str(folder) in line})


@pytest.mark.skipif(find_compiler() is None, reason="no C++ compiler on this machine")
def test_libraries_of_shapes_long_gone_are_unloaded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(context, "KEPT_INSTANCES", KEPT)
    monkeypatch.setattr(launches, "KEPT_LAUNCHES", KEPT)
    monkeypatch.setattr(cpp.GeneratedCpp.__init__, "__kwdefaults__", {"cache_dir": tmp_path})
    engine = quick(model_of("moving (float[N,8] x) => (float[N,8] y) { t = Tanh (x) y = Mul (t, x) }"))
    assert [step.tactic for step in engine.plan.steps] == ["cpp.pointwise"]
    for rows in range(1, SHAPES + 1):
        x = rand(rows, 8)
        np.testing.assert_allclose(engine.run({"x": x})["y"], np.tanh(x) * x, rtol=1e-5, atol=1e-6)
        assert mapped(tmp_path) <= 2 * KEPT, "one in the context, one among the launches"
    assert len(list(tmp_path.glob("*.so"))) >= SHAPES
