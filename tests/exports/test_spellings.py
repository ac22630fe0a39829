"""One layer in the spellings of several exporters: each reaches the same ops and keeps its meaning."""

from __future__ import annotations

import math
from collections import Counter

import numpy as np
import onnx_ir as ir
import pytest
from text_graphs import assert_same, ops, parse, random_feeds, run, with_weights

import ridgeline
from ridgeline.base.spec import Target
from ridgeline.passes.pipeline import canonicalise

SIZES = {"B": 2, "S": 6, "T": 7}


def canonical(body: str, *weights: str, opset: int = 20) -> tuple[ir.Model, Counter[str]]:
    """The canonical graph, checked against what the spelling computes at two shapes."""
    model = with_weights(body, *weights, opset=opset)
    feeds = [random_feeds(model, sizes) for sizes in (SIZES, {"B": 3, "S": 4, "T": 5})]
    before = [run(model, given) for given in feeds]
    model.opset_imports[""] = max(opset, 23)
    canonicalise(model)
    for given, want in zip(feeds, before, strict=True):
        assert_same(want, run(model, given), roundings=256.0)
    return model, Counter(ops(model))


NORM = "g (float[B,S,16] x, float[16] w, float[16] b) => (float[B,S,16] y) <{c}> {{ {lines} }}"
CONSTS = "int64[1] last = {-1}, float eps = {1e-5}, float two = {2.0}, float one = {1.0}"
CENTRED = "m = ReduceMean<keepdims = 1>(x, last) d = Sub(x, m)"
TORCH_NORM = f"{CENTRED} q = Pow(d, two) v = ReduceMean(q, last) e = Add(v, eps) s = Sqrt(e) n = Div(d, s)"
LAYER_NORMS = {
    "torch": f"{TORCH_NORM} k = Mul(n, w) y = Add(k, b)",
    "paddle": f"{TORCH_NORM.replace('Pow(d, two)', 'Mul(d, d)')} k = Mul(w, n) y = Add(b, k)",
    "tensorflow": f"""{CENTRED} q = Mul(d, d) v = ReduceMean(q, last) e = Add(v, eps) s = Sqrt(e)
        r = Reciprocal(s) k = Mul(r, w) t = Mul(m, k) u = Sub(b, t) p = Mul(x, k) y = Add(p, u)""",
    "keras": f"""{CENTRED} q = Mul(d, d) v = ReduceMean(q, last) e = Add(v, eps) s = Sqrt(e)
        r = Reciprocal(s) k = Mul(r, w) g = Neg(m) t = Mul(g, k) u = Add(t, b) p = Mul(x, k) y = Add(p, u)""",
}


@pytest.mark.parametrize("who", LAYER_NORMS)
def test_layer_norm(who: str) -> None:
    _, found = canonical(NORM.format(c=CONSTS, lines=LAYER_NORMS[who]), "w", "b")
    assert found == {"LayerNormalization": 1}


MEAN_SQUARE = "q = {square} v = ReduceMean(q, last) e = Add(v, eps) s = Sqrt(e)"
RMS_NORMS = {
    "torch": MEAN_SQUARE.format(square="Pow(x, two)") + " r = Reciprocal(s) n = Mul(x, r) y = Mul(w, n)",
    "keras": MEAN_SQUARE.format(square="Mul(x, x)") + " n = Div(x, s) y = Mul(n, w)",
    "by power": MEAN_SQUARE.format(square="Mul(x, x)").replace(" s = Sqrt(e)", "")
    + " h = Constant<value_float = -0.5>() r = Pow(e, h) n = Mul(x, r) y = Mul(n, w)",
}


@pytest.mark.parametrize("who", RMS_NORMS)
def test_rms_norm(who: str) -> None:
    body = NORM.format(c=CONSTS, lines=RMS_NORMS[who]).replace(", float[16] b", "")
    _, found = canonical(body, "w")
    assert found == {"RMSNormalization": 1}


POINT = "g (float[B,S,16] x) => (float[B,S,16] y) <{c}> {{ {lines} }}"
GELU_CONSTS = (
    "float half = {0.5}, float one = {1.0}, float root = {1.4142135}, float r = {0.70710677}, "
    "float c = {0.044715}, float k = {0.7978846}, float three = {3.0}"
)
GELUS = {
    "torch": "a = Div(x, root) e = Erf(a) t = Add(e, one) h = Mul(x, half) y = Mul(h, t)",
    "tensorflow": "a = Mul(x, r) e = Erf(a) t = Add(one, e) h = Mul(half, t) y = Mul(x, h)",
    "paddle": "a = Div(x, root) e = Erf(a) t = Add(e, one) p = Mul(x, t) y = Mul(p, half)",
    "torch tanh": """p = Pow(x, three) q = Mul(p, c) a = Add(x, q) u = Mul(a, k) e = Tanh(u) t = Add(e, one)
        h = Mul(x, half) y = Mul(h, t)""",
    "keras tanh": """s = Mul(x, x) p = Mul(x, s) q = Mul(c, p) a = Add(x, q) u = Mul(k, a) e = Tanh(u)
        t = Add(one, e) h = Mul(half, t) y = Mul(x, h)""",
    "op": "y = Gelu(x)",
}


@pytest.mark.parametrize("who", GELUS)
def test_gelu(who: str) -> None:
    model, found = canonical(POINT.format(c=GELU_CONSTS, lines=GELUS[who]))
    # halved last, it overflows at twice the result
    assert found == ({"Gelu": 1, "Mul": 2} if who == "paddle" else {"Gelu": 1})
    gelu = next(node for node in model.graph if node.op_type == "Gelu")
    kind = gelu.attributes.get_string("approximate", "none")
    assert kind == ("tanh" if "tanh" in who else "none")


@pytest.mark.parametrize(("line", "opset"), [
    ("s = Sigmoid(x) y = Mul(x, s)", 20), ("s = Sigmoid(x) y = Mul(s, x)", 20), ("y = Swish(x)", 24),
])  # fmt: skip
def test_swish(line: str, opset: int) -> None:
    _, found = canonical(POINT.format(c="float one = {1.0}", lines=line), opset=opset)
    assert found == {"Sigmoid": 1, "Mul": 1}


def test_swish_with_a_slope() -> None:
    _, found = canonical(POINT.format(c="float one = {1.0}", lines="y = Swish<alpha = 1.702>(x)"), opset=24)
    assert found == {"Sigmoid": 1, "Mul": 2}


GROUPS = """g (float[B,8,S,T] x, float[8] w, float[8] b, float[4] o, float[4] z) => (float[B,8,S,T] y)
    <int64[3] split = {0, 4, -1}, int64[2] pixels = {1, 2}, float one = {1.0}> {
    f = Reshape(x, split)
    i = InstanceNormalization<epsilon = 1e-5>(f, ones, zeros)
    shape = Shape(x)
    n = Reshape(i, shape)
    wc = Unsqueeze(w, pixels)
    bc = Unsqueeze(b, pixels)
    k = Mul(n, wc)
    y = Add(k, bc)
}"""


def test_group_norm_of_torch_and_paddle() -> None:
    body = GROUPS.replace(", float[4] o, float[4] z", "").replace(
        "float one = {1.0}", "float[4] ones = {1, 1, 1, 1}, float[4] zeros = {0, 0, 0, 0}"
    )
    _, found = canonical(body, "w", "b")
    assert found == {"GroupNormalization": 1}


HEADS = "float[B,4,S,8] q, float[B,4,T,8] k, float[B,4,T,8] v"
SCORES = "kt = Transpose<perm = [0, 1, 3, 2]>(k) s = MatMul(q, kt) d = Mul(s, scale)"
ATTENTION = "g ({inputs}) => (float[B,4,S,8] y) <float scale = {{0.35355338}}> {{ {lines} y = MatMul(p, v) }}"
ATTENTIONS = {
    "torch eager": ("", f"{SCORES} p = Softmax(d)"),
    "torch mask": (", float[B,1,S,T] m", f"{SCORES} a = Add(d, m) p = Softmax(a)"),
    "tensorflow mask": (", float[B,1,1,T] m", f"{SCORES} a = Add(d, m) p = Softmax(a)"),
    "one mask for all": (", float[1,1,1,T] m", f"{SCORES} a = Add(m, d) p = Softmax(a)"),
    "positions and mask": (
        ", float[1,4,S,T] b, float[B,1,1,T] m",
        f"{SCORES} c = Add(d, b) a = Add(c, m) p = Softmax(a)",
    ),
    "softmax by parts": (
        "",
        f"""{SCORES} last = Constant<value_ints = [-1]>() h = ReduceMax(d, last) f = Sub(d, h) e = Exp(f)
        t = ReduceSum(e, last) p = Div(e, t)""",
    ),
}


@pytest.mark.parametrize("who", ATTENTIONS)
def test_attention(who: str) -> None:
    extra, lines = ATTENTIONS[who]
    _, found = canonical(ATTENTION.format(inputs=HEADS + extra, lines=lines))
    assert found["Attention"] == 1
    assert not found.keys() & {"MatMul", "Softmax"}


KERAS = """g (float[B,S,12] x, float[B,T,12] z, float[12,3,4] wq, float[12,3,4] wk, float[12,3,4] wv,
    float[3,4] bq, float[3,4,12] wo) => (float[B,S,12] y) <float scale = {0.5}> {
    q0 = Einsum<equation = "abc,cde->abde">(x, wq)
    q1 = Add(q0, bq)
    q = Mul(q1, scale)
    k = Einsum<equation = "abc,cde->abde">(z, wk)
    v = Einsum<equation = "abc,cde->abde">(z, wv)
    s = Einsum<equation = "aecd,abcd->acbe">(k, q)
    p = Softmax<axis = -1>(s)
    o = Einsum<equation = "acbe,aecd->abcd">(p, v)
    y = Einsum<equation = "abcd,cde->abe">(o, wo)
}"""


def test_attention_of_keras_by_einsum() -> None:
    _, found = canonical(KERAS, "wq", "wk", "wv", "bq", "wo")
    assert found["Attention"] == 1
    assert found["MatMul"] == 4
    assert not found.keys() & {"Einsum", "Softmax"}


@pytest.mark.parametrize("equation", ["ab,bc->ca", "abc,abd->acd", "ab,cb->ac"])
def test_einsum_is_a_product(equation: str) -> None:
    left, right = equation.split("->")[0].split(",")
    shapes = [",".join(str(2 + ord(c) - ord("a")) for c in part) for part in (left, right)]
    body = f"""g (float[{shapes[0]}] x, float[{shapes[1]}] z) => (float y)
        {{ y = Einsum<equation = "{equation}">(x, z) }}"""
    model = parse(body.replace("(float y)", f"(float[{','.join('?' * len(equation.split('->')[1]))}] y)"))
    feeds = random_feeds(model)
    before = run(model, feeds)
    canonicalise(model)
    assert "Einsum" not in ops(model)
    assert_same(before, run(model, feeds))


ANGLES = """places = Range(zero, count, one) f0 = Cast<to = 1>(places) f1 = Unsqueeze(f0, last)
    f = Mul(f1, freqs)"""
ROTARY = """g (float[B,2,S,8] x, float[1,4] freqs) => (float[B,2,S,8] y)
    <int64 zero = {{0}}, int64 one = {{1}}, int64[1] last = {{-1}}, int64[1] c0 = {{0}}, int64[1] c4 = {{4}},
     int64[1] c8 = {{8}}, int64[1] end = {{9223372036854775807}}, int64[1] a3 = {{3}}, int64[1] a1 = {{1}},
     int64[2] front = {{0, 1}}, int64[1] step = {{2}}, int64[5] apart = {{0, 0, 0, 4, 2}},
     int64[4] whole = {{0, 0, 0, 8}}> {{
    n = Shape<start = 2, end = 3>(x) count = Squeeze(n)
    {angles}
    {lines}
}}"""
TABLES = """ff = Concat<axis = -1>(f, f) cc = Cos(ff) ss = Sin(ff)
    cos = Unsqueeze(cc, front) sin = Unsqueeze(ss, front)"""
HALVES = "h = Slice(x, c0, c4, a3) g0 = Slice(x, c4, end, a3)"
TURNED = "m = Neg(g0) r = Concat<axis = -1>(m, h) p = Mul(x, cos) t = Mul(r, sin) y = Add(p, t)"
ROTARIES = {
    "torch": f"{TABLES} {HALVES} {TURNED}",
    "split": f"{TABLES} h, g0 = Split<axis = -1, num_outputs = 2>(x) {TURNED}",
    "pairs": f"""c = Cos(f) s = Sin(f) {HALVES} hc = Mul(h, c) gs = Mul(g0, s) hs = Mul(h, s)
        gc = Mul(g0, c) l = Sub(hc, gs) w = Add(gc, hs) y = Concat<axis = -1>(l, w)""",
}


@pytest.mark.parametrize(("given", "held"), [("2,3,0,2", "0,2,2,5"), ("2,3,1,2", "1,2,0,5")])
def test_einsum_with_weights_that_hold_nothing(given: str, held: str) -> None:
    model = with_weights(
        f"""g (float[{given}] x, float[{held}] w) => (float[A,B,C,D] y)
        {{ y = Einsum<equation = "bsde,dehk->bshk">(x, w) }}""",
        "w",
    )
    feeds = {"x": np.ones([int(n) for n in given.split(",")], np.float32)}
    made = ridgeline.build(ir.to_proto(model), level=0, verify="off", without=("ort",)).run(feeds)["y"]
    np.testing.assert_array_equal(made, np.zeros((2, 3, *map(int, held.split(",")[2:])), np.float32))


@pytest.mark.parametrize("who", ROTARIES)
def test_rotary(who: str) -> None:
    _, found = canonical(ROTARY.format(angles=ANGLES, lines=ROTARIES[who]), "freqs")
    assert found["RotaryEmbedding"] == 1
    assert not found.keys() & {"Neg", "Slice", "Split", "Add"}


def test_rotary_of_a_part_of_the_columns() -> None:
    body = ROTARY.format(angles=ANGLES, lines=f"{TABLES} {HALVES} {TURNED}".replace("(x,", "(xr,"))
    body = body.replace(
        "y = Add(p, t)", "w = Add(p, t) rest = Slice(x, c8, end, a3) y = Concat<axis = 3>(w, rest)"
    )
    body = body.replace("p = Mul(x, cos)", "p = Mul(xr, cos)").replace("float[B,2,S,8]", "float[B,2,S,12]")
    body = body.replace("n = Shape", "xr = Slice(x, c0, c8, a3) n = Shape")
    model, found = canonical(body, "freqs")
    assert found["RotaryEmbedding"] == 1
    node = next(node for node in model.graph if node.op_type == "RotaryEmbedding")
    assert node.attributes["rotary_embedding_dim"].as_int() == 8


def neighbours() -> str:
    cos = np.repeat(np.cos(np.arange(24.0).reshape(6, 4)), 2, axis=-1).astype(np.float32)
    numbers = ", ".join(f"{n:.8g}" for n in cos.reshape(-1))
    return f"""g (float[B,2,6,8] x) => (float[B,2,6,8] y)
        <float[6,8] cos = {{{numbers}}}, int64[1] c0 = {{0}}, int64[1] c1 = {{1}}, int64[1] end = {{8}},
         int64[1] a3 = {{3}}, int64[1] two = {{2}}, int64[1] last = {{-1}}, int64[1] before = {{-2}},
         int64[4] whole = {{-1, 2, 6, 8}}> {{
        e = Slice(x, c0, end, a3, two) o = Slice(x, c1, end, a3, two)
        m = Neg(o) m1 = Unsqueeze(m, last) e1 = Unsqueeze(e, last)
        z = Concat<axis = -1>(m1, e1) r = Reshape(z, whole)
        p = Mul(x, cos) t = Mul(r, cos) y = Add(p, t)
    }}"""


def test_rotary_of_neighbours() -> None:
    model, found = canonical(neighbours())
    assert found["RotaryEmbedding"] == 1
    node = next(node for node in model.graph if node.op_type == "RotaryEmbedding")
    assert node.attributes["interleaved"].as_int() == 1


@pytest.mark.parametrize("axis", ["before", "c0"])
def test_pairs_that_do_not_lie_side_by_side_are_no_rotary(axis: str) -> None:
    _, found = canonical(
        neighbours().replace("(m, last)", f"(m, {axis})").replace("(e, last)", f"(e, {axis})")
    )
    assert found["RotaryEmbedding"] == 0


@pytest.mark.parametrize("who", ["torch", "pairs"])
def test_tables_of_places_and_of_heads_are_no_rotary(who: str) -> None:
    """With as many heads as places, each table alone could be either."""
    body = ROTARY.format(angles=ANGLES, lines=ROTARIES[who]).replace("[B,2,S,8]", "[B,6,6,8]")
    body = body.replace("sin = Unsqueeze(ss, front)", "sin = Unsqueeze(ss, heads)")
    body = body.replace("s = Sin(f)", "s0 = Sin(f) s = Unsqueeze(s0, heads)")
    _, found = canonical(body.replace("int64[2] front", "int64[1] heads = {1}, int64[2] front"), "freqs")
    assert found["RotaryEmbedding"] == 0


def test_a_table_whose_halves_differ_is_no_rotary() -> None:
    lines = f"{TABLES} {HALVES} {TURNED}".replace("Concat<axis = -1>(f, f)", "Concat<axis = -1>(f, f2)")
    body = ROTARY.format(angles=ANGLES + " f2 = Mul(f, f)", lines=lines)
    _, found = canonical(body, "freqs")
    assert found["RotaryEmbedding"] == 0


def test_rotary_is_spelled_out_for_a_gpu() -> None:
    body = """g (float[B,2,S,8] x, float[1,S,4] c, float[1,S,4] s) => (float[B,2,S,8] y) {
        y = RotaryEmbedding(x, c, s)
    }"""
    model = parse(body)
    feeds = random_feeds(model, {"B": 1, "S": 3})
    before = run(model, feeds)
    canonicalise(model, target=Target("cuda", "sm_90"))
    assert "RotaryEmbedding" not in ops(model)
    assert_same(before, run(model, feeds))


@pytest.mark.parametrize("level", [0, 1])
def test_masks_and_tables_that_broadcast_build_and_run_at_other_sizes(level: int) -> None:
    """Both are legal, and ONNX Runtime refuses both: the evaluator of onnx is the reference then."""
    body = """g (float[B,2,S,8] q, float[B,2,S,8] k, float[B,1,1,S] m, float[1,S,4] c, float[1,S,4] s)
        => (float[B,2,S,8] y) {
        qr = RotaryEmbedding(q, c, s)
        kr = RotaryEmbedding(k, c, s)
        y = Attention(qr, kr, k, m)
    }"""
    shapes = {"q": (2, 2, 5, 8), "k": (2, 2, 5, 8), "m": (2, 1, 1, 5), "c": (1, 5, 4), "s": (1, 5, 4)}
    engine = ridgeline.build(ir.to_proto(parse(body)), profiles=shapes, level=level, threads=1)
    assert engine.report.verified
    assert "evaluator" in engine.report.reference


def test_scale_by_head_size_is_kept() -> None:
    extra, lines = ATTENTIONS["torch eager"]
    model, _ = canonical(ATTENTION.format(inputs=HEADS + extra, lines=lines))
    assert math.isclose(model.graph[0].attributes["scale"].as_float(), 8**-0.5, rel_tol=1e-6)
