"""Values without elements inside a model: parts of a split, slices of nothing, what is computed of them."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from moving_models import expected, model_of, rand

import ridgeline
from ridgeline.base.spec import Op
from ridgeline.errors import RidgelineError
from ridgeline.kernels.floor import call_floor

CUT = "y = Slice(x, starts, ends, axis) a = Exp(y)"
CONSTANTS = {
    "starts": np.array([3]), "ends": np.array([2]), "axis": np.array([1]), "sizes": np.array([0, 7]),
}  # fmt: skip
BODIES = {
    "a part of a split": "p, q = Split<axis=1>(x, sizes) r = Relu(p) n = Neg(q) z = Concat<axis=1>(r, n)",
    "a slice": f"{CUT} z = Concat<axis=1>(a, x)",
    "sums of nothing": f"{CUT} s = ReduceSum(a, axis) z = Add(x, s)",
    "a product of nothing": f"""{CUT} t = Transpose<perm=[1,0]>(a) p = MatMul(a, t)
        s = ReduceSum(p, axis) z = Add(x, s)""",
    "a softmax of nothing": f"{CUT} s = Softmax(a) z = Concat<axis=1>(s, x)",
}


@pytest.mark.parametrize("without", [(), ("ort",), ("ort", "cpp")], ids=["default", "no ort", "floor"])
@pytest.mark.parametrize("rows", ["2", "N"])
@pytest.mark.parametrize("body", BODIES)
def test_values_without_elements(body: str, rows: str, without: tuple[str, ...]) -> None:
    text = f"g (float[{rows},7] x) => (float[{rows},7] z) {{ {BODIES[body]} }}"
    used = {name: array for name, array in CONSTANTS.items() if name in text}
    model = model_of(text, **used)
    engine = ridgeline.build(model, level=0, verify="fast", threads=1, without=without, new_shapes="serve")
    for size in (2, 3) if rows == "N" else (2,):
        feeds = {"x": rand(size, 7)}
        want = expected(model, feeds)["z"]
        np.testing.assert_allclose(engine.run(feeds)["z"], want, rtol=1e-6)
        engine.wait()
        np.testing.assert_allclose(engine.run(feeds)["z"], want, rtol=1e-6)


def test_a_value_that_is_written_beside_one_without_elements() -> None:
    """One region makes both: the loop over nothing must not leave the other unwritten."""
    text = f"g (float[N,7] x) => (float[N,0] a, float[N] s) {{ {CUT} s = ReduceSum<keepdims=0>(a, axis) }}"
    model = model_of(text, **{name: CONSTANTS[name] for name in ("starts", "ends", "axis")})
    engine = ridgeline.build(model, level=0, verify="off", threads=1, without=("ort",))
    for rows in (1, 5):
        made = engine.run({"x": rand(rows, 7)})
        assert made["a"].shape == (rows, 0)
        np.testing.assert_array_equal(made["s"], np.zeros(rows, np.float32))


@pytest.mark.parametrize("equation", ["ij,jk->ik", "bij,bjk->bik"])
@pytest.mark.parametrize("is_constant", [True, False])
def test_einsum_spreads_an_axis_of_one(equation: str, is_constant: bool) -> None:
    batch = (2,) if equation.startswith("b") else ()
    x, w = rand(*batch, 3, 1), rand(*batch, 4, 5, seed=1)
    dims = [",".join(map(str, a.shape)) for a in (x, w)]
    given = "" if is_constant else f", float[{dims[1]}] w"
    result = ",".join(map(str, (*batch, 3, 5)))
    text = (
        f'g (float[{dims[0]}] x{given}) => (float[{result}] y) {{ y = Einsum<equation="{equation}">(x, w) }}'
    )
    engine = ridgeline.build(
        model_of(text, **({"w": w} if is_constant else {})), level=0, threads=1, without=("ort",)
    )
    made = engine.run({"x": x} if is_constant else {"x": x, "w": w})["y"]
    np.testing.assert_allclose(made, np.einsum(equation, x, w), rtol=1e-5, atol=1e-6)


RECURRENT = {
    "in the graph": "xs = Slice(x, zero, n, one) _, t = {op}<hidden_size=3>(xs, w, r) y = Neg(t)",
    "in a branch": """y = If(c) <
        then_branch = then () => (float[A,B,C] t) {{
          xs = Slice(x, zero, n, one) _, t = {op}<hidden_size=3>(xs, w, r) }},
        else_branch = other () => (float[D,E,F] e) {{ e = Identity(x) }}>""",
    "in a loop": """y = Loop(twice, c, start) <body = trip (int64 i, bool on, float[G,H,I] s)
        => (bool more, float[J,K,L] sum) {{
          xs = Slice(x, zero, n, one) _, t = {op}<hidden_size=3>(xs, w, r)
          sum = Concat<axis=1>(s, t) more = Identity(on) }}>""",
}


@pytest.mark.parametrize("place", RECURRENT)
@pytest.mark.parametrize(("op", "gates"), [("LSTM", 4), ("GRU", 3)])
def test_a_recurrent_layer_without_rows(place: str, op: str, gates: int) -> None:
    """ONNX Runtime ends the whole process there, so it is not asked where data decides on the rows."""
    body = RECURRENT[place].format(op=op)
    text = f"g (float[S,N,2] x, int64[1] n, bool c) => (float[U,V,W] y) {{ {body} }}"
    given = {
        "w": rand(1, gates * 3, 2), "r": rand(1, gates * 3, 3), "zero": np.array([0]), "one": np.array([1]),
        "twice": np.array(2), "start": rand(1, 1, 3),
    }  # fmt: skip
    model = model_of(text, **{name: array for name, array in given.items() if name in text})
    engine = ridgeline.build(model, level=0, verify="off", threads=1, profiles={"S": "4", "N": "2"})
    x, yes = rand(4, 2, 2), np.array(True)
    for rows in (2, 0, 0, 1):
        feeds = {"x": x, "n": np.array([rows]), "c": yes}
        got = engine.run(feeds)["y"]
        if rows:
            np.testing.assert_allclose(got, expected(model, feeds)["y"], rtol=1e-5, atol=1e-6)
        else:
            assert got.shape == ((1, 1, 3) if place == "in a loop" else (1, 0, 3))


@pytest.mark.parametrize(("op", "gates"), [("LSTM", 4), ("GRU", 3), ("RNN", 1)])
@pytest.mark.parametrize(("steps", "rows"), [(0, 2), (3, 0)])
def test_the_floor_of_no_steps_or_rows(op: str, gates: int, steps: int, rows: int) -> None:
    """Nothing to compute: the state that came in goes out."""
    given = [rand(steps, rows, 2), rand(2, gates * 3, 2), rand(2, gates * 3, 3), None, None, rand(2, rows, 3)]
    node = Op(op, ("x", "w", "r", "", "", "h"), ("y", "z"), {"direction": "bidirectional"})
    y, end = call_floor(node, [None if a is None else torch.from_numpy(a) for a in given])[:2]
    assert y.shape == (steps, 2, rows, 3)
    np.testing.assert_array_equal(end, given[5])


def test_the_reference_is_not_run_where_it_would_end_the_process(tmp_path: Path) -> None:
    """Inputs that a user brings for verification may lead there; no drawn ones do."""
    body = RECURRENT["in a branch"].format(op="LSTM")
    text = f"g (float[S,N,2] x, int64[1] n, bool c) => (float[U,V,W] y) {{ {body} }}"
    known = {"w": rand(1, 12, 2), "r": rand(1, 12, 3), "zero": np.array([0]), "one": np.array([1])}
    np.savez(tmp_path / "none.npz", x=rand(4, 2, 2), n=np.array([0]), c=np.array(True))
    with pytest.raises(RidgelineError, match="nothing to compute"):
        ridgeline.build(
            model_of(text, **known), level=0, threads=1, profiles={"S": "4", "N": "2"}, data=tmp_path
        )
    top = model_of(
        "g (float[S,N,2] x) => (float[U,V,W] y) { _, y = LSTM<hidden_size=3>(x, w, r) }",
        **{name: known[name] for name in "wr"},
    )
    np.savez(tmp_path / "none.npz", x=rand(4, 0, 2))
    with pytest.raises(RidgelineError, match="do not fit at _"):
        ridgeline.build(top, level=0, threads=1, data=tmp_path)
