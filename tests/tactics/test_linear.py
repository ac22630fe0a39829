from __future__ import annotations

import pytest
import torch
from library_cases import check, make_site, node

from offers import offered, why_not
from ridgeline.base.choices import RefusedError
from ridgeline.base.spec import Body, Site, Target, TensorSpec
from ridgeline.tactics.cpu import onednn_linear
from ridgeline.tactics.cpu.mkl_linear import AtenLinear, MklLinear
from ridgeline.tactics.cpu.onednn_linear import OneDnnLinear
from ridgeline.tactics.read.linear import read_linear
from ridgeline.tactics.read.remainder import Taken, take_epilogue

TACTICS = {tactic.name: tactic for tactic in (OneDnnLinear(), MklLinear(), AtenLinear())}
# the tail after the product `p`; r is a residual of its shape, s a row
TAILS = {
    "bias": [node("Add", "p s", "y")],
    "bias gelu": [node("Add", "p s", "d"), node("Gelu", "d", "y")],
    "bias gelu tanh": [node("Add", "s p", "d"), node("Gelu", "d", "y", approximate="tanh")],
    "bias relu": [node("Add", "p s", "d"), node("Relu", "d", "y")],
    "bias silu": [node("Add", "p s", "d"), node("Sigmoid", "d", "g"), node("Mul", "d g", "y")],
    "bias residual": [node("Add", "p s", "d"), node("Add", "r d", "y")],
    "residual relu": [node("Add", "p r", "d"), node("Relu", "d", "y")],
    "gated": [node("Mul", "p r", "y")],
    "scaled": [node("Mul", "p half", "y")],
    "clipped": [node("Clip", "p low high", "y")],
    "rest": [node("Add", "p s", "d"), node("Exp", "d", "e"), node("Max", "e r", "y")],
    "reduced": [node("Relu", "p", "d"), node("ReduceMax", "d", "y")],
}
SHAPES = {"matrix": (7, 33), "row": (1, 33), "batch": (2, 5, 33), "image": (2, 3, 5, 33), "vector": (33,)}


@pytest.fixture(params=TACTICS)
def tactic(request):
    return TACTICS[request.param]


def linear_site(x, tail, *, columns=65, anchor=None, weight=None, outputs="y"):
    ops = [anchor or node("MatMul", "x w", "p"), *tail]
    names = {name for op in ops for name in op.inputs}
    inputs = {"x": x, "w": weight or (x[-1], columns)}
    if "r" in names:
        inputs["r"] = (*x[:-1], columns)
    if "s" in names:
        inputs["s"] = (columns,)
    scalars = {"half": 0.5, "low": -0.25, "high": 1.5}
    constants = {name: value for name, value in scalars.items() if name in names}
    weights = "w s" if "s" in names else "w"
    return make_site(inputs, ops, weights=weights, constants=constants, outputs=outputs)


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("tail", ["bias", "bias gelu", "bias residual", "rest"])
def test_shapes(tactic, shape, tail):
    check(tactic, *linear_site(SHAPES[shape], TAILS[tail]))


@pytest.mark.parametrize("tail", TAILS)
def test_tails(tactic, tail):
    check(tactic, *linear_site((2, 5, 33), TAILS[tail]))


def test_product_alone(tactic):
    check(tactic, *linear_site((9, 40), [], outputs="p"))


def test_two_outputs(tactic):
    tail = [node("Add", "p s", "d"), node("Relu", "d", "y")]
    check(tactic, *linear_site((9, 40), tail, outputs="d y"))


def test_addend_that_widens_the_result(tactic):
    ops = [node("MatMul", "x w", "p"), node("Add", "p r", "y")]
    check(tactic, *make_site({"x": (7, 33), "w": (33, 65), "r": (3, 7, 65)}, ops, weights="w"))


@pytest.mark.parametrize(
    "attrs", [{}, {"transB": 1}, {"alpha": 0.5, "beta": 2.0, "transB": 1}], ids=["plain", "transB", "scaled"]
)
@pytest.mark.parametrize("addend", ["s", "one"])
def test_gemm(tactic, attrs, addend):
    anchor = node("Gemm", f"x w {addend}", "p", **attrs)
    shapes = {"x": (7, 33), "w": (65, 33) if attrs.get("transB") else (33, 65), "s": (65,), "one": (1,)}
    site, tensors = make_site(
        {n: shapes[n] for n in ("x", "w", addend)}, [anchor, node("Relu", "p", "y")], weights=f"w {addend}"
    )
    check(tactic, site, tensors)


def test_gemm_with_a_matrix_addend(tactic):
    ops = [node("Gemm", "x w r", "y")]
    check(tactic, *make_site({"x": (7, 33), "w": (33, 65), "r": (7, 65)}, ops, weights="w"))
    scaled = [node("Gemm", "x w r", "y", beta=0.5)]
    site, _ = make_site({"x": (7, 33), "w": (33, 65), "r": (7, 65)}, scaled, weights="w")
    assert why_not(tactic, site) == "C 'r' is neither a constant row nor a plain addend"


def test_a_matrix_addend_is_the_residual_of_a_gpu_library():
    ops = [node("Gemm", "x w r", "p"), node("Add", "p s", "q"), node("Relu", "q", "y")]
    site, _ = make_site({"x": (7, 33), "w": (33, 65), "r": (7, 65), "s": (65,)}, ops, weights="w s")
    taken = take_epilogue(site, read_linear(site), activations=("relu",), takes_residual=True)
    assert taken == Taken("p", residual="r")  # a bias after the residual is left to the rest
    varying = [node("Gemm", "x w s", "y")]
    site, _ = make_site({"x": (7, 33), "w": (33, 65), "s": (65,)}, varying, weights="w")
    with pytest.raises(RefusedError, match="C 's' is neither"):
        take_epilogue(site, read_linear(site), takes_residual=True)


def test_transposed_activation():
    ops = [node("Gemm", "x w", "y", transA=1)]
    site, tensors = make_site({"x": (33, 7), "w": (33, 65)}, ops, weights="w")
    check(TACTICS["aten.linear"], site, tensors)
    assert why_not(TACTICS["onednn.linear"], site) == "the activation is transposed"
    assert why_not(TACTICS["mkl.linear"], site) == "the activation is transposed"


def test_frozen_launch_sees_new_data_in_a_strided_input():
    tactic = TACTICS["aten.linear"]
    site, tensors = linear_site((2, 5, 33), TAILS["bias"])
    x = torch.zeros(5, 2, 33).transpose(0, 1)
    out = torch.empty(2, 5, 65)
    with torch.inference_mode():
        for config in offered(tactic, site).configs:
            launch = offered(tactic, site).bind(config, {name: tensors[name] for name in site.weights})
            frozen = launch.frozen([x, tensors["w"], tensors["s"]], [out])
            x.copy_(tensors["x"])
            frozen()
            assert torch.allclose(out, tensors["x"] @ tensors["w"] + tensors["s"], atol=1e-4)
            x.zero_()


def test_plain_products_write_straight_into_the_output():
    tactic = TACTICS["aten.linear"]
    expected = {"bias gelu": True, "bias residual": True, "rest": False, "reduced": False}
    for tail, writes_out in expected.items():
        site, tensors = linear_site((2, 5, 33), TAILS[tail])
        weights = {name: tensors[name] for name in site.weights}
        launches = [offered(tactic, site).bind(config, weights) for config in offered(tactic, site).configs]
        assert {launch.writes_out for launch in launches} == {writes_out}


def test_weight_as_it_lies_is_not_copied():
    tactic = TACTICS["aten.linear"]
    site, tensors = linear_site((2, 5, 33), TAILS["bias"])
    weights = {name: tensors[name] for name in site.weights}
    held = {
        c["weight"]: offered(tactic, site).bind(c, weights).packed_bytes
        for c in offered(tactic, site).configs
    }
    assert held == {"kn": 0, "nk": 33 * 65 * 4}


def test_refusals(tactic):
    ops = [node("MatMul", "x w", "y")]
    shapes = {"x": (7, 33), "w": (33, 65)}
    assert why_not(tactic, make_site(shapes, ops)[0]) == "weight 'w' changes between runs"
    stacked, _ = make_site({"x": (3, 7, 33), "w": (3, 33, 65)}, ops, weights="w")
    assert why_not(tactic, stacked) == "weight has shape [3, 33, 65], want one matrix"
    on_gpu, _ = make_site(shapes, ops, weights="w", target=Target("cuda", "sm_90"))
    assert "target is cuda:sm_90" in str(why_not(tactic, on_gpu))
    fed, _ = make_site(shapes, [node("Tanh", "x", "z"), node("MatMul", "z w", "y")], weights="w")
    assert why_not(tactic, fed) == "Tanh feeds the MatMul inside the region"
    twice, _ = make_site(
        {"x": (7, 33), "w": (33, 33)}, [node("MatMul", "x w", "z"), node("MatMul", "z w", "y")], weights="w"
    )
    assert why_not(tactic, twice) == "region has 2 MatMul/Gemm, want one"


@pytest.mark.parametrize("is_there", [True, False])
def test_half_products_where_the_processor_has_them(monkeypatch, is_there):
    """Without the instructions the packed product refuses, and the plain one says that it widens."""
    monkeypatch.setitem(onednn_linear.HALVES, "bfloat16", lambda: is_there)
    x, w = torch.randn(7, 64).bfloat16(), torch.randn(64, 32).bfloat16()
    specs = {n: TensorSpec("bfloat16", s) for n, s in (("x", (7, 64)), ("w", (64, 32)), ("y", (7, 32)))}
    site = Site(Body(("x", "w"), ("y",), (node("MatMul", "x w", "y"),)), specs, frozenset("w"), {}, Target())
    reason = why_not(OneDnnLinear(), site)
    assert (reason is None) == is_there
    assert is_there or "computed in float32" in reason
    offer = offered(AtenLinear(), site)
    assert ("only stored" in offer.bind(offer.configs[0], {"w": w}).note) != is_there
    if is_there and torch.ops.mkldnn._is_mkldnn_bf16_supported():
        offer = offered(OneDnnLinear(), site)
        (y,) = offer.bind(offer.configs[0], {"w": w}).call([x, w], ())
        want = x.double() @ w.double()
        assert (y.double() - want).abs().max() <= 2**-8 * want.abs().max()
