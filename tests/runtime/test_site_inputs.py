"""What candidates of a site are checked with tells a right data path from a wrong one, and stays legal."""

from __future__ import annotations

import numpy as np
import onnx.parser
import onnx_ir as ir
import pytest
import torch

from ridgeline.base.spec import Target, TensorSpec
from ridgeline.ir.sites import make_site, merge
from ridgeline.options import DEFAULT_LIMITS
from ridgeline.runtime.examples import site_inputs
from ridgeline.runtime.inference import Inference


def drawn(graph: str, **specs: str) -> dict[str, np.ndarray]:
    """The inputs drawn for the whole graph as one site; specs are written as `uint8 2x3`."""
    head = '<ir_version: 10, opset_import: ["": 20]> g '
    model = ir.from_proto(onnx.parser.parse_model(head + graph))
    inference = Inference.of(model, DEFAULT_LIMITS)
    program, weights = inference.program, inference.weights
    inputs = {}
    for name, text in specs.items():
        dtype, _, dims = text.partition(" ")
        inputs[name] = TensorSpec(dtype, tuple(map(int, dims.split("x"))))
    inferred = inference.at(inputs)
    region = merge(program, program.regions)
    site = make_site(program, region, inferred, Target("cpu"))
    made = site_inputs(site, {name: weights[region.outer(name)] for name in site.weights})
    pairs = zip(site.body.inputs, made, strict=True)
    return {region.outer(n): t.numpy() for n, t in pairs if t is not None and n not in site.weights}


@pytest.mark.parametrize(
    ("dtype", "low", "high"), [("uint8", 0, 255), ("int8", -128, 127), ("int32", -128, 127), ("bool", 0, 1)]
)
def test_free_integers_use_their_type(dtype: str, low: int, high: int) -> None:
    x = drawn(f"({dtype}[64,64] x) => (float[64,64] y) {{ c = Cast<to = 1>(x) y = Relu(c) }}",
              x=f"{dtype} 64x64")["x"]  # fmt: skip
    assert (x.min(), x.max()) == (low, high)


def test_an_index_stays_in_its_table() -> None:
    made = drawn(
        "(float[5,7] t, int64[200] i) => (float[7,5] y) { g = Gather<axis = 1>(t, i) s = Transpose(t) "
        "z = ReduceSum<keepdims = 0>(g) y = Add(s, z) }",
        t="float32 5x7", i="int64 200",
    )  # fmt: skip
    assert (made["i"].min(), made["i"].max()) == (0, 6)
    assert made["t"].std() > 0.5


def test_indices_of_several_axes_stay_in_the_shortest() -> None:
    i = drawn("(float[9,3,4] t, int64[50,2] i) => (float[50,4] y) { g = GatherND(t, i) y = Relu(g) }",
              t="float32 9x3x4", i="int64 50x2")["i"]  # fmt: skip
    assert (i.min(), i.max()) == (0, 2)


def test_what_an_index_is_computed_from_is_zero() -> None:
    """Nothing says which other values are legal, and a wrong one takes a GPU down."""
    i = drawn(
        "(float[5,7] t, int64[8] i, int64[8] j) => (float[8,7] y) "
        "{ k = Add(i, j) g = Gather(t, k) y = Relu(g) }",
        t="float32 5x7", i="int64 8", j="int64 8",
    )["i"]  # fmt: skip
    assert not i.any()


def test_divisors_are_not_zero() -> None:
    made = drawn("(int32[40] x, int32[40] d) => (int32[40] y) { q = Div(x, d) y = Neg(q) }",
                 x="int32 40", d="int32 40")  # fmt: skip
    assert made["d"].min() > 0 > made["x"].min()


@pytest.mark.parametrize(
    ("op", "indices"), [("ScatterElements<axis = 1>", "4x5"), ("ScatterND", "6x2")], ids=["elements", "nd"]
)
def test_a_scatter_writes_no_place_twice(op: str, indices: str) -> None:
    updates = {"4x5": "4,5", "6x2": "6"}[indices]
    made = drawn(
        f"(float[4,5] t, int64[{indices.replace('x', ',')}] i, float[{updates}] u) => (float[4,5] y) "
        f"{{ s = {op}(t, i, u) y = Relu(s) }}",
        t="float32 4x5", i=f"int64 {indices}", u=f"float32 {updates.replace(',', 'x')}",
    )["i"]  # fmt: skip
    if op == "ScatterND":
        assert len({tuple(place) for place in made}) == len(made)
    else:
        assert all(len(set(row)) == len(row) for row in made)


def test_two_inputs_are_not_the_same() -> None:
    made = drawn("(float[8,8] a, float[8,8] b) => (float[8,8] y) { s = Sub(a, b) y = Relu(s) }",
                 a="float32 8x8", b="float32 8x8")  # fmt: skip
    assert not torch.equal(torch.from_numpy(made["a"]), torch.from_numpy(made["b"]))
