"""Which tensors are quantised, and the reasons why others are not."""

from __future__ import annotations

import numpy as np
import pytest
from quant_models import model_of

from ridgeline.errors import OptionError
from ridgeline.options import QUANTISED
from ridgeline.passes.shapes import infer_shapes
from ridgeline.precision.histograms import Range
from ridgeline.precision.patterns import named_nodes
from ridgeline.precision.place import Placement, place
from ridgeline.precision.schemes import SCHEMES, scheme_named

RNG = np.random.default_rng(0)


def drawn(*shape: int) -> np.ndarray:
    return RNG.standard_normal(shape).astype(np.float32)


def placed(text: str, fmt: str = "int8", exclude: tuple[str, ...] = (), **weights: np.ndarray) -> Placement:
    model = model_of(text, **weights)
    infer_shapes(model)
    return place(model, scheme_named(fmt), exclude=exclude)


def edges(made: Placement) -> set[tuple[str, str]]:
    """(what is read, who reads it) of every activation that gets a pair."""
    return {(str(e.value.name), str(e.node.outputs[0].name)) for e in made.activations}


def why(made: Placement, node: str) -> str:
    return next(d.why for d in made.decisions if d.scheme == "float" and d.node == node)


def test_every_quantised_precision_of_a_build_is_a_scheme() -> None:
    assert set(QUANTISED) <= set(SCHEMES)


def test_both_operands_of_products_are_quantised() -> None:
    made = placed(
        "g (float[N,32] x) => (float[N,16] y) { h = MatMul(x, w) r = Relu(h) y = Gemm<transB = 1>(r, v, b) }",
        w=drawn(32, 32), v=drawn(16, 32), b=drawn(16),
    )  # fmt: skip
    assert edges(made) == {("x", "h"), ("r", "y")}
    assert [(str(w.edge.value.name), w.granularity.axis) for w in made.weights] == [("w", -1), ("v", 0)]
    assert [group.members for group in made.groups] == [("x",), ("r",)]


def test_pairs_stand_before_moves_of_elements() -> None:
    """Only where all that read the moved tensor are quantised."""
    text = """g (float[N,32,8,8] x) => (float[N,32,4,4] y{also}) {{
        r = Relu(x) p = MaxPool<kernel_shape = [2, 2], strides = [2, 2]>(r)
        t = Transpose<perm = [0, 1, 3, 2]>(p)
        y = Conv(t, w) z = Conv(t, w) {more} }}"""
    w = drawn(32, 32, 1, 1)
    made = placed(text.format(also=", float[N,32,4,4] z", more=""), w=w)
    assert edges(made) == {("r", "p")}
    assert made.groups[0].aliases == ("t", "p")
    made = placed(text.format(also=", float[N,32,4,4] z", more=""), "fp8", w=w)
    assert edges(made) == {("p", "t")}  # ONNX pools no float8
    for also, more in ((", float[N,32,4,4] t", ""), (", float[N,32,4,4] q", "q = Exp(t)")):
        assert edges(placed(text.format(also=also, more=more), w=w)) == {("t", "y"), ("t", "z")}


def test_concatenated_tensors_share_a_scale() -> None:
    made = placed(
        """g (float[N,16,8,8] x) => (float[N,32,8,8] y, float[N,16,8,8] z) {
        a = Relu(x) b = Tanh(x) c = Concat<axis = 1>(a, b) y = Conv(c, w) z = Conv(b, v) }""",
        w=drawn(32, 32, 1, 1), v=drawn(16, 16, 1, 1),
    )  # fmt: skip
    assert edges(made) == {("c", "y"), ("a", "c"), ("b", "c"), ("b", "z")}
    assert [set(group.members) for group in made.groups] == [{"a", "b", "c"}]


RESIDUAL = """g (float[N,32,8,8] x) => (float[N,32,8,8] y) {
    s = Relu(x) a = Conv(s, w) b = Relu(a) c = Conv(b, w) %s d = Add(c, %s) e = Relu(d) y = %s }"""


def test_the_other_branch_of_a_residual_sum_is_quantised() -> None:
    w = drawn(32, 32, 1, 1)
    made = placed(RESIDUAL % ("", "s", "Conv(e, w)"), w=w)
    assert ("s", "d") in edges(made)
    assert ("c", "d") not in edges(made)
    shared = next(group for group in made.groups if "s" in group.members)
    assert shared.members == ("s",)  # one scale for the convolution and the sum
    free = placed(RESIDUAL % ("", "s", "Exp(e)"), w=w)
    assert ("s", "d") not in edges(free)
    assert any(d.role == "residual" and "float one is free" in d.why for d in free.decisions)


def test_of_two_convolutions_the_longer_branch_adds_the_other() -> None:
    made = placed(RESIDUAL % ("k = Conv(s, w)", "k", "Conv(e, w)"), w=drawn(32, 32, 1, 1))
    assert ("k", "d") in edges(made)
    assert ("c", "d") not in edges(made)


ATTENTION = """g (float[N,4,S,32] q, float[N,4,S,32] k, float[N,4,S,32] v) => (float[N,4,S,32] y) {
    kt = Transpose<perm = [0, 1, 3, 2]>(k) a = MatMul(q, kt) p = Softmax(a) n = IsNaN(p)
    c = Where(n, zero, p) y = MatMul(c, v) }"""


@pytest.mark.parametrize("fmt", ["int8", "uint8", "fp8"])
def test_attention_quantises_both_products_and_knows_the_range_of_softmax(fmt: str) -> None:
    made = placed(ATTENTION, fmt, zero=np.zeros((), np.float32))
    assert edges(made) == {("q", "a"), ("k", "kt"), ("c", "y"), ("v", "y")}
    assert {group.members: group.fixed for group in made.groups}["c",] == Range(0.0, 1.0)
    assert sum(group.fixed is not None for group in made.groups) == 1


ROWS, IMAGES = (
    "g (float[N,%d] x) => (float[N,%d] y) {%s}",
    "g (float[N,%d,8,8] x) => (float[N,%d,8,8] y) {%s}",
)
GATES = [
    (ROWS % (8, 32, "y = MatMul(x, w)"), (8, 32), "K = 8"),
    (ROWS % (32, 8, "y = MatMul(x, w)"), (32, 8), "N = 8"),
    ("g (float[1,32] x) => (float[1,32] y) { y = MatMul(x, w) }", (32, 32), "one row"),
    (IMAGES % (3, 4, "y = Conv(x, w)"), (4, 3, 1, 1), "3 to 4 channels"),
    (IMAGES % (20, 20, "y = Conv<group = 20>(x, w)"), (20, 1, 3, 3), "20 groups"),
    ("g (float16[N,32] x) => (float16[N,32] y) { y = MatMul(x, w) }", None, "float16"),
    (ROWS % (32, 32, "t = Transpose(x) y = MatMul(w, t)"), (32, 32), "first operand"),
]


@pytest.mark.parametrize(("text", "weights", "said"), GATES)
def test_gates_say_why(text: str, weights: tuple[int, ...] | None, said: str) -> None:
    w = np.zeros((32, 32), np.float16) if weights is None else drawn(*weights)
    made = placed(text, w=w)
    assert not made.activations
    assert said in why(made, "y")


def test_first_layers_with_three_channels_are_taken() -> None:
    assert placed(
        "g (float[N,3,8,8] x) => (float[N,16,6,6] y) { y = Conv(x, w) }", w=drawn(16, 3, 3, 3)
    ).weights
    float8 = placed(
        "g (float[N,3,8,8] x) => (float[N,32,6,6] y) { y = Conv(x, w) }", "fp8", w=drawn(32, 3, 3, 3)
    )
    assert "more than 16" in why(float8, "y")


def test_weight_only_formats_touch_no_activation() -> None:
    text = "g (float[1,64] x) => (float[1,64] y) { h = MatMul(x, w) y = MatMul(h, v) }"
    made = placed(text, "w4", w=drawn(64, 64), v=drawn(64, 64))
    assert not made.activations
    assert [str(w.granularity) for w in made.weights] == ["blocks of 64 along axis -2"] * 2
    conv = placed(
        "g (float[N,32,4,4] x) => (float[N,32,4,4] y) { y = Conv(x, w) }", "w4", w=drawn(32, 32, 1, 1)
    )
    assert "would not pay" in why(conv, "y")


NAMED = """g (float[N,32] x) => (float[N,32] y) {
    [enc_attn_q] h = MatMul(x, w) [enc_mlp_up] a = MatMul(h, w) [head] y = Gemm(a, w) }"""


@pytest.mark.parametrize(
    ("pattern", "left"),
    [
        ("MatMul", {"y"}),
        ("enc_attn_q", {"a", "y"}),
        ("enc_*", {"y"}),
        ("*attn*", {"a", "y"}),
        ("he?d", {"h", "a"}),
    ],
)
def test_exclusion_by_op_type_name_and_glob(pattern: str, left: str) -> None:
    made = placed(NAMED, exclude=(pattern,), w=drawn(32, 32))
    assert {str(node.outputs[0].name) for node in made.products} == set(left)
    assert any(repr(pattern) in d.why for d in made.decisions)


def test_a_pattern_that_matches_nothing_is_an_error_with_near_matches() -> None:
    with pytest.raises(
        OptionError, match=r"(?s)2 of 3 patterns.*'enc_atn_q'; near: enc_attn_q.*'zzz'; near: none"
    ):
        placed(NAMED, exclude=("enc_atn_q", "head", "zzz"), w=drawn(32, 32))


def test_schemes_refuse_what_they_do_not_have() -> None:
    with pytest.raises(OptionError, match="did you mean 'int8'"):
        scheme_named("int88")
    with pytest.raises(OptionError, match="own scales"):
        scheme_named("nvfp4", block=32)
    with pytest.raises(OptionError, match="32, 64, 128"):
        scheme_named("w4", block=48)
    with pytest.raises(OptionError, match="reduced range"):
        scheme_named("fp8", reduced_range=True)
    assert scheme_named("uint8", reduced_range=True).weight.largest == 64
    opsets = {name: scheme_named(name).opset for name in ("int8", "fp8", "w8", "w4", "nvfp4", "mxfp8")}
    assert opsets == {"int8": 13, "fp8": 19, "w8": 13, "w4": 21, "nvfp4": 23, "mxfp8": 24}


def test_names_that_a_rewrite_took_away_are_told_apart() -> None:
    names = {"n": ("layer/a", "Add"), "m": ("b[0]", "Add")}
    found, missed = named_nodes(["gone", "Add", "b[[]0]"], names)
    assert (found, missed) == ({"n": "Add", "m": "Add"}, ["gone"])
    assert named_nodes(["b[[]0]", "*"], names)[0] == {"m": "b[[]0]", "n": "*"}
