"""Strings, sequences and optionals at a model's border: run, verified, saved, and refused with a reason."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
import torch
from onnx import parser

import ridgeline
from ridgeline.errors import InputError, UnsupportedError

HEAD = '<ir_version: 10, opset_import: ["": 21]>\n'
STRINGS = (
    HEAD
    + """
g (string[N] x) => (string[N] y, bool[N] same, int64 n) <string[1] front = {"a-"}> {
  y = StringConcat(front, x)
  wanted = Constant<value_strings = ["a-ridge"]>()
  same = Equal(y, wanted)
  n = Size(x)
}"""
)
SEQUENCE = (
    HEAD
    + """
g (seq(float[N]) s, float[2] x) => (seq(float[N]) t, float[M] joined) {
  t = SequenceInsert(s, x)
  joined = ConcatFromSequence<axis = 0>(t)
}"""
)
OPTIONAL = (
    HEAD
    + """
g (optional(float[2]) x) => (bool has) {
  has = OptionalHasElement(x)
}"""
)


def model(text: str) -> onnx.ModelProto:
    return parser.parse_model(text)


def test_strings_flow_through_a_verified_engine(tmp_path: Path) -> None:
    engine = ridgeline.build(model(STRINGS), level=0)
    assert str(engine.inputs[0]) == "string[N]"
    assert all(check.passed for check in engine.report.checks)
    assert {check.output for check in engine.report.checks} >= {"y", "same", "n"}
    for built in (engine, ridgeline.load(engine.save(tmp_path / "s.ridge"))):
        made = built.run({"x": np.array(["ridge", "línea"])})
        assert made["y"].tolist() == ["a-ridge", "a-línea"]
        assert made["same"].tolist() == [True, False]
        assert made["n"] == 2


def test_the_plan_says_who_runs_strings() -> None:
    engine = ridgeline.build(model(STRINGS), level=0, verify="off")
    notes = "\n".join(engine.plan.slow_ops)
    assert "PyTorch has no StringConcat; run by ONNX Runtime" in notes
    assert "y is string, which torch tensors do not hold" in notes


@pytest.mark.parametrize("array", [np.array, torch.tensor])
def test_sequences_come_as_lists_and_go_as_lists(array: Any) -> None:
    engine = ridgeline.build(model(SEQUENCE), level=0)
    assert all(check.passed for check in engine.report.checks)
    given = [array([1.0, 2.0, 3.0], dtype=(np if array is np.array else torch).float32)]
    x = array([4.0, 5.0], dtype=given[0].dtype)
    made = engine.run({"s": given, "x": x})
    assert [item.tolist() for item in made["t"]] == [[1, 2, 3], [4, 5]]
    assert made["joined"].tolist() == [1, 2, 3, 4, 5]
    assert type(made["t"][1]) is type(x)


def test_results_are_the_callers_own() -> None:
    engine = ridgeline.build(model(SEQUENCE), level=0, verify="off")
    x = np.ones(2, np.float32)
    first = engine.run({"s": [], "x": x})
    x[:] = 7
    second = engine.run({"s": first["t"], "x": x})
    second["t"][0][:] = 9
    assert first["t"][0].tolist() == [1, 1]
    assert [item.tolist() for item in engine.run({"s": first["t"], "x": x})["t"]] == [[1, 1], [7, 7]]


def test_an_optional_may_be_absent() -> None:
    engine = ridgeline.build(model(OPTIONAL), level=0, verify="off")
    assert engine.run({"x": None})["has"].item() is False
    assert engine.run({"x": np.zeros(2, np.float32)})["has"].item() is True


@pytest.mark.parametrize(
    ("feeds", "said"),
    [
        ({"x": np.zeros(2, np.float32)}, "input 's' is missing: want sequence(float32)"),
        ({"s": np.ones(3), "x": np.zeros(2, np.float32)}, "input 's' is ndarray, not a list"),
        ({"s": [np.ones(3)], "x": np.zeros(2, np.float32)}, "input 's' item 0 is float64"),
        ({"s": [], "x": np.zeros(2, np.float32), "t": 1}, "there is no input 't': known: x, s"),
    ],
)
def test_what_does_not_fit_is_refused(feeds: dict[str, Any], said: str) -> None:
    engine = ridgeline.build(model(SEQUENCE), level=0, verify="off")
    with pytest.raises(InputError, match="do not match") as caught:
        engine.run(feeds)
    assert said in str(caught.value)


def test_a_gpu_is_not_asked_for_strings() -> None:
    with pytest.raises(UnsupportedError, match="a GPU takes and gives tensors of numbers") as caught:
        ridgeline.build(model(STRINGS), target="cuda:sm_90")
    assert "x: string[N]" in str(caught.value)
