"""Padding: allowed where every op keeps rows apart, refused with the op that does not."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from moving_models import close, expected, model_of, own, rand

from ridgeline.analyze.padding import why_not_pad
from ridgeline.errors import InputError, OptionError, VerifyError
from ridgeline.passes import padding_rules

ROWS = """g (float[N,6,8] x, int64[N] i) => (float[N,4] y, float[N,6] top, float[6,N] t) {
  n = LayerNormalization <axis = -1> (x, s)
  a = MatMul(n, w) r = Relu(a)
  m = ReduceMean <keepdims = 0> (r, one)
  e = Gather(table, i) h = Add(m, e) p = Softmax(h)
  y = MatMul(p, v)
  top = ReduceMax <keepdims = 0> (x, two)
  t = Transpose <perm = [1, 0]> (top)
}"""
ROW_WEIGHTS = {
    "s": rand(8, seed=1), "w": rand(8, 16, seed=2), "table": rand(10, 16, seed=3), "v": rand(16, 4, seed=4),
    "one": np.array([1]), "two": np.array([2]),
}  # fmt: skip


def feeds_of(rows: int) -> dict[str, np.ndarray]:
    return {"x": rand(rows, 6, 8), "i": np.arange(rows) % 10}


@pytest.fixture(scope="module")
def engine():  # type: ignore[no-untyped-def]
    return own(model_of(ROWS, **ROW_WEIGHTS), profiles=[{"N": "4"}, {"N": "16"}], pad=True)


@pytest.mark.parametrize("rows", [1, 3, 4, 5, 15, 16])
def test_padded_rows_change_nothing(engine, rows: int) -> None:  # type: ignore[no-untyped-def]
    want = expected(model_of(ROWS, **ROW_WEIGHTS), feeds_of(rows))
    close(engine.run(feeds_of(rows)), want)
    made = engine.run({name: torch.from_numpy(array) for name, array in feeds_of(rows).items()})
    close({name: tensor.numpy() for name, tensor in made.items()}, want)


def test_padding_goes_to_the_smallest_profile_that_has_room(engine) -> None:  # type: ignore[no-untyped-def]
    context = engine.context()
    assert context.instance(feeds_of(3)).inputs["x"].shape[0] == 4
    assert context.instance(feeds_of(5)).inputs["x"].shape[0] == 16


def test_no_profile_has_room(engine) -> None:  # type: ignore[no-untyped-def]
    with pytest.raises(InputError, match=r"(?s)no profile of this engine takes.*no profile has room"):
        engine.run(feeds_of(17))
    with pytest.raises(InputError, match="no profile has room"):
        engine.run(feeds_of(0))


FORBIDDEN = {
    "softmax": ("y = Softmax <axis = 0> (x)", "Softmax at y: it looks along the padded axis"),
    "reduction": (
        "y = ReduceMean <keepdims = 1> (x, zero)",
        "ReduceMean at y: it reduces over the padded axis",
    ),
    "all of it": ("m = ReduceSum(x) y = Div(x, m)", "ReduceSum at m: it reduces over the padded axis"),
    "product": ("t = Transpose <perm = [1, 0]> (x) y = MatMul(t, x)", "MatMul at y"),
    "size as data": (
        "s = Shape <start = 0, end = 1> (x) f = Cast <to = 1> (s) y = Div(x, f)",
        "Div at y: operand 1 is a number that depends on the padded size",
    ),
    "concat": ("n = Neg(x) y = Concat <axis = 0> (x, n)", "Concat at y: padding would come to lie between"),
    "reversed": ("y = Slice(x, end, begin, zero, back)", "Slice at y: it goes backwards"),
    "part": ("y = Slice(x, one, end2, zero)", "Slice at y: it takes a part of the padded axis"),
    "last row": ("y = Gather(x, last)", "Gather at y: it may pick padded rows"),
    "mixed": ("t = Transpose <perm = [1, 0]> (x) y = Reshape(t, flat)", "Reshape at y: padding would come"),
    "running sum": ("y = CumSum(x, axis0)", "CumSum at y: it looks along the padded axis"),
    "size as result": ("y = Shape(x)", "Shape at y: output 'y' is a number that depends on the padded size"),
    "sized cut": (
        "n = Shape <start = 0, end = 1> (x) e = Add(n, one) c = Slice(x, n, e, one) y = Relu(c)",
        "Slice at c: it cuts another axis in places that depend on the padded size",
    ),
    "shift": ("p = Pad(x, shift) y = Relu(p)", "Pad at p: it moves rows along the padded axis"),
    "sized pads": (
        """n = Shape <start = 0, end = 1> (x) r = Sub(eight, n) p = Concat <axis = 0> (zero, n, zero, r)
        s = Pad(x, p) y = Relu(s)""",
        "Pad at s: it adds another number of elements for another padded size",
    ),
    "stretched": (
        """s = Constant <value_floats = [2.0, 1.0]> ()
        y = Resize <mode = "linear", coordinate_transformation_mode = "align_corners"> (x, , s)""",
        "Resize at y: it takes a part of the padded axis",
    ),
    "stretched a little": (
        's = Constant <value_floats = [1.1, 1.0]> () y = Resize <mode = "linear"> (x, , s)',
        "Resize at y: it resizes the padded axis",
    ),
    "any axis": (
        "m = ReduceMax <keepdims = 0> (w) a = Cast <to = 7> (m) y = CumSum <reverse = 1> (x, a)",
        "CumSum at y: what operand 1 holds is not known",
    ),
}
CONSTANTS = {
    "zero": np.array([0]), "one": np.array([1]), "end": np.array([-1]), "begin": np.array([-(2**31)]),
    "back": np.array([-1]), "end2": np.array([2**31]), "last": np.array([-1]), "flat": np.array([-1, 4]),
    "axis0": np.array(0), "shift": np.array([-1, 0, 1, 0]), "eight": np.array([8]),
}  # fmt: skip


def small(body: str):  # type: ignore[no-untyped-def]
    used = {
        name: array
        for name, array in CONSTANTS.items()
        if any(f"{a}{name}{b}" in body for a in " (" for b in ",)")
    }
    made = "int64[2]" if "y = Shape" in body else "float[A,B]"
    given = "float[N,8] x, float[3] w" if "(w)" in body else "float[N,8] x"
    return model_of(f"g ({given}) => ({made} y) {{ {body} }}", **used)


@pytest.mark.parametrize("name", FORBIDDEN)
def test_the_op_that_mixes_rows_is_named(name: str) -> None:
    body, text = FORBIDDEN[name]
    model = small(body)
    why = why_not_pad(own(model, profiles={"N": "4"}), "N")
    assert why is not None
    assert text in why
    with pytest.raises(OptionError, match="padding along 'N' would change results"):
        own(model, profiles={"N": "4"}, pad=True)


ALLOWED = {
    "first row": "y = Gather(x, zero)",
    "rows joined and cut apart": "r = Reshape(x, two) e = Exp(r) y = Reshape(e, back8)",
    "positions": """s = Shape <start = 0, end = 1> (x) q = Squeeze(s) r = Range(i0, q, i1)
        f = Cast <to = 1> (r) c = Unsqueeze(f, one) y = Add(x, c)""",
    "columns": "c = Concat <axis = 1> (x, x) y = Relu(c)",
    "zeros": "s = Shape(x) z = ConstantOfShape(s) y = Add(x, z)",
    "other columns": "p = Pad(x, sides) c = Slice(p, one, four, one, one) y = Relu(c)",
    "images": """s = Constant <value_floats = [1.0, 2.0]> () r = Resize <mode = "linear"> (x, , s)
        y = Relu(r)""",
    "row product": "t = Transpose <perm = [1, 0]> (x) y0 = MatMul(w4, t) y = Tanh(y0)",
}
MORE = {"two": np.array([-1, 4]), "back8": np.array([-1, 8]), "i0": np.array(0), "i1": np.array(1),
        "zero": np.array([0]), "one": np.array([1]), "w4": rand(4, 8),
        "sides": np.array([0, 1, 0, 2]), "four": np.array([4])}  # fmt: skip


@pytest.mark.parametrize("name", ALLOWED)
def test_padding_that_is_allowed_is_right(name: str) -> None:
    body = ALLOWED[name]
    used = {n: a for n, a in MORE.items() if f" {n})" in body or f"({n}," in body or f", {n}" in body}
    model = model_of(f"g (float[N,8] x) => (float[A,B] y) {{ {body} }}", **used)
    engine = own(model, profiles=[{"N": "8"}], pad=True)
    for rows in (1, 3, 7, 8):
        close(engine.run({"x": rand(rows, 8)}), expected(model, {"x": rand(rows, 8)}))


def test_a_build_is_verified_with_padded_rows() -> None:
    engine = own(
        model_of(ROWS, **ROW_WEIGHTS), profiles=[{"N": "4"}, {"N": "9..16"}], pad=True, verify="fast"
    )
    rows = [(row.name, row.shapes) for row in engine.report.checks if row.name == "padded along N"]
    assert [shapes for _, shapes in rows[::3]] == ["x[3x6x8], i[3]", "x[8x6x8], i[8]"]


def test_padding_that_changes_results_is_caught_by_verification(monkeypatch: pytest.MonkeyPatch) -> None:
    """A rule that allows too much: here one that lets Softmax look along padded rows."""
    monkeypatch.setitem(padding_rules.RULES, "Softmax", lambda at: at.axes[0])
    with pytest.raises(VerifyError, match="padded along N: y off"):
        own(small("y = Softmax <axis = 0> (x)"), profiles={"N": "4"}, pad=True, verify="fast")


def test_an_op_without_a_rule_forbids() -> None:
    model = model_of("g (float[N,8] x) => (int64[2,K] y) { y = NonZero(x) }")
    assert "NonZero at y: there is no rule" in str(why_not_pad(own(model, profiles={"N": "4"}), "N"))


def test_a_body_that_reads_padded_rows_forbids() -> None:
    model = model_of("""g (float[N,8] x) => (float[N,8] y) {
        n = Constant <value_int = 2> () c = Constant <value = bool {1}> () z = Constant <value_float = 0.0> ()
        s = Loop (n, c, z) < body = b (int64 i, bool go, float a) => (bool on, float w) {
            on = Identity(go) m = ReduceSum <keepdims = 0> (x) w = Add(a, m) } >
        y = Add(x, s) }""")
    assert "its body reads" in str(why_not_pad(own(model, profiles={"N": "4"}), "N"))


def test_padding_wants_a_profile() -> None:
    with pytest.raises(OptionError, match="no profile to pad to"):
        own(model_of(ROWS, **ROW_WEIGHTS), pad=True)


def test_only_dims_that_profiles_move_must_be_paddable() -> None:
    model = model_of("g (float[N,C] x) => (float[N,C] y) { y = Softmax(x) }")
    profiles = [{"N": "2", "C": "8"}, {"N": "4", "C": "8"}]
    engine = own(model, profiles=profiles, pad=True)
    close(engine.run({"x": rand(3, 8)}), expected(model, {"x": rand(3, 8)}))
    with pytest.raises(InputError, match="not padded to a larger one: Softmax at y"):
        engine.run({"x": rand(4, 7)})
    with pytest.raises(OptionError, match=r"(?s)padding along 'C'.*C: Softmax at y"):
        own(model, profiles=[{"N": "2", "C": "8"}, {"N": "2", "C": "16"}], pad=True)
