"""Element types on the floor: unsigned integers that torch computes little in, half sums, refusals."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import pytest
import torch

from ridgeline.base.spec import Op, TensorSpec
from ridgeline.kernels.floor import FLOOR, call_floor
from ridgeline.kernels.floor.dtypes import to_tensor

UNSIGNED = [np.uint16, np.uint32, np.uint64]


def _run(key: str, *inputs: Any, **attrs: Any) -> torch.Tensor:
    with torch.inference_mode():
        result = call_floor(
            Op(key, (), ("y",), attrs), [None if x is None else to_tensor(x) for x in inputs]
        )[0]
    assert result is not None
    return result


@pytest.mark.parametrize("dtype", UNSIGNED)
@pytest.mark.parametrize(
    ("key", "function"),
    [
        ("Add", np.add), ("Sub", np.subtract), ("Mul", np.multiply), ("Div", np.floor_divide),
        ("Mod", np.mod), ("Max", np.maximum), ("Min", np.minimum), ("Less", np.less),
        ("GreaterOrEqual", np.greater_equal), ("Equal", np.equal), ("BitwiseAnd", np.bitwise_and),
        ("BitwiseXor", np.bitwise_xor), ("Pow", np.power),
    ],
)  # fmt: skip
def test_unsigned_arithmetic(dtype: Any, key: str, function: Any) -> None:
    a, b = np.array([7, 200, 60000, 3], dtype=dtype), np.array([2, 3, 1, 3], dtype=dtype)
    got = _run(key, a, b)
    want = function(a, b)
    assert str(got.dtype).removeprefix("torch.") == want.dtype.name
    np.testing.assert_array_equal(got.numpy(), want)


def test_uint64_above_the_signed_range_is_compared_and_shifted() -> None:
    big, small = np.array([2**64 - 1], dtype=np.uint64), np.array([5], dtype=np.uint64)
    assert _run("Greater", big, small).item() is True
    assert _run("BitShift", big, small, direction="RIGHT").numpy()[0] == (2**64 - 1) >> 5


LARGE = np.array([0, 1, 7, 2**63 - 1, 2**63, 2**63 + 1, 2**64 - 2, 2**64 - 1], dtype=np.uint64)


@pytest.mark.parametrize(
    ("key", "function", "attrs"),
    [
        ("Div", np.floor_divide, {}), ("Mod", np.mod, {}), ("Mod", np.fmod, {"fmod": 1}),
        ("Max", np.maximum, {}), ("Min", np.minimum, {}), ("Add", np.add, {}), ("Mul", np.multiply, {}),
    ],
)  # fmt: skip
def test_uint64_above_the_signed_range(key: str, function: Any, attrs: dict[str, int]) -> None:
    a, b = np.repeat(LARGE, len(LARGE)), np.tile(LARGE, len(LARGE))
    with np.errstate(all="ignore"):
        want = function(a, b)
    np.testing.assert_array_equal(_run(key, a, b, **attrs).numpy(), want)


def test_uint64_above_the_signed_range_is_clipped_and_picked() -> None:
    np.testing.assert_array_equal(_run("Abs", LARGE).numpy(), LARGE)
    np.testing.assert_array_equal(_run("Sign", LARGE).numpy(), np.sign(LARGE))
    low, high = np.array(5, np.uint64), np.array(2**63 + 1, np.uint64)
    np.testing.assert_array_equal(_run("Clip", LARGE, low, high).numpy(), np.clip(LARGE, low, high))
    np.testing.assert_array_equal(_run("Clip", LARGE, high).numpy(), np.maximum(LARGE, high))
    assert _run("ReduceMax", LARGE, keepdims=0).numpy() == 2**64 - 1
    assert _run("ReduceMin", LARGE[1:], keepdims=0).numpy() == 1
    np.testing.assert_array_equal(_run("TopK", LARGE, np.array([2])).numpy(), [2**64 - 1, 2**64 - 2])


@pytest.mark.parametrize("dtype", [np.int8, np.int32, np.int64])
@pytest.mark.parametrize("key", ["Div", "Mod"])
def test_divisions_never_trap(key: str, dtype: Any) -> None:
    """The least value over -1 wraps, and by zero comes zero: processors stop at both."""
    least = np.iinfo(dtype).min
    a, b = np.array([least, 5, -5, least], dtype), np.array([-1, 0, 0, 0], dtype)
    want = [least if key == "Div" else 0, 0, 0, 0]
    np.testing.assert_array_equal(_run(key, a, b).numpy(), np.array(want, dtype))
    np.testing.assert_array_equal(_run("Mod", a, b, fmod=1).numpy(), np.zeros(4, dtype))


@pytest.mark.parametrize("dtype", [np.int64, np.uint64, np.int32, np.bool_])
def test_padding_keeps_every_digit(dtype: Any) -> None:
    value = np.array(1 if dtype == np.bool_ else np.iinfo(dtype).max - 1, dtype)
    got = _run("Pad", np.zeros((2, 2), dtype), np.array([0, 1, 1, 0]), value)
    want = np.pad(np.zeros((2, 2), dtype), [(0, 1), (1, 0)], constant_values=value)
    np.testing.assert_array_equal(got.numpy(), want)


def test_the_sign_of_nan_is_nan() -> None:
    assert np.array_equal(
        _run("Sign", np.array([np.nan, -2, 0, np.inf], "f4")).numpy(), [np.nan, -1, 0, 1], equal_nan=True
    )


@pytest.mark.parametrize("dtype", [np.float32, np.float64, np.float16])
def test_remainders_of_large_ratios_are_exact(dtype: Any) -> None:
    a = np.array([6e4, 12345.678, -5e4, 5.5], dtype) * (dtype(1) if dtype == np.float16 else dtype(1e20))
    b = np.array([3e-3, 0.7, 1e-3, -2.25], dtype)
    np.testing.assert_array_equal(_run("Mod", a, b, fmod=1).numpy(), np.fmod(a, b))


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_half_sums_keep_float32_state(dtype: torch.dtype) -> None:
    x = torch.full((1, 1, 300, 300), 0.5, dtype=dtype)
    assert _run("ReduceMean", x).item() == 0.5
    assert _run("GlobalAveragePool", x).item() == 0.5
    # the squares' sum overflows float16, its root does not
    assert _run("ReduceL2", x * 4).item() == 600
    assert torch.isfinite(_run("RMSNormalization", x * 1000, torch.ones(300, dtype=dtype))).all()


def test_integer_division_truncates() -> None:
    got = _run("Div", np.array([-7, 7, -1]), np.array([2, -2, 2]))
    assert got.tolist() == [-3, -3, 0]


def test_power_keeps_the_type_of_the_base() -> None:
    assert _run("Pow", np.array([2, 3], dtype=np.int32), np.array([2.0, 0.5], dtype=np.float32)).tolist() == [
        4,
        1,
    ]
    assert (
        _run("Pow", np.array([2.0], dtype=np.float32), np.array([3], dtype=np.int64)).dtype == torch.float32
    )


@pytest.mark.parametrize("name", ["bfloat16", "float8_e4m3fn", "float8_e5m2"])
def test_arrays_of_ml_dtypes_become_tensors(name: str) -> None:
    array = np.array([0.5, -2.0, 1.0]).astype(getattr(ml_dtypes, name))
    tensor = to_tensor(array)
    assert str(tensor.dtype) == f"torch.{name}"
    assert tensor.float().tolist() == [0.5, -2.0, 1.0]


def test_types_without_a_tensor_are_refused_with_a_reason() -> None:
    refuse = FLOOR["Cast"].why_not
    assert refuse is not None
    specs = {"x": TensorSpec("float32", (2,)), "s": TensorSpec("string", (2,))}
    assert refuse(Op("Cast", ("x",), ("y",), {"to": 7}), specs) is None
    assert refuse(Op("Cast", ("x",), ("y",), {"to": 8}), specs) == "type number 8 has no torch tensor"
    assert (
        refuse(Op("Cast", ("s",), ("y",), {"to": 1}), specs) == "s is string, which torch tensors do not hold"
    )
