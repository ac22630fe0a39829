"""Quantised models: legal ONNX in the lowest opset, run by ONNX Runtime, near the float model, or refused."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime as ort
import pytest
from quant_models import proto_of

import ridgeline
from ridgeline.errors import BuildError, InputError, OptionError
from ridgeline.options import DEFAULT_LIMITS
from ridgeline.precision.emulate import Emulator
from ridgeline.precision.quantised import Quantiser
from ridgeline.precision.quantize import Quantized, prepared, quantize, samples_of
from ridgeline.precision.schemes import scheme_named

RNG = np.random.default_rng(5)


def drawn(*shape: int) -> np.ndarray:
    return (RNG.standard_normal(shape) / np.sqrt(np.prod(shape[1:]))).astype(np.float32)


def ones(count: int) -> np.ndarray:
    return np.abs(RNG.standard_normal(count)).astype(np.float32) + 0.5


CNN = proto_of(
    """g (float[N,3,16,16] x) => (float[N,48] y) {
        c1 = Conv<pads = [1, 1, 1, 1]>(x, w1) n1 = BatchNormalization(c1, g1, b1, m1, v1) r1 = Relu(n1)
        p1 = MaxPool<kernel_shape = [2, 2], strides = [2, 2]>(r1)
        c2 = Conv<pads = [1, 1, 1, 1]>(p1, w2) n2 = BatchNormalization(c2, g1, b1, m1, v1) r2 = Relu(n2)
        c3 = Conv<pads = [1, 1, 1, 1]>(r2, w2) s = Add(c3, p1) r3 = Relu(s)
        d = Conv<group = 32, pads = [1, 1, 1, 1]>(r3, wd) r4 = Clip(d, zero, six)
        t = ConvTranspose(r4, wt) a = GlobalAveragePool(t) f = Flatten(a) y = Gemm<transB = 1>(f, w3, b3)
    }""",
    opset=13,
    w1=drawn(32, 3, 3, 3), w2=drawn(32, 32, 3, 3), wd=drawn(32, 1, 3, 3), wt=drawn(32, 32, 2, 2),
    w3=drawn(48, 32), b3=drawn(48), g1=ones(32), b1=drawn(32), m1=drawn(32), v1=ones(32),
    zero=np.zeros((), np.float32), six=np.full((), 6, np.float32),
)  # fmt: skip
MLP = proto_of(
    """g (float[N,S,64] x) => (float[N,S,64] y) {
        n = LayerNormalization(x, g, b) h = MatMul(n, w1) a = Gelu(h) m = MatMul(a, w2)
        o = Add(m, c) y = Add(o, x)
    }""",
    w1=drawn(64, 160), w2=drawn(160, 64), g=ones(64), b=drawn(64), c=drawn(64),
)  # fmt: skip
MODELS = {
    "cnn": (CNN, lambda n: {"x": RNG.standard_normal((n, 3, 16, 16)).astype(np.float32)}),
    "mlp": (MLP, lambda n: {"x": RNG.standard_normal((n, 7, 64)).astype(np.float32)}),
}
# what was seen is below half of each
BOUNDS = {
    "int8": 0.05, "uint8": 0.05, "fp8": 0.12, "w8": 0.02, "wfp8": 0.08, "w4": 0.25, "int4": 0.25,
    "nvfp4": 0.25, "mxfp8": 0.08,
}  # fmt: skip
OPSETS = {"fp8": 19, "wfp8": 19, "w4": 21, "int4": 21, "nvfp4": 23, "mxfp8": 24}


def made(name: str, fmt: str, **options) -> Quantized:
    model, draw = MODELS[name]
    return quantize(model, format=fmt, data=[draw(3) for _ in range(5)], **options)


def session(model: bytes | onnx.ModelProto) -> ort.InferenceSession:
    options = ort.SessionOptions()
    options.intra_op_num_threads = 1
    options.log_severity_level = 3
    # ONNX Runtime would else round the activations of weight-only products to int8 on its own
    options.add_session_config_entry("session.qdq_matmulnbits_accuracy_level", "1")
    return ort.InferenceSession(model if isinstance(model, bytes) else model.SerializeToString(), options)


@pytest.mark.parametrize("fmt", BOUNDS)
@pytest.mark.parametrize("name", MODELS)
def test_every_format_is_legal_and_near(name: str, fmt: str, tmp_path: Path) -> None:
    q = made(name, fmt, method="max")
    path = tmp_path / "q.onnx"
    q.save(path)
    onnx.checker.check_model(str(path), full_check=True)
    proto = onnx.load(path)
    floor = {"cnn": 13, "mlp": 20}[name]
    assert proto.opset_import[0].version == max(floor, OPSETS.get(fmt, 13))
    assert q.judged_rows > 0
    assert q.errors["y"] < BOUNDS[fmt]
    assert q.quantized_bytes < q.float_bytes * (0.8 if name == "mlp" or fmt == "w8" else 1.0)


@pytest.mark.parametrize("fmt", ["int8", "uint8", "w8", "w4"])
@pytest.mark.parametrize("name", MODELS)
def test_onnx_runtime_computes_what_the_emulator_judged(name: str, fmt: str, tmp_path: Path) -> None:
    """Within a quantisation step of what the output is made of: sums in another order may flip a level."""
    q = made(name, fmt, method="auto" if name == "mlp" else "percentile")
    q.save(tmp_path / "q.onnx")
    run = session((tmp_path / "q.onnx").read_bytes())
    emulator = Emulator(q.model)
    original = session(MODELS[name][0])
    for _ in range(3):
        feeds = MODELS[name][1](2)
        got, want = run.run(None, feeds)[0], emulator.run(feeds)["y"].numpy()
        distance = np.abs(want - original.run(None, feeds)[0]).max()
        assert np.abs(got - want).max() <= max(distance, 1e-5)


def test_batch_size_and_order_change_no_byte(tmp_path: Path) -> None:
    data = RNG.standard_normal((64, 2, 64)).astype(np.float32)
    files = []
    for i, (rows, size) in enumerate(((data, 1), (data, 64), (data[::-1].copy(), 8))):
        samples = [{"x": rows[j : j + size]} for j in range(0, 64, size)]
        quantize(MLP, data=samples, method="percentile").save(tmp_path / f"{i}.onnx")
        files.append((tmp_path / f"{i}.onnx").read_bytes())
    assert len(set(files)) == 1


def test_norms_are_folded_before_and_biases_stay_float() -> None:
    graph = made("cnn", "int8", method="max").model.graph
    assert "BatchNormalization" not in {node.op_type for node in graph}
    first = next(node for node in graph if node.op_type == "Conv")
    assert [value.producer().op_type for value in first.inputs[:2]] == ["DequantizeLinear"] * 2
    assert first.inputs[2].is_initializer()
    assert first.inputs[2].dtype.name == "FLOAT"


def test_reduced_range_keeps_pairs_of_products_inside_16_bits() -> None:
    q = made("mlp", "uint8", method="max", reduced_range=True)
    codes = [v.const_value.numpy() for n, v in q.model.graph.initializers.items() if n.endswith("_quantized")]
    assert max(np.abs(c.astype(int)).max() for c in codes) == 64
    assert 2 * 255 * 64 < 2**15


def test_the_decisions_name_every_product() -> None:
    q = made("cnn", "int8", method="max")
    weights = [d for d in q.decisions if d.role == "weight"]
    assert len(weights) == 6
    assert all(d.why for d in q.decisions)
    assert any(d.role == "residual" and d.scheme != "float" for d in q.decisions)
    left = made("cnn", "int8", method="max", exclude=["Gemm"])
    assert any(d.op == "Gemm" and "excluded by 'Gemm'" in d.why for d in left.decisions)


def test_the_calibration_file_serves_again_without_data(tmp_path: Path) -> None:
    path = tmp_path / "cal.json"
    first = made("mlp", "int8", calibration=path)
    assert not first.notes
    again = quantize(MLP, format="int8", calibration=path)
    assert again.ranges == first.ranges
    assert "ranges of cal.json" in again.notes[0]
    with pytest.raises(OptionError, match="another model"):
        quantize(CNN, format="int8", calibration=path)
    with pytest.raises(OptionError, match="another format"):
        quantize(MLP, format="uint8", calibration=path)
    other = made("mlp", "int8", calibration=path)
    assert "other data" in other.notes[0]


def test_ranges_serve_when_a_reader_stays_float() -> None:
    """The pair then stands behind the MaxPool, where the other reader does not see it."""
    text = """g (float[N,32,4,4] x) => (float[N,32,2,2] y, float[N,32,2,2] z) {
        r = Relu(x) p = MaxPool<kernel_shape = [2, 2], strides = [2, 2]>(r) y = Conv(p, w) z = Conv(p, v) }"""
    model, _ = prepared(proto_of(text, w=drawn(32, 32, 1, 1), v=drawn(32, 32, 1, 1)), DEFAULT_LIMITS)
    data = [{"x": RNG.standard_normal((2, 32, 4, 4)).astype(np.float32)} for _ in range(4)]
    samples = samples_of(data, model)
    made = Quantiser(model, scheme_named("int8"), samples, DEFAULT_LIMITS, method="max")
    for left in ([], ["y"]):
        graph = made.without(left).graph
        pair = next(node for node in graph if node.op_type == "QuantizeLinear")
        assert pair.inputs[0].name == ("p" if left else "r")


def test_weights_alone_need_no_data() -> None:
    assert not quantize(MLP, format="w4", block=32).errors
    with pytest.raises(OptionError, match="ranges come from data"):
        quantize(MLP, format="int8")


def test_public_name() -> None:
    assert ridgeline.quantize is quantize


BAD_DATA = [
    ({"z": np.zeros((1, 7, 64), np.float32)}, "nothing for input 'x'"),
    ({"x": np.zeros((1, 7, 65), np.float32)}, "another shape"),
    ({"x": np.zeros((1, 7, 64), np.int32)}, "another type"),
    ({"x": np.full((1, 7, 64), np.nan, np.float32)}, "NaN"),
    ({"x": np.full((1, 7, 64), np.inf, np.float32)}, "infinity"),
]


@pytest.mark.parametrize(("sample", "said"), BAD_DATA)
def test_bad_data_is_refused_and_nothing_is_written(sample, said: str, tmp_path: Path) -> None:
    with pytest.raises(OptionError, match=said):
        quantize(MLP, data=[sample], calibration=tmp_path / "c.json")
    assert not list(tmp_path.iterdir())


def test_bad_models_are_refused() -> None:
    with pytest.raises(OptionError, match="no sample"):
        quantize(MLP, data=[])
    nothing = proto_of("g (float[N,4] x) => (float[N,4] y) { y = MatMul(x, w) }", w=drawn(4, 4))
    with pytest.raises(BuildError, match="K = 4"):
        quantize(nothing, format="w8")
    infinite = np.full((64, 64), np.inf, np.float32)
    broken = proto_of("g (float[N,64] x) => (float[N,64] y) { y = MatMul(x, w) }", w=infinite)
    with pytest.raises(InputError, match="'w' have NaN or infinity"):
        quantize(broken, format="w8")


BAD_ARGUMENTS = [
    ({"exclude": 5}, "exclude is not a list"),
    ({"exclude": ["a", 5]}, "exclude is not a list"),
    ({"exclude": "absent"}, "'absent'; near"),
    ({"format": None}, "no format None"),
    ({"format": ["int8"]}, "no format"),
    ({"method": 5}, "no calibration method"),
    ({"smooth": "no"}, "smooth is not True or False"),
    ({"calibration": 5}, "calibration is not a path"),
    ({"block": "32", "format": "w4"}, "block size is not a whole number"),
]


@pytest.mark.parametrize(("given", "said"), BAD_ARGUMENTS)
def test_arguments_of_the_wrong_type_are_refused(given: dict[str, Any], said: str) -> None:
    with pytest.raises(OptionError, match=said):
        quantize(MLP, data=[{"x": np.zeros((1, 7, 64), np.float32)}], **given)


def test_a_path_that_cannot_be_written_is_said(tmp_path: Path) -> None:
    q = quantize(MLP, format="w8")
    with pytest.raises(OptionError, match="cannot be written"):
        q.save(tmp_path)
    with pytest.raises(OptionError, match="cannot be written"):
        q.save(tmp_path / "none" / "q.onnx")
