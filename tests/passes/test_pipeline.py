"""The whole pipeline on the layers that exporters write: what is left, legal and meaning the same."""

from __future__ import annotations

from collections import Counter

import onnx
import onnx_ir as ir
from text_graphs import assert_same, ops, parse, random_feeds, run

from ridgeline.ir.provenance import SOURCES
from ridgeline.passes.pipeline import PASSES, canonicalise

LAYER = """
    q{i} = MatMul({x}, wq)
    k{i} = MatMul({x}, wq)
    v{i} = MatMul({x}, wv)
    sh{i} = Shape({x})
    b{i} = Gather(sh{i}, i0)
    s{i} = Gather(sh{i}, i1)
    bu{i} = Unsqueeze(b{i}, z)
    su{i} = Unsqueeze(s{i}, z)
    t{i} = Concat<axis = 0>(bu{i}, su{i}, two, four)
    q4{i} = Reshape(q{i}, t{i})
    k4{i} = Reshape(k{i}, t{i})
    v4{i} = Reshape(v{i}, t{i})
    qh{i} = Transpose<perm = [0, 2, 1, 3]>(q4{i})
    kh{i} = Transpose<perm = [0, 2, 3, 1]>(k4{i})
    vh{i} = Transpose<perm = [0, 2, 1, 3]>(v4{i})
    sc{i} = MatMul(qh{i}, kh{i})
    sd{i} = Div(sc{i}, root)
    sm{i} = Add(sd{i}, mask)
    p{i} = Softmax(sm{i})
    dr{i} = Dropout(p{i})
    o{i} = MatMul(dr{i}, vh{i})
    ot{i} = Transpose<perm = [0, 2, 1, 3]>(o{i})
    tj{i} = Concat<axis = 0>(bu{i}, su{i}, eight)
    oj{i} = Reshape(ot{i}, tj{i})
    r{i} = Add(oj{i}, {x})
    mu{i} = ReduceMean(r{i}, last)
    d{i} = Sub(r{i}, mu{i})
    sq{i} = Pow(d{i}, ftwo)
    va{i} = ReduceMean(sq{i}, last)
    ve{i} = Add(va{i}, eps)
    st{i} = Sqrt(ve{i})
    n{i} = Div(d{i}, st{i})
    nw{i} = Mul(n{i}, gamma)
    nb{i} = Add(nw{i}, gamma)
    e1{i} = Div(nb{i}, sqrt2)
    e2{i} = Erf(e1{i})
    e3{i} = Add(e2{i}, one)
    e4{i} = Mul(nb{i}, half)
    {y} = Mul(e4{i}, e3{i})
"""


def encoder(layers: int) -> str:
    names = ["x", *(f"h{i}" for i in range(layers - 1)), "y"]
    body = "".join(LAYER.format(i=i, x=names[i], y=names[i + 1]) for i in range(layers))
    eye = ", ".join("0.5" if i % 9 == 0 else "0.1" for i in range(64))
    return f"""g (float[B,S,8] x, float[B,1,S,S] mask) => (float[B,S,8] y)
        <float[8,8] wq = {{{eye}}}, float[8,8] wv = {{{eye}}}, int64 i0 = {{0}}, int64 i1 = {{1}},
         int64[1] z = {{0}},         int64[1] two = {{2}}, int64[1] four = {{4}},
         int64[1] eight = {{8}}, int64[1] last = {{-1}},
         float root = {{2.0}}, float ftwo = {{2.0}}, float eps = {{1e-5}},
         float[8] gamma = {{1., 2., 3., 4., 5., 6., 7., 8.}},
         float sqrt2 = {{1.4142135}}, float one = {{1.0}}, float half = {{0.5}}> {{ {body} }}"""


def text(model: ir.Model) -> bytes:
    return bytes(ir.to_proto(model).SerializeToString(deterministic=True))


def test_a_transformer_layer_becomes_standard_ops() -> None:
    model = parse(encoder(2))
    feeds = random_feeds(model, {"B": 2, "S": 3})
    before = run(model, feeds)
    assert canonicalise(model) == []
    layer = ["MatMul", "MatMul", "Attention", "Add", "LayerNormalization", "Gelu"]
    # q, k and v of these layers share equal weights: two of three projections are duplicates
    assert set(ops(model)) == {*layer, "ReduceMax", "Mul"}
    # rows of the mask that are -inf throughout are marked once, for all layers
    assert Counter(ops(model))["ReduceMax"] == 1
    assert Counter(ops(model))["Attention"] == 2
    assert "Transpose" not in ops(model)
    assert_same(before, run(model, feeds))


def test_provenance_covers_the_fused_nodes() -> None:
    model = parse(encoder(1))
    canonicalise(model)
    norm = next(node for node in model.graph if node.op_type == "LayerNormalization")
    assert norm.metadata_props[SOURCES].split(";")[0] == "mu0"
    assert norm.metadata_props[SOURCES].split(";")[-1] == "nb0"


def test_every_stage_leaves_a_legal_model() -> None:
    model = parse(encoder(1))
    feeds = random_feeds(model, {"B": 2, "S": 3})
    before = run(model, feeds)
    for stage in PASSES:
        stage.run(model)
        onnx.checker.check_model(ir.to_proto(model), full_check=True)
        assert_same(before, run(model, feeds))


def test_a_second_run_changes_nothing() -> None:
    model = parse(encoder(1))
    canonicalise(model)
    before = text(model)
    canonicalise(model)
    assert text(model) == before


def test_two_builds_are_alike() -> None:
    first, second = (parse(encoder(2)) for _ in range(2))
    for model in (first, second):
        canonicalise(model)
    assert text(first) == text(second)


def test_refusals_of_the_last_round_are_reported_once() -> None:
    model = parse("""g (float[B,4] x) => (float[B,4] y, float[B,4] e)
        <float r = {1.4142135}, float o = {1.}, float h = {0.5}> {
        s = Div(x, r)
        e = Erf(s)
        c = Add(e, o)
        m = Mul(x, h)
        y = Mul(m, c)
    }""")
    (refusal,) = canonicalise(model)
    assert (refusal.rule, refusal.at, refusal.bytes_lost) == ("GeluErf", "e", None)


def test_a_thousand_nodes() -> None:
    model = parse(encoder(26))
    assert len(model.graph) > 1000
    assert canonicalise(model) == []
    assert Counter(ops(model))["Attention"] == 26
    assert Counter(ops(model))["Gelu"] == 26
