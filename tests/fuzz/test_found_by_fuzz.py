"""Bugs that random graphs showed, each as the smallest graph that shows it."""

from __future__ import annotations

from contextlib import suppress

import numpy as np
import onnx.parser
import pytest
from onnx.numpy_helper import from_array

import ridgeline
from ridgeline.base.spec import Op, TensorSpec
from ridgeline.errors import RidgelineError
from ridgeline.runtime.example_integers import Known, draw_integers
from ridgeline.select.shapes import GUESSED_BYTES

RNG = np.random.default_rng(5)


def run(
    body: str, given: dict[str, np.ndarray], constants: dict[str, np.ndarray], **options: object
) -> np.ndarray:
    """The graph's output `y`; types and shapes are those of the arrays."""
    names = {"float32": "float", "float16": "float16", "float64": "double"}
    ports = [
        f"{names.get(str(a.dtype), a.dtype)}[{','.join(map(str, a.shape))}] {n}" for n, a in given.items()
    ]
    head, tail = body.split("=>")
    text = f'<ir_version: 10, opset_import: ["": 20]> g ({", ".join(ports)}) => ({tail} y) {{ {head} }}'
    model = onnx.parser.parse_model(text)
    model.graph.initializer.extend(from_array(array, name) for name, array in constants.items())
    chosen = {"level": 0, "verify": "off", "without": ("ort", "cpp"), "threads": 1} | options
    return np.asarray(ridgeline.build(model, **chosen).run(given)["y"])


def test_constants_are_not_computed_by_ops_that_the_onnx_reference_has_wrong() -> None:
    x = RNG.standard_normal((2, 5, 3, 3)).astype(np.float32)
    y = run(
        "n = LpNormalization <axis = 1, p = 1> (x) y = Add (n, z) => float[2,5,3,3]", {"z": 0 * x}, {"x": x}
    )
    np.testing.assert_allclose(y, x / np.abs(x).sum(1, keepdims=True), rtol=1e-6)
    y = run("n = LRN <size = 3, alpha = 0.5> (x) y = Add (n, z) => float[2,5,3,3]", {"z": 0 * x}, {"x": x})
    padded = np.pad(x.astype(np.float64) ** 2, ((0, 0), (1, 1), (0, 0), (0, 0)))
    near = padded[:, :-2] + padded[:, 1:-1] + padded[:, 2:]
    np.testing.assert_allclose(y, x / (1 + 0.5 / 3 * near) ** 0.75, rtol=1e-6)


@pytest.mark.parametrize("kind", ["int8", "uint8", "uint32"])
@pytest.mark.parametrize("equation", ["ij,jk->ik", "ij,jk->"])
def test_einsum_of_integers_keeps_its_type(kind: str, equation: str) -> None:
    a, b = RNG.integers(0, 3, (2, 4)).astype(kind), RNG.integers(0, 3, (4, 3)).astype(kind)
    want = np.einsum(equation, a, b).astype(kind)
    tail = f"{kind}[{','.join(map(str, want.shape))}]" if want.ndim else kind
    y = run(f'y = Einsum <equation = "{equation}"> (a, b) => {tail}', {"a": a, "b": b}, {})
    assert y.dtype == want.dtype
    np.testing.assert_array_equal(y, want)


@pytest.mark.parametrize(
    ("body", "want"),
    [
        ("y = Trilu (x) => uint64[3,3]", np.triu),
        ("y = MatMul (x, x) => uint64[3,3]", lambda x: x @ x),
        ("y = GatherND (x, i) => uint64[2]", lambda x: np.array([x[0, 1], x[2, 2]])),
    ],
)
def test_types_that_pytorch_has_no_kernel_for_go_elsewhere(body: str, want: object) -> None:
    x = RNG.integers(0, 1 << 40, (3, 3)).astype(np.uint64)
    assert callable(want)
    y = run(body, {"x": x}, {"i": np.array([[0, 1], [2, 2]], np.int64)} if "GatherND" in body else {})
    np.testing.assert_array_equal(y, want(x))


def test_pooling_half_volumes() -> None:
    x = RNG.standard_normal((1, 2, 3, 4, 5)).astype(np.float16)
    y = run("y = AveragePool <kernel_shape = [3, 4, 5]> (x) => float16[1,2,1,1,1]", {"x": x}, {})
    np.testing.assert_allclose(y.reshape(-1), x.reshape(2, -1).astype(np.float64).mean(1), atol=2e-3)


def test_a_norm_over_one_element_is_the_bias() -> None:
    x = RNG.standard_normal((1, 1, 1, 1)).astype(np.float32)
    scale, bias = np.float32([3]), np.float32([0.5])
    y = run("y = InstanceNormalization (x, s, b) => float[1,1,1,1]", {"x": x}, {"s": scale, "b": bias})
    # x / sqrt(epsilon) is taken away from itself: eps of that is left
    np.testing.assert_allclose(y.reshape(-1), bias, atol=float(2**-22 * 3 * np.abs(x).max() / np.sqrt(1e-5)))


@pytest.mark.parametrize("kind", ["uint8", "uint32", "int8"])
def test_the_remainder_by_the_largest_number_in_generated_code(kind: str) -> None:
    """For an unsigned type, the largest number is -1 cast, by which nothing leaves a remainder."""
    x = np.array([0, 1, 60, 124], kind)
    by = np.array([np.iinfo(kind).max, 7, np.iinfo(kind).max, 5], kind)
    y = run(f"r = Mod (x, by) y = Add (r, x) => {kind}[4]", {"x": x, "by": by}, {}, without=("ort",))
    np.testing.assert_array_equal(y, np.mod(x, by) + x)


def test_one_element_is_gathered_as_a_number() -> None:
    x = np.arange(6, dtype=np.float32).reshape(2, 3)
    assert run("y = GatherND (x, i) => float", {"x": x, "i": np.array([1, 2])}, {}) == 5
    assert run("y = Gather (x, i) => float", {"x": x[0], "i": np.array(2)}, {}) == 2


@pytest.mark.parametrize(
    "body",
    [
        "y = ReduceMean (x, a) => float[1,2,1]",
        "m = ReduceMax (x, a) d = Sub (x, m) p = Exp (d) s = ReduceSum (p, a) y = Div (p, s) => float[1,2,3]",
    ],
)
@pytest.mark.parametrize("without", [("ort",), ("ort", "cpp")])
def test_axes_as_a_number_are_taken_or_refused(body: str, without: tuple[str, ...]) -> None:
    """ONNX wants a list of them; rules meet them before anybody else does."""
    x = RNG.standard_normal((1, 2, 3)).astype(np.float32)
    with suppress(RidgelineError):
        y = run(body, {"x": x}, {"a": np.array(2)}, without=without)
        assert np.isfinite(y).all()


def test_lengths_are_drawn_for_tables_that_are_shorter() -> None:
    spec = TensorSpec("int64", (3,))
    op = Op("Gather", ("table", "i"), ("y",))
    table = TensorSpec("float32", (0, 4))
    known = Known([op], {"i": spec, "table": table}, {}, [spec])
    drawn = draw_integers(np.random.default_rng(0), "i", spec, known)
    assert drawn.shape == (3,)


@pytest.mark.parametrize(
    "body",
    [
        'y = Einsum <equation = "ij,jk->ik"> (x, w) => float[2,2]',
        'y = Einsum <equation = "ij,jk->ik"> (x) => float[2,2]',
        "c = ReduceSum <keepdims = -1099511627776> (w, w) y = Add (x, c) => float[2,2]",
    ],
)
def test_operands_that_no_rule_or_fold_can_read_are_refused(body: str) -> None:
    x = RNG.standard_normal((2, 2)).astype(np.float32)
    with pytest.raises(RidgelineError):
        run(body, {"x": x}, {"w": RNG.standard_normal((2, 1, 2)).astype(np.float32)})


@pytest.mark.parametrize("opset", [13, 23])
def test_an_identity_of_an_unknown_type_does_not_end_the_process(opset: int) -> None:
    """ONNX's inference looks up a type that is not there."""
    text = f"""<ir_version: 10, opset_import: ["": {opset}]>
        g (float[3] x) => (double[N,M] y) {{ v = Unsqueeze (x, a) y = EyeLike <dtype = 11> (v) }}"""
    model = onnx.parser.parse_model(text)
    for axes, kind in (([0, 0, 0, 0], RidgelineError), ([0], None)):
        del model.graph.initializer[:]
        model.graph.initializer.append(from_array(np.array(axes), "a"))
        if kind is None:
            made = ridgeline.build(model, level=0).run({"x": np.zeros(3, np.float32)})["y"]
            np.testing.assert_array_equal(made, np.eye(1, 3))
        else:
            with pytest.raises(kind):
                ridgeline.build(model, level=0)


def test_a_guess_is_never_huge() -> None:
    text = """<ir_version: 10, opset_import: ["": 20]>
        g (double[A,B,C,D] x) => (double[A,B,C,D] y) { y = Relu (x) }"""
    engine = ridgeline.build(onnx.parser.parse_model(text), level=0, verify="off")
    assert engine.plan.planned_shapes["x"].nbytes <= GUESSED_BYTES


RANGE = "r = Range (s, e, a) f = Cast <to = 1> (r) y = Add (x, f) => float[2,3]"


def test_hostile_operands_of_slices_and_ranges_are_refused() -> None:
    x = RNG.standard_normal((2, 3)).astype(np.float32)
    for body, constants in (
        ("y = Slice (x, s, e, a) => float[2,3]", {"s": [0], "e": [9], "a": [7]}),
        ("y = Slice (x, s, e, a) => float[2,3]", {"s": [0, 0], "e": [9, 9], "a": [0]}),
        (
            RANGE,
            {"s": [0, 0], "e": [3], "a": [1, 1]},
        ),
    ):
        with pytest.raises(RidgelineError):
            run(body, {"x": x}, {name: np.array(values) for name, values in constants.items()})


def test_attributes_that_nobody_knows_are_refused() -> None:
    x = np.array([3], np.uint8)
    with pytest.raises(RidgelineError):
        run('s = BitShift <direction = "UP"> (c, c) y = Add (x, s) => uint8[1]', {"x": x}, {"c": x})
    image, weight = (RNG.standard_normal(s).astype(np.float32) for s in ((1, 2, 3, 3), (2, 2, 3, 3)))
    with pytest.raises(RidgelineError):
        run(
            "y = ConvTranspose <strides = [2, 4611686018427387904]> (x, w) => float[1,2,7,7]",
            {"x": image}, {"w": weight},
        )  # fmt: skip
