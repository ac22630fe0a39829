"""The matcher and the contract of a rule: binding, commuting, constants, refusals, provenance."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx_ir as ir
import pytest
from text_graphs import ops, parse, rewritten

from ridgeline.ir.provenance import RULE, SOURCES
from ridgeline.passes.rule import Fusion, Match, Names, apply_rules


class ScaledSum(Fusion):
    """(x + y) · 3 = x·3 + y·3, as long as x is y"""

    def pattern(self, op: Any, x: Any, y: Any) -> Any:
        return op.Mul(op.Add(x, op.Neg(y)), 3.0)

    def check(self, m: Match) -> None:
        m.require(m.x.dtype == ir.DataType.FLOAT, "not float32", at=m.x)

    def rewrite(self, op: Any, m: Match) -> ir.Value:
        return op.Mul(op.Sub(m.x, m.y), op.const(np.array(3.0, dtype=np.float32)))


HIT = """g (float[4] a, float[4] b) => (float[4] out) <float three = {3.0}> {
    n = Neg(b)
    s = Add(a, n)
    out = Mul(s, three)
}"""


def test_rewrites_and_keeps_the_name_of_the_output() -> None:
    model, refusals = rewritten(HIT, [ScaledSum()])
    assert ops(model) == ["Sub", "Mul"]
    assert refusals == []


@pytest.mark.parametrize("swap", [("Add(a, n)", "Add(n, a)"), ("Mul(s, three)", "Mul(three, s)")])
def test_commutative_ops_match_in_both_orders(swap: tuple[str, str]) -> None:
    model, _ = rewritten(HIT.replace(*swap), [ScaledSum()])
    assert ops(model) == ["Sub", "Mul"]


def test_constant_nodes_count_as_constants() -> None:
    body = HIT.replace(" <float three = {3.0}>", "").replace(
        "{\n", "{\n three = Constant<value = float {3.0}>()\n", 1
    )
    assert ops(rewritten(body, [ScaledSum()])[0]) == ["Sub", "Mul"]


def test_another_constant_is_another_structure() -> None:
    model, refusals = rewritten(HIT.replace("{3.0}", "{3.001}"), [ScaledSum()])
    assert ops(model) == ["Neg", "Add", "Mul"]
    assert refusals == []


@pytest.mark.parametrize(("shape", "fires"), [("[1]", True), ("[1,1]", False)])
def test_a_scalar_constant_must_not_raise_the_rank(shape: str, fires: bool) -> None:
    body = HIT.replace("float three", f"float{shape} three")
    if not fires:
        body = body.replace("(float[4] out)", "(float[1,4] out)")
    assert (ops(rewritten(body, [ScaledSum()])[0]) == ["Sub", "Mul"]) is fires


def test_a_failed_require_is_a_refusal() -> None:
    model = parse(HIT.replace("float", "double"))
    (refusal,) = apply_rules(model, [ScaledSum()])
    assert (refusal.rule, refusal.reason, refusal.at) == ("ScaledSum", "not float32", "a")
    assert refusal.bytes_lost == 2 * 2 * 4 * 8
    assert ops(model) == ["Neg", "Add", "Mul"]


@pytest.mark.parametrize("as_output", [True, False])
def test_an_inner_value_used_elsewhere_is_a_refusal(as_output: bool) -> None:
    body = HIT.replace(
        "(float[4] out)", "(float[4] out, float[4] s)" if as_output else "(float[4] out, float[4] t)"
    )
    if not as_output:
        body = body.replace("out = Mul", "t = Relu(s)\n out = Mul")
    model, (refusal,) = rewritten(body, [ScaledSum()])
    assert refusal.reason == "Add result is used outside the pattern"
    assert refusal.at == "s"
    assert "Neg" in ops(model)


def test_provenance_names_the_first_nodes_through_two_rewrites() -> None:
    model = parse(HIT)
    apply_rules(model, [ScaledSum()])
    assert {node.metadata_props[RULE] for node in model.graph} == {"ScaledSum"}
    assert {node.metadata_props[SOURCES] for node in model.graph} == {"n;s;out"}

    class Fold(Fusion):
        """-(y - x) · 3"""

        def pattern(self, op: Any, x: Any, y: Any, c: Any) -> Any:
            return op.Mul(op.Sub(x, y), op.known(c))

        def rewrite(self, op: Any, m: Match) -> ir.Value:
            return op.Mul(op.Sub(m.x, m.y), m.c)

    apply_rules(model, [Fold()])
    assert {node.metadata_props[SOURCES] for node in model.graph} == {"n;s;out"}
    assert {node.metadata_props[RULE] for node in model.graph} == {"Fold"}


def test_a_rule_holds_no_state() -> None:
    with pytest.raises(AttributeError, match="holds no state"):
        ScaledSum().seen = 1


def test_new_names_avoid_those_of_subgraphs() -> None:
    model = parse("""g (bool c, float[2] x) => (float[2] y) {
        y = If(c) <then_branch = t () => (float[2] inner) { inner = Neg(x) },
                   else_branch = e () => (float[2] other) { other = Abs(x) }>
    }""")
    names = Names(model)
    assert [names.fresh("inner"), names.fresh("inner"), names.fresh("new")] == ["inner_1", "inner_2", "new"]


def test_rules_reach_into_subgraphs() -> None:
    model = parse("""g (bool c, float[4] a, float[4] b) => (float[4] y) {
        y = If(c) <then_branch = t () => (float[4] out) <float three = {3.0}> {
                       n = Neg(b)
                       s = Add(a, n)
                       out = Mul(s, three)
                   },
                   else_branch = e () => (float[4] other) { other = Abs(a) }>
    }""")
    apply_rules(model, [ScaledSum()])
    inner = next(graph for graph in model.graph.subgraphs() if len(graph) == 2)
    assert [node.op_type for node in inner] == ["Sub", "Mul"]
