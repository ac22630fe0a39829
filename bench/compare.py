"""How far an engine is from its peers, in units of what verification found that rounding may do."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime as ort

from ridgeline.frontend.from_onnx import load
from ridgeline.verify.reference import Reference


def open_session(path: Path) -> ort.InferenceSession:
    options = ort.SessionOptions()
    options.log_severity_level = 4
    options.intra_op_num_threads = 1
    return ort.InferenceSession(str(path), options, ["CPUExecutionProvider"])


def open_reference(path: Path, threads: int) -> Reference:
    return Reference(load(path), threads=threads)


def tolerances_at(
    reference: Reference, feeds: Mapping[str, Any], want: Mapping[str, Any]
) -> dict[str, float]:
    """What rounding does at these very inputs: a score near 0 moves far less than one near a half."""
    found = reference.tolerance(feeds, dict(want))
    return {name: 2 * limit.distance for name, limit in found.items()}


def tolerances(engine: Any) -> dict[str, float]:
    """Two who stand within a tolerance of the same reference are within twice of it of each other."""
    limits: dict[str, float] = {}
    for row in engine.report.checks:
        limits[row.output] = max(limits.get(row.output, 0.0), 2 * row.tolerance)
    return limits


def distance(got: Mapping[str, Any], want: Mapping[str, Any], limits: Mapping[str, float]) -> float:
    """The largest distance of any output, in units of what it may be."""
    worst = 0.0
    for name, array in want.items():
        if got[name].shape != array.shape or got[name].dtype != array.dtype:
            return float("inf")
        off = float(np.abs(got[name].astype(np.float64) - array).max(initial=0.0))
        worst = max(worst, off / limits[name] if limits[name] else off and float("inf"))
        if not np.array_equal(np.isfinite(got[name]), np.isfinite(array)):
            return float("inf")
    return worst
