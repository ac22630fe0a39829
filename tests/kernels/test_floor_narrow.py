"""Numbers of four and two bits: every value to and from the types torch computes with, as in ml_dtypes."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import onnx_ir as ir
import pytest
import torch

from ridgeline.base.spec import Op
from ridgeline.frontend.types import ONNX_TYPES
from ridgeline.kernels.elements import (
    BIT_WIDTHS,
    SUB_BYTE,
    TORCH_DTYPES,
    as_numpy,
    cloned,
    dtype_name,
    fill,
    numpy_dtype,
    packed,
    to_torch,
    unpacked,
)
from ridgeline.kernels.floor import call_floor
from ridgeline.kernels.floor.sub_byte import bounds, closed, moved_as_bits, opened

NARROW = sorted(BIT_WIDTHS)
INTEGERS = [name for name in NARROW if "int" in name]


def every_value(name: str) -> np.ndarray:
    return np.arange(2 ** BIT_WIDTHS[name], dtype=np.uint8).view(numpy_dtype(name))


@pytest.mark.parametrize("name", sorted(TORCH_DTYPES))
def test_every_type_crosses_between_numpy_and_torch(name: str) -> None:
    array = np.arange(6).reshape(2, 3).astype(numpy_dtype(name))
    tensor = to_torch(array)
    assert dtype_name(tensor) == name
    assert tensor.shape == (2, 3)
    assert as_numpy(tensor).dtype == array.dtype
    assert as_numpy(tensor).tobytes() == array.tobytes()
    assert as_numpy(cloned(tensor)).tobytes() == array.tobytes()
    other = to_torch(np.zeros_like(array))
    fill(other, tensor)
    assert as_numpy(other).tobytes() == array.tobytes()


@pytest.mark.parametrize("name", NARROW)
def test_values_are_opened_as_ml_dtypes_reads_them(name: str) -> None:
    values = every_value(name)
    got = opened(to_torch(values)).numpy().astype(np.float64)
    want = values.astype(np.float64)
    assert np.array_equal(got, want)
    assert np.array_equal(np.signbit(got), np.signbit(want))


@pytest.mark.parametrize("name", INTEGERS)
@pytest.mark.parametrize("dtype", [np.float32, np.float64, np.int32, np.int8])
def test_integers_keep_their_low_bits(name: str, dtype: type) -> None:
    x = np.arange(-40, 41).astype(dtype) * (dtype(1) if np.issubdtype(dtype, np.integer) else dtype(0.75))
    got = closed(to_torch(x), TORCH_DTYPES[name])
    assert as_numpy(got).tobytes() == x.astype(numpy_dtype(name)).tobytes()


@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16", "float64"])
def test_float4_rounds_to_the_even_neighbour_and_saturates(dtype: str) -> None:
    x = np.concatenate([np.arange(-130, 131) / 16, [np.nan, np.inf, -np.inf, -0.0, 1e-9]])
    x = x.astype(numpy_dtype(dtype))
    got = closed(to_torch(x), TORCH_DTYPES["float4_e2m1fn"])
    assert as_numpy(got).tobytes() == x.astype(ml_dtypes.float4_e2m1fn).tobytes()


@pytest.mark.parametrize("name", INTEGERS)
def test_bounds_are_those_of_the_type(name: str) -> None:
    values = every_value(name).astype(np.int64)
    assert bounds(TORCH_DTYPES[name]) == (values.min(), values.max())


@pytest.mark.parametrize("name", NARROW)
def test_casts_there_and_back(name: str) -> None:
    there = Op("Cast", ("x",), ("y",), {"to": ONNX_TYPES[name]})
    back = Op("Cast", ("y",), ("z",), {"to": ONNX_TYPES["float32"]})
    values = every_value(name)
    (narrow,) = call_floor(there, [to_torch(values.astype(np.float32))])
    assert narrow.dtype in SUB_BYTE
    assert as_numpy(narrow).tobytes() == values.tobytes()
    assert np.array_equal(call_floor(back, [narrow])[0].numpy(), values.astype(np.float32))


@pytest.mark.parametrize("name", NARROW)
def test_quantised_values_stay_in_range(name: str) -> None:
    x = torch.linspace(-40, 40, 81)
    zero = to_torch(np.array(1).astype(numpy_dtype(name)))
    quantize = Op("QuantizeLinear", ("x", "s", "z"), ("y",))
    (got,) = call_floor(quantize, [x, torch.tensor(2.0), zero])
    if name == "float4_e2m1fn":
        want = (x.numpy() / 2).astype(ml_dtypes.float4_e2m1fn)
    else:
        levels = np.clip(np.round(x.numpy() / 2) + 1, *bounds(TORCH_DTYPES[name]))
        want = levels.astype(np.int32).astype(numpy_dtype(name))
    assert as_numpy(got).tobytes() == want.tobytes()


@pytest.mark.parametrize("name", NARROW)
def test_what_only_moves_moves_the_bits(name: str) -> None:
    array = np.arange(12).reshape(3, 4).astype(numpy_dtype(name))
    for op, want in (
        (Op("Transpose", ("x",), ("y",), {"perm": (1, 0)}), array.T),
        (Op("Concat", ("x", "x"), ("y",), {"axis": 1}), np.concatenate([array, array], 1)),
        (Op("Identity", ("x",), ("y",)), array),
    ):
        given = [to_torch(array)] * len(op.inputs)
        (made,) = moved_as_bits(lambda values, op=op: call_floor(op, values))(given)
        assert as_numpy(made).dtype == array.dtype
        assert as_numpy(made).tobytes() == np.ascontiguousarray(want).tobytes()


@pytest.mark.parametrize("name", NARROW)
@pytest.mark.parametrize("count", [0, 1, 3, 8, 13])
def test_bytes_are_packed_as_onnx_packs_them(name: str, count: int) -> None:
    values = (np.arange(count) % 2 ** BIT_WIDTHS[name]).astype(np.uint8)
    stored = packed(values, BIT_WIDTHS[name])
    assert stored.tobytes() == ir.tensor(values.view(numpy_dtype(name))).tobytes()
    assert np.array_equal(unpacked(stored, BIT_WIDTHS[name], count), values)
