"""Tactics that keep, move, miss or overrun their tensors, and answers that no plan can keep."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from plugin_doubles import DOUBLE, OPEN, X, build, cpp, good, model, needs_cpp, python, refusal, register
from torch import Tensor

import ridgeline
from ridgeline.errors import PluginError
from ridgeline.plugins import Schema
from ridgeline.tactics.base import Tactic


def kept_buffers() -> Any:
    kept: list[Tensor] = []

    def run(x: Tensor, *, out: list[Tensor]) -> None:
        if kept:
            kept[0].zero_()
        kept[:] = out
        good(x, out=out)

    return run


def kept_input() -> Any:
    kept: list[Tensor] = []

    def run(x: Tensor, *, out: list[Tensor]) -> None:
        kept.append(x.clone())
        good(kept[0], out=out)

    return run


def moved_output(x: Tensor, *, out: list[Tensor]) -> None:
    out[0].set_(x * 2)


@pytest.mark.parametrize(
    ("run", "said"),
    [(kept_buffers(), "is off by"), (kept_input(), "is off by"), (moved_output, "is NaN everywhere")],
)
def test_calls_that_reach_beyond_their_tensors_are_found(run: Any, said: str) -> None:
    register(tactics=[python(run)])
    assert said in refusal(build())


def test_nan_of_the_reference_is_wanted() -> None:
    register(reference=lambda x: x.sqrt(), tactics=[python(lambda x, out: torch.sqrt(x.abs(), out=out[0]))])
    assert "where the reference has one" in refusal(build())


@needs_cpp
def test_a_write_outside_an_input_is_found() -> None:
    register(tactics=[cpp(DOUBLE.replace("const ", "").replace("{ for", "{ x[n] = 7; for"))])
    assert "writes outside input 0: 4 bytes after its end" in refusal(build())


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        ({"when": lambda at: False}, "want an Offer, or a reason why not"),
        ({"when": lambda at: ""}, "want an Offer, or a reason why not"),
        ({"configs": lambda at: []}, "its configs are none"),
        ({"configs": lambda at: [1]}, r"its configs are [1]"),
        ({"configs": lambda at: [{"tile": (1, 2)}]}, "its configs are"),
        ({"configs": lambda at: [{"a b": 1}]}, "its configs are"),
        ({"state": lambda at: 1 // 0}, "the state of acme.t failed: ZeroDivisionError"),
    ],
)
def test_answers_of_a_tactic_are_checked(fields: Any, said: str) -> None:
    register(tactics=[python(good, **fields)])
    assert said in refusal(build())


def test_a_tactic_of_a_class_of_its_own_must_answer() -> None:
    class Silent(Tactic):
        name = "acme.silent"

        def offer(self, site: Any) -> Any:
            return None

    register(tactics=[Silent()])
    assert refusal(build()) == "answers None, want an Offer, or a reason why not"


def test_a_state_that_cannot_be_made_for_a_later_context_is_named() -> None:
    is_late: list[bool] = []

    def state(at: Any) -> int:
        if is_late:
            raise ValueError("no more")
        return 0

    register(tactics=[python(good, state=state)])
    engine = build()
    is_late.append(True)
    with pytest.raises(PluginError, match=r"the state of acme\.t failed: ValueError: no more"):
        engine.context().run({"x": X})


@needs_cpp
@pytest.mark.parametrize(
    ("number", "said"), [(np.int64(16), ""), ("16", "scalars hold '16'"), (2**70, "scalars hold")]
)
def test_numbers_for_compiled_code_are_those_of_python_or_numpy(number: Any, said: str) -> None:
    register(tactics=[cpp(scalars=lambda at: (number,))])
    engine = build()
    assert engine.plan.steps[0].tactic == ("aten" if said else "acme.c")
    assert not said or said in refusal(engine)


@needs_cpp
def test_ports_that_a_node_leaves_out_are_null() -> None:
    source = """
extern "C" void f(const float* x, const float* b, const float* c, float* y, float* z, int64_t n) {
    for (int64_t i = 0; i < n; ++i) { y[i] = x[i] * (c ? c[i] : 2); if (z) z[i] = b ? b[i] : x[i]; }
}"""
    register(
        Schema("acme::Op", {"x": "T", "b?": "T", "c?": "T"}, {"y": "T", "z?": "T"}, types={"T": ["float32"]}),
        shapes=lambda x, b, c: (x, x),
        reference=lambda x, b, c: (x * (2 if c is None else c), x + 0 if b is None else b + 0),
        tactics=[cpp(source)],
    )
    for nodes, want in (
        ("y = acme.Op (x)", 2 * X),
        ("y = acme.Op (x, , x)", X * X),
        ("_, y = acme.Op (x)", X),
    ):
        engine = build(model(nodes))
        assert engine.plan.steps[0].tactic == "acme.c"
        np.testing.assert_allclose(engine.run({"x": X})["y"], want, rtol=1e-6)


def raises_elsewhere(x: Tensor, *, out: list[Tensor]) -> None:
    if len(x) != 2:
        raise ValueError("two rows only")
    good(x, out=out)


def wrong_elsewhere(x: Tensor, *, out: list[Tensor]) -> None:
    torch.mul(x, 2 if len(x) == 2 else 3, out=out[0])


@pytest.mark.parametrize(
    ("run", "said"), [(raises_elsewhere, "two rows only"), (wrong_elsewhere, "output 0 is off by")]
)
def test_a_tactic_that_fails_at_other_shapes_is_replaced_there(run: Any, said: str) -> None:
    register(tactics=[python(run)])
    engine = build(model(**OPEN), profiles={"x": ((1, 2, 64), 8)})
    assert engine.plan.steps[0].tactic == "acme.t"
    for rows in (2, 1, 5, 64):
        x = np.full((rows, 8), 3, np.float32)
        np.testing.assert_array_equal(engine.run({"x": x})["y"], 2 * x)
    assert any("acme.t was planned but is not sound at these shapes" in n and said in n for n in engine.notes)


@needs_cpp
def test_a_write_outside_at_other_shapes_is_found_before_it_does_harm() -> None:
    register(tactics=[cpp(DOUBLE.replace("{ for", "{ if (n != 16) y[n] = 7; for"))])
    engine = build(model(**OPEN), profiles={"x": ((1, 2, 4), 8)})
    assert engine.plan.steps[0].tactic == "acme.c"
    assert any("writes outside output 0" in note for note in engine.notes)


def test_both_parts_of_a_complex_number_are_compared() -> None:
    schema = Schema("acme::Op", {"x": "complex64"}, {"y": "complex64"})
    register(schema, tactics=[python(lambda x, out: torch.mul(x.conj(), 2, out=out[0]))])
    assert "is off by" in refusal(build(model(inputs="complex64[2, 8] x", outputs="complex64[2, 8] y")))


def test_changed_code_is_examined_when_an_engine_is_loaded(tmp_path: Path) -> None:
    register(tactics=[python(good)])
    path = build().save(tmp_path / "e.ridge")
    ridgeline.plugins.unregister("acme")
    register(tactics=[python(lambda x, out: torch.mul(x, 3, out=out[0]))])
    engine = ridgeline.load(path)
    np.testing.assert_allclose(engine.run({"x": X})["y"], 2 * X)
    assert any("is not sound at these shapes" in note for note in engine.notes)
