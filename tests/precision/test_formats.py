"""The codecs are bit-exact against ml_dtypes and the ONNX reference, over all codes and special values."""

from __future__ import annotations

import numpy as np
import onnx
import onnx_ir as ir
import pytest
from onnx.reference import ReferenceEvaluator

from ridgeline.base.formats import FORMATS, every_code, from_codes, pack, to_codes, unpack
from ridgeline.base.scales import (
    PER_TENSOR,
    Granularity,
    affine_for,
    blocks,
    check_scale,
    check_zero_point,
    dequantize,
    encode,
    per_channel,
    quantize,
    scale_for,
    scales,
    scales_for,
)
from ridgeline.errors import InputError

ELEMENTS = [fmt for fmt in FORMATS.values() if not fmt.block]
FLOATS = [fmt for fmt in ELEMENTS if not fmt.is_integer]
INTEGERS = [fmt for fmt in ELEMENTS if fmt.is_integer]


def probes(fmt) -> np.ndarray:
    """Every value of the format, its neighbours, every midpoint, subnormals, specials, beyond the range."""
    values = np.unique(from_codes(every_code(fmt), fmt).astype(np.float64))
    values = values[np.isfinite(values)]
    middles = (values[1:] + values[:-1]) / 2
    near = np.concatenate([values, middles]).astype(np.float32)
    around = [np.nextafter(near, np.float32(s * np.inf), dtype=np.float32) for s in (1, -1)]
    special = np.array(
        [0.0, -0.0, np.inf, -np.inf, 1e-45, -1e-45, 1e-39, 3e38, -3e38, 1e10, -1e10], np.float32
    )
    return np.concatenate([near, *around, special])


def reference(op: str, inputs: dict[str, np.ndarray], *, opset: int = 24, **attributes: int) -> np.ndarray:
    kinds = {name: ir.TensorType(ir.tensor(array).dtype) for name, array in inputs.items()}
    ports = [ir.Value(name=n, type=kinds[n], shape=ir.Shape(a.shape)) for n, a in inputs.items()]
    node = ir.node(op, ports, attributes)
    node.outputs[0].name = "y"
    graph = ir.Graph(ports, node.outputs, nodes=[node], name="g", opset_imports={"": opset})
    proto = ir.to_proto(ir.Model(graph, ir_version=11))
    with np.errstate(all="ignore"):
        return ReferenceEvaluator(proto).run(None, inputs)[0]


def same_bits(a: np.ndarray, b: np.ndarray) -> bool:
    return a.dtype == b.dtype and a.shape == b.shape and a.tobytes() == b.tobytes()


@pytest.mark.parametrize("fmt", FORMATS.values(), ids=str)
def test_every_code_survives_packing(fmt) -> None:
    codes = every_code(fmt)
    assert codes.size == 2**fmt.bits
    assert same_bits(unpack(pack(codes, fmt), fmt, codes.shape), codes)
    odd = codes[:-1].reshape(-1, 3) if fmt.bits == 4 else codes[1:].reshape(-1, 3)
    assert same_bits(unpack(pack(odd, fmt), fmt, odd.shape), odd)
    assert pack(odd[:0], fmt).size == 0


@pytest.mark.parametrize("fmt", FORMATS.values(), ids=str)
def test_packed_bytes_are_those_onnx_stores(fmt) -> None:
    """Low half first, and an odd count padded with zero."""
    codes = every_code(fmt)[: 2**fmt.bits - 1]
    stored = onnx.numpy_helper.from_array(codes)
    assert stored.data_type == fmt.onnx_type
    assert stored.raw_data == pack(codes, fmt).tobytes()
    if fmt.bits == 4:
        assert pack(every_code(fmt)[[1, 2, 3]], fmt).tolist() == [0x21, 0x03]


@pytest.mark.parametrize("fmt", FLOATS, ids=str)
def test_float_codes_are_ml_dtypes_own(fmt) -> None:
    for code in every_code(fmt):
        value = from_codes(np.array([code]), fmt)
        assert value.tobytes() == np.array([code]).astype(np.float32).tobytes()
        if np.isfinite(value).all():
            assert same_bits(to_codes(value, fmt), np.array([code]))
    inside = probes(fmt)
    inside = inside[np.abs(inside) <= fmt.largest]
    assert same_bits(to_codes(inside, fmt), inside.astype(fmt.dtype))
    beyond = np.array([fmt.largest * 1.01, np.inf, -3e38, -np.inf], np.float32)
    assert from_codes(to_codes(beyond, fmt), fmt).tolist() == [fmt.largest] * 2 + [-fmt.largest] * 2


def test_nan_follows_what_the_module_says() -> None:
    nan = np.array([np.nan], np.float32)
    for fmt in INTEGERS:
        assert to_codes(nan, fmt).astype(int).tolist() == [fmt.lowest]
    assert np.isnan(from_codes(to_codes(nan, FORMATS["fp8"]), FORMATS["fp8"])).all()
    assert np.isnan(from_codes(to_codes(nan, FORMATS["fp8_e5m2"]), FORMATS["fp8_e5m2"])).all()
    assert pack(to_codes(nan, FORMATS["fp4"]), FORMATS["fp4"]).tolist() == [8]


@pytest.mark.parametrize("scale", [1.0, 0.1, 3.0, 2.0**-126, 1e30])
@pytest.mark.parametrize("fmt", ELEMENTS, ids=str)
def test_quantize_is_the_onnx_reference(fmt, scale: float) -> None:
    step = np.float32(scale)
    with np.errstate(over="ignore"):
        x = probes(fmt) * step
    # beyond int32 the ONNX reference wraps where ONNX Runtime and ridgeline saturate (docs/semantics.md)
    if fmt.is_integer:
        with np.errstate(over="ignore"):
            x = x[np.abs(x / step) < 2**31]
    got = quantize(x, np.asarray(step), None, fmt)
    assert same_bits(
        got, reference("QuantizeLinear", {"x": x, "s": np.asarray(step)}, output_dtype=fmt.onnx_type)
    )


@pytest.mark.parametrize("fmt", INTEGERS, ids=str)
def test_quantize_with_zero_points_is_the_onnx_reference(fmt) -> None:
    x = probes(fmt)
    x = x[np.abs(x) < 1e9]
    for zero in (fmt.lowest, -1 if fmt.is_signed else 1, 3, fmt.largest):
        point = np.asarray(zero).astype(np.int32).astype(fmt.dtype)
        feeds = {"x": x, "s": np.asarray(np.float32(0.37)), "z": point}
        codes = quantize(x, feeds["s"], point, fmt)
        assert same_bits(codes, reference("QuantizeLinear", feeds))
        feeds["x"] = codes
        assert same_bits(dequantize(codes, feeds["s"], point, fmt), reference("DequantizeLinear", feeds))


@pytest.mark.parametrize("fmt", ELEMENTS, ids=str)
def test_dequantize_is_the_onnx_reference(fmt) -> None:
    codes = every_code(fmt)
    for scale in (1.0, 0.1, 1e-40, 3e38):
        step = np.asarray(np.float32(scale))
        with np.errstate(over="ignore"):
            want = reference("DequantizeLinear", {"x": codes, "s": step})
        assert same_bits(dequantize(codes, step, None, fmt), want)


@pytest.mark.parametrize("fmt", FLOATS, ids=str)
def test_saturating_cast_is_the_onnx_reference(fmt) -> None:
    x = np.append(probes(fmt), np.float32(np.nan))
    assert same_bits(to_codes(x, fmt), reference("Cast", {"x": x}, to=fmt.onnx_type, saturate=1))


GRAINS = [
    PER_TENSOR,
    per_channel(0),
    per_channel(1),
    per_channel(-1),
    blocks(1, 4),
    blocks(-1, 3),
    blocks(0, 2),
]


@pytest.mark.parametrize("grain", GRAINS, ids=str)
@pytest.mark.parametrize("fmt", ELEMENTS, ids=str)
def test_every_granularity_is_the_onnx_reference(fmt, grain: Granularity) -> None:
    """Odd sizes: the last block of 4 along 10 holds two, of 3 along 7 one."""
    array = np.random.default_rng(1).standard_normal((5, 10, 7)).astype(np.float32)
    array[0, 0] = 0
    for symmetric in (True, False) if fmt.is_integer else (True,):
        made = encode(array, fmt, grain, symmetric=symmetric)
        assert made.scale.shape == grain.scale_shape(array.shape)
        where = {} if grain.is_per_tensor else {"axis": grain.axis, "block_size": grain.block}
        feeds = {"x": array, "s": made.scale}
        if made.zero_point is not None:
            feeds["z"] = made.zero_point
        kind = {} if made.zero_point is not None else {"output_dtype": fmt.onnx_type}
        assert same_bits(made.codes, reference("QuantizeLinear", feeds, **where, **kind))
        assert same_bits(made.decoded(), reference("DequantizeLinear", {**feeds, "x": made.codes}, **where))
        # half a step, or half the spacing of the format's largest values
        spacing = 1 if fmt.is_integer else {"fp8": 32, "fp8_e5m2": 8192, "fp4": 2}[fmt.name]
        step = grain.spread(made.scale.astype(np.float64), array.shape)
        assert (np.abs(made.decoded() - array) <= step * spacing * 0.5001).all()


def test_nvfp4_is_two_dequantize_linears() -> None:
    rng = np.random.default_rng(2)
    array = (rng.standard_normal((6, 40)) * np.exp2(rng.integers(-20, 20, (6, 40)))).astype(np.float32)
    array[1] = 0
    made = encode(array, FORMATS["nvfp4"], blocks(1, 16))
    assert made.scale.shape == (6, 3)
    assert made.scale.dtype == FORMATS["nvfp4"].scale_type
    assert made.scale[1].astype(np.float32).tolist() == [1, 1, 1]
    assert made.tensor_scale is not None
    assert made.tensor_scale == np.float32(np.abs(array).max().astype(np.float64) / (6 * 448))
    step = reference("DequantizeLinear", {"x": made.scale, "s": made.tensor_scale})
    want = reference("DequantizeLinear", {"x": made.codes, "s": step}, axis=1, block_size=16)
    assert same_bits(made.decoded(), want)
    assert same_bits(
        made.codes,
        reference("QuantizeLinear", {"x": array, "s": step}, axis=1, block_size=16, output_dtype=23),
    )
    assert made.nbytes() == 120 + 18 + 4


def test_mxfp8_scales_are_powers_of_two_and_nothing_saturates() -> None:
    rng = np.random.default_rng(3)
    array = (rng.standard_normal((4, 70)) * np.exp2(rng.integers(-60, 60, (4, 70)))).astype(np.float32)
    array[2] = 0
    made = encode(array, FORMATS["mxfp8"], blocks(1, 32))
    assert made.scale.shape == (4, 3)
    spread = blocks(1, 32).spread(made.step(), array.shape)
    assert (np.abs(array / spread) <= 448).all()
    want = reference(
        "DequantizeLinear", {"x": made.codes, "s": made.scale}, axis=1, block_size=32, output_dtype=1
    )
    assert made.decoded().tobytes() == want.astype(np.float32).tobytes()
    assert (made.decoded()[2] == 0).all()


@pytest.mark.parametrize(
    "amax", [448.0, 448.0 * 2**-10, np.nextafter(np.float32(448), 500), 1e-45, 3.4e38, 0.0]
)
def test_e8m0_rounds_up(amax: float) -> None:
    """The least power of two that holds the range, within what E8M0 can say."""
    scale = float(scale_for(amax, FORMATS["mxfp8"]).astype(np.float64))
    assert scale * 448 >= amax
    assert scale == 2.0**-127 or scale / 2 * 448 < amax


def test_scales_of_ranges() -> None:
    assert scale_for(127.0, FORMATS["int8"]) == 1
    assert scale_for(0.0, FORMATS["int8"]) == 1
    assert scale_for(1e-45, FORMATS["fp8"]) == np.finfo(np.float32).tiny
    scale, zero = affine_for(np.asarray(0.0), np.asarray(255.0), FORMATS["uint8"])
    assert (float(scale), int(zero)) == (1.0, 0)
    scale, zero = affine_for(np.asarray(-1.0), np.asarray(-0.5), FORMATS["uint8"])  # widened to hold zero
    assert (np.float32(1 / 255), 255) == (scale, int(zero))
    scale, zero = scales_for(np.asarray(-2.0), np.asarray(1.0), FORMATS["uint8"])
    assert (scale, int(zero)) == (np.float32(2 / 127), 128)
    signed, none = scales(np.array([-2.0, 1.0], np.float32), FORMATS["int8"], PER_TENSOR)
    assert none is None
    assert signed == scale
    for bad in (np.nan, np.inf, -1.0):
        with pytest.raises(InputError, match="not finite"):
            scale_for(bad, FORMATS["int8"])
    with pytest.raises(InputError, match="not finite"):
        encode(np.array([1, np.nan], np.float32), FORMATS["nvfp4"], blocks(0, 16))


@pytest.mark.parametrize("shape", [(0,), (0, 3), (1,), (1, 1)])
def test_empty_and_single_elements(shape: tuple[int, ...]) -> None:
    array = np.full(shape, -0.75, np.float32)
    for grain in (PER_TENSOR, per_channel(0), blocks(0, 16)):
        made = encode(array, FORMATS["int8"], grain)
        assert made.decoded().shape == shape
        assert np.allclose(made.decoded(), array, atol=0.01)


@pytest.mark.parametrize("bad", [0.0, -1.0, np.nan, np.inf])
def test_bad_scales_are_refused(bad: float) -> None:
    scale = np.array([1, bad, 2], np.float32)
    with pytest.raises(InputError, match=r"(?s)'w'.*1 values.*at \[1\]"):
        check_scale(scale, (3, 5), per_channel(0), where="'w'")
    with pytest.raises(InputError, match=r"(?s)wrong shape.*\[5\], per channel, axis 1"):
        check_scale(np.ones(3, np.float32), (3, 5), per_channel(1), where="'w'")


def test_bad_zero_points_are_refused() -> None:
    scale = np.ones(2, np.float32)
    with pytest.raises(InputError, match=r"(?s)uint8\[2\].*int8\[2\]"):
        check_zero_point(np.zeros(2, np.uint8), scale, FORMATS["int8"], where="'w'")
    with pytest.raises(InputError, match="does not fit its scale"):
        check_zero_point(np.zeros(3, np.int8), scale, FORMATS["int8"], where="'w'")
    with pytest.raises(InputError, match="not zero"):
        check_zero_point(np.ones(2).astype(FORMATS["fp8"].dtype), scale, FORMATS["fp8"], where="'w'")


def test_wrong_sizes() -> None:
    with pytest.raises(InputError, match="wrong size"):
        unpack(np.zeros(3, np.uint8), FORMATS["int4"], (4,))
    with pytest.raises(InputError, match="no axis 3"):
        per_channel(3).scale_shape((1, 2))
