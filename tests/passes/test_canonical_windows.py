"""Masks of shifted windows: over four axes they are what attention takes."""

from __future__ import annotations

import pytest
from text_graphs import assert_same, ops, random_feeds, run, with_weights

from ridgeline.base.spec import Target
from ridgeline.passes import canonical_windows
from ridgeline.passes.canonical_windows import RULES
from ridgeline.passes.pipeline import canonicalise
from ridgeline.passes.rule import apply_rules

# two images of three windows; two heads, four queries, three keys
BODY = """g (float[6,2,4,3] x, float[{mask}] m) => (float[{made}] y) {{
    apart = Constant<value_ints = [-1, {windows}, 2, 4, 3]>()
    back = Constant<value_ints = [{back}]>()
    s = Reshape(x, apart)
    a = Add(s, m)
    y = Reshape(a, back)
}}"""


def after(mask: str, windows: int = 3, back: str = "-1, 2, 4, 3", made: str = "6,2,4,3") -> list[str]:
    model = with_weights(BODY.format(mask=mask, windows=windows, back=back, made=made), "m")
    feeds = random_feeds(model, {})
    before = run(model, feeds)
    apply_rules(model, RULES)
    assert_same(before, run(model, feeds))
    return ops(model)


@pytest.mark.parametrize("mask", ["1,3,1,4,3", "1,3,2,4,3", "3,2,4,3", "1,1,1,4,3", "3,1,1,3", "1,3,2,1,1"])
def test_a_mask_of_windows_is_added_over_four_axes(mask: str) -> None:
    assert after(mask) == ["Add"]


@pytest.mark.parametrize("mask", ["2,3,1,4,3", "2,1,1,1,1", "4,3", "2,1,3"])
def test_a_mask_of_something_else_stays(mask: str) -> None:
    assert after(mask) == ["Reshape", "Add", "Reshape"]


def test_scores_that_come_out_otherwise_stay() -> None:
    assert after("1,3,1,4,3", back="2, 3, 8, 3", made="2,3,8,3") == ["Reshape", "Add", "Reshape"]


def test_a_mask_that_would_be_huge_stays(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(canonical_windows, "MOST_BYTES", 287)  # of 6 × 4 × 3 numbers
    assert after("1,3,1,4,3") == ["Reshape", "Add", "Reshape"]
    monkeypatch.setattr(canonical_windows, "MOST_BYTES", 288)
    assert after("1,3,1,4,3") == ["Add"]


@pytest.mark.parametrize("bias", ["", "b = Add(p, t)\n"])
@pytest.mark.parametrize(("target", "is_one"), [(Target("cuda", "sm_90"), True), (Target(), False)])
def test_attention_in_shifted_windows_is_one_op_on_a_gpu(bias: str, target: Target, is_one: bool) -> None:
    body = f"""g (float[6,2,4,8] q, float[6,2,4,8] k, float[6,2,4,8] v, float[1,3,1,4,4] m,
        float[1,2,4,4] t) => (float[6,2,4,8] y) {{
        apart = Constant<value_ints = [2, 3, 2, 4, 4]>()
        back = Constant<value_ints = [-1, 2, 4, 4]>()
        half = Constant<value_float = 0.5>()
        scaled = Mul(q, half)
        kt = Transpose<perm = [0, 1, 3, 2]>(k)
        p = MatMul(scaled, kt)
        {bias}s = Reshape({"b" if bias else "p"}, apart)
        a = Add(s, m)
        r = Reshape(a, back)
        w = Softmax<axis = -1>(r)
        y = MatMul(w, v)
    }}"""
    model = with_weights(body, "m", "t")
    feeds = random_feeds(model, {})
    before = run(model, feeds)
    canonicalise(model, target=target)
    assert ("Attention" in ops(model), "Softmax" in ops(model)) == (is_one, not is_one)
    assert_same(before, run(model, feeds))
