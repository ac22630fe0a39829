"""The floor against ONNX Runtime, where ONNX's own node tests are thin: windows, resizes, recurrences."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import onnx_ir as ir
import onnxruntime
import pytest
import torch

from ridgeline.base.spec import Op
from ridgeline.kernels.floor import call_floor

Arrays = Sequence[np.ndarray | None]


def _random(*shape: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32)


def _int64(*values: int) -> np.ndarray:
    return np.array(values, dtype=np.int64)


def _peer(key: str, inputs: Arrays, attrs: dict[str, Any], dtypes: Sequence[ir.DataType]) -> list[np.ndarray]:
    values = [
        None
        if x is None
        else ir.Value(
            name=f"x{i}", type=ir.TensorType(ir.DataType.from_numpy(x.dtype)), shape=ir.Shape(x.shape)
        )
        for i, x in enumerate(inputs)
    ]
    outputs = [ir.Value(name=f"y{i}", type=ir.TensorType(dtype)) for i, dtype in enumerate(dtypes)]
    domain, _, op_type = key.rpartition("::")
    node = ir.node(op_type, values, attrs, domain=domain, outputs=outputs)
    present = [value for value in values if value is not None]
    # the newest opset for which ONNX Runtime has kernels of every op here
    opsets = {"": 21, "com.microsoft": 1}
    graph = ir.Graph(present, outputs, nodes=[node], opset_imports=opsets, name="one")
    text = ir.to_proto(ir.Model(graph, ir_version=10)).SerializeToString()
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1
    options.log_severity_level = 3
    session = onnxruntime.InferenceSession(text, options, providers=["CPUExecutionProvider"])
    feeds = {value.name: x for value, x in zip(values, inputs, strict=True) if value is not None}
    results: list[np.ndarray] = session.run(None, feeds)
    return results


def _check(
    key: str, inputs: Arrays, attrs: dict[str, Any], *, dtypes: Sequence[ir.DataType] = (ir.DataType.FLOAT,)
) -> None:
    wanted = _peer(key, inputs, attrs, dtypes)
    domain, _, op_type = key.rpartition("::")
    op = Op(op_type, (), tuple(f"y{i}" for i in range(len(dtypes))), attrs, domain)
    with torch.inference_mode():
        got = call_floor(op, [None if x is None else torch.from_numpy(x) for x in inputs])
    for ours, theirs in zip(got, wanted, strict=True):
        assert ours is not None
        torch.testing.assert_close(ours, torch.from_numpy(theirs), rtol=2e-5, atol=2e-5)


@pytest.mark.parametrize("rank", [1, 2, 3])
@pytest.mark.parametrize("auto_pad", ["NOTSET", "SAME_UPPER", "SAME_LOWER", "VALID"])
def test_conv(rank: int, auto_pad: str) -> None:
    x, w, b = _random(2, 4, *(9, 8, 7)[:rank]), _random(6, 2, *(3, 2, 4)[:rank]), _random(6)
    dilations = [1] * rank if auto_pad.startswith("SAME") else [2] * rank
    attrs = {"auto_pad": auto_pad, "strides": [2, 1, 2][:rank], "dilations": dilations, "group": 2}
    if auto_pad == "NOTSET":
        attrs["pads"] = [1, 2, 3][:rank] + [0, 2, 4][:rank]
    _check("Conv", [x, w, b], attrs)


@pytest.mark.parametrize(
    "attrs",
    [
        {"strides": [2, 2], "pads": [1, 0, 0, 1], "output_padding": [1, 1]},
        {"strides": [2, 3], "output_shape": [14, 20]},
        {"strides": [2, 2], "auto_pad": "SAME_UPPER"},
        {"strides": [2, 2], "pads": [1, 1, 1, 1], "output_padding": [1, 0], "dilations": [2, 1], "group": 2},
    ],
)
def test_conv_transpose(attrs: dict[str, Any]) -> None:
    group = attrs.get("group", 1)
    _check("ConvTranspose", [_random(2, 4, 6, 7), _random(4, 3, 3, 3), _random(3 * group)], attrs)


@pytest.mark.parametrize("key", ["MaxPool", "AveragePool"])
@pytest.mark.parametrize("ceil_mode", [0, 1])
@pytest.mark.parametrize("pads", [[0, 0, 0, 0], [1, 1, 1, 1], [0, 1, 1, 2]])
@pytest.mark.parametrize("strides", [[1, 1], [2, 3]])
def test_pool(key: str, ceil_mode: int, pads: list[int], strides: list[int]) -> None:
    attrs = {"kernel_shape": [3, 3], "ceil_mode": ceil_mode, "pads": pads, "strides": strides}
    _check(key, [_random(2, 3, 10, 11)], attrs)
    if key == "AveragePool":
        _check(key, [_random(2, 3, 10, 11)], {**attrs, "count_include_pad": 1})
    else:
        float_and_int = (ir.DataType.FLOAT, ir.DataType.INT64)
        _check(key, [_random(2, 3, 10, 11)], {**attrs, "dilations": [2, 1]}, dtypes=float_and_int)


@pytest.mark.parametrize("coordinates", ["half_pixel", "asymmetric", "align_corners", "pytorch_half_pixel"])
@pytest.mark.parametrize("mode", ["nearest", "linear", "cubic"])
@pytest.mark.parametrize("size", [(1, 2, 10, 14), (1, 2, 4, 3), (1, 2, 1, 7), (1, 2, 5, 1)])
def test_resize(coordinates: str, mode: str, size: tuple[int, ...]) -> None:
    attrs = {"mode": mode, "coordinate_transformation_mode": coordinates, "nearest_mode": "round_prefer_ceil"}
    if mode != "nearest":
        del attrs["nearest_mode"]
    _check("Resize", [_random(1, 2, 5, 7), None, None, _int64(*size)], attrs)


@pytest.mark.parametrize("coordinates", ["half_pixel", "asymmetric", "align_corners", "pytorch_half_pixel"])
@pytest.mark.parametrize("rounding", ["round_prefer_floor", "round_prefer_ceil", "floor", "ceil"])
def test_resize_to_the_nearest_by_fractions(coordinates: str, rounding: str) -> None:
    """Coordinates that land on a tie in float32: the pixel hangs on how they are rounded."""
    attrs = {"mode": "nearest", "coordinate_transformation_mode": coordinates, "nearest_mode": rounding}
    for scale in (0.3, 0.6, 0.7, 1.1, 1.3, 1.7, 2.3, 3.6):
        scales = np.array([1, 1, scale, 1.4], dtype=np.float32)
        _check("Resize", [_random(1, 2, 5, 7), None, scales], attrs)
    for size in ((2, 4), (7, 8), (11, 3)):
        _check("Resize", [_random(1, 2, 5, 7), None, None, _int64(1, 2, *size)], attrs)


def test_norms_of_a_constant_far_from_zero_are_zero() -> None:
    """The mean is taken away first: a product before that would cancel."""
    for value in (1e3 + 0.1, 1e6 + 0.1, 1e10):
        x = np.full((2, 4, 5), value, np.float32)
        scale, bias = np.array([1, 2, 0, -1], np.float32), np.array([0, 1, 2, 3], np.float32)
        for key, attrs in (("InstanceNormalization", {}), ("GroupNormalization", {"num_groups": 4})):
            op = Op(key, ("x", "s", "b"), ("y",), attrs)
            made = call_floor(op, [torch.from_numpy(a) for a in (x, scale, bias)])[0]
            assert torch.equal(made, torch.from_numpy(np.broadcast_to(bias[:, None], x.shape).copy()))


def test_zeros_are_quantised_by_a_scale_of_one() -> None:
    _check(
        "DynamicQuantizeLinear",
        [np.zeros((2, 8), np.float32)],
        {},
        dtypes=[ir.DataType.UINT8, ir.DataType.FLOAT, ir.DataType.UINT8],
    )


@pytest.mark.parametrize("auto_pad", ["SAME_UPPER", "SAME_LOWER"])
def test_conv_transpose_with_a_kernel_smaller_than_its_stride(auto_pad: str) -> None:
    _check(
        "ConvTranspose",
        [_random(1, 4, 5, 5), _random(4, 2, 2, 3, seed=1)],
        {"auto_pad": auto_pad, "strides": [3, 2]},
    )


@pytest.mark.parametrize("mode", ["linear", "cubic"])
def test_resize_antialias(mode: str) -> None:
    attrs = {"mode": mode, "antialias": 1}
    _check("Resize", [_random(1, 2, 12, 17), None, None, _int64(1, 2, 5, 6)], attrs)


@pytest.mark.parametrize("direction", ["forward", "reverse", "bidirectional"])
@pytest.mark.parametrize("with_state", [False, True])
@pytest.mark.parametrize("lengths", [None, [5, 3, 1], [1, 5, 0]])
@pytest.mark.parametrize(
    ("key", "n_gates", "attrs"),
    [
        ("LSTM", 4, {}),
        ("GRU", 3, {"linear_before_reset": 1}),
        ("GRU", 3, {}),
        ("RNN", 1, {}),
        ("GRU", 3, {"clip": 0.4}),
        ("RNN", 1, {"clip": 0.4}),
        ("LSTM", 4, {"clip": 0.4}),
    ],
)
def test_recurrent(
    key: str, n_gates: int, attrs: dict[str, Any], direction: str, with_state: bool, lengths: list[int] | None
) -> None:
    n, hidden = 2 if direction == "bidirectional" else 1, 6
    x, w = _random(5, 3, 4), _random(n, n_gates * hidden, 4, seed=1)
    r, b = _random(n, n_gates * hidden, hidden, seed=2), _random(n, 2 * n_gates * hidden, seed=3)
    lens = None if lengths is None else np.array(lengths, dtype=np.int32)
    states = [
        _random(n, 3, hidden, seed=4 + i) if with_state else None for i in range(2 if key == "LSTM" else 1)
    ]
    n_outputs = 3 if key == "LSTM" else 2
    _check(
        key, [x, w, r, b, lens, *states], {"hidden_size": hidden, "direction": direction, **attrs},
        dtypes=(ir.DataType.FLOAT,) * n_outputs,
    )  # fmt: skip


def test_lstm_with_other_activations() -> None:
    x, w, r = _random(5, 3, 4), _random(2, 24, 4, seed=1), _random(2, 24, 6, seed=2)
    attrs = {
        "hidden_size": 6, "direction": "bidirectional", "input_forget": 1,
        "activations": ["HardSigmoid", "Softsign", "Relu"] * 2,
    }  # fmt: skip
    _check("LSTM", [x, w, r], attrs, dtypes=(ir.DataType.FLOAT,) * 3)


def test_lstm_peepholes() -> None:
    x, w, r = _random(5, 3, 4), _random(2, 24, 4, seed=1), _random(2, 24, 6, seed=2)
    b, p = _random(2, 48, seed=3), _random(2, 18, seed=4)
    attrs = {"hidden_size": 6, "direction": "bidirectional"}
    _check("LSTM", [x, w, r, b, None, None, None, p], attrs, dtypes=(ir.DataType.FLOAT,) * 3)


@pytest.mark.parametrize("largest", [0, 1])
@pytest.mark.parametrize("with_ties", [False, True])
def test_top_k(largest: int, with_ties: bool) -> None:
    x = _random(3, 200, 2)
    if with_ties:
        x = np.round(x)
    dtypes = (ir.DataType.FLOAT, ir.DataType.INT64)
    _check("TopK", [x, _int64(7)], {"axis": 1, "largest": largest}, dtypes=dtypes)


@pytest.mark.parametrize("center_point_box", [0, 1])
def test_non_max_suppression(center_point_box: int) -> None:
    boxes, scores = np.abs(_random(2, 60, 4)), _random(2, 3, 60, seed=1)
    limits = [_int64(9), np.array([0.4], dtype=np.float32), np.array([0.1], dtype=np.float32)]
    attrs = {"center_point_box": center_point_box}
    _check("NonMaxSuppression", [boxes, scores, *limits], attrs, dtypes=(ir.DataType.INT64,))


@pytest.mark.parametrize("mode", ["constant", "reflect", "edge", "wrap"])
def test_pad(mode: str) -> None:
    _check("Pad", [_random(2, 3, 4, 5), _int64(0, 1, 2, 3, 1, 0, 3, 2)], {"mode": mode})
    _check("Pad", [_random(2, 3, 4, 6), _int64(0, 1, -2, -1, 1, 0, 1, 3)], {"mode": mode})


@pytest.mark.parametrize("mode", ["linear", "nearest", "cubic"])
@pytest.mark.parametrize("padding_mode", ["zeros", "border", "reflection"])
@pytest.mark.parametrize("align_corners", [0, 1])
def test_grid_sample(mode: str, padding_mode: str, align_corners: int) -> None:
    attrs = {"mode": mode, "padding_mode": padding_mode, "align_corners": align_corners}
    grid = np.random.default_rng(1).uniform(-1.3, 1.3, (2, 4, 3, 2)).astype(np.float32)
    _check("GridSample", [_random(2, 3, 5, 6), grid], attrs)


@pytest.mark.parametrize("mode", ["avg", "max"])
@pytest.mark.parametrize("coordinates", ["half_pixel", "output_half_pixel"])
def test_roi_align(mode: str, coordinates: str) -> None:
    rois = np.array([[1, 2, 7, 9], [0, 0, 15, 15], [4, 4, 4.5, 5]], dtype=np.float32)
    attrs = {
        "mode": mode, "coordinate_transformation_mode": coordinates, "output_height": 3, "output_width": 2,
        "spatial_scale": 0.5, "sampling_ratio": 2,
    }  # fmt: skip
    _check("RoiAlign", [_random(2, 3, 8, 9), rois, _int64(0, 1, 1)], attrs)


def test_max_roi_pool() -> None:
    rois = np.array([[0, 1, 2, 7, 9], [1, 0, 0, 15, 15]], dtype=np.float32)
    _check("MaxRoiPool", [_random(2, 3, 8, 9), rois], {"pooled_shape": [3, 2], "spatial_scale": 0.5})


@pytest.mark.parametrize("p", [1, 2, 3])
def test_lp_pools(p: int) -> None:
    _check("GlobalLpPool", [_random(2, 3, 5, 6)], {"p": p})
    _check("LpPool", [_random(2, 3, 5, 6)], {"p": p, "kernel_shape": [2, 3], "strides": [2, 1]})


def test_local_response_normalization() -> None:
    _check("LRN", [_random(2, 7, 3, 4)], {"size": 3, "alpha": 0.5, "beta": 0.7, "bias": 1.5})


def test_fused_ops_of_onnx_runtime() -> None:
    x, skip, gain, shift, bias = (
        _random(2, 3, 8),
        _random(2, 3, 8, seed=1),
        *(_random(8, seed=i) for i in (2, 3, 4)),
    )
    _check("com.microsoft::FusedMatMul", [x, skip], {"transB": 1, "alpha": 0.5})
    _check("com.microsoft::BiasGelu", [x, bias], {})
    _check("com.microsoft::FastGelu", [x, bias], {})
    _check("com.microsoft::QuickGelu", [x], {"alpha": 1.5})
    _check("com.microsoft::SkipLayerNormalization", [x, skip, gain, shift, bias], {"epsilon": 1e-5})
    conv_attrs = {"activation": "LeakyRelu", "activation_params": [0.3], "pads": [1, 1, 1, 1]}
    _check("com.microsoft::FusedConv", [_random(1, 3, 6, 6), _random(4, 3, 3, 3), _random(4)], conv_attrs)
    _check("SimplifiedLayerNormalization", [x, gain], {"epsilon": 1e-5})
