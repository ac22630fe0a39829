"""`ridge verify` of lowered engines: by their budget, on samples like those of the build."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from test_quantised_build import inputs, network

import ridgeline
from ridgeline.errors import OptionError, VerifyError


def saved(folder: Path, rows: list[dict[str, np.ndarray]]) -> Path:
    folder.mkdir()
    for i, row in enumerate(rows):
        np.savez(folder / f"{i}.npz", **row)  # type: ignore[arg-type]
    return folder


def test_a_lowered_engine_is_judged_as_its_build_judged_it(tmp_path: Path) -> None:
    data = saved(tmp_path / "data", inputs())
    engine = ridgeline.build(
        network(), precision="bf16", data=data, level=0, verify="off", progress=False,
        profiles={"x": "4x64"}, io="bf16",
    )  # fmt: skip
    file = engine.save(tmp_path / "model.ridge")
    built = engine.report.precision
    assert built is not None
    assert built.is_lowered
    report = ridgeline.verify_engine(ridgeline.load(file), network(), data=data)
    assert report.precision is not None
    assert report.precision.error == pytest.approx(built.error)
    assert [check.tolerance for check in report.checks] == [built.budget]
    with pytest.raises(OptionError, match="judged on samples of real data"):
        ridgeline.verify_engine(engine, network())
    other = network()
    scaled = np.frombuffer(other.graph.initializer[0].raw_data, np.float32) * 1.5
    other.graph.initializer[0].raw_data = scaled.astype(np.float32).tobytes()
    with pytest.raises(VerifyError, match="further from its model than its budget"):
        ridgeline.verify_engine(engine, other, data=data)


def test_without_data_the_inputs_of_the_build_are_drawn_again() -> None:
    engine = ridgeline.build(
        network(), precision="fp16", level=0, verify="off", progress=False, profiles={"x": "4x64"}
    )
    report = ridgeline.verify_engine(engine, network())
    assert report.precision is not None
    assert engine.report.precision is not None
    assert report.precision.error == pytest.approx(engine.report.precision.error)


def test_a_metric_of_the_user_is_not_ours_to_repeat() -> None:
    engine = ridgeline.build(
        network(), precision="fp16", level=0, verify="off", progress=False, profiles={"x": "4x64"},
        data=inputs(), metric=lambda got, want, feeds: 0.0, budget=1.0,
    )  # fmt: skip
    with pytest.raises(OptionError, match="a function of yours"):
        ridgeline.verify_engine(engine, network(), data=inputs())  # type: ignore[arg-type]
