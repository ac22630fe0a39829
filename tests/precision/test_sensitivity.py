"""`ridge debug precision`: the smallest set by name, whatever its place in the graph."""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from pathlib import Path

import numpy as np
import onnx
import onnx.parser
import pytest
import torch
from planted import planted_data, planted_model

from ridgeline.analyze.sensitivity import (
    QuantisedOperands,
    SensitivityReport,
    candidates,
    find_minimal_set,
    rounding_of,
)
from ridgeline.base.formats import FORMATS
from ridgeline.builder import build
from ridgeline.errors import OptionError
from ridgeline.frontend.from_onnx import load
from ridgeline.options import Options
from ridgeline.precision.emulate import Emulator, cut_to_tf32
from ridgeline.precision.quantize import samples_of
from ridgeline.precision.traced_runs import TracedRuns
from ridgeline.verify.metrics import worst_relative_l2
from ridgeline.verify.reference import Reference

Ridge = Callable[..., tuple[int, str, str]]


def found(model: Path, data: Path, **more: object) -> SensitivityReport:
    return find_minimal_set(model, "fp16", Options(data=data), **more)  # type: ignore[arg-type]


def is_minimal(model: Path, data: Path, report: SensitivityReport) -> bool:
    """Asked anew: the set suffices, and without any one of it the rest is over the budget."""
    loaded = load(model)
    emulator = Emulator(loaded.model)
    rows = list(samples_of(data, loaded.model))
    nodes = candidates(loaded.model, "fp16")
    runs = TracedRuns(emulator, rows, rounding_of("fp16", nodes, loaded.model, emulator.given))
    names = {str(n.outputs[0].name): n.name for n in loaded.model.graph}
    kept = {value for value in nodes if names[value] in report.kept}
    assert len(kept) == len(report.kept)
    error = runs.judge(frozenset(nodes) - kept).error
    without = [runs.judge(frozenset(nodes) - (kept - {name})).error for name in kept]
    return error <= report.budget and all(each > report.budget for each in without)


def test_three_planted_nodes_among_300_are_named_exactly(tmp_path: Path) -> None:
    model = planted_model(tmp_path / "m.onnx", {17: 0.5, 120: 0.5, 230: 0.5})
    report = found(model, planted_data(tmp_path / "data", 3), samples=1)
    assert report.kept == ("node_017", "node_120", "node_230")
    alone = {row.node: row.error for row in report.nodes}
    assert len(alone) > 290
    assert all(alone[name] > report.budget for name in report.kept)
    assert report.error_all_low > report.budget >= report.error_kept
    assert report.runs < len(alone) + 15


def test_of_a_pair_that_harms_together_the_set_is_minimal(tmp_path: Path) -> None:
    model = planted_model(tmp_path / "m.onnx", {20: 0.0101, 70: 0.0101}, nodes=100)
    data = planted_data(tmp_path / "data", 2)
    report = found(model, data)
    alone = {row.node: row.error for row in report.nodes}
    assert alone["node_020"] < report.budget
    assert alone["node_070"] < report.budget
    assert report.error_all_low > report.budget
    assert report.kept in (("node_020",), ("node_070",))
    assert is_minimal(model, data, report)


def test_nothing_is_kept_where_all_is_inside(tmp_path: Path) -> None:
    model = planted_model(tmp_path / "m.onnx", {3: 1e-6}, nodes=20)
    report = found(model, planted_data(tmp_path / "data", 1))
    assert report.kept == ()
    assert report.error_kept == report.error_all_low < report.budget


def test_an_impossible_budget_keeps_all_that_matters(tmp_path: Path) -> None:
    model = planted_model(tmp_path / "m.onnx", {3: 0.5}, nodes=12)
    report = found(model, planted_data(tmp_path / "data", 1), budget=0.0)
    assert report.error_kept == 0.0
    assert "node_003" in report.kept


@pytest.mark.parametrize("precision", ["bf16", "tf32", "int8", "fp8", "fp8_e5m2", "int4", "fp4"])
def test_every_precision_can_be_emulated(tiny_model: Path, precision: str) -> None:
    report = find_minimal_set(tiny_model, precision, Options(), samples=1)
    assert report.error_kept <= report.budget
    assert all(math.isfinite(row.error) for row in report.nodes)
    assert report.is_drawn


def test_tf32_keeps_ten_digits() -> None:
    values = torch.tensor([1 + 2**-10, 1 + 2**-11, 1 + 3 * 2**-11, -1 - 2**-10, 0.0, math.inf, 3.4028235e38])
    largest = 2.0**127 * (2 - 2**-10)
    want = torch.tensor([1 + 2**-10, 1.0, 1 + 2**-10, -1 - 2**-10, 0.0, math.inf, largest])
    assert torch.equal(cut_to_tf32(values), want)
    assert torch.isnan(cut_to_tf32(torch.tensor([math.nan]))).all()


def test_quantised_operands_stay_within_half_a_step() -> None:
    fmt = FORMATS["int8"]
    values = torch.from_numpy(np.random.default_rng(0).standard_normal((8, 8)).astype(np.float32))
    values[:, 3] *= 100
    values[:, 5] = 0
    as_input = QuantisedOperands(fmt)(values)
    step = float(values.abs().max()) / fmt.largest
    assert float((as_input - values).abs().max()) <= step / 2 * (1 + 1e-5)
    as_weight = QuantisedOperands(fmt, values, axis=-1)(values)
    steps = values.abs().amax(0) / fmt.largest
    assert bool(((as_weight - values).abs() <= steps / 2 * (1 + 1e-5)).all())
    assert torch.equal(QuantisedOperands(fmt)(values[0]), values[0])  # a bias
    assert torch.equal(QuantisedOperands(fmt)(torch.zeros(2, 2)), torch.zeros(2, 2))


def test_the_command(ridge: Ridge, tmp_path: Path) -> None:
    model = planted_model(tmp_path / "m.onnx", {5: 0.5}, nodes=20)
    data = planted_data(tmp_path / "data", 1)
    status, out, _ = ridge("debug", "precision", model, "--data", data)
    assert status == 0
    assert "--keep 'fp32:node_005'" in out
    status, out, _ = ridge("debug", "precision", model, "--data", data, "--json")
    report = json.loads(out)
    assert (status, report["schema"], report["kept"]) == (0, "ridgeline/sensitivity/1", ["node_005"])
    assert [row["index"] for row in report["nodes"]] == sorted(row["index"] for row in report["nodes"])


def test_a_build_takes_what_is_to_be_kept(tmp_path: Path) -> None:
    model = planted_model(tmp_path / "m.onnx", {5: 0.5}, nodes=20)
    data = planted_data(tmp_path / "data", 1)
    report = found(model, data)
    assert report.keep_options == ("fp32:node_005",)
    engine = build(model, precision="fp16", keep=report.keep_options, data=data, level=0, progress=False)
    assert "node_005" in {kept.node for kept in engine.report.precision.kept}
    feeds = dict(np.load(data / "s0.npz"))
    want = Reference(load(model), threads=1).run(feeds)
    assert max(worst_relative_l2(engine.run(feeds), want).values()) <= report.budget


def test_what_cannot_be_asked(tiny_model: Path) -> None:
    with pytest.raises(OptionError, match="cannot be emulated"):
        find_minimal_set(tiny_model, "fp17", Options())
    with pytest.raises(OptionError, match="no error"):
        find_minimal_set(tiny_model, "fp16", Options(), budget=-1.0)


def test_weights_alone_are_emulated_with_the_scales_of_a_build() -> None:
    """What a failed build in w4 points at."""
    rng = np.random.default_rng(4)
    weight = onnx.numpy_helper.from_array(rng.standard_normal((128, 64)).astype(np.float32), "w")
    made = onnx.parser.parse_model(
        '<ir_version: 10, opset_import: ["": 20]> g (float[8,128] x) => (float[8,64] y) { y = MatMul(x, w) }'
    )
    made.graph.initializer.append(weight)
    report = find_minimal_set(made, "w4", Options(), budget=0.01)
    assert 0.02 < report.error_all_low < 0.2
    assert len(report.kept) == 1
