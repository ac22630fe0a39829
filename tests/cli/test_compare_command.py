"""`ridge compare` as a command: tables, JSON, exit status."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import numpy as np
import onnx
import onnx.parser
import pytest

Ridge = Callable[..., tuple[int, str, str]]


def test_an_engine_against_its_model(ridge: Ridge, tiny_engine: Path, tiny_model: Path) -> None:
    status, out, _ = ridge("compare", tiny_engine, tiny_model, "--layers")
    assert status == 0
    assert "same" in out
    assert "needs atol" in out
    assert "no tensor diverges" in out


def test_a_lowered_engine_is_compared_by_its_own_budget(ridge: Ridge, tiny_model: Path, here: Path) -> None:
    """A metric that prints does not get into the JSON."""
    (here / "metric.py").write_text("def off(got, want, feeds):\n    print('called')\n    return 0.0\n")
    build = ["build", tiny_model, "--precision", "bf16", "--level", "0", "--budget", "0.07", "--json"]
    status, out, err = ridge(*build, "-o", "own.ridge", "--metric", "metric.py:off")
    assert (status, json.loads(out)["lowered"]["budget"]) == (0, 0.07)
    assert "called" in err
    assert ridge(*build, "-o", "half.ridge")[0] == 0
    _, out, _ = ridge("compare", "half.ridge", tiny_model, "--json")
    report = json.loads(out)
    assert report["is_drawn"]
    assert report["rule"] == "relative L2 at most 0.07 (the budget that the engine was built with)"
    assert "random inputs" in ridge("compare", "own.ridge", tiny_model)[1]


def test_the_form_of_json(ridge: Ridge, tiny_model: Path) -> None:
    status, out, _ = ridge("compare", f"{tiny_model}@floor", tiny_model, "--layers", "--json", "--draws", "2")
    report = json.loads(out)
    assert status == 0
    assert report["schema"] == "ridgeline/comparison/1"
    assert report["passed"]
    assert len(report["layers"]) == 5
    (row,) = report["outputs"]
    assert row["metrics"]["relative_l2"] < 1e-5


def test_sides_that_differ_exit_with_3(ridge: Ridge, tiny_model: Path, tiny_engine: Path) -> None:
    status, out, err = ridge("compare", f"{tiny_model}@floor", tiny_model, "--atol", "0", "--layers")
    assert status == 3
    assert "first divergence" in out
    assert "differ by more than is allowed" in err


def test_empty_outputs_exit_with_3(ridge: Ridge, here: Path) -> None:
    text = '<ir_version: 10, opset_import: ["": 20]> g (float[N] x) => (float[N] y) { y = Abs(x) }'
    onnx.save(onnx.parser.parse_model(text), here / "abs.onnx")
    np.savez(here / "none.npz", x=np.zeros(0, np.float32))
    status, out, err = ridge("compare", "abs.onnx@floor", "abs.onnx", "--data", "none.npz")
    assert status == 3
    assert "same" not in out
    assert "nothing was compared" in err


def test_two_machines(ridge: Ridge, tiny_model: Path, here: Path) -> None:
    status, out, err = ridge("compare", f"{tiny_model}@floor", "--save-outputs", "there.npz")
    assert (status, out) == (0, "")
    assert "wrote there.npz" in err
    status, out, _ = ridge("compare", tiny_model, "--load-outputs", here / "there.npz")
    assert status == 0
    assert "one op at a time" in out


@pytest.mark.parametrize(
    ("more", "said"),
    [
        ((), "nothing to compare with"),
        (("{model}", "--load-outputs", "x.npz"), "given together"),
        (("--save-outputs", "x.txt"), "no file of saved outputs"),
        (("{model}@fp17",), "names no way to run"),
        (("{model}", "--allow", "-1"), "no tolerance"),
        (("{engine}", "--unfused"), "fused already"),
        (("{engine}@floor",), "built already"),
        (("{model}", "--data", "nowhere"), "nowhere"),
    ],
)
def test_what_cannot_be_compared(
    ridge: Ridge, tiny_model: Path, tiny_engine: Path, more: tuple[str, ...], said: str
) -> None:
    words = [word.format(model=tiny_model, engine=tiny_engine) for word in more]
    status, out, err = ridge("compare", tiny_model, *words)
    assert (status, out) == (1, "")
    assert said in err
