from __future__ import annotations

import pytest
from library_cases import check, make_site, node

from offers import why_not
from ridgeline.base.spec import Target
from ridgeline.tactics.cpu.conv_gemm import ConvAsGemm
from ridgeline.tactics.cpu.onednn_conv import OneDnnConv, OneDnnConvTranspose

CONV = OneDnnConv()
TRANSPOSE = OneDnnConvTranspose()
GEMM = ConvAsGemm()

GEOMETRIES = {
    "3x3": ((2, 5, 9, 7), (6, 5, 3, 3), {"pads": (1, 1, 1, 1)}),
    "strided": ((1, 5, 9, 7), (6, 5, 3, 3), {"pads": (1, 1, 1, 1), "strides": (2, 2)}),
    "dilated": ((1, 5, 11, 9), (6, 5, 3, 3), {"dilations": (2, 3)}),
    "grouped": ((1, 6, 9, 7), (9, 2, 3, 3), {"group": 3}),
    "depthwise": ((1, 19, 9, 7), (19, 1, 5, 5), {"group": 19, "pads": (2, 2, 2, 2)}),
    "uneven pads": ((1, 5, 9, 7), (6, 5, 3, 3), {"pads": (0, 1, 2, 3)}),
    "same upper": ((1, 5, 8, 6), (6, 5, 3, 3), {"auto_pad": "SAME_UPPER", "strides": (2, 2)}),
    "same lower": ((1, 5, 8, 6), (6, 5, 2, 2), {"auto_pad": "SAME_LOWER"}),
    "row": ((2, 5, 13), (6, 5, 3), {"pads": (1, 1), "strides": (2,)}),
    "row, uneven pads": ((1, 5, 13), (6, 5, 4), {"pads": (0, 3)}),
    "volume": ((1, 3, 5, 6, 7), (4, 3, 3, 3, 3), {"pads": (1, 1, 1, 1, 1, 1)}),
}
# the tail after the convolution's result `c`; r is a residual of its shape, s varies by channel
TAILS = {
    "relu": [node("Relu", "c", "y")],
    "relu6": [node("Clip", "c zero six", "y")],
    "relu as clip": [node("Clip", "c zero", "y")],
    "leaky": [node("LeakyRelu", "c", "y", alpha=0.2)],
    "hardswish": [node("HardSwish", "c", "y")],
    "hardswish spelled": [node("HardSigmoid", "c", "g", alpha=1 / 6), node("Mul", "g c", "y")],
    "hardsigmoid of onnx": [node("HardSigmoid", "c", "y")],
    "hardsigmoid of torch": [node("HardSigmoid", "c", "y", alpha=1 / 6)],
    "silu": [node("Sigmoid", "c", "g"), node("Mul", "c g", "y")],
    "gelu": [node("Gelu", "c", "y")],
    "gelu tanh": [node("Gelu", "c", "y", approximate="tanh")],
    "tanh": [node("Tanh", "c", "y")],
    "bias": [node("Add", "s c", "y")],
    "bias relu": [node("Add", "c s", "d"), node("Relu", "d", "y")],
    "residual": [node("Add", "c r", "y")],
    "residual relu": [node("Add", "r c", "d"), node("Relu", "d", "y")],
    "residual silu": [node("Add", "r c", "d"), node("Sigmoid", "d", "g"), node("Mul", "d g", "y")],
    "relu residual": [node("Relu", "c", "d"), node("Add", "d r", "y")],
    "scale bias relu": [node("Mul", "c s", "d"), node("Add", "d s", "e"), node("Relu", "e", "y")],
    "difference": [node("Sub", "c r", "y")],
    "reversed difference": [node("Sub", "r c", "y")],
    "doubled": [node("Add", "c c", "y")],
    "rest": [node("Relu", "c", "d"), node("Exp", "d", "e"), node("Max", "e r", "y")],
    "rest with a side": [node("Exp", "r", "e"), node("Add", "c e", "y")],
}


def conv_site(x, w, tail, *, attrs=None, layout="", bias=True, outputs="y", op="Conv"):
    ops = [node(op, "x w b" if bias else "x w", "c", **(attrs or {})), *tail]
    names = {name for item in tail for name in item.inputs}
    channels = w[0] if op == "Conv" else w[1] * (attrs or {}).get("group", 1)
    inputs = {"x": x, "w": w} | ({"b": (channels,)} if bias else {})
    if "r" in names:
        probe, _ = make_site(inputs, ops[:1], outputs="c")
        inputs["r"] = probe.specs["c"].shape
    if "s" in names:
        inputs["s"] = (channels, *(1,) * (len(x) - 2))
    last = "x r c d e g y" if layout == "channels_last" else layout
    constants = {"zero": 0.0, "six": 6.0}
    used = {name: value for name, value in constants.items() if name in names}
    return make_site(
        inputs, ops, weights=" ".join(n for n in ("w", "b", "s") if n in inputs), outputs=outputs,
        constants=used, channels_last=last,
    )  # fmt: skip


@pytest.mark.parametrize("layout", ["contiguous", "channels_last", "x", "y"])
@pytest.mark.parametrize("case", GEOMETRIES)
def test_geometries(case, layout):
    x, w, attrs = GEOMETRIES[case]
    tail = [node("Relu", "c", "y")]
    configs = check(CONV, *conv_site(x, w, tail, attrs=attrs, layout=layout.removeprefix("contiguous")))
    assert len(configs) == (4 if layout == "contiguous" else 2)


@pytest.mark.parametrize("layout", ["", "channels_last"])
@pytest.mark.parametrize("tail", TAILS)
def test_tails(tail, layout):
    attrs = {"pads": (1, 1, 1, 1)}
    check(CONV, *conv_site((1, 5, 9, 7), (17, 5, 3, 3), TAILS[tail], attrs=attrs, layout=layout))


@pytest.mark.parametrize("tail", ["residual relu", "silu", "rest"])
@pytest.mark.parametrize("case", ["row", "volume"])
def test_tails_off_the_plane(case, tail):
    x, w, attrs = GEOMETRIES[case]
    check(CONV, *conv_site(x, w, TAILS[tail], attrs=attrs))


def test_two_outputs():
    tail = [node("Relu", "c", "d"), node("Tanh", "d", "y")]
    site, tensors = conv_site((1, 5, 9, 7), (6, 5, 3, 3), tail, outputs="d y", layout="channels_last")
    check(CONV, site, tensors)


def test_gate_that_leaves_the_region():
    site, tensors = conv_site((1, 5, 9, 7), (6, 5, 3, 3), TAILS["silu"], outputs="g y")
    check(CONV, site, tensors)


@pytest.mark.parametrize("case", GEOMETRIES)
@pytest.mark.parametrize("tail", ["relu", "residual relu"])
def test_transposed(case, tail):
    x, w, attrs = GEOMETRIES[case]
    attrs = {k: v for k, v in attrs.items() if k != "auto_pad"}
    if case in ("uneven pads", "row, uneven pads"):
        attrs["pads"] = (1,) * 2 * (len(x) - 2)
    kernel = (x[1], w[0] // attrs.get("group", 1), *w[2:])
    layout = "channels_last" if len(x) == 4 else ""
    check(TRANSPOSE, *conv_site(x, kernel, TAILS[tail], attrs=attrs, op="ConvTranspose", layout=layout))


def test_transposed_with_output_padding():
    attrs = {"strides": (2, 2), "pads": (1, 1, 1, 1), "output_padding": (1, 1)}
    tail = TAILS["bias relu"]
    check(TRANSPOSE, *conv_site((1, 5, 4, 6), (5, 3, 3, 3), tail, attrs=attrs, op="ConvTranspose"))


def test_transposed_refuses_uneven_pads():
    site, _ = conv_site((1, 5, 4, 6), (5, 3, 3, 3), TAILS["relu"], op="ConvTranspose")
    uneven = site.body.ops[0].attrs
    uneven["pads"] = (0, 0, 1, 1)
    assert "differ" in str(why_not(TRANSPOSE, site))


@pytest.mark.parametrize("layout", ["", "channels_last", "x", "y"])
@pytest.mark.parametrize("tail", TAILS)
def test_as_gemm(tail, layout):
    check(GEMM, *conv_site((1, 13, 5, 7), (17, 13, 1, 1), TAILS[tail], layout=layout))


def test_as_gemm_of_a_batch():
    check(GEMM, *conv_site((3, 13, 5, 7), (17, 13, 1, 1), TAILS["residual relu"], layout="channels_last"))
    check(GEMM, *conv_site((3, 13, 5), (17, 13, 1), TAILS["residual relu"], layout="channels_last"))
    site, _ = conv_site((3, 13, 5, 7), (17, 13, 1, 1), TAILS["relu"])
    assert why_not(GEMM, site) == "3 contiguous images do not form one matrix"


def test_as_gemm_refuses_wider_kernels():
    site, _ = conv_site((1, 5, 9, 7), (6, 5, 3, 3), TAILS["relu"])
    assert "kernel [3, 3]" in str(why_not(GEMM, site))


def test_refusals():
    ops = [node("Conv", "x w", "y")]
    shapes = {"x": (1, 5, 9, 7), "w": (6, 5, 3, 3)}
    assert "changes between runs" in str(why_not(CONV, make_site(shapes, ops)[0]))
    on_gpu, _ = make_site(shapes, ops, weights="w", target=Target("cuda", "sm_90"))
    assert "target is cuda:sm_90" in str(why_not(CONV, on_gpu))
    fed, _ = make_site(shapes, [node("Relu", "x", "z"), node("Conv", "z w", "y")], weights="w")
    assert why_not(CONV, fed) == "Relu feeds the Conv inside the region"
    none, _ = make_site({"x": (1, 5)}, [node("Relu", "x", "y")])
    assert why_not(CONV, none) == "region has no Conv, want one"
    wide = {name: make_site(shapes, ops)[1][name].double() for name in shapes}
    assert "float64" in str(why_not(CONV, make_site(wide, ops, weights="w")[0]))
