"""The policy on rewrites: each rule states what it may change, and changes nothing else at special values."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import onnx_ir as ir
import pytest
from onnx.reference import ReferenceEvaluator
from rule_examples import EXAMPLES, Example
from text_graphs import random_feeds, run, with_weights

from ridgeline import build
from ridgeline.ir.provenance import RULE
from ridgeline.passes import pipeline
from ridgeline.passes.clean import remove_unused
from ridgeline.passes.fold import fold_constants
from ridgeline.passes.rule import Change, Fusion, apply_rules
from ridgeline.passes.shapes import infer_shapes

LARGEST = {"float32": 3e38, "float16": 6e4}


def _every_rule() -> list[Fusion]:
    stages = (*pipeline.PASSES, *pipeline.CUDA_PASSES)
    groups = [getattr(stage.run, "keywords", {}).get("rules", ()) for stage in stages]
    return list(dict.fromkeys(rule for rules in groups for rule in rules))


RULES = {rule.name: rule for rule in _every_rule()}


def test_every_rule_is_listed_here_and_states_what_it_may_change() -> None:
    assert RULES.keys() == EXAMPLES.keys()
    assert not [name for name, rule in RULES.items() if "may_change" not in vars(type(rule))]


def test_every_rule_of_the_package_is_in_a_pass() -> None:
    def below(kind: type[Fusion]) -> Iterator[type[Fusion]]:
        for rule in kind.__subclasses__():
            yield rule
            yield from below(rule)

    ours = {rule.__name__ for rule in below(Fusion) if rule.__module__.startswith("ridgeline.")}
    assert ours == RULES.keys()


@dataclass(frozen=True)
class Case:
    """What is put where in the inputs of an example."""

    name: str
    value: float
    skip: frozenset[Change] = frozenset()  # rules that may change one of these are not asked

    def __str__(self) -> str:
        return self.name


LARGE = frozenset({Change.INTERMEDIATE, Change.HALF_OVERFLOW, Change.DYNAMIC_SCALE})
NOT_FINITE = frozenset({Change.BARRED_KEYS, Change.DYNAMIC_SCALE})
CASES = [
    Case("plain", 1.0),
    Case("nan", math.nan, NOT_FINITE),
    Case("inf", math.inf, NOT_FINITE),
    Case("-inf", -math.inf, NOT_FINITE),
    Case("squares that overflow", 1e21, frozenset({Change.BARRED_KEYS})),
    Case("largest", math.nan, LARGE),
    Case("zero", 0.0),
]


def fed(model: ir.Model, example: Example, case: Case) -> dict[str, np.ndarray]:
    """Random inputs with the case's value in one row of each, and in one column of the next."""
    feeds = random_feeds(model, dict(example.sizes))
    for array in feeds.values():
        if array.dtype.kind != "f":
            continue
        value = LARGEST[str(array.dtype)] if case.name == "largest" else case.value
        with np.errstate(over="ignore"):
            array.reshape(-1)[1] = value
            array[(0,) * (array.ndim - 1)][..., -1] = -value if case.name == "largest" else value
    return feeds


def outcome(model: ir.Model, feeds: dict[str, np.ndarray], judge: str) -> np.ndarray:
    if judge == "onnxruntime":
        (result,) = run(model, feeds)
    else:
        with np.errstate(all="ignore"):
            (result,) = ReferenceEvaluator(ir.to_proto(model)).run(None, feeds)
    return np.asarray(result)


def rewritten(name: str) -> tuple[ir.Model, ir.Model]:
    """The example before and after its rule alone."""
    example = EXAMPLES[name]
    models = [with_weights(example.body, *example.weights) for _ in range(2)]
    fold_constants(models[1])
    apply_rules(models[1], [RULES[name]])
    remove_unused(models[1])
    assert any(node.metadata_props.get(RULE) == name for node in models[1].graph), "the rule did not fire"
    infer_shapes(models[1])
    return models[0], models[1]


@pytest.mark.parametrize("name", EXAMPLES)
def test_the_same_outcome(name: str) -> None:
    before, after = rewritten(name)
    may_change = set(RULES[name].may_change)
    for case in CASES:
        if case.skip & may_change or case.name in EXAMPLES[name].differs_at:
            continue
        feeds = fed(before, EXAMPLES[name], case)
        want, got = (outcome(model, feeds, EXAMPLES[name].judge) for model in (before, after))
        assert want.dtype == got.dtype
        if not may_change:
            np.testing.assert_array_equal(got, want, err_msg=str(case), strict=True)
            continue
        finite = np.abs(want[np.isfinite(want)].astype(np.float64))
        step = np.finfo(want.dtype).eps if want.dtype.kind == "f" else 0.0
        slack = 64 * step * max(finite.max(initial=0.0), 1e-30)
        if Change.LEVEL in may_change and want.dtype.kind in "iu":
            slack = 1.0
        np.testing.assert_allclose(
            got.astype(np.float64), want.astype(np.float64), rtol=0.0, atol=slack, err_msg=str(case)
        )


@pytest.mark.parametrize(
    "name", [n for n in EXAMPLES if RULES[n].may_change and EXAMPLES[n].judge == "onnxruntime"]
)
def test_an_engine_is_as_exact_far_from_zero(name: str) -> None:
    """A rule may write an op that a library computes in a way that cancels where the spelling did not."""
    example = EXAMPLES[name]
    model = with_weights(example.body, *example.weights)
    feeds = random_feeds(model, dict(example.sizes))
    for array in feeds.values():
        if array.dtype.kind == "f":
            array[...] = 100.0 + 0.01 * array.astype(np.float64)
    want = run(model, feeds)[0].astype(np.float64)
    moved = [run(model, _rounded_otherwise(feeds, seed))[0].astype(np.float64) for seed in range(4)]
    rounding = max(float(np.abs(other - want).max()) for other in moved)
    shapes = {name: "x".join(map(str, array.shape)) for name, array in feeds.items()}
    engine = build(ir.to_proto(model), level=0, verify="off", threads=1, progress=False, profiles=shapes)
    (got,) = engine.run(feeds).values()
    slack = 2 * rounding + 64 * np.finfo(np.float32).eps * np.abs(want).max()
    np.testing.assert_allclose(np.asarray(got).astype(np.float64), want, rtol=0.0, atol=slack)


def _rounded_otherwise(feeds: dict[str, np.ndarray], seed: int) -> dict[str, np.ndarray]:
    rng = np.random.default_rng(seed)
    return {
        name: (a * (1 + np.finfo(a.dtype).eps * rng.choice([-1, 1], a.shape))).astype(a.dtype)
        if a.dtype.kind == "f"
        else a
        for name, a in feeds.items()
    }


@pytest.mark.parametrize(
    "name", [n for n, example in EXAMPLES.items() if "[B," in example.body and example.judge_of_nothing]
)
def test_nothing_in_nothing_out(name: str) -> None:
    before, after = rewritten(name)
    feeds = random_feeds(before, {**dict(EXAMPLES[name].sizes), "B": 0})
    judge = EXAMPLES[name].judge_of_nothing
    results = [outcome(model, feeds, judge) for model in (before, after)]
    assert results[0].shape == results[1].shape
    assert results[0].size == 0
