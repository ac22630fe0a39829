"""A model that contradicts itself: the build and lint name the node, and neither asks for other shapes."""

from __future__ import annotations

import numpy as np
import onnx
import pytest

import ridgeline
from ridgeline.errors import BuildError, InputError, ModelError
from ridgeline.surgery.lint import lint


def model(text: str, **weights: tuple[int, ...]) -> onnx.ModelProto:
    proto = onnx.parser.parse_model(f'<ir_version: 8, opset_import: ["" : 18]> g {text}')
    for name, shape in weights.items():
        proto.graph.initializer.append(onnx.numpy_helper.from_array(np.ones(shape, np.float32), name))
    return proto


@pytest.mark.parametrize(
    ("proto", "where", "got"),
    [
        (
            model(
                "(float[N,4] x) => (float[N,3] y) { p = MatMul(a, b) q = MatMul(x, c) y = Add(q, p) }",
                a=(2, 3), b=(4, 3), c=(4, 3),
            ),
            "MatMul 'p'",
            r"float32\[2,3\], float32\[4,3\]",
        ),
        (model("(float[2,4] x) => (float[3,3] y) <int64[2] s = {3,3}> { y = Reshape(x, s) }"),
         "Reshape 'y'", r"float32\[2,4\]"),
        (model("(float[N,4] x) => (float[N,3,3] y) <int64[3] s = {0,3,3}> { y = Reshape(x, s) }"),
         "Reshape 'y'", r"float32\[N,4\]"),
        (model("(float[N,3,H,W] x) => (float[N,8,H,W] y) { y = Conv(x, w) }", w=(8, 4, 3, 3)),
         "Conv 'y'", r"float32\[N,3,H,W\]"),
        (model("(float[N,3,H] x) => (float[N,8,H] y) { y = ConvTranspose(x, w) }", w=(4, 8, 3)),
         "ConvTranspose 'y'", r"float32\[N,3,H\]"),
        (model("(float[N,T] x) => (float[N,3] y) { a = MatMul(x, c) y = MatMul(a, d) }", c=(9, 3), d=(4, 3)),
         "MatMul 'y'", r"float32\[N,3\]"),
    ],
)  # fmt: skip
def test_the_node_is_named_with_what_it_is_given(proto: onnx.ModelProto, where: str, got: str) -> None:
    with pytest.raises(ModelError, match=rf"(?s)contradicts itself.*{where}.*got +{got}") as caught:
        ridgeline.build(proto, level=0)
    assert "--shapes" not in str(caught.value)
    assert [problem.where for problem in lint(proto).problems if problem.severity == "error"] == [where]


@pytest.mark.parametrize(
    "text",
    [
        "(float[N,4] x) => (float[M,K] y) <int64[2] s = {6,2}> { y = Reshape(x, s) }",
        "(float[N,M] x) => (float[M,K] y) <int64[2] s = {6,35}> { y = Reshape(x, s) }",
        "(float[N,4] x) => (float[M,3] y) <int64[2] s = {-1,3}> { y = Reshape(x, s) }",
        "(float[N,C,H] x, float[8,4,3] w) => (float[N,8,L] y) { y = Conv(x, w) }",
        "(float[N,T] x, float[64] b) => (float[N,64] y) { y = Add(x, b) }",
        """(float[1,1600,1] x, float[161,8] w) => (float[1,M,2,8] y) <int64 step = {160}, int64 size = {320}>
        { s = STFT(x, step, , size) t = Transpose<perm = [0,1,3,2]>(s) y = MatMul(t, w) }""",
        """(float[4] x, bool go, int64[4] i) => (float[4] y) {
        c = If (go) < then_branch = a () => (t) { t = Neg (x) },
        else_branch = b () => (e) { e = Abs (x) } >
        y = CastLike (i, c) }""",
    ],
)
def test_what_some_shapes_fit_is_no_contradiction(text: str) -> None:
    assert not lint(model(text)).errors


def test_the_help_has_the_inputs_own_name_and_rank() -> None:
    proto = model("(float[rows,T] pixels) => (float[rows,3] y) { y = MatMul(pixels, c) }", c=(777, 3))
    with pytest.raises(InputError, match=r"these were --shapes pixels=1x5$"):
        ridgeline.build(proto, level=0, profiles={"pixels": "1x5"})
    twice = model(
        "(float[A,T] x) => (float[A,3] y) { a = MatMul(x, c) b = MatMul(x, d) y = Add(a, b) }",
        c=(7, 3), d=(9, 3),
    )  # fmt: skip
    with pytest.raises(BuildError, match=r"--shapes x=…x…$"):
        ridgeline.build(twice, level=0)
